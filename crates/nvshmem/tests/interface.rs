//! The transport as NVSHMEM uses it. A C++ program takes the place of NVSHMEM's host and proxy for several PEs, over
//! every installed network, in both versions of the interface. The system's compiler compiles it here.

#![allow(clippy::unwrap_used, reason = "a panic ends the test")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time after which a run is killed, and the test fails.
const LIMIT: Duration = Duration::from_secs(100);

/// The variables of a run.
type Way = &'static [(&'static str, &'static str)];

const AUTO: Way = &[("TRUNKLINE_FABRIC", "soft")];
const SHM: Way = &[("TRUNKLINE_FABRIC", "soft:shm")];
const TCP: Way = &[("TRUNKLINE_FABRIC", "soft:tcp")];
const THREE_NICS: Way = &[("TRUNKLINE_FABRIC", "soft:tcp"), ("TRUNKLINE_SOFT_NICS", "3")];
const OFI: Way = &[("TRUNKLINE_FABRIC", "ofi:tcp")];
const RXM: Way = &[("TRUNKLINE_FABRIC", "ofi:tcp;ofi_rxm")];

/// Reports a skipped test and the reason.
fn skip(what: &str, why: &str) {
    println!("SKIPPED {what}: {why}");
    if let Ok(log) = std::env::var("TRUNKLINE_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        file.write_all(format!("{what}: {why}\n").as_bytes()).unwrap();
    }
}

/// Returns whether libfabric is installed or required.
fn ofi() -> bool {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let there = folders.iter().any(|folder| Path::new(folder).join("libfabric.so.1").exists());
    let list = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    let required = list.split(',').any(|word| word == "ofi");
    if !there && !required {
        skip("NVSHMEM's transport over ofi", "no libfabric (Debian: libfabric1)");
    }
    there || required
}

