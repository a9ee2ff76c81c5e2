//! A10: which registration serves a request, at real endpoints and domains. The test that dma-bufs are compared to
//! the byte is in `crates/ofi/src/cache.rs`, because no provider here supports them.

use trunkline_fabric::{
    AccessRights, Op, OpSource, OpStatus, PostError, Rail as _, RegionPurpose, RemoteKey,
};
use trunkline_mem::MemoryRange;

use crate::Case;
use crate::kit::{Held, Over, Setup, part, shoot, write};

const KIB: usize = 1 << 10;

pub(crate) const CASES: &[Case] = &[
    Case::new("one address at two endpoints is two registrations", &Over::ALL, two_endpoints),
    Case::new("one address at one endpoint is one registration", &Over::ALL, used_twice),
    Case::new("a part of registered memory is served by its registration", &Over::ALL, parts_hit),
    Case::new("a larger range has a registration of its own", &Over::ALL, more_misses),
    Case::new("ranges of 4 KiB in one page of 64 KiB are distinct", &Over::ALL, pages_are_not_looked_at)
        .wrong(&["leaves the registration", "never valid", "is not registered"]),
    Case::new("a new endpoint finds no registrations of the old one", &Over::ALL, endpoints_come_anew),
    Case::new("a registration with possibly freed parts serves no request", &Over::ALL, parts_may_be_gone),
    Case::new("rights are those that were requested", &Over::ALL, rights),
    Case::new("only payload of users is shared", &Over::ALL, only_payload_of_users),
    Case::new("a failed step leaves nothing open", &Over::BOUND, failures).env(&[(
        "FI_STRICT_FAIL",
        // Counts that are beyond the registrations for the rails' own buffers.
        "mr_regattr:15,mr_bind:20,mr_enable:25",
    )]),
];

fn two_endpoints(setup: &Setup) {
    let memory = MemoryRange::heap(64 * KIB);
    let mut ends = setup.pair();
    let (at_a, at_b) =
        (Held::new(&ends.a, &memory, AccessRights::WRITE), Held::new(&ends.b, &memory, AccessRights::WRITE));
    let shared = setup.over.shares_between_rails();
    assert_eq!(setup.registrations(), if shared { 1 } else { 2 });
    assert_eq!(at_a.keys.remote == at_b.keys.remote, shared);
    if shared {
        assert_ne!(at_a.keys.local, at_b.keys.local);
    }
    // Each registration stays valid after the other one has ended.
    at_a.end();
    assert_eq!(setup.registrations(), 1);
    assert_eq!(write(&mut ends, b"to be or", at_b.remote(8)), OpStatus::Ok);
    assert_eq!(at_b.bytes(8, 8), b"to be or");
    at_b.end();
    assert_eq!(setup.registrations(), 0);
}

fn used_twice(setup: &Setup) {
    let memory = MemoryRange::heap(64 * KIB);
    let mut ends = setup.pair();
    let held = [(); 3].map(|()| Held::new(&ends.b, &memory, AccessRights::WRITE));
    assert_eq!(setup.registrations(), 1);
    assert!(held.iter().all(|one| one.keys.remote == held[0].keys.remote));
    for (left, one) in held.into_iter().enumerate() {
        assert_eq!(write(&mut ends, &[left as u8; 8], one.remote(100)), OpStatus::Ok);
        assert_eq!(one.bytes(100, 8), [left as u8; 8]);
        assert_eq!(setup.registrations(), 1);
        one.end();
    }
    assert_eq!(setup.registrations(), 0);
}

