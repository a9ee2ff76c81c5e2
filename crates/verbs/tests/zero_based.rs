//! Memory whose addresses begin at 0 for peers and device, as the sink of a queue pair that a device posts to
//! requires. Bytes are written, read and added to by their offset alone. `scripts/rxe-vm` runs it where there is no
//! device.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use common::{Manner, found};
use trunkline_fabric::conformance::{ConformanceSetup, RailPair, TestRegion, default_config};
use trunkline_fabric::{
    AccessRights, Fabric, Op, OpSource, OpStatus, Rail as _, RailConfig, RegionExtent, RegionPurpose,
    RemoteLocation,
};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_verbs::{VerbsFabric, VerbsRail};

const PAGE: usize = 4096;

struct Verbs(&'static VerbsFabric);

impl ConformanceSetup for Verbs {
    type Rail = VerbsRail;

    fn open_rails(&self, config: &RailConfig) -> (VerbsRail, VerbsRail) {
        let last = self.0.nics().len().min(2) - 1;
        (self.0.open_rail(0, config).unwrap(), self.0.open_rail(last, config).unwrap())
    }
}

fn ends() -> Option<RailPair<VerbsRail>> {
    Some(Verbs(found(Manner::Built)?).open_pair(&default_config()))
}

/// Returns the location at an offset of a region, by that offset alone.
fn at(region: &TestRegion, offset: u64) -> RemoteLocation {
    RemoteLocation { key: region.keys.remote, addr: offset, purpose: RegionPurpose::Bounce }
}

#[test]
fn bytes_are_addressed_by_their_offset() {
    let Some(mut ends) = ends() else { return };
    let from = TestRegion::new(&ends.a, PAGE, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, 4 * PAGE, AccessRights::ALL);
    // Smaller than a page, as a sink is.
    let sink = TestRegion::new(&ends.a, 8, AccessRights::LOCAL);
    assert_eq!((into.keys.remote_base, sink.keys.remote_base), (0, 0));
    from.fill_pattern(5);
    for (offset, len) in [(0, 8), (8, 100), (PAGE as u64 - 3, 1000), (4 * PAGE as u64 - 8, 8)] {
        let source = OpSource::Region(from.extent_at(0, len));
        ends.on_a(1, Op::Write { from: source, to: at(&into, offset), imm: None });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok, "at {offset}");
        assert_eq!(into.read_bytes(offset, len as usize), from.read_bytes(0, len as usize), "at {offset}");
        let back = from.extent_at(2000, len);
        ends.on_a(2, Op::Read { into: back, from: at(&into, offset) });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok, "from {offset}");
        assert_eq!(from.read_bytes(2000, len as usize), from.read_bytes(0, len as usize), "from {offset}");
    }
    // The old value is stored in the sink, which the device also addresses from 0.
    into.memory.store(64, 40).unwrap();
    for before in [40, 43] {
        let old = RegionExtent { key: sink.keys.local, offset: 0, len: 8 };
        ends.on_a(3, Op::FetchAdd { old, at: at(&into, 64), add: 3 });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
        assert_eq!(sink.memory.load(0), Ok(before));
    }
    assert_eq!(into.memory.load(64), Ok(46));
}

#[test]
fn accesses_past_the_end_are_refused() {
    let Some(mut ends) = ends() else { return };
    let from = TestRegion::new(&ends.a, 64, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, 8, AccessRights::ALL);
    let source = OpSource::Region(from.extent_at(0, 8));
    ends.on_a(1, Op::Write { from: source, to: at(&into, 0), imm: None });
    assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
    // The word behind its end is in the same page.
    ends.on_a(2, Op::Write { from: source, to: at(&into, 8), imm: None });
    assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::RemoteAccess);
}

#[test]
fn unaligned_memory_is_addressed_by_its_page_offset() {
    let Some(mut ends) = ends() else { return };
    let from = TestRegion::new(&ends.a, 64, AccessRights::LOCAL);
    from.fill_pattern(9);
    let all = MemoryRange::heap(2 * PAGE);
    // SAFETY: bytes of `all`, which is dropped later.
    let part = unsafe { MemoryRange::from_raw(all.addr() + 200, 100, MemoryKind::Host) };
    let registrar = ends.b.registrar();
    let keys = registrar.register(&part, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    assert_eq!(keys.remote_base, 200, "a device maps whole pages");
    let to = RemoteLocation { key: keys.remote, addr: keys.remote_base + 10, purpose: RegionPurpose::Bounce };
    ends.on_a(1, Op::Write { from: OpSource::Region(from.extent_at(0, 64)), to, imm: None });
    assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
    let mut bytes = [0; 64];
    all.read(210, &mut bytes).unwrap();
    assert_eq!(bytes.as_slice(), from.read_bytes(0, 64));
    registrar.deregister(keys.local).unwrap();
}