/// Returns the program for a version of the interface.
fn program(version: u8) -> &'static Path {
    static MADE: [OnceLock<(tempfile::TempDir, PathBuf)>; 2] = [const { OnceLock::new() }; 2];
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let (source, made) =
            (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness"), folder.path().join("harness"));
        let mut command = Command::new("c++");
        command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        command.arg(format!("-DINTERFACE={version}")).arg(source.join("harness.cpp"));
        let output = command.arg("-o").arg(&made).arg("-ldl").output();
        let output = output.unwrap_or_else(|error| panic!("cannot run the C++ compiler: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (folder, made)
    };
    &MADE[usize::from(version == 6)].get_or_init(make).1
}

/// C++ that does not compile where a structure has another size, or a member another place.
fn layout(name: &str, size: usize, members: &[(&str, usize)]) -> String {
    let size = format!("static_assert(sizeof({name}) == {size}, \"{name}\");\n");
    let members = members.iter().map(|(member, at)| {
        format!("static_assert(offsetof({name}, {member}) == {at}, \"{name}::{member}\");\n")
    });
    members.chain([size]).collect()
}

/// The same of one of ours.
macro_rules! layout {
    ($of:ty as $name:literal: $($($field:ident).+ as $member:literal),+ $(,)?) => {
        layout($name, size_of::<$of>(), &[$(($member, std::mem::offset_of!($of, $($field).+))),+])
    };
}

/// Returns the layouts of structures that are the same in both versions.
fn common_layouts() -> String {
    use trunkline_sys::nvshmem as ours;
    [
        layout!(ours::MemHandle as "mem_handle": reserved as "reserved"),
        layout!(ours::PeInfo as "pe_info": pcie_id as "pcie", pe as "pe", host_hash as "host_hash", gpu_uuid as "uuid"),
        layout!(ours::RmaVerb as "rma_verb": desc as "desc", is_nbi as "is_nbi", is_stream as "is_stream", cstrm as "stream"),
        layout!(ours::RmaMemdesc as "rma_memdesc": ptr as "ptr", offset as "offset", handle as "handle"),
        layout!(ours::RmaBytesdesc as "rma_bytesdesc":
            nelems as "nelems", elembytes as "elembytes", srcstride as "srcstride", deststride as "deststride"),
        layout!(ours::AmoMemdesc as "amo_memdesc": remote_memdesc as "remote", retflag as "retflag", retptr as "retptr",
            valptr as "valptr", cmpptr as "cmpptr", val as "val", cmp as "cmp", ret_handle as "ret_handle"),
        layout!(ours::AmoBytesdesc as "amo_bytesdesc": name_type as "name_type", elembytes as "elembytes"),
        layout!(ours::Fetched as "fetched": data as "data", flag as "flag"),
        layout!(ours::BootstrapHandle as "boot_handle": version as "version", pg_rank as "pg_rank", pg_size as "pg_size",
            mype_node as "mype_node", npes_node as "npes_node", allgather as "allgather", alltoall as "alltoall",
            barrier as "barrier", global_exit as "global_exit", finalize as "finalize", show_info as "show_info",
            pre_init_ops as "pre_init_ops", comm_state as "comm_state"),
    ]
    .concat()
}

/// Returns the layouts of a version's table.
macro_rules! transport {
    ($version:ident) => {{
        use trunkline_sys::nvshmem::$version::{AmoVerb, Transport};
        [
            layout!(AmoVerb as "amo_verb": desc as "desc", is_fetch as "is_fetch", is_val as "is_val", is_cmp as "is_cmp"),
            layout!(Transport as "transport": head.api_version as "api_version", head.lib_code as "type", head.cap as "cap",
                head.boot_handle as "boot", head.state as "state", head.type_specific_shared_state as "shared_state",
                head.cache_handle as "cache", head.device_pci_paths as "device_pci_paths", head.attr as "attr",
                head.n_devices as "n_devices", head.atomics_complete_on_quiet as "atomics_complete_on_quiet",
                head.is_successfully_initialized as "is_successfully_initialized", head.no_proxy as "no_proxy",
                head.heap_base as "heap_base", head.log2_cumem_granularity as "log2_cumem_granularity",
                head.max_op_len as "max_op_len", head.atomic_host_endian_min_size as "atomic_host_endian_min_size",
                head.index as "index", head.my_pe as "my_pe", head.n_pes as "n_pes",
                head.alias_va_map as "alias_va_map", head.egm_map as "egm_map",
                set_up.can_reach_peer as "ops.can_reach_peer", set_up.connect_endpoints as "ops.connect_endpoints",
                set_up.get_mem_handle as "ops.get_mem_handle", set_up.release_mem_handle as "ops.release_mem_handle",
                set_up.finalize as "ops.finalize", set_up.show_info as "ops.show_info", set_up.progress as "ops.progress",
                rma as "ops.rma", amo as "ops.amo", fence as "ops.fence", quiet as "ops.quiet",
                put_signal as "ops.put_signal", enforce_cst as "ops.enforce_cst",
                enforce_cst_at_target as "ops.enforce_cst_at_target",
                add_device_remote_mem_handles as "ops.add_device_remote_mem_handles"),
        ]
        .concat()
    }};
}

/// Whether a compiler of C++ takes this beside the interface.
fn compiles(version: u8, text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layouts.cpp");
    std::fs::write(&file, format!("#include \"interface.h\"\n{text}")).unwrap();
    let mut command = Command::new("c++");
    command
        .args(["-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof"])
        .arg(format!("-DINTERFACE={version}"));
    command.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness")).arg(&file);
    let output = command.output().unwrap_or_else(|error| panic!("cannot run the C++ compiler: {error}"));
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn layouts_match_the_cxx_compilers() {
    use trunkline_sys::nvshmem::v6;
    let six = [
        layout!(v6::AmoVerb as "amo_verb": is_float as "is_float"),
        layout!(v6::Transport as "transport": batch_hint as "ops.batch_hint"),
    ];
    let four = common_layouts() + &transport!(v4);
    compiles(4, &four).unwrap();
    compiles(6, &(common_layouts() + &transport!(v6) + &six.concat())).unwrap();
    // The other version is noticed, and one member elsewhere.
    assert!(compiles(6, &four).unwrap_err().contains("amo_verb"));
    let at = std::mem::offset_of!(v6::Transport, rma);
    let moved = four.replace(&format!("ops.rma) == {at}"), &format!("ops.rma) == {}", at + 8));
    assert!(compiles(4, &moved).unwrap_err().contains("transport::ops.rma"));
}

/// The library that is tested.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().join("libtrunkline_nvshmem.so")
}

/// Drivers of a GPU and of GDRCopy that are none, beside the enforcing provider of libfabric, which reaches that GPU.
fn fakes() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let (folder, here) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
        let gpu = here.join("../../testing/integration/tests/gpu");
        let compile = |at: PathBuf, source: PathBuf, map: Option<&str>| {
            let name = at.file_name().unwrap().to_str().unwrap().to_owned();
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(at).arg(source);
            cc.args(map.map(|map| format!("-Wl,--version-script,{}", gpu.join(map).display())));
            assert!(cc.arg(format!("-Wl,-soname,{name}")).status().unwrap().success(), "{name}");
        };
        compile(folder.path().join("libcuda.so.1"), gpu.join("fake_cuda.c"), None);
        compile(folder.path().join("libgdrapi.so.2"), here.join("tests/harness/fake_gdr.c"), None);
        // By itself, as libfabric loads the real one.
        std::fs::create_dir(folder.path().join("verbs")).unwrap();
        if Path::new("/usr/include/infiniband/verbs.h").exists() {
            let at = folder.path().join("verbs/libibverbs.so.1");
            compile(at, gpu.join("fake_verbs.c"), Some("fake_verbs.map"));
        }
        strict_fi::place_in(folder.path()).unwrap();
        folder
    };
    MADE.get_or_init(make).path()
}

