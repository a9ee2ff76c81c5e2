//! `cargo xtask bindings`: does a C compiler lay out the NCCL net structs, and those of libibverbs, libfabric, CUDA and
//! HIP, as `trunkline-sys` does?
//!
//! Called by developers and by `ci`. A small C program, generated from the same names, prints sizes, offsets, constants
//! and whether prototypes agree; they are compared one by one. `--header` uses NCCL's own header instead of ours.

mod gpu;
mod layouts;
mod ofi;
mod prototypes;
mod verbs;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::report::CheckFindings;
use crate::shell;
use crate::workspace::Workspace;

/// Our own header, relative to the root.
const HEADER: &str = "tools/xtask/bindings/nccl_net.h";

/// A measured fact, keyed by the C expression that yields it: `sizeof(ncclNet_v6_t)`.
type HeaderFacts = BTreeMap<String, i64>;

/// Compares against our own header.
///
/// # Errors
/// The header does not compile, or the probe does not run.
pub(crate) fn run(workspace: &Workspace) -> Result<CheckFindings> {
    run_against(workspace, &workspace.root.join(HEADER))
}

/// Compares against any header that declares the interface.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_against(workspace: &Workspace, header: &Path) -> Result<CheckFindings> {
    if shell::find_program("cc").is_none() {
        return Ok(CheckFindings::with_skip("no C compiler (package gcc)"));
    }
    let mut rust = rust_facts();
    if let Some(sys) = workspace.find_crate("sys") {
        rust.extend(prototypes::prototype_checks(&sys.dir)?.into_iter().map(|expression| (expression, 1)));
    }
    let c = measure_facts(header, rust.keys())?;
    let mut findings = compare_facts(&rust, &c);
    findings.add_note(format!("{} sizes, offsets, constants and prototypes compared", rust.len()));
    Ok(findings)
}

/// Compares the types of libibverbs against its header, where that is installed.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_verbs(workspace: &Workspace) -> Result<CheckFindings> {
    run_verbs_against(workspace, Path::new(verbs::HEADER))
}

fn run_verbs_against(workspace: &Workspace, header: &Path) -> Result<CheckFindings> {
    if shell::find_program("cc").is_none() {
        return Ok(CheckFindings::with_skip("no C compiler (package gcc)"));
    }
    let system = Path::new("/usr/include").join(verbs::HEADER);
    if !system.exists() {
        return Ok(CheckFindings::with_skip("no infiniband/verbs.h (package libibverbs-dev)"));
    }
    let Some(sys) = workspace.find_crate("sys") else { anyhow::bail!("there is no crate sys") };
    let rust = verbs::verbs_facts(&sys.dir)?;
    let mut findings = compare_facts(&rust, &measure_facts(header, rust.keys())?);
    findings.add_note(format!("{} sizes, offsets, constants and prototypes compared", rust.len()));
    Ok(findings)
}

/// Compares the types of libfabric against its headers, where those are installed.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_ofi(workspace: &Workspace) -> Result<CheckFindings> {
    run_ofi_against(workspace, &workspace.root.join(ofi::HEADER))
}

fn run_ofi_against(workspace: &Workspace, header: &Path) -> Result<CheckFindings> {
    if shell::find_program("cc").is_none() {
        return Ok(CheckFindings::with_skip("no C compiler (package gcc)"));
    }
    if !is_installed(ofi::KNOWN_BY)? {
        return Ok(CheckFindings::with_skip(format!("no {} (package libfabric-dev)", ofi::KNOWN_BY)));
    }
    let Some(sys) = workspace.find_crate("sys") else { anyhow::bail!("there is no crate sys") };
    let rust = ofi::ofi_facts(&sys.dir)?;
    let mut findings = compare_facts(&rust, &measure_facts(header, rust.keys())?);
    findings.add_note(format!("{} sizes, offsets, constants and prototypes compared", rust.len()));
    Ok(findings)
}

/// Compares the tables of CUDA against NVIDIA's header, where that is installed.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_cuda(workspace: &Workspace) -> Result<CheckFindings> {
    run_gpu(workspace, &gpu::CUDA)
}

/// Compares the tables of HIP against AMD's headers, where those are installed.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_hip(workspace: &Workspace) -> Result<CheckFindings> {
    run_gpu(workspace, &gpu::HIP)
}

/// Compares the table of Level Zero against Intel's header, where that is installed.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_ze(workspace: &Workspace) -> Result<CheckFindings> {
    run_gpu(workspace, &gpu::ZE)
}

