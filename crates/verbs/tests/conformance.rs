//! The conformance suite over real devices, or soft-RoCE. It runs between the first two ports that are found, or on a
//! single port that is connected to itself. `scripts/rxe-vm` runs it where there is no device; elsewhere each case is a counted skip.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use common::{Manner, found};
use trunkline_fabric::conformance::ConformanceSetup;
use trunkline_fabric::{Fabric, RailConfig};
use trunkline_verbs::{VerbsFabric, VerbsRail};

/// Rails of the first two ports.
struct Verbs {
    fabric: &'static VerbsFabric,
}

impl ConformanceSetup for Verbs {
    type Rail = VerbsRail;

    fn open_rails(&self, config: &RailConfig) -> (VerbsRail, VerbsRail) {
        let last = self.fabric.nics().len().min(2) - 1;
        (self.fabric.open_rail(0, config).unwrap(), self.fabric.open_rail(last, config).unwrap())
    }

    fn has_events(&self) -> bool {
        true
    }
}

/// Requests built in place, if the provider can.
mod built {
    use super::*;
    trunkline_fabric::fabric_conformance!(match found(Manner::Built) {
        Some(fabric) => Verbs { fabric },
        None => return,
    });
}

/// Requests submitted as lists.
mod listed {
    use super::*;
    trunkline_fabric::fabric_conformance!(match found(Manner::Listed) {
        Some(fabric) => Verbs { fabric },
        None => return,
    });
}

/// Requests built in place, where the immediate of a write with bytes is a request of its own.
mod apart {
    use super::*;
    trunkline_fabric::fabric_conformance!(match found(Manner::Apart) {
        Some(fabric) => Verbs { fabric },
        None => return,
    });
}
