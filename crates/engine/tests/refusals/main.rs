//! Out of memory, everywhere: an allocator that refuses the n-th large allocation, for every n, runs through the contract of fabrics and the
//! engine's main paths. None of them aborts or panics: a call returns an error or succeeds, what it has taken is given back, and the next run
//! succeeds. `TRUNKLINE_FULL=1` plays every n, else three of each quick case are played.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

mod allocator;
mod contract;
mod paths;
mod trials;

use trials::Case;

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

const SUITES: &[(&str, &[Case])] = &[
    ("contract over mem", contract::OVER_MEM),
    ("contract over shm", contract::OVER_SHM),
    ("paths", paths::ALL),
];

/// How the tests start processes of their own: does nothing unless such a process asks.
#[test]
fn a_child_plays_its_trials() {
    let Some((suite, case)) = trials::asked() else { return };
    let cases = SUITES.iter().find(|(name, _)| *name == suite);
    let (_, cases) = cases.unwrap_or_else(|| panic!("no suite {suite}"));
    trials::play(cases.iter().find(|(name, _)| *name == case).unwrap_or_else(|| panic!("no case {case}")));
}

#[test]
fn the_contract_holds_over_mem_without_memory() {
    trials::all_hold("contract over mem", contract::OVER_MEM);
}

#[test]
fn the_contract_holds_over_shm_without_memory() {
    trials::all_hold("contract over shm", contract::OVER_SHM);
}

#[test]
fn the_main_paths_hold_without_memory() {
    trials::all_hold("paths", paths::ALL);
}
