//! Out of memory in NVSHMEM's calls. An allocator refuses the n-th large allocation in calls of the transport's table
//! of version 6, from `nvshmemt_init` to `finalize`, for one PE that communicates with itself. No call aborts or
//! panics: it returns an error or succeeds, `finalize` releases everything, and the next run succeeds. The allocator
//! and the trials are those of `crates/engine/tests/refusals`. `TRUNKLINE_FULL=1` tries every n, otherwise the first
//! allocation of each size in each quick case, and three of the first start.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic ends the test")]

#[path = "../../../engine/tests/refusals/allocator.rs"]
mod allocator;
#[path = "../../../engine/tests/refusals/child.rs"]
mod child;
#[path = "../../../engine/tests/refusals/start.rs"]
mod start;
mod transport;
#[path = "../../../engine/tests/refusals/trials.rs"]
mod trials;

use start::with_software_nics;

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

/// The entry of the processes that the tests start; does nothing in any other process.
#[test]
fn a_child_plays_its_trials() {
    if start::asked().is_some() {
        return with_software_nics("soft", || start::play(|| transport::life(1000)));
    }
    let Some((suite, case)) = trials::asked() else { return };
    let case = transport::ALL.iter().find(|(name, _)| *name == case);
    let case = case.unwrap_or_else(|| panic!("the case is unknown"));
    with_software_nics(if suite.ends_with("over tcp") { "soft:tcp" } else { "soft" }, || {
        transport::warm_up();
        trials::play(case, trials::Refused::OneOfEachSize, trials::Small::Counted);
    });
}

#[test]
fn transport_survives_refused_allocations() {
    trials::all_hold("the transport", transport::ALL);
}

#[test]
fn transport_over_tcp_survives_refused_allocations() {
    trials::all_hold("the transport over tcp", transport::ALL);
}

#[test]
fn transport_starts_or_returns_an_error() {
    start::all_hold(&[]);
}
