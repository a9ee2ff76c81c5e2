//! Out of memory: an allocator that refuses the n-th large allocation, for every n, runs through cases of the
//! contract over libfabric's provider for TCP. The allocator and the trials are those of
//! `crates/engine/tests/refusals`. libfabric's own allocations are never refused. `TRUNKLINE_FULL=1` runs every n;
//! otherwise the first allocation of each size in each quick case is refused. Without libfabric the test is a counted
//! skip.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

#[path = "../../../engine/tests/refusals/allocator.rs"]
mod allocator;
#[path = "../../../engine/tests/refusals/child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../engine/tests/refusals/trials.rs"]
mod trials;

use std::sync::OnceLock;

use trunkline_fabric::conformance::{self, ConformanceSetup};
use trunkline_fabric::{Fabric as _, RailConfig};
use trunkline_ofi::{OfiConfig, OfiFabric, OfiRail};

use trials::{Case, Outcome};

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

/// Two rails of one NIC.
struct Pair(&'static OfiFabric);

/// The fabric, which is opened once: a provider takes half a second to list its NICs.
fn fabric() -> Result<&'static OfiFabric, String> {
    static FOUND: OnceLock<Result<OfiFabric, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
        let config = OfiConfig { provider: Some("tcp".to_owned()), library, ..OfiConfig::default() };
        OfiFabric::new(&config).map_err(|missing| missing.to_string())
    });
    found.as_ref().map_err(String::clone)
}

impl ConformanceSetup for Pair {
    type Rail = OfiRail;

    fn open_rails(&self, config: &RailConfig) -> (OfiRail, OfiRail) {
        (self.0.open_rail(0, config).unwrap(), self.0.open_rail(0, config).unwrap())
    }
}

macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        const ALL: &[Case] = &[$((stringify!($case), || -> Outcome {
            conformance::$case(&Pair(fabric()?));
            Ok(())
        })),*];
    };
}

cases!(
    sends_fill_receives_in_order,
    writes_land_at_every_size,
    errors_flush_posted_operations,
    many_links_are_served,
);

/// Entry point of processes that the test starts: does nothing in other processes.
#[test]
fn a_child_plays_its_trials() {
    let Some((_, case)) = trials::asked() else { return };
    fabric().unwrap();
    let case = ALL.iter().find(|(name, _)| *name == case).unwrap_or_else(|| panic!("no case {case}"));
    trials::play(case, trials::Refused::OneOfEachSize, trials::Small::Counted);
}

#[test]
fn the_contract_holds_without_memory() {
    match fabric() {
        Ok(_) => trials::all_hold("the contract over libfabric", ALL),
        Err(missing) => common::skip("the_contract_holds_without_memory", &missing),
    }
}
