//! `cargo xtask abi`: compares the exports of the built libraries with checked-in lists.
//!
//! Called by developers and by `ci`. Builds the libraries of the workspace and reads their ELF files; executes none.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::{Object as _, ObjectSymbol as _};

use crate::report::CheckFindings;
use crate::shell;
use crate::workspace::Workspace;

/// Package, file it produces, and its lists relative to the root: of symbols, or headers that declare them.
const LIBRARIES: &[(&str, &str, &[&str])] = &[
    ("nccl", "libtrunkline_nccl.so", &["tools/xtask/abi/nccl.symbols"]),
    ("nvshmem", "libtrunkline_nvshmem.so", &["tools/xtask/abi/nvshmem.symbols"]),
    ("shmem", "libtrunkline_shmem.so", &["crates/shmem/include/shmem.h", "crates/shmem/include/pshmem.h"]),
];

/// Builds each library that exists in the workspace and compares its exports.
///
/// # Errors
/// A build fails, or a library or list cannot be read.
pub(crate) fn run(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::default();
    // Built as `./test` does: a library alone would be built again, because tests enable more of its features.
    shell::run_cargo(&workspace.root, &["build", "--quiet", "--workspace", "--lib", "--bins", "--tests"])?;
    for (package, file, lists) in LIBRARIES {
        if workspace.find_crate(package).is_none() {
            findings.add_note(format!("no crate {package} yet"));
            continue;
        }
        let exported = exported_symbols(&workspace.target.join("debug").join(file))?;
        let mut wanted = BTreeSet::new();
        for list in *lists {
            wanted.extend(read_list(&workspace.root.join(list))?);
        }
        compare_exports(file, &exported, &wanted, &mut findings);
    }
    Ok(findings)
}

fn compare_exports(
    file: &str,
    exported: &BTreeSet<String>,
    wanted: &BTreeSet<String>,
    findings: &mut CheckFindings,
) {
    for extra in exported.difference(wanted) {
        findings.add_finding(file, format!("exports {extra}, which is not on its list"));
    }
    for missing in wanted.difference(exported) {
        findings.add_finding(file, format!("does not export {missing}"));
    }
}

/// The symbols a dynamic linker would find: defined, global or weak, not hidden.
fn exported_symbols(library: &Path) -> Result<BTreeSet<String>> {
    let bytes = std::fs::read(library).with_context(|| format!("reading {}", library.display()))?;
    let object = object::File::parse(&*bytes).with_context(|| format!("parsing {}", library.display()))?;
    let defined = object.dynamic_symbols().filter(|s| s.is_definition() && s.is_global());
    defined.map(|s| Ok(s.name().context("a symbol's name")?.to_owned())).collect()
}

/// The name that a line declares, if it is a prototype. A prototype that is only for C without generics is a call
/// elsewhere.
fn declared_name(line: &str) -> Option<&str> {
    let is_prototype = line.ends_with(");") && !line.starts_with(['#', ' ']) && !line.starts_with("static");
    let before = line.split('(').next().filter(|_| is_prototype)?;
    before.rsplit([' ', '*']).next()
}

/// Reads a list with one symbol per line, where `#` begins a comment; or the prototypes of a header, each on one line.
fn read_list(path: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    if path.extension().is_some_and(|extension| extension == "h") {
        return Ok(text.lines().filter_map(declared_name).map(str::to_owned).collect());
    }
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles a shared library from one C file; `None` without a compiler.
    fn library(dir: &Path, c: &str) -> Option<std::path::PathBuf> {
        let source = dir.join("a.c");
        let out = dir.join("a.so");
        std::fs::write(&source, c).unwrap();
        let mut cc = std::process::Command::new("cc");
        let status = cc.args(["-shared", "-fPIC", "-nostdlib", "-o"]).arg(&out).arg(&source).status();
        if status.is_err() {
            println!("SKIPPED xtask abi: no cc");
            crate::report::log_skip("xtask abi", "no cc");
            return None;
        }
        assert!(status.unwrap().success());
        Some(out)
    }

    #[test]
    fn an_extra_and_a_missing_symbol_are_caught() {
        let dir = tempfile::tempdir().unwrap();
        let code = "int wanted = 1; int extra(void) { return 2; } static int local = 3;\n\
                    __attribute__((visibility(\"hidden\"))) int hidden = 4; int *keep(void);\n\
                    int uses(void) { return local + hidden; }\n";
        let Some(built) = library(dir.path(), code) else { return };
        let exported = exported_symbols(&built).unwrap();
        let list = dir.path().join("list");
        std::fs::write(&list, "# comment\nwanted\nuses # trailing\nmissing\n").unwrap();
        let mut findings = CheckFindings::default();
        compare_exports("a.so", &exported, &read_list(&list).unwrap(), &mut findings);
        assert!(findings.mentions("exports extra"));
        assert!(findings.mentions("does not export missing"));
        assert_eq!(findings.broken.len(), 2);
    }
}
