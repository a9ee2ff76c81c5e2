//! Uses that the types forbid do not compile: each file `roles/wrong_*.rs` contains one mistake, with the compiler's shortened output beside
//! it. `roles/right.rs` is the same code without mistakes.

#![expect(clippy::expect_used, reason = "a test that cannot continue fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the library that was built last beside this test.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let beside = program.parent().expect("its folder").read_dir().expect("its folder");
    let files = beside.map(|entry| entry.expect("a file").path());
    let named = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libtrunkline_ofi-") && name.ends_with(".rlib")
    };
    let built = |file: &PathBuf| file.metadata().and_then(|one| one.modified()).expect("a time");
    files.filter(named).max_by_key(built).expect("the library")
}

/// Returns the compiler's output for a file, one line per error; empty for valid code.
fn compile(file: &Path) -> String {
    let (library, out) = (library(), tempfile::tempdir().expect("a folder"));
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args([
        "--edition=2024",
        "--crate-type=bin",
        "--emit=metadata",
        "--error-format=short",
        "--out-dir",
    ]);
    rustc.arg(out.path()).arg("--extern").arg(format!("trunkline_ofi={}", library.display()));
    rustc.arg("-L").arg(format!("dependency={}", library.parent().expect("its folder").display()));
    let output = rustc.arg(file).output().expect("the compiler runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), !said.contains("error"), "{said}");
    let folder = format!("{}/", file.parent().expect("its folder").display());
    // The last line only counts the errors.
    let errors = said.lines().filter(|line| line.contains(": error"));
    errors.map(|line| line.replace(&folder, "") + "\n").collect()
}

#[test]
fn mistakes_do_not_compile() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/roles");
    assert_eq!(compile(&folder.join("right.rs")), "", "the code without a mistake");
    let files = folder.read_dir().expect("the files").map(|entry| entry.expect("a file").path());
    let wrong: Vec<_> = files.filter(|file| file.extension().is_some_and(|kind| kind == "stderr")).collect();
    assert_eq!(wrong.len(), 7);
    for file in wrong {
        let told = std::fs::read_to_string(&file).expect("the expected output");
        assert_eq!(compile(&file.with_extension("rs")), told, "{}", file.display());
    }
}
