//! What every fabric must do, over a provider of libfabric: for TCP, or the one that `TRUNKLINE_OFI_PROVIDER` names. Without it
//! each case is a counted skip.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

mod common;

use std::sync::OnceLock;

use trunkline_fabric::conformance::Setup;
use trunkline_fabric::{Fabric as _, RailConfig, fabric_conformance};
use trunkline_ofi::{OfiConfig, OfiFabric, OfiRail};

/// Two rails of one NIC.
struct Pair {
    fabric: &'static OfiFabric,
}

/// The fabric; `None`, counted as a skip, where there is none.
fn found() -> Option<&'static OfiFabric> {
    static FOUND: OnceLock<Result<OfiFabric, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let provider = std::env::var("TRUNKLINE_OFI_PROVIDER").unwrap_or_else(|_| "tcp".to_owned());
        let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
        let config = OfiConfig { provider: Some(provider), library, ..OfiConfig::default() };
        OfiFabric::new(&config).map_err(|missing| missing.to_string())
    });
    let missing = |missing: &String| common::skip("the conformance suite over libfabric", missing);
    found.as_ref().inspect_err(|why| missing(why)).ok()
}

impl Setup for Pair {
    type Rail = OfiRail;

    fn rails(&self, config: &RailConfig) -> (OfiRail, OfiRail) {
        (self.fabric.open(0, config).unwrap(), self.fabric.open(0, config).unwrap())
    }
}

fabric_conformance!(match found() {
    Some(fabric) => Pair { fabric },
    None => return,
});
