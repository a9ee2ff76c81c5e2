//! Out of memory in OpenSHMEM's functions: an allocator that refuses the n-th large allocation runs through the whole life of a PE, from
//! `shmem_init_thread` to `shmem_finalize`, in processes of its own. No refusal ends in an abort or a panic. The call returns `NULL` or a nonzero
//! number, and works when it is repeated. If OpenSHMEM gives it no such result, the program ends with a message and status 1. The allocator is that
//! of `crates/engine/tests/refusals`. `TRUNKLINE_FULL=1` plays every n, else the first allocation of each size.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

#[path = "../../../engine/tests/refusals/allocator.rs"]
mod allocator;
mod calls;
#[path = "../../../engine/tests/refusals/child.rs"]
mod child;
mod life;

// Its functions are linked by name.
use trunkline_shmem as _;

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

/// How the tests start PEs: does nothing in a process that is none.
#[test]
fn a_child_plays_its_trials() {
    if let Some(nth) = life::asked() {
        life::play(nth);
    }
}

#[test]
fn one_pe_holds_without_memory() {
    life::all_hold(&life::ALONE);
}

#[test]
fn pes_that_share_memory_hold_without_memory() {
    life::all_hold(&life::SHARED);
}

#[test]
fn pes_over_a_network_hold_without_memory() {
    life::all_hold(&life::TCP);
}
