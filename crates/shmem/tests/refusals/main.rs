//! Out of memory in OpenSHMEM's functions. An allocator refuses the n-th large allocation in the life of a PE, from
//! `shmem_init_thread` to `shmem_finalize`, in a separate process. No refusal ends in an abort or a panic. The call
//! returns `NULL` or a nonzero number, and succeeds when it is repeated. If OpenSHMEM defines no such result for it,
//! the program ends with a message and status 1. The allocator is that of `crates/engine/tests/refusals`.
//! `TRUNKLINE_FULL=1` tries every n, otherwise the first allocation of each size.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic ends the test")]

#[path = "../../../engine/tests/refusals/allocator.rs"]
mod allocator;
mod calls;
#[path = "../../../engine/tests/refusals/child.rs"]
mod child;
mod life;

// The library's functions are linked by name.
use trunkline_shmem as _;

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

/// The entry by which the tests start PEs; does nothing in a process that is not a PE.
#[test]
fn a_child_plays_its_trials() {
    if let Some(nth) = life::asked() {
        life::play(nth);
    }
}

#[test]
fn one_pe_survives_refused_allocations() {
    life::all_hold(&life::ALONE);
}

#[test]
fn pes_sharing_memory_survive_refused_allocations() {
    life::all_hold(&life::SHARED);
}

#[test]
fn pes_over_a_network_survive_refused_allocations() {
    life::all_hold(&life::TCP);
}
