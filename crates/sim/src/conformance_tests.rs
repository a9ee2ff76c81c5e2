//! Runs the conformance suite of fabrics over the simulated network, in every network model that keeps the order of a
//! link.

use trunkline_fabric::conformance::{self as suite, ConformanceSetup};
use trunkline_fabric::{Fabric, RailConfig};

use crate::{NetworkModel, SimFabric, SimRail, SimWorld};

struct Sim(NetworkModel);

impl ConformanceSetup for Sim {
    type Rail = SimRail;

    fn open_rails(&self, config: &RailConfig) -> (SimRail, SimRail) {
        let world = SimWorld::new(5, self.0.clone(), false);
        let open = || SimFabric::new(&world, world.add_process()).open_rail(0, config).unwrap();
        (open(), open())
    }
}

/// Runs each case in each network model. A link that its peer has destroyed or failed loses the messages in flight.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        mod calm {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(calm())); })*
        }
        mod rough {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(rough())); })*
        }
        mod lending {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(lending())); })*
        }
        mod held_back {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(held_back())); })*
        }
        mod without_immediates {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(calm().without_immediates())); })*
        }
        mod untold {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(rough().without_arrival())); })*
        }
    };
}

fn calm() -> NetworkModel {
    let mut weather = NetworkModel::fault_free();
    // The suite's receives have a hundred spare bytes for an inline header.
    weather.caps.inline_max = 100;
    weather
}

fn rough() -> NetworkModel {
    NetworkModel {
        jitter: 5_000,
        slow: 100,
        kib_time: 400,
        pieces: 8,
        short_poll: 500,
        based: true,
        poll_time: 5_000,
        ..calm()
    }
}

/// A network whose immediates consume receives.
fn lending() -> NetworkModel {
    let mut weather = rough();
    weather.caps.immediate_takes_receive = true;
    weather
}

/// Links that are established late, and a network that accepts few operations at a time.
fn held_back() -> NetworkModel {
    NetworkModel { dialled: true, dial_time: 20_000, cramped: 500, ..calm() }
}

trunkline_fabric::conformance_cases_of_lossy_ends! { cases; }
