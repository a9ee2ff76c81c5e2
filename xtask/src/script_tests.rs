//! What the script `./test` promises without running anything.

use std::process::{Command, Output};

fn script(args: &[&str]) -> Output {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    Command::new(root.join("test")).args(args).current_dir("/").output().unwrap()
}

#[test]
fn help_tells_the_options() {
    let out = script(&["--help"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success());
    for word in ["--full", "--no-install", "TRUNKLINE_REQUIRE", "N passed, N failed, N skipped"] {
        assert!(text.contains(word), "{word}");
    }
}

#[test]
fn an_unknown_argument_is_refused() {
    let out = script(&["--bogus"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("--bogus"));
}
