//! What every fabric must do, over a provider of libfabric: for TCP, or the one that `TRUNKLINE_OFI_PROVIDER` names.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

use std::sync::OnceLock;

use trunkline_fabric::conformance::Setup;
use trunkline_fabric::{Fabric as _, RailConfig, fabric_conformance};
use trunkline_ofi::{OfiConfig, OfiFabric, OfiRail};

static FABRIC: OnceLock<OfiFabric> = OnceLock::new();

/// Two rails of one NIC.
struct Pair;

impl Setup for Pair {
    type Rail = OfiRail;

    fn rails(&self, config: &RailConfig) -> (OfiRail, OfiRail) {
        let provider = std::env::var("TRUNKLINE_OFI_PROVIDER").unwrap_or_else(|_| "tcp".to_owned());
        let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
        let fabric = FABRIC.get_or_init(|| {
            OfiFabric::new(&OfiConfig { provider: Some(provider), library, ..OfiConfig::default() }).unwrap()
        });
        (fabric.open(0, config).unwrap(), fabric.open(0, config).unwrap())
    }
}

fabric_conformance!(Pair);
