//! Regions of mapped write-combined memory, which the software NIC reaches only by the copies of the mapping. Nothing
//! is mapped at their addresses, so an access by address is a crash.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;
#[path = "../../mem/tests/held/mod.rs"]
mod held;

use std::sync::Arc;

use common::{connect, poll, poll_until, rail_config};
use held::HeldStores;
use trunkline_fabric::{
    AccessRights, Completion, Fabric, LinkId, Op, OpSource, OpStatus, Rail, RegionExtent, RegionKeys,
    RegionPurpose, RemoteLocation,
};
use trunkline_mem::{MappedMemory, MemoryRange};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail, WireMode};

const SIZE: usize = 1 << 20;

/// Two ends of a link, one of which has a mapping registered and the other memory of the host.
struct MappedPair {
    near: SoftRail,
    far: SoftRail,
    link: LinkId,
    at_far: LinkId,
    held: Arc<HeldStores>,
    mapped: RegionKeys,
    host: MemoryRange,
    local: RegionKeys,
}

impl MappedPair {
    /// The host's memory is at the near end, and the mapping at the far one; or the other way round.
    fn new(config: &SoftConfig, is_mapped_near: bool) -> Self {
        // Both rails are of one fabric, because links between two fabrics of one process copy nothing directly.
        let fabric = SoftFabric::new(config.clone()).unwrap();
        let mut near = fabric.open_rail(0, &rail_config()).unwrap();
        let mut far = fabric.open_rail(0, &rail_config()).unwrap();
        let held = Arc::new(HeldStores::unwatched(SIZE, 3));
        // SAFETY: the software NIC never uses the address; the test checks that.
        let mapped = unsafe { MappedMemory::new(1 << 40, SIZE, Arc::clone(&held) as Arc<_>) };
        let host = MemoryRange::heap(SIZE);
        let (with_mapping, with_host) = if is_mapped_near { (&near, &far) } else { (&far, &near) };
        let register = |rail: &SoftRail, memory: &MemoryRange| {
            Rail::registrar(rail).register(memory, AccessRights::ALL, RegionPurpose::Heap).unwrap()
        };
        let (mapped, local) = (register(with_mapping, &mapped.to_memory()), register(with_host, &host));
        let (link, at_far) = connect(&mut near, &mut far);
        Self { near, far, link, at_far, held, mapped, host, local }
    }

    /// Posts an operation at the near end and waits for it.
    fn execute(&mut self, op: Op<'_>) -> Completion {
        let mut op = Some(op);
        poll_until("a completion", || {
            if let Some(again) = op.take()
                && self.near.post(self.link, 1, again, true).is_err()
            {
                op = Some(again);
            }
            self.near.flush();
            assert!(poll(&mut self.far).iter().all(|one| one.status == OpStatus::Ok), "{:?}", self.at_far);
            poll(&mut self.near).pop()
        })
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 + 1).collect()
}

fn ways() -> Vec<SoftConfig> {
    let wire = |wire, copy| SoftConfig { wire, copy, ..SoftConfig::default() };
    vec![
        wire(WireMode::Shm, CopyMode::Auto),
        wire(WireMode::Shm, CopyMode::Pull),
        wire(WireMode::Shm, CopyMode::Share),
        wire(WireMode::Tcp, CopyMode::Auto),
    ]
}

#[test]
fn writes_and_reads_use_mapping_copies() {
    for config in ways() {
        for (near, len) in [
            (false, 8),
            (false, 100),
            (false, 5000),
            (false, 700_001),
            (true, 8),
            (true, 3000),
            (true, 700_001),
        ] {
            let mut pair = MappedPair::new(&config, near);
            let (bytes, what) = (bytes(len), format!("{:?} {:?} {near} {len}", config.wire, config.copy));
            let (this, that) = if near { (pair.mapped, pair.local) } else { (pair.local, pair.mapped) };
            let extent = RegionExtent { key: this.local, offset: 16, len: len as u64 };
            let remote = RemoteLocation {
                key: that.remote,
                addr: that.remote_base + 64,
                purpose: RegionPurpose::Heap,
            };
            let (at_mapped, at_host) = if near { (16, 64) } else { (64, 16) };
            // From one memory to the other, and back.
            if near {
                pair.held.set_image(at_mapped, &bytes);
            } else {
                pair.host.write(at_host, &bytes).unwrap();
            }
            let write = Op::Write { from: OpSource::Region(extent), to: remote, imm: None };
            assert_eq!(pair.execute(write).status, OpStatus::Ok, "{what}");
            let mut found = vec![0; len];
            pair.host.read(at_host, &mut found).unwrap();
            assert!(
                found == bytes && pair.held.image()[at_mapped..at_mapped + len] == bytes,
                "{what}: a write"
            );
            assert_eq!(pair.held.held_back(), 0, "{what}: written bytes were not published");
            let cleared = vec![0; len];
            if near {
                pair.held.set_image(at_mapped, &cleared);
            } else {
                pair.host.write(at_host, &cleared).unwrap();
            }
            assert_eq!(pair.execute(Op::Read { into: extent, from: remote }).status, OpStatus::Ok, "{what}");
            pair.host.read(at_host, &mut found).unwrap();
            assert!(
                found == bytes && pair.held.image()[at_mapped..at_mapped + len] == bytes,
                "{what}: a read"
            );
            assert_eq!(pair.held.held_back(), 0, "{what}: read bytes were not published");
        }
    }
}

#[test]
fn atomics_change_words_of_a_mapping() {
    for config in ways() {
        let mut pair = MappedPair::new(&config, false);
        let at = RemoteLocation {
            key: pair.mapped.remote,
            addr: pair.mapped.remote_base + 64,
            purpose: RegionPurpose::Heap,
        };
        let old = RegionExtent { key: pair.local.local, offset: 8, len: 8 };
        assert_eq!(pair.execute(Op::FetchAdd { old, at, add: 5 }).status, OpStatus::Ok);
        assert_eq!(pair.execute(Op::CompareSwap { old, at, expect: 5, swap: 9 }).status, OpStatus::Ok);
        assert_eq!(pair.host.load(8), Ok(5));
        assert_eq!((pair.held.image()[64], pair.held.held_back()), (9, 0));
    }
}