/// Runs a scenario, and returns its output and status. Panics if it does not end.
fn run(version: u8, pes: usize, scenario: &str, way: Way) -> Output {
    let mut command = Command::new(program(version));
    command.arg(library()).arg(pes.to_string()).arg(scenario).envs(way.iter().copied());
    if way.iter().any(|(name, _)| *name == "HARNESS_GPU") {
        let verbs = if way.contains(&("TRUNKLINE_FABRIC", "verbs")) { "verbs" } else { "" };
        let path = format!("{}:{}", fakes().display(), fakes().join(verbs).display());
        command.env("LD_LIBRARY_PATH", path).env("FI_PROVIDER_PATH", fakes());
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{scenario} does not end: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Runs a scenario over each network, and checks that it succeeds. Returns the messages of the last run.
fn passes(version: u8, scenario: &str, ways: &[(Way, usize)]) -> String {
    let ofi = ofi();
    let mut said = String::new();
    for &(way, pes) in ways.iter().filter(|(way, _)| ofi || *way != OFI && *way != RXM) {
        let output = run(version, pes, scenario, way);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{scenario}, version {version}, {pes} PEs, {way:?}: {}: {said}",
            output.status
        );
    }
    said
}

const ALL: [(Way, usize); 8] =
    [(AUTO, 2), (AUTO, 4), (SHM, 2), (TCP, 2), (TCP, 4), (THREE_NICS, 2), (OFI, 2), (RXM, 2)];

/// A library that opens a transport by its name, and searches its own folder before `LD_LIBRARY_PATH`, as NVSHMEM's
/// wheels do.
const OPENER: &str = r#"
#include <dlfcn.h>
int is_ours(void) {
    void *transport = dlopen("nvshmem_transport_libfabric.so.6", RTLD_NOW);
    return transport && dlsym(transport, "nvshmemt_init");
}
"#;

/// Compiles a library, or a program, with the system's compiler.
fn compile_c(to: &Path, source: &str, arguments: &[&str]) {
    let file = to.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let status = Command::new("cc").arg("-o").arg(to).arg(&file).args(arguments).status();
    assert!(status.unwrap_or_else(|error| panic!("cannot run the C compiler: {error}")).success());
}

/// Uses both variables, as docs/nvshmem.md describes.
#[test]
fn preload_selects_our_transport_over_nvshmems() {
    let folder = tempfile::tempdir().unwrap();
    let [wheel, ours] = ["wheel", "ours"].map(|name| folder.path().join(name));
    for made in [&wheel, &ours] {
        std::fs::create_dir(made).unwrap();
    }
    let name = "nvshmem_transport_libfabric.so.6";
    compile_c(&wheel.join(name), "int nothing;", &["-shared", "-fPIC"]);
    let first = "-Wl,-rpath,$ORIGIN,--disable-new-dtags";
    compile_c(&wheel.join("libopener.so"), OPENER, &["-shared", "-fPIC", first, "-ldl"]);
    let program = folder.path().join("program");
    let link = ["-L", wheel.to_str().unwrap(), "-lopener"];
    compile_c(&program, "int is_ours(void); int main(void) { return !is_ours(); }", &link);
    std::os::unix::fs::symlink(library(), ours.join(name)).unwrap();
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", format!("{}:{}", ours.display(), wheel.display()));
    assert!(
        !command.status().unwrap().success(),
        "without LD_PRELOAD, the transport beside the opener is loaded"
    );
    assert!(
        command.env("LD_PRELOAD", name).status().unwrap().success(),
        "with LD_PRELOAD, our transport is loaded"
    );
}

#[test]
fn host_calls_move_bytes() {
    passes(4, "moves", &ALL);
    passes(6, "moves", &[(TCP, 2)]);
}

#[test]
fn kernel_atomics_return_former_values() {
    passes(4, "atomics", &ALL);
    passes(6, "atomics", &[(AUTO, 2), (TCP, 4)]);
}

#[test]
fn signals_follow_data_and_fences_order_operations() {
    passes(4, "signals", &ALL);
    passes(6, "signals", &[(AUTO, 2), (TCP, 4)]);
}

#[test]
fn batch_hints_lose_no_operations() {
    passes(6, "batches", &ALL);
    passes(
        6,
        "batches",
        &[(&[("TRUNKLINE_FABRIC", "soft:tcp"), ("NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA", "1")], 2)],
    );
}

#[test]
fn memory_is_added_and_released_during_proxy_work() {
    passes(4, "growth", &ALL);
    passes(6, "growth", &[(AUTO, 4)]);
}

#[test]
fn quiet_delivers_values_despite_a_slow_pe() {
    passes(4, "stopped", &[(SHM, 3), (TCP, 3)]);
}

#[test]
fn too_many_registrations_fail_with_a_message() {
    let said = passes(4, "many", &[(AUTO, 2), (TCP, 2)]);
    let line = "get_mem_handle: cannot register more memory: 255 ranges are registered";
    assert!(said.contains(line) && said.contains("NVSHMEM_CUMEM_GRANULARITY"), "{said}");
}

#[test]
fn misuse_fails_with_a_message() {
    let said = passes(4, "misuse", &[(AUTO, 2)]);
    for line in [
        "nvshmemt_init: NVSHMEM requests version 70000 of its transport interface",
        "quiet: connect_endpoints was not called, or failed",
        "connect_endpoints: NVSHMEM chose a device number that is out of range",
        "rma: the PE is out of range",
        "rma: 8 bytes at 0x",
        "rma: null handle of the other PE's memory",
        "not a handle of Trunkline's",
        "amo: a word of 8 bytes at offset 0x4",
        "amo: unsupported atomic of kind 99 on 8 bytes",
        "put_signal: unknown operation of a signal",
        "get_mem_handle: the memory to register is empty",
        "rma: strided elements cannot be moved by one call",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    passes(6, "misuse", &[(AUTO, 2)]);
}

#[test]
fn waits_for_a_dead_pe_fail() {
    let said = passes(4, "death", &[(AUTO, 2), (SHM, 3), (TCP, 2), (OFI, 2)]);
    assert!(said.contains("member 1"), "{said}");
    passes(6, "death", &[(TCP, 4)]);
}

#[test]
fn all_scenarios_pass_in_sequence_with_more_pes() {
    passes(4, "all", &[(AUTO, 8), (THREE_NICS, 4)]);
    passes(6, "all", &[(TCP, 8)]);
}

/// NVSHMEM's variables: one without an effect is reported, and an invalid value fails before anything is created.
#[test]
fn variables_are_honoured_or_refused() {
    let said = passes(
        4,
        "moves",
        &[(&[("TRUNKLINE_FABRIC", "soft"), ("NVSHMEM_HCA_LIST", "mlx5_0:1"), ("NVSHMEM_DEBUG", "INFO")], 2)],
    );
    assert!(
        said.contains("NVSHMEM_HCA_LIST=mlx5_0:1 has no effect: name the NICs by TRUNKLINE_IB_HCA"),
        "{said}"
    );
    assert!(said.contains("2 PEs over soft"), "{said}");
    let output = run(4, 2, "moves", &[("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("NVSHMEM_LIBFABRIC_PROVIDER=tcp: expected cxi, efa or verbs"),
        "{said}"
    );
    // Trunkline's own variables have precedence.
    passes(4, "moves", &[(&[("NVSHMEM_LIBFABRIC_PROVIDER", "verbs"), ("TRUNKLINE_FABRIC", "soft:tcp")], 2)]);
    let one = &[
        ("TRUNKLINE_FABRIC", "soft"),
        ("TRUNKLINE_SOFT_NICS", "3"),
        ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "1"),
        ("NVSHMEM_DEBUG", "INFO"),
    ];
    let said = passes(4, "moves", &[(one, 2)]);
    assert!(said.contains("over soft, soft2, ") && !said.contains("are not used"), "{said}");
    let more = &[
        ("TRUNKLINE_FABRIC", "soft"),
        ("TRUNKLINE_SOFT_NICS", "6"),
        ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", "6"),
        ("NVSHMEM_DISABLE_LIBFABRIC_EFA_DIRECT", "1"),
        ("NVSHMEM_DEBUG", "INFO"),
    ];
    let said = passes(4, "moves", &[(more, 2)]);
    assert!(
        said.contains("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE=6: at most 4 NICs per PE are used together"),
        "{said}"
    );
    assert!(said.contains("over soft, soft5+soft4+soft3+soft2, "), "{said}");
    assert!(said.contains("NVSHMEM_DISABLE_LIBFABRIC_EFA_DIRECT=1 has no effect: "), "{said}");
}

/// A host with an unused NIC, by a folder in place of `/`.
#[test]
fn a_host_with_unused_nics_warns_or_fails() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("sys/class/infiniband/mlx5_0/device")).unwrap();
    let root: &'static str = root.path().to_str().unwrap().to_owned().leak();
    let set = |more: &[(&'static str, &'static str)]| -> Way {
        [&[("TRUNKLINE_HOST_ROOT", root), ("NVSHMEM_DEBUG", "INFO")], more].concat().leak()
    };
    let said = passes(4, "moves", &[(set(&[]), 2)]);
    let count = |text: &str| said.matches(text).count();
    // The harness runs a scenario more than once, with new processes.
    let processes = count("as NVSHMEM transport: fabric soft");
    assert!(processes >= 2, "{said}");
    assert_eq!(count("TRUNKLINE_FABRIC=auto uses no NIC of this host"), processes, "{said}");
    let output = run(4, 2, "moves", set(&[("TRUNKLINE_REQUIRE_NIC", "1")]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("TRUNKLINE_REQUIRE_NIC=1, and"), "{said}");
}

/// Returns the variables for a heap on the stand-in GPU.
macro_rules! gpu {
    ($fabric:literal $(, $name:literal = $value:literal)*) => {
        &[("HARNESS_GPU", "1"), ("TRUNKLINE_FABRIC", $fabric) $(, ($name, $value))*]
    };
}

/// No NIC reaches the GPU, so all accesses use GDRCopy's mapping.
#[test]
fn heaps_on_a_gpu_use_any_network_by_a_mapping() {
    for scenario in ["moves", "atomics", "signals"] {
        passes(4, scenario, &[(gpu!("soft:tcp"), 2), (gpu!("soft"), 3), (gpu!("ofi:tcp"), 2)]);
    }
    // The software NIC moves bytes by GDRCopy's copies, in both directions, also transfers in several pieces.
    passes(
        4,
        "moves",
        &[
            (gpu!("soft:tcp", "HARNESS_COPIED" = "1000000"), 2),
            (gpu!("soft", "HARNESS_COPIED" = "1000000"), 2),
        ],
    );
    for (why, way) in [
        ("NVSHMEM_DISABLE_GDRCOPY is set", gpu!("soft", "NVSHMEM_DISABLE_GDRCOPY" = "1")),
        ("the kernel module gdrdrv is not loaded", gpu!("soft", "FAKE_GDR_GONE" = "1")),
    ] {
        let way: Way = way;
        let output = run(4, 2, "moves", way);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(why) && said.contains("no NIC in use reaches it"),
            "{said}"
        );
    }
}

/// Unregistered GPU memory is not treated as host memory.
#[test]
fn bytes_of_a_gpu_without_a_handle_are_refused() {
    let said = passes(4, "nameless", &[(gpu!("soft:tcp"), 2)]);
    assert!(said.contains("rma: bytes of a GPU without a handle cannot be moved"), "{said}");
}

/// The heap is registered with NICs that reach GPU memory. Its words are changed through a mapping or, without one, by
/// copies.
#[test]
fn heaps_on_a_gpu_use_nics_that_reach_them() {
    if !ofi() {
        return;
    }
    macro_rules! strict {
        ($($name:literal = $value:literal),*) => {
            gpu!("ofi:strict", "FI_PROVIDER" = "strict", "FI_STRICT_HMEM" = "1", "FI_STRICT_ABORT" = "1", "HARNESS_FLUSH" = "1" $(, $name = $value)*)
        };
    }
    for (scenario, copies) in [("moves", false), ("atomics", true), ("signals", true)] {
        passes(6, scenario, &[(strict!("HARNESS_COPIES" = "0"), 2)]);
        let without: Way = if copies {
            strict!("FAKE_GDR_GONE" = "1", "HARNESS_COPIES" = "1")
        } else {
            strict!("FAKE_GDR_GONE" = "1", "HARNESS_COPIES" = "0")
        };
        passes(6, scenario, &[(without, 2)]);
    }
    passes(4, "atomics", &[(strict!("NVSHMEM_DISABLE_GDRCOPY" = "1", "HARNESS_COPIES" = "1"), 2)]);
}

/// A kernel of the application runs until the proxy has served its requests, so no call of the proxy may wait for it.
#[test]
fn the_proxy_waits_for_no_kernel() {
    passes(6, "kernels", &[(gpu!("soft:tcp"), 2)]);
    if !ofi() {
        return;
    }
    macro_rules! strict {
        ($($name:literal = $value:literal),*) => {
            gpu!("ofi:strict", "FI_PROVIDER" = "strict", "FI_STRICT_HMEM" = "1", "FI_STRICT_ABORT" = "1", "HARNESS_FLUSH" = "1" $(, $name = $value)*)
        };
    }
    passes(6, "kernels", &[(strict!("FAKE_GDR_GONE" = "1", "HARNESS_COPIES" = "1"), 2), (strict!(), 2)]);
}

/// A fallback is logged once per process, with the cause and the remedy.
#[test]
fn falling_back_to_copies_logs_its_cause() {
    if !ofi() {
        return;
    }
    macro_rules! strict {
        ($($name:literal = $value:literal),*) => {
            gpu!("ofi:strict", "FI_PROVIDER" = "strict", "FI_STRICT_HMEM" = "1", "HARNESS_FLUSH" = "1", "NVSHMEM_DEBUG" = "INFO" $(, $name = $value)*)
        };
    }
    let count = |said: &str, text: &str| said.matches(text).count();
    let slow = "GDRCopy does not map the heap (";
    for (cause, way) in [
        ("gdr_map failed with 12: Cannot allocate memory", strict!("FAKE_GDR_SMALL" = "1")),
        ("the kernel module gdrdrv is not loaded", strict!("FAKE_GDR_GONE" = "1")),
        ("NVSHMEM_DISABLE_GDRCOPY is set", strict!("NVSHMEM_DISABLE_GDRCOPY" = "1")),
    ] {
        let said = passes(6, "atomics", &[(way, 2)]);
        let processes = count(&said, "as NVSHMEM transport: ");
        assert!(processes >= 2 && said.contains(cause) && said.contains("Resizable BAR"), "{cause}: {said}");
        assert_eq!(count(&said, slow), processes, "{cause}: {said}");
    }
    let said = passes(6, "moves", &[(strict!("FAKE_CUDA_REFUSES_SYNC" = "1"), 2)]);
    assert_eq!(count(&said, slow), 0, "{said}");
    assert_eq!(count(&said, "refuses synchronous memory"), count(&said, "as NVSHMEM transport: "), "{said}");
    assert!(said.contains("CU_CTX_SYNC_MEMOPS"), "{said}");
}

/// For NICs that support dma-bufs, each registration is a dma-buf. The NIC is a stand-in RDMA device, whose links stay
/// inside one process, so there is one PE, which communicates with itself.
#[test]
fn heaps_on_a_gpu_are_registered_as_dma_bufs() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return skip("dma-bufs of NVSHMEM's heap", "no infiniband/verbs.h (Debian: libibverbs-dev)");
    }
    for scenario in ["moves", "atomics"] {
        passes(4, scenario, &[(gpu!("verbs", "HARNESS_EXPORTS" = "1", "HARNESS_FLUSH" = "1"), 1)]);
    }
    let address: Way =
        gpu!("verbs", "HARNESS_EXPORTS" = "0", "FAKE_CUDA_EXPORTS" = "0", "HARNESS_FLUSH" = "1");
    passes(4, "moves", &[(address, 1)]);
}
