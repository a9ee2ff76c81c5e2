//! Helpers that the tests of the verbs fabric share.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of the module")]

pub mod rails;

use std::sync::OnceLock;

use trunkline_settings::{FrontEndKind, SettingValues};
use trunkline_verbs::{PacketRouting, VerbsConfig, VerbsFabric};

/// How requests are submitted to the device.
#[derive(Clone, Copy)]
pub enum Manner {
    /// Built in place, if the provider can.
    Built,
    /// As lists, with the inline bytes that Broadcom's and Intel's devices accept, which are fewer than a head and a
    /// body.
    Listed,
    /// Built in place, with immediates as requests of their own, and nothing inline.
    Apart,
}

impl Manner {
    fn config(self, usual: VerbsConfig) -> VerbsConfig {
        match self {
            Self::Built => VerbsConfig { extended: true, ..usual },
            Self::Listed => VerbsConfig { extended: false, inline: 96, ..usual },
            Self::Apart => {
                let routing = PacketRouting::Adaptive;
                VerbsConfig { extended: true, routing, adaptive_above: 0, inline: 0, ..usual }
            }
        }
    }
}

/// Opens the devices of this host; without any, the calling test is a counted skip.
pub fn found(manner: Manner) -> Option<&'static VerbsFabric> {
    static FOUND: [OnceLock<Result<VerbsFabric, String>>; 3] = [const { OnceLock::new() }; 3];
    let fabric = FOUND[manner as usize].get_or_init(|| {
        let values = SettingValues::from_lookup(FrontEndKind::Nccl, |name| std::env::var_os(name));
        let config = VerbsConfig::from_settings(&values).map_err(|error| error.to_string())?;
        VerbsFabric::new(manner.config(config)).map_err(|error| error.to_string())
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

/// Reports that a test could not run and why, where `./test` counts it. Where verbs is required it fails instead.
pub fn skip(name: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == "verbs"), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // Written in one piece, because other processes append to the file too.
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot note a skip: {noted:?}");
    }
}
