//! Code shared by the tests over libfabric.

/// Reports that a test was skipped and why, in the form that `./test` counts. If libfabric is required it fails instead.
pub(crate) fn skip(name: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == "ofi"), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // Written in one piece, because other processes append to the file too.
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot note a skip: {noted:?}");
    }
}
