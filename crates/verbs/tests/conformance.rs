//! The conformance suite over real devices, or soft-RoCE: between the first two ports that are found, or on the only one
//! with itself. `scripts/rxe-vm` runs it where there is no device; elsewhere each case is a counted skip.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

mod common;

use common::found;
use trunkline_fabric::conformance::Setup;
use trunkline_fabric::{Fabric, RailConfig};
use trunkline_verbs::{VerbsFabric, VerbsRail};

/// Rails of the first two ports.
struct Verbs {
    fabric: &'static VerbsFabric,
}

impl Setup for Verbs {
    type Rail = VerbsRail;

    fn rails(&self, config: &RailConfig) -> (VerbsRail, VerbsRail) {
        let last = self.fabric.nics().len().min(2) - 1;
        (self.fabric.open(0, config).unwrap(), self.fabric.open(last, config).unwrap())
    }
}

/// Work built in place, where the provider can.
mod built {
    use super::*;
    trunkline_fabric::fabric_conformance!(match found(true) {
        Some(fabric) => Verbs { fabric },
        None => return,
    });
}

/// Work given as lists.
mod listed {
    use super::*;
    trunkline_fabric::fabric_conformance!(match found(false) {
        Some(fabric) => Verbs { fabric },
        None => return,
    });
}
