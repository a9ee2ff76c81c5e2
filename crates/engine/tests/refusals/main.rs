//! Tests out-of-memory everywhere: an allocator that refuses the n-th large allocation, for every n, runs the contract
//! of fabrics and the engine's main paths. None of them may abort or panic: a call returns an error or succeeds, its
//! resources are freed, and the next run succeeds. Every n of the engine's paths is tried. Of the contract's cases
//! every n is tried with `TRUNKLINE_FULL=1`, otherwise the first allocation of each size in each quick case.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

mod allocator;
mod child;
mod contract;
mod paths;
mod trials;

use trials::{Case, Refused};

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

/// Each suite with its cases, and the allocations that are refused.
const SUITES: &[(&str, &[Case], Refused)] = &[
    ("contract over mem", contract::OVER_MEM, Refused::OneOfEachSize),
    ("contract over shm", contract::OVER_SHM, Refused::OneOfEachSize),
    ("paths", paths::ALL, Refused::Each),
];

/// The entry point of the child processes. It does nothing unless the environment names a suite and a case.
#[test]
fn a_child_plays_its_trials() {
    let Some((suite, case)) = trials::asked() else { return };
    let cases = SUITES.iter().find(|(name, ..)| *name == suite);
    let (_, cases, refused) = cases.unwrap_or_else(|| panic!("unknown suite {suite}"));
    let case = cases.iter().find(|(name, _)| *name == case).unwrap_or_else(|| panic!("unknown case {case}"));
    trials::play(case, *refused, trials::Small::Counted);
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