fn parts_hit(setup: &Setup) {
    let memory = MemoryRange::heap(64 * KIB);
    let mut ends = setup.pair();
    let whole = Held::new(&ends.b, &memory, AccessRights::WRITE);
    for (offset, len) in [(0, 1), (4 * KIB, 4 * KIB), (4099, 77), (64 * KIB - 1, 1), (0, 64 * KIB)] {
        let held = Held::new(&ends.b, &part(&memory, offset, len), AccessRights::WRITE);
        assert_eq!((setup.registrations(), held.keys.remote), (1, whole.keys.remote));
        assert_eq!(write(&mut ends, b"x", held.remote(len as u64 - 1)), OpStatus::Ok);
        assert_eq!(whole.bytes((offset + len - 1) as u64, 1), b"x");
        // This key covers only the part.
        let beyond = OpSource::Region(held.extent(len as u64, 1));
        let op = Op::Send { head: &[], body: beyond, imm: None };
        assert!(matches!(
            ends.b.post(ends.at_b, 3, op, true),
            Err(PostError::Refused(OpStatus::LocalProtection))
        ));
        held.end();
        memory.write(0, &vec![0; memory.len()]).unwrap();
    }
    // Bytes are sent from the part, although it begins within the registration.
    memory.write(5000, b"not to be").unwrap();
    let held = Held::new(&ends.a, &part(&memory, 5000, 9), AccessRights::LOCAL);
    let more = Held::new(&ends.a, &part(&memory, 5004, 5), AccessRights::LOCAL);
    let op = Op::Write { from: OpSource::Region(more.extent(0, 5)), to: whole.remote(0), imm: Some(7) };
    ends.a.post(ends.at_a, 2, op, true).unwrap();
    ends.poll_until(|seen| {
        seen.b.iter().any(|one| one.imm == Some(7)) && seen.a.iter().any(|one| one.wr_id == 2)
    });
    assert_eq!(whole.bytes(0, 5), b"to be");
    [held, more, whole].into_iter().for_each(Held::end);
    assert_eq!(setup.registrations(), 0);
}

fn more_misses(setup: &Setup) {
    let memory = MemoryRange::heap(64 * KIB);
    let rail = setup.rail();
    let middle = Held::new(&rail, &part(&memory, 4 * KIB, 8 * KIB), AccessRights::WRITE);
    let others = [(0, 64), (4, 9), (3, 8), (8, 8), (12, 4)];
    for (offset, len) in others {
        let held = Held::new(&rail, &part(&memory, offset * KIB, len * KIB), AccessRights::WRITE);
        assert_eq!(setup.registrations(), 2, "{len} KiB from {offset}");
        assert_ne!(held.keys.remote, middle.keys.remote);
        held.end();
    }
    middle.end();
    assert_eq!(setup.registrations(), 0);
}

fn pages_are_not_looked_at(setup: &Setup) {
    let memory = MemoryRange::heap(192 * KIB);
    // A page of 64 KiB, on kernels with that page size.
    let start = memory.addr().next_multiple_of(64 * KIB) - memory.addr();
    let mut ends = setup.pair();
    let held: Vec<_> = (0..16)
        .map(|at| Held::new(&ends.b, &part(&memory, start + at * 4 * KIB, 4 * KIB), AccessRights::WRITE))
        .collect();
    assert_eq!(setup.registrations(), 16);
    let mut keys: Vec<_> = held.iter().map(|one| one.keys.remote.0).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 16);
    assert_eq!(write(&mut ends, b"inside", held[3].remote(4090)), OpStatus::Ok);
    // A byte of the next range, which is registered under another key.
    shoot(&mut ends, held[3].remote(4090), b"outside");
    assert_eq!(held[4].bytes(0, 1), [0]);
    held.into_iter().for_each(Held::end);
    assert_eq!(setup.registrations(), 0);
}

fn endpoints_come_anew(setup: &Setup) {
    let memory = MemoryRange::heap(4 * KIB);
    // The registration outlives its rail, and so does its endpoint.
    let old = Held::new(&setup.rail(), &memory, AccessRights::WRITE);
    let domain = setup.over.shares_between_rails();
    for round in 0..200 {
        let mut ends = setup.pair();
        let held = Held::new(&ends.b, &memory, AccessRights::WRITE);
        assert_eq!(setup.registrations(), if domain { 1 } else { 2 }, "{round}");
        assert_eq!(held.keys.remote == old.keys.remote, domain);
        assert_eq!(write(&mut ends, &[round as u8; 4], held.remote(0)), OpStatus::Ok);
        assert_eq!(held.bytes(0, 4), [round as u8; 4]);
        // In some rounds the rail is dropped first.
        if round % 2 == 0 {
            drop(ends);
        }
        held.end();
        assert_eq!(setup.registrations(), 1);
    }
    old.end();
    assert_eq!(setup.registrations(), 0);
}

