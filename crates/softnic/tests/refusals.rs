//! Out of memory while the peer's records are executed: the allocator of `crates/engine/tests/refusals` refuses one
//! large allocation.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

#[path = "../../engine/tests/refusals/allocator.rs"]
#[allow(dead_code, reason = "this test uses a part of the module")]
mod allocator;
mod common;

use common::{connect, poll, rail_config};
use trunkline_fabric::{
    AccessRights, Completion, Fabric, MatchKey, Op, OpStatus, Rail, RailConfig, RegionExtent, RegionPurpose,
};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail};

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

/// More grants than a table of less than [`allocator::LARGE`] bytes keeps.
const GRANTS: u64 = 200;

/// [`OpStatus::Other`] of a process that had no memory for a record.
const MEMORY: u32 = 5;

fn open() -> SoftRail {
    let depth = 512;
    let config = RailConfig { depth, recv_depth: depth, ..rail_config() };
    SoftFabric::new(SoftConfig::default()).unwrap().open_rail(0, &config).unwrap()
}

/// Polls a rail until one of its links has failed.
fn poll_until_failure(rail: &mut SoftRail) -> Completion {
    common::poll_until("a failure", || poll(rail).into_iter().find(|one| one.status != OpStatus::Ok))
}

#[test]
fn grants_without_memory_fail_as_out_of_memory() {
    let (mut granting, mut keeping) = (open(), open());
    let (at_granting, _) = connect(&mut granting, &mut keeping);
    let keys = granting
        .registrar()
        .register(&MemoryRange::heap(64), AccessRights::LOCAL, RegionPurpose::Bounce)
        .unwrap();
    let into = RegionExtent { key: keys.local, offset: 0, len: 64 };
    for wr_id in 0..GRANTS {
        let receive = Op::MatchedRecv { into, key: MatchKey(wr_id) };
        granting.post(at_granting, wr_id, receive, true).unwrap();
    }
    poll(&mut granting);
    allocator::arm(1);
    let kept = poll_until_failure(&mut keeping);
    let sizes = allocator::disarm();
    assert!(!sizes.is_empty(), "no large allocation was made");
    assert_eq!(kept.status, OpStatus::Other(MEMORY), "the side without memory reports another status");
    let granted = poll_until_failure(&mut granting);
    assert_eq!(granted.status, OpStatus::Other(MEMORY), "the granting side reports another status");
}
