//! Out of memory in calls of programs. An allocator refuses the n-th large allocation, for every n, during the plugin's
//! own calls, the store of a job, and a world with its messages, windows and device queues. No call aborts or panics:
//! it returns an error or succeeds, all its memory is freed, and the next run succeeds.
//!
//! The fabrics and the engine are tested in `crates/engine/tests/refusals`, whose allocator and trials are used here.
//! OpenSHMEM and NVSHMEM's transport are tested in `crates/shmem` and `crates/nvshmem`. `TRUNKLINE_FULL=1` plays every
//! n; otherwise the first allocation of each size in each quick case is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue must stop")]

#[path = "../../../../crates/engine/tests/refusals/allocator.rs"]
mod allocator;
#[path = "../../../../crates/engine/tests/refusals/child.rs"]
mod child;
mod plugin;
#[path = "../../../../crates/engine/tests/refusals/start.rs"]
mod start;
mod store;
#[path = "../../../../crates/engine/tests/refusals/trials.rs"]
mod trials;
mod worlds;

use start::with_software_nics;
use trials::Case;

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

const SUITES: &[(&str, &[Case])] = &[
    ("the plugin", plugin::ALL),
    ("the plugin over tcp", plugin::ALL),
    ("the store", store::ALL),
    ("a world", worlds::ALL),
];

/// The entry of processes that the tests start: does nothing unless the environment names a part.
#[test]
fn a_child_plays_its_trials() {
    if start::asked().is_some() {
        return with_software_nics("soft", || start::play(|| plugin::messages(512)));
    }
    let Some((suite, case)) = trials::asked() else { return };
    let cases = SUITES.iter().find(|(name, _)| *name == suite);
    let (_, cases) = cases.unwrap_or_else(|| panic!("unknown suite {suite}"));
    let case = cases.iter().find(|(name, _)| *name == case).unwrap_or_else(|| panic!("unknown case {case}"));
    let wire = if suite.ends_with("over tcp") { "soft:tcp" } else { "soft" };
    with_software_nics(wire, || {
        if suite.starts_with("the plugin") {
            plugin::warm_up(start::large_left);
        }
        trials::play(case, trials::Refused::OneOfEachSize, trials::Small::Counted);
    });
}

#[test]
fn the_plugin_holds_without_memory() {
    trials::all_hold("the plugin", plugin::ALL);
}

#[test]
fn the_plugin_holds_over_tcp_without_memory() {
    trials::all_hold("the plugin over tcp", plugin::ALL);
}

#[test]
fn plugin_start_without_memory_succeeds_or_reports_it() {
    let traces = std::env::temp_dir().join(format!("trunkline-refusals-{}", std::process::id()));
    start::all_hold(&[("TRUNKLINE_TRACE", traces)]);
}

#[test]
fn the_store_holds_without_memory() {
    trials::all_hold("the store", store::ALL);
}

#[test]
fn a_world_holds_without_memory() {
    trials::all_hold("a world", worlds::ALL);
}
