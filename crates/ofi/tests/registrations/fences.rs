//! Deregistered memory: later writes of a peer have no effect, although other users hold the same registration.

use trunkline_fabric::conformance::{PolledCompletions, RailPair};
use trunkline_fabric::{AccessRights, LinkControl as _, Op, OpSource, OpStatus, PostError, Rail as _};
use trunkline_mem::MemoryRange;
use trunkline_ofi::OfiRail;

use crate::Case;
use crate::kit::{Held, Over, Setup, shoot, up, write};

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "the end of a rail's links stops writes to memory that another rail holds",
        &Over::DOMAIN,
        domain,
    ),
    Case::new("memory retired without links is closed at once", &Over::BOUND, bound).wrong(&[
        "never valid",
        "is not registered",
        "of a registration that",
        "use",
    ]),
    Case::new("memory retired while links live stays open for other users", &Over::ALL, live),
    Case::new("a rail opens endpoints again", &Over::ALL, again),
];

fn domain(setup: &Setup) {
    let memory = MemoryRange::heap(4096);
    let (mut first, mut second) = (setup.pair(), setup.pair());
    let (one, other) = (
        Held::new(&first.b, &memory, AccessRights::WRITE),
        Held::new(&second.b, &memory, AccessRights::WRITE),
    );
    assert_eq!((setup.registrations(), one.keys.remote), (1, other.keys.remote));
    assert_eq!(write(&mut first, b"in time", one.remote(0)), OpStatus::Ok);
    // The peer is not notified, and continues to write.
    let to = one.remote(100);
    first.b.fail_link(first.at_b);
    assert!(first.b.poll_link_quiet(first.at_b));
    one.retire();
    shoot(&mut first, to, b"late");
    assert_eq!(other.bytes(100, 4), [0; 4], "a late write landed");
    // The registration is still valid for its other user.
    assert_eq!(write(&mut second, b"another", other.remote(200)), OpStatus::Ok);
    assert_eq!(other.bytes(200, 7), b"another");
    other.end();
    assert_eq!(setup.registrations(), 0);
}

fn bound(setup: &Setup) {
    let memory = MemoryRange::heap(4096);
    let mut ends = setup.pair();
    let [one, other, third] = [(); 3].map(|()| Held::new(&ends.b, &memory, AccessRights::WRITE));
    assert_eq!(setup.registrations(), 1);
    let to = one.remote(100);
    ends.b.fail_link(ends.at_b);
    one.retire();
    shoot(&mut ends, to, b"late");
    assert_eq!(other.bytes(100, 4), [0; 4], "a late write landed");
    // On a new link no key names the closed registration, and the cache no longer returns it.
    ends.b.destroy_link(ends.at_b);
    (ends.at_a, ends.at_b) = ends.add_link();
    up(&mut ends);
    let op = Op::Send { head: &[], body: OpSource::Region(other.extent(0, 100)), imm: None };
    let refused = ends.b.post(ends.at_b, 3, op, true);
    assert!(matches!(refused, Err(PostError::Refused(OpStatus::LocalProtection))), "{refused:?}");
    let new = Held::new(&ends.b, &memory, AccessRights::WRITE);
    assert_ne!(new.keys.remote, other.keys.remote);
    other.end();
    third.retire();
    assert_eq!(write(&mut ends, b"anew", new.remote(0)), OpStatus::Ok);
    new.end();
    assert_eq!(setup.registrations(), 0);
}

fn live(setup: &Setup) {
    let memory = MemoryRange::heap(4096);
    let mut ends = setup.pair();
    let [one, other] = [(); 2].map(|()| Held::new(&ends.b, &memory, AccessRights::WRITE));
    one.retire();
    assert_eq!(setup.registrations(), 1);
    assert_eq!(write(&mut ends, b"still", other.remote(0)), OpStatus::Ok);
    assert_eq!(other.bytes(0, 5), b"still");
    other.end();
    assert_eq!(setup.registrations(), 0);
}

fn again(setup: &Setup) {
    let memory = MemoryRange::heap(4096);
    let mut ends = setup.pair();
    let held = Held::new(&ends.b, &memory, AccessRights::WRITE);
    let endpoints = setup.fabric_endpoints();
    for round in 0..20_u8 {
        assert_eq!(write(&mut ends, &[round; 16], held.remote(16)), OpStatus::Ok);
        assert_eq!(held.bytes(16, 16), [round; 16]);
        // The peer fails the link first, then this end, or the reverse.
        ends.a.fail_link(ends.at_a);
        ends.b.fail_link(ends.at_b);
        if round % 2 == 0 {
            (ends.at_a, ends.at_b) = relink(&mut ends);
        } else {
            ends.a.destroy_link(ends.at_a);
            ends.b.destroy_link(ends.at_b);
            (ends.at_a, ends.at_b) = relink(&mut ends);
        }
        up(&mut ends);
        if round % 2 == 1 {
            assert!(setup.fabric_endpoints() <= endpoints + 4, "{}", setup.fabric_endpoints());
        }
    }
    held.end();
    drop(ends);
    assert_eq!((setup.registrations(), setup.fabric_endpoints()), (0, 0));
}

/// Creates a new link, as soon as a place is free.
fn relink(ends: &mut RailPair<OfiRail>) -> (trunkline_fabric::LinkId, trunkline_fabric::LinkId) {
    for link in 0..8 {
        let link = trunkline_fabric::LinkId(link);
        if ends.a.poll_link_quiet(link) && link != ends.at_a {
            ends.a.destroy_link(link);
        }
        if ends.b.poll_link_quiet(link) && link != ends.at_b {
            ends.b.destroy_link(link);
        }
    }
    ends.settle(&mut PolledCompletions::default());
    ends.add_link()
}