fn run_gpu(workspace: &Workspace, interface: &gpu::VendorInterface) -> Result<CheckFindings> {
    if shell::find_program("cc").is_none() {
        return Ok(CheckFindings::with_skip("no C compiler (package gcc)"));
    }
    if !is_installed(interface.known_by)? {
        return Ok(CheckFindings::with_skip(format!("no {} ({})", interface.known_by, interface.package)));
    }
    run_gpu_against(workspace, interface, &workspace.root.join(interface.header))
}

fn run_gpu_against(
    workspace: &Workspace,
    interface: &gpu::VendorInterface,
    header: &Path,
) -> Result<CheckFindings> {
    let text = preprocess_header(header)?;
    let is_word =
        |name: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    if let Some((name, since)) = interface.young.iter().find(|(name, _)| !is_word(name)) {
        let found = format!("{} has no {name}, which {since} has", interface.known_by);
        return Ok(CheckFindings::with_skip(format!("{found} ({})", interface.package)));
    }
    let Some(sys) = workspace.find_crate("sys") else { anyhow::bail!("there is no crate sys") };
    let rust = gpu::interface_facts(interface, &sys.dir)?;
    let mut findings = compare_facts(&rust, &measure_facts(header, rust.keys())?);
    findings.add_note(format!("{} sizes, offsets, constants and prototypes compared", rust.len()));
    Ok(findings)
}

/// A header, and all that it includes.
fn preprocess_header(header: &Path) -> Result<String> {
    let mut cc = Command::new("cc");
    if let Some(folder) = header.parent() {
        cc.arg("-I").arg(folder);
    }
    shell::run_captured(cc.args(VENDORS).args(["-E", "-P"]).arg(header))
}

/// Whether the C compiler finds a header.
fn is_installed(header: &str) -> Result<bool> {
    let dir = tempfile::tempdir().context("a temporary folder")?;
    let source = dir.path().join("probe.c");
    std::fs::write(&source, format!("#if __has_include(<{header}>)\nthere\n#endif\n"))?;
    let out = shell::run_captured(Command::new("cc").args(["-E", "-P"]).args(VENDORS).arg(&source))?;
    Ok(out.contains("there"))
}

/// The folders of GPU vendors' headers, searched after those that the C compiler knows.
const VENDORS: [&str; 4] = ["-idirafter", "/usr/local/cuda/include", "-idirafter", "/opt/rocm/include"];

fn compare_facts(rust: &HeaderFacts, c: &HeaderFacts) -> CheckFindings {
    let mut findings = CheckFindings::default();
    for (expression, ours) in rust {
        match c.get(expression) {
            Some(theirs) if theirs == ours => {}
            Some(theirs) => findings.add_finding(expression, format!("{theirs} in C, {ours} in crates/sys")),
            None => findings.add_finding(expression, "the C program did not print it"),
        }
    }
    findings
}

/// The facts of NCCL's interface according to Rust.
fn rust_facts() -> HeaderFacts {
    let mut facts = HeaderFacts::new();
    for layout in layouts::all_layouts() {
        let c = layout.c;
        facts.insert(format!("sizeof({c})"), as_fact(layout.size));
        facts.insert(format!("_Alignof({c})"), as_fact(layout.align));
        for (field, offset, size) in layout.fields {
            let field = camel_case(field);
            facts.insert(format!("offsetof({c}, {field})"), as_fact(offset));
            facts.insert(format!("sizeof((({c}*)0)->{field})"), as_fact(size));
        }
    }
    facts.extend(layouts::net_constants().into_iter().map(|(name, value)| (name.to_owned(), value)));
    facts
}

fn as_fact(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Makes a C compiler evaluate every expression.
fn measure_facts<'a>(header: &Path, expressions: impl Iterator<Item = &'a String>) -> Result<HeaderFacts> {
    let dir = tempfile::tempdir().context("a temporary folder")?;
    let source = dir.path().join("probe.c");
    let program = dir.path().join("probe");
    let mut text = format!("#include <stdio.h>\n#include <stddef.h>\n#include \"{}\"\n", header.display());
    text += "int main(void) {\n";
    for expression in expressions {
        writeln!(text, "  printf(\"%lld\\t{expression}\\n\", (long long)({expression}));")?;
    }
    text += "  return 0;\n}\n";
    std::fs::write(&source, text).context("writing the probe")?;
    let mut cc = Command::new("cc");
    if let Some(folder) = header.parent() {
        cc.arg("-I").arg(folder);
    }
    shell::run_captured(cc.args(VENDORS).args(["-std=gnu11", "-Wall", "-o"]).arg(&program).arg(&source))?;
    let out = shell::run_captured(&mut Command::new(&program))?;
    out.lines()
        .map(|line| {
            let (value, expression) = line.split_once('\t').context("the probe's output")?;
            Ok((expression.to_owned(), value.parse().context("the probe's output")?))
        })
        .collect()
}

