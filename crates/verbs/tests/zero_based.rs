//! Memory whose addresses begin at 0 for peers and device, as the sink of a queue pair that a device posts to must be: bytes are written, read and added to by
//! their offset alone. `scripts/rxe-vm` runs it where there is no device.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

mod common;

use common::{Manner, found};
use trunkline_fabric::conformance::{Ends, Region, Setup, default_config};
use trunkline_fabric::{Access, Extent, Fabric, Op, Purpose, Rail as _, RailConfig, Remote, Source, Status};
use trunkline_mem::{Kind, Memory};
use trunkline_verbs::{VerbsFabric, VerbsRail};

const PAGE: usize = 4096;

struct Verbs(&'static VerbsFabric);

impl Setup for Verbs {
    type Rail = VerbsRail;

    fn rails(&self, config: &RailConfig) -> (VerbsRail, VerbsRail) {
        let last = self.0.nics().len().min(2) - 1;
        (self.0.open(0, config).unwrap(), self.0.open(last, config).unwrap())
    }
}

fn ends() -> Option<Ends<VerbsRail>> {
    Some(Verbs(found(Manner::Built)?).pair(&default_config()))
}

/// The bytes at an offset of a region, by nothing but that offset.
fn at(region: &Region, offset: u64) -> Remote {
    Remote { key: region.keys.remote, addr: offset, purpose: Purpose::Bounce }
}

#[test]
fn bytes_are_named_by_their_offset() {
    let Some(mut ends) = ends() else { return };
    let from = Region::new(&ends.a, PAGE, Access::LOCAL);
    let into = Region::new(&ends.b, 4 * PAGE, Access::ALL);
    // Less than a page, as a sink is.
    let sink = Region::new(&ends.a, 8, Access::LOCAL);
    assert_eq!((into.keys.remote_base, sink.keys.remote_base), (0, 0));
    from.fill(5);
    for (offset, len) in [(0, 8), (8, 100), (PAGE as u64 - 3, 1000), (4 * PAGE as u64 - 8, 8)] {
        let source = Source::Region(from.extent(0, len));
        ends.on_a(1, Op::Write { from: source, to: at(&into, offset), imm: None });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok, "at {offset}");
        assert_eq!(into.bytes(offset, len as usize), from.bytes(0, len as usize), "at {offset}");
        let back = from.extent(2000, len);
        ends.on_a(2, Op::Read { into: back, from: at(&into, offset) });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok, "from {offset}");
        assert_eq!(from.bytes(2000, len as usize), from.bytes(0, len as usize), "from {offset}");
    }
    // What was there before goes into the sink, which the device knows by 0, too.
    into.memory.store(64, 40).unwrap();
    for before in [40, 43] {
        let old = Extent { key: sink.keys.local, offset: 0, len: 8 };
        ends.on_a(3, Op::FetchAdd { old, at: at(&into, 64), add: 3 });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
        assert_eq!(sink.memory.load(0), Ok(before));
    }
    assert_eq!(into.memory.load(64), Ok(46));
}

#[test]
fn nothing_is_behind_its_end() {
    let Some(mut ends) = ends() else { return };
    let from = Region::new(&ends.a, 64, Access::LOCAL);
    let into = Region::new(&ends.b, 8, Access::ALL);
    let source = Source::Region(from.extent(0, 8));
    ends.on_a(1, Op::Write { from: source, to: at(&into, 0), imm: None });
    assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
    // The word behind it is in the same page.
    ends.on_a(2, Op::Write { from: source, to: at(&into, 8), imm: None });
    assert_eq!(ends.expect(1, 0).a[0].status, Status::RemoteAccess);
}

#[test]
fn what_begins_within_a_page_is_counted_from_there() {
    let Some(mut ends) = ends() else { return };
    let from = Region::new(&ends.a, 64, Access::LOCAL);
    from.fill(9);
    let all = Memory::heap(2 * PAGE);
    // SAFETY: bytes of `all`, which lives as long.
    let part = unsafe { Memory::from_raw(all.addr() + 200, 100, Kind::Host) };
    let registrar = ends.b.registrar();
    let keys = registrar.register(&part, Access::ALL, Purpose::Bounce).unwrap();
    assert_eq!(keys.remote_base, 200, "a device maps whole pages");
    let to = Remote { key: keys.remote, addr: keys.remote_base + 10, purpose: Purpose::Bounce };
    ends.on_a(1, Op::Write { from: Source::Region(from.extent(0, 64)), to, imm: None });
    assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
    let mut bytes = [0; 64];
    all.read(210, &mut bytes).unwrap();
    assert_eq!(bytes.as_slice(), from.bytes(0, 64));
    registrar.deregister(keys.local).unwrap();
}
