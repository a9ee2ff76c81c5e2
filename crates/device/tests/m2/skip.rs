//! Skips tests without their hardware.

/// Reports that a test was skipped, with the reason, in the log that `./test` counts. Fails instead if the test is
/// required (`TRUNKLINE_REQUIRE` names it).
pub(crate) fn skip(name: &str, word: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|one| one.trim() == word), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot write to the skip log: {noted:?}");
    }
}
