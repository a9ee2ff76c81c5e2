//! Out of memory in the calls of NVSHMEM: an allocator that refuses the n-th large allocation runs through the transport's table of version 6, from
//! `nvshmemt_init` to `finalize`, for one PE whose neighbour is itself. No call aborts or panics: it returns an error or succeeds, `finalize` gives all
//! back, and the next run succeeds. The allocator and the trials are those of `crates/engine/tests/refusals`. `TRUNKLINE_FULL=1` plays every n, else the first
//! allocation of each size in each quick case, and three of the first start.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

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

/// How the tests start processes of their own: does nothing unless such a process asks.
#[test]
fn a_child_plays_its_trials() {
    if start::asked().is_some() {
        return with_software_nics("soft", || start::play(|| transport::life(1000)));
    }
    let Some((suite, case)) = trials::asked() else { return };
    let case = transport::ALL.iter().find(|(name, _)| *name == case);
    let case = case.unwrap_or_else(|| panic!("no such case"));
    with_software_nics(if suite.ends_with("over tcp") { "soft:tcp" } else { "soft" }, || {
        transport::warm_up();
        trials::play(case, trials::Refused::OneOfEachSize, trials::Small::Counted);
    });
}

#[test]
fn the_transport_holds_without_memory() {
    trials::all_hold("the transport", transport::ALL);
}

#[test]
fn the_transport_holds_over_tcp_without_memory() {
    trials::all_hold("the transport over tcp", transport::ALL);
}

#[test]
fn the_transport_starts_or_says_why_not() {
    start::all_hold(&[]);
}