fn parts_may_be_gone(setup: &Setup) {
    let memory = MemoryRange::heap(64 * KIB);
    let rail = setup.rail();
    let whole = Held::new(&rail, &memory, AccessRights::WRITE);
    let first = Held::new(&rail, &part(&memory, 0, 4 * KIB), AccessRights::WRITE);
    whole.end();
    // The owner of the rest may have unmapped it, and mapped other memory there.
    let rest = Held::new(&rail, &part(&memory, 8 * KIB, 4 * KIB), AccessRights::WRITE);
    assert_ne!(rest.keys.remote, first.keys.remote);
    assert_eq!(setup.registrations(), 2);
    first.end();
    assert_eq!(setup.registrations(), 1);
    rest.end();
    assert_eq!(setup.registrations(), 0);
}

fn rights(setup: &Setup) {
    let memory = MemoryRange::heap(4 * KIB);
    let rail = setup.rail();
    let local = Held::new(&rail, &memory, AccessRights::LOCAL);
    // The first registration gives peers no rights, so it cannot serve this request.
    let open = Held::new(&rail, &memory, AccessRights::WRITE);
    assert_eq!((setup.registrations(), local.keys.remote), (2, RemoteKey(0)));
    // A request for fewer rights is served by a registration with more, but receives no remote key.
    local.end();
    let again = Held::new(&rail, &memory, AccessRights::LOCAL);
    assert_eq!((setup.registrations(), again.keys.remote), (1, RemoteKey(0)));
    let both = Held::new(&rail, &memory, AccessRights::READ_WRITE);
    assert_eq!(setup.registrations(), 2);
    assert_ne!(both.keys.remote, open.keys.remote);
    [again, open, both].into_iter().for_each(Held::end);
    assert_eq!(setup.registrations(), 0);
}

fn only_payload_of_users(setup: &Setup) {
    let memory = MemoryRange::heap(4 * KIB);
    let rail = setup.rail();
    let registrar = rail.registrar();
    let user = Held::new(&rail, &memory, AccessRights::WRITE);
    for purpose in [RegionPurpose::Bounce, RegionPurpose::Records] {
        let keys = [(); 2].map(|()| registrar.register(&memory, AccessRights::WRITE, purpose).unwrap());
        assert_eq!(setup.registrations(), 3, "{purpose:?}");
        assert!(keys[0].remote != keys[1].remote && keys.iter().all(|one| one.remote != user.keys.remote));
        keys.iter().for_each(|one| registrar.deregister(one.local).unwrap());
    }
    assert_eq!(setup.registrations(), 1);
    user.end();
}

fn failures(setup: &Setup) {
    let memory = MemoryRange::heap(4 * KIB);
    let mut ends = setup.pair();
    let registrar = ends.b.registrar();
    let mut failed = 0;
    for _ in 0..40 {
        match registrar.register(&memory, AccessRights::WRITE, RegionPurpose::Data) {
            Ok(keys) => registrar.deregister(keys.local).unwrap(),
            Err(_) => failed += 1,
        }
        assert_eq!(setup.registrations(), 0);
    }
    assert_eq!(failed, FAILING);
    let held = [(); 2].map(|()| Held::new(&ends.b, &memory, AccessRights::WRITE));
    assert_eq!(write(&mut ends, b"at last", held[0].remote(0)), OpStatus::Ok);
    held.into_iter().for_each(Held::end);
    assert_eq!(setup.registrations(), 0);
}

/// Number of failing steps in `failures`.
const FAILING: u32 = 3;