/// The interface's spelling of our field names: `pci_path` is `pciPath`.
fn camel_case(name: &str) -> String {
    let mut out = String::new();
    let mut upper = false;
    for c in name.chars() {
        if c == '_' {
            upper = true;
        } else {
            out.push(if upper { c.to_ascii_uppercase() } else { c });
            upper = false;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("bindings/nccl_net.h")
    }

    #[test]
    fn the_tables_agree_with_c() {
        assert_eq!(run_against(&Workspace::current().unwrap(), &header()).unwrap().broken, []);
    }

    /// The findings against our header with some words replaced; `None` without a compiler.
    fn against_altered(words: &[(&str, &str)]) -> Option<CheckFindings> {
        shell::find_program("cc")?;
        let dir = tempfile::tempdir().unwrap();
        let mut text = std::fs::read_to_string(header()).unwrap();
        for (from, to) in words {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let path = dir.path().join("nccl_net.h");
        std::fs::write(&path, text).unwrap();
        Some(run_against(&Workspace::current().unwrap(), &path).unwrap())
    }

    #[test]
    fn a_shifted_field_is_caught() {
        let moved = [
            ("int maxMultiRequestSize; int16_t railId", "int16_t railId"),
            ("planeId;", "planeId; int maxMultiRequestSize;"),
        ];
        let Some(findings) = against_altered(&moved) else { return };
        assert!(findings.mentions("offsetof(ncclNetProperties_v12_t, railId): 120 in C, 124"));
    }

    #[test]
    fn an_argument_of_another_type_is_caught() {
        let changed = [("CONNECT_V7, REG(size_t), DATA(int)", "CONNECT_V7, REG(size_t), DATA(size_t)")];
        let Some(findings) = against_altered(&changed) else { return };
        assert!(findings.mentions("((ncclNet_v8_t*)0)->isend"));
        assert!(findings.mentions("((ncclNet_v8_t*)0)->irecv"));
        assert_eq!(findings.broken.len(), 2);
    }

    /// The findings against the library's header with some words replaced; `None` without the header.
    fn against_altered_verbs(words: &[(&str, &str)]) -> Option<CheckFindings> {
        shell::find_program("cc")?;
        let mut text = std::fs::read_to_string(Path::new("/usr/include").join(verbs::HEADER)).ok()?;
        for (from, to) in words {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("verbs.h");
        std::fs::write(&path, text).unwrap();
        Some(run_verbs_against(&Workspace::current().unwrap(), &path).unwrap())
    }

    #[test]
    fn the_tables_of_verbs_agree_with_c() {
        // The check itself counts as skipped without a header.
        assert_eq!(run_verbs(&Workspace::current().unwrap()).unwrap().broken, []);
    }

    #[test]
    fn a_field_of_verbs_that_moves_is_caught() {
        let moved = [(
            "\tuint32_t\t\tmax_send_wr;\n\tuint32_t\t\tmax_recv_wr;",
            "\tuint32_t max_recv_wr, max_send_wr;",
        )];
        let Some(findings) = against_altered_verbs(&moved) else { return };
        assert!(findings.mentions("offsetof(struct ibv_qp_cap, max_send_wr): 4 in C, 0"));
    }

    #[test]
    fn an_argument_of_verbs_of_another_type_is_caught() {
        let changed = [("int (*poll_cq)(struct ibv_cq *cq, int", "int (*poll_cq)(struct ibv_cq *cq, long")];
        let changed = changed.map(|(from, to)| (from.replace("int (*", "int\t\t\t(*"), to.to_owned()));
        let changed: Vec<_> = changed.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
        let Some(findings) = against_altered_verbs(&changed) else { return };
        assert!(findings.mentions("((struct ibv_context_ops*)0)->poll_cq"));
        assert_eq!(findings.broken.len(), 1);
    }

    /// The findings against libfabric's headers with some words of one replaced; `None` without the headers.
    fn against_altered_ofi(header: &str, words: (&str, &str)) -> Option<CheckFindings> {
        shell::find_program("cc")?;
        let text = std::fs::read_to_string(Path::new("/usr/include/rdma").join(header)).ok()?;
        assert!(text.contains(words.0), "{}", words.0);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("rdma")).unwrap();
        std::fs::write(dir.path().join("rdma").join(header), text.replace(words.0, words.1)).unwrap();
        let workspace = Workspace::current().unwrap();
        let probe = dir.path().join("probe_ofi.h");
        std::fs::copy(workspace.root.join(ofi::HEADER), &probe).unwrap();
        Some(run_ofi_against(&workspace, &probe).unwrap())
    }

    #[test]
    fn the_tables_of_libfabric_agree_with_c() {
        // The check itself counts as skipped without a header.
        assert_eq!(run_ofi(&Workspace::current().unwrap()).unwrap().broken, []);
    }

    #[test]
    fn a_field_of_libfabric_that_moves_is_caught() {
        let moved = ("void\t\t\t*mem_desc;\n\tuint64_t\t\tkey;", "uint64_t key; void *mem_desc;");
        let Some(findings) = against_altered_ofi("fi_domain.h", moved) else { return };
        assert!(findings.mentions("offsetof(struct fid_mr, key): 24 in C, 32"));
    }

    #[test]
    fn an_argument_of_libfabric_of_another_type_is_caught() {
        let changed =
            ("(*read)(struct fid_cq *cq, void *buf, size_t", "(*read)(struct fid_cq *cq, void *buf, int");
        let Some(findings) = against_altered_ofi("fi_eq.h", changed) else { return };
        assert!(findings.mentions("((struct fi_ops_cq*)0)->read"));
        assert_eq!(findings.broken.len(), 1);
    }

    #[test]
    fn a_constant_of_libfabric_that_changes_is_caught() {
        let changed = ("#define FI_MR_ENDPOINT\t\t(1 << 9)", "#define FI_MR_ENDPOINT (1 << 12)");
        let Some(findings) = against_altered_ofi("fabric.h", changed) else { return };
        assert!(findings.mentions("FI_MR_ENDPOINT == (1ULL << 9): 0 in C, 1"));
        assert_eq!(findings.broken.len(), 1);
    }

    #[test]
    fn names_are_spelled_as_in_c() {
        assert_eq!(camel_case("reg_mr_dma_buf"), "regMrDmaBuf");
        assert_eq!(camel_case("max_p2p_bytes"), "maxP2pBytes");
        assert_eq!(camel_case("make_v_device"), "makeVDevice");
    }

    #[test]
    fn the_facts_of_gpus_are_found_without_their_headers() {
        let workspace = Workspace::current().unwrap();
        let sys = &workspace.find_crate("sys").unwrap().dir;
        let cuda = gpu::interface_facts(&gpu::CUDA, sys).unwrap();
        let pop = "__builtin_types_compatible_p(__typeof__(&cuCtxPopCurrent_v2), unsigned int (*)(struct CUctx_st**))";
        assert_eq!(cuda.get(pop), Some(&1));
        let hip = gpu::interface_facts(&gpu::HIP, sys).unwrap();
        assert!(hip.keys().any(|fact| fact.contains("(&hsa_amd_portable_export_dmabuf)")));
        let ze = gpu::interface_facts(&gpu::ZE, sys).unwrap();
        let put = "__builtin_types_compatible_p(__typeof__(&zeMemPutIpcHandle), \
                   unsigned int (*)(struct _ze_context_handle_t*, ze_ipc_mem_handle_t))";
        assert_eq!(ze.get(put), Some(&1));
        assert!(
            cuda.len() > trunkline_sys::cuda::SYMBOLS.len() && hip.len() > trunkline_sys::hip::SYMBOLS.len()
        );
    }

    /// A header without a function that its successors have is no failure; one with the function is compared.
    #[test]
    fn headers_that_are_too_old_are_skipped_with_a_reason() {
        if shell::find_program("cc").is_none() {
            return;
        }
        let workspace = Workspace::current().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("level_zero")).unwrap();
        let probe = dir.path().join("probe_ze.h");
        std::fs::copy(workspace.root.join(gpu::ZE.header), &probe).unwrap();
        let run = |header: &str| {
            std::fs::write(dir.path().join(gpu::ZE.known_by), header).unwrap();
            run_gpu_against(&workspace, &gpu::ZE, &probe)
        };
        let old =
            run("int zeMemGetIpcHandle(void);\n/* not zeMemPutIpcHandle */\nint zeMemPutIpcHandleLater;\n");
        let reason = old.unwrap().skipped.unwrap();
        assert!(reason.contains("level_zero/ze_api.h has no zeMemPutIpcHandle"), "{reason}");
        assert!(reason.contains("libze-dev"), "{reason}");
        // The rest of this header does not compile, and that is an error.
        assert!(run("int zeMemPutIpcHandle(void);\n").is_err());
    }

    #[test]
    fn headers_are_searched_by_the_compiler() {
        if shell::find_program("cc").is_some() {
            assert!(is_installed("stdio.h").unwrap());
            assert!(!is_installed("there/is/no.h").unwrap());
        }
    }
}
