//! What the tests of the verbs fabric share.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::sync::OnceLock;

use trunkline_verbs::{VerbsConfig, VerbsFabric};

/// The devices of this host; none is a counted skip of the test that asks.
pub fn found(extended: bool) -> Option<&'static VerbsFabric> {
    static FOUND: [OnceLock<Result<VerbsFabric, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    let fabric = FOUND[usize::from(extended)].get_or_init(|| {
        let config = VerbsConfig::read(|name| std::env::var(name).ok()).map_err(|error| error.to_string())?;
        VerbsFabric::new(VerbsConfig { extended, ..config }).map_err(|error| error.to_string())
    });
    match fabric {
        Ok(fabric) => Some(fabric),
        Err(reason) => {
            // All cases of a kind are one line of the summary; `scripts/rxe-vm --tests` runs them.
            let current = std::thread::current();
            let kind = current.name().and_then(|name| name.split("::").next()).unwrap_or("tests");
            skip(&format!("the suite over verbs, {kind}"), reason);
            None
        }
    }
}

/// Says that a test could not run and why, where `./test` counts it. Where verbs must be there it fails instead.
pub fn skip(name: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == "verbs"), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // In one piece: others write beside us.
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot note a skip: {noted:?}");
    }
}
