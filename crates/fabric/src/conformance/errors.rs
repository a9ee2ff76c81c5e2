//! Cases: a refused or failed operation reports its error and touches no memory.

use super::pair::{ConformanceSetup, LIMIT, PolledCompletions, RailPair, TestRegion, default_config};
use crate::{
    AccessRights, CompletionKind, LocalKey, Op, OpSource, OpStatus, PostError, Rail, RegionExtent, RemoteKey,
    RemoteLocation,
};

/// Sizes that are sent inline and otherwise.
const LENS: [u64; 3] = [8, 4096, 1 << 20];
const SIZE: usize = 2 << 20;

/// Posts a write that must be refused, and checks that no memory was touched and the link is in error at both ends.
fn assert_write_refused<R: Rail>(
    ends: &mut RailPair<R>,
    from: &TestRegion,
    into: &TestRegion,
    to: RemoteLocation,
    len: u64,
) {
    // Some NICs check the key only once there is a receive.
    let lent = TestRegion::new(&ends.b, 8, AccessRights::LOCAL);
    ends.lend_receives(from, &lent);
    let imm = ends.a.caps().write_data.then_some(1);
    ends.on_a(41, Op::Write { from: OpSource::Region(from.extent_at(0, len)), to, imm });
    let seen = ends.expect_completions(1, 0);
    let failed = seen.a[0];
    assert_eq!(
        (failed.wr_id, failed.done, failed.status),
        (41, CompletionKind::Posted, OpStatus::RemoteAccess)
    );
    into.assert_untouched();
    let again = Op::Write { from: OpSource::Inline(&[1]), to: into.remote_at(0), imm: None };
    assert_eq!(ends.a.post(ends.at_a, 1, again, true), Err(PostError::Refused(OpStatus::Flushed)));
    if !ends.a.caps().errors_reach_peers {
        return;
    }
    // The other end may notice the error later.
    let started = std::time::Instant::now();
    let mut seen = PolledCompletions::default();
    loop {
        match ends.b.post(ends.at_b, 1, Op::Nop, true) {
            Err(PostError::Refused(status)) => return assert_eq!(status, OpStatus::Flushed),
            _ => ends.poll(&mut seen),
        }
        assert!(started.elapsed() < LIMIT, "the other end is not in error: {:?}", seen.b);
    }
}

/// A key that was never issued, or that differs in one bit, grants no access.
pub fn wrong_keys_are_refused<S: ConformanceSetup>(setup: &S) {
    for (round, len) in [0, 1, 17, 40, 63].into_iter().zip(LENS.into_iter().cycle()) {
        let mut ends = setup.open_pair(&default_config());
        if !ends.a.caps().refusals_are_told {
            return;
        }
        let from = TestRegion::new(&ends.a, SIZE, AccessRights::LOCAL);
        let into = TestRegion::new(&ends.b, SIZE, AccessRights::ALL);
        from.fill_pattern(1);
        let mut to = into.remote_at(0);
        to.key = RemoteKey(to.key.0 ^ (1 << round));
        assert_write_refused(&mut ends, &from, &into, to, len);
    }
}

/// A refusal ends the link that it happened on, at both ends, and no other of the same rails.
pub fn refusals_stay_on_their_link<S: ConformanceSetup>(setup: &S) {
    for way in 0..3 {
        let mut ends = setup.open_pair(&default_config());
        if !ends.a.caps().refusals_are_told {
            return;
        }
        let (other, _) = ends.add_link();
        let into = TestRegion::new(&ends.b, 4096, AccessRights::ALL);
        let mut to = into.remote_at(if way == 1 { 4090 } else { 64 });
        to.key = RemoteKey(to.key.0 ^ u64::from(way == 0));
        let here = TestRegion::new(&ends.a, 64, AccessRights::LOCAL);
        let op = match way {
            2 => Op::Read { into: here.extent_at(0, 8), from: into.remote_at(4095) },
            _ => Op::Write { from: OpSource::Inline(&[1; 8]), to, imm: None },
        };
        ends.on_a(41, op);
        let seen = ends.expect_completions(1, 0);
        assert_eq!((seen.a[0].link, seen.a[0].status), (ends.at_a, OpStatus::RemoteAccess), "way {way}");
        for wr_id in 0..10 {
            let op = Op::Write { from: OpSource::Inline(&[2; 8]), to: into.remote_at(0), imm: None };
            ends.a.post(other, wr_id, op, true).unwrap_or_else(|e| panic!("the other link: {e}"));
        }
        let seen = ends.expect_completions(10, 0);
        assert!(seen.a.iter().all(|one| (one.link, one.status) == (other, OpStatus::Ok)), "{:?}", seen.a);
    }
}

/// A right that was not granted is refused.
pub fn missing_rights_are_refused<S: ConformanceSetup>(setup: &S) {
    for len in LENS {
        let mut ends = setup.open_pair(&default_config());
        if !ends.a.caps().refusals_are_told {
            return;
        }
        let from = TestRegion::new(&ends.a, SIZE, AccessRights::LOCAL);
        let into = TestRegion::new(&ends.b, SIZE, AccessRights { write: false, read: true, atomic: true });
        from.fill_pattern(1);
        let to = into.remote_at(0);
        assert_write_refused(&mut ends, &from, &into, to, len);
    }
}

/// An access that begins or ends outside the region touches no byte of it.
pub fn accesses_outside_are_refused<S: ConformanceSetup>(setup: &S) {
    for len in LENS {
        let size = SIZE as u64;
        for offset in [size - len + 1, size, u64::MAX - len / 2, u64::MAX] {
            let mut ends = setup.open_pair(&default_config());
            if !ends.a.caps().refusals_are_told {
                return;
            }
            let from = TestRegion::new(&ends.a, SIZE, AccessRights::LOCAL);
            let into = TestRegion::new(&ends.b, SIZE, AccessRights::ALL);
            from.fill_pattern(1);
            let to = into.remote_at(offset);
            ends.on_a(41, Op::Write { from: OpSource::Region(from.extent_at(0, len)), to, imm: None });
            assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::RemoteAccess, "offset {offset}");
            // A fabric may place the packets before the first one that is refused, as a NIC does.
            let inside = usize::try_from(size.saturating_sub(offset)).unwrap_or(0);
            let clean = into.read_bytes(0, SIZE - inside);
            assert!(clean.iter().all(|byte| *byte == 0), "bytes outside the range were touched");
        }
    }
}

/// A deregistered region can not be reached any more.
pub fn deregistered_regions_are_refused<S: ConformanceSetup>(setup: &S) {
    for len in LENS {
        let mut ends = setup.open_pair(&default_config());
        if !ends.a.caps().refusals_are_told {
            return;
        }
        let from = TestRegion::new(&ends.a, SIZE, AccessRights::LOCAL);
        let into = TestRegion::new(&ends.b, SIZE, AccessRights::ALL);
        from.fill_pattern(1);
        let to = into.remote_at(0);
        into.deregister();
        assert_write_refused(&mut ends, &from, &into, to, len);
    }
}

/// A refusal is a completion even for an operation that was not signalled.
pub fn refusals_reach_unsignalled_operations<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().refusals_are_told {
        return;
    }
    let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
    let good = Op::Write { from: OpSource::Inline(&[0]), to: into.remote_at(0), imm: None };
    let mut to = into.remote_at(0);
    to.key = RemoteKey(!to.key.0);
    let bad = Op::Write { from: OpSource::Inline(&[1]), to, imm: None };
    for wr_id in 1..=3 {
        ends.a.post(ends.at_a, wr_id, good, false).unwrap_or_else(|e| panic!("{e}"));
    }
    ends.a.post(ends.at_a, 4, bad, false).unwrap_or_else(|e| panic!("{e}"));
    ends.a.post(ends.at_a, 5, good, false).unwrap_or_else(|e| panic!("{e}"));
    let mut seen = ends.poll_until(|seen| seen.a.iter().any(|one| one.wr_id == 5));
    ends.settle(&mut seen);
    assert_eq!((seen.a[0].wr_id, seen.a[0].status), (4, OpStatus::RemoteAccess));
    assert!(seen.a[1..].iter().all(|one| one.status == OpStatus::Flushed) && seen.b.is_empty());
    // Without order, a refusal may complete before operations that succeeded.
    let rest = seen.a[1..].iter().filter(|one| ends.a.caps().link_order || one.wr_id == 5);
    assert_eq!(rest.map(|one| one.wr_id).collect::<Vec<_>>(), [5]);
    into.assert_untouched();
}

/// Reads and atomics without the right fail and place nothing.
pub fn refused_reads_and_atomics_place_nothing<S: ConformanceSetup>(setup: &S) {
    for case in 0..4 {
        let mut ends = setup.open_pair(&default_config());
        if !ends.a.caps().refusals_are_told {
            return;
        }
        if case > 0 && !ends.a.caps().atomics {
            return;
        }
        let into = TestRegion::new(&ends.a, 4096, AccessRights::LOCAL);
        let from = TestRegion::new(&ends.b, 4096, AccessRights::WRITE);
        let atomic = TestRegion::new(&ends.b, 4096, AccessRights::ALL);
        let old = into.extent_at(0, 8);
        let op = match case {
            0 => Op::Read { into: into.extent_at(0, 4096), from: from.remote_at(0) },
            1 => Op::FetchAdd { old, at: from.remote_at(0), add: 3 },
            2 => Op::CompareSwap { old, at: from.remote_at(0), expect: 0, swap: 5 },
            _ => Op::FetchAdd { old, at: atomic.remote_at(4), add: 3 },
        };
        ends.on_a(9, op);
        let seen = ends.expect_completions(1, 0);
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (9, OpStatus::RemoteAccess), "case {case}");
        into.assert_untouched();
        from.assert_untouched();
        atomic.assert_untouched();
    }
}

/// A send larger than its receive fails on both sides and writes nothing past it.
pub fn too_long_sends_fail_on_both_sides<S: ConformanceSetup>(setup: &S) {
    for len in LENS {
        let mut ends = setup.open_pair(&default_config());
        if !ends.a.caps().sends_wait {
            return;
        }
        let from = TestRegion::new(&ends.a, SIZE, AccessRights::LOCAL);
        let into = TestRegion::new(&ends.b, SIZE, AccessRights::LOCAL);
        from.fill_pattern(1);
        ends.on_b(6, Op::Recv { into: into.extent_at(0, len - 1) });
        ends.on_a(7, Op::Send { head: &[], body: OpSource::Region(from.extent_at(0, len)), imm: None });
        let seen = ends.expect_completions(1, 1);
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (7, OpStatus::TooLong));
        assert_eq!((seen.b[0].wr_id, seen.b[0].status), (6, OpStatus::TooLong));
        assert!(
            into.read_bytes(len - 1, 100).iter().all(|byte| *byte == 0),
            "bytes past the receive were touched"
        );
    }
}

/// After an error every operation posted on either end completes as flushed, in order, once.
pub fn errors_flush_posted_operations<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let caps = ends.a.caps();
    if !caps.errors_reach_peers || !caps.refusals_are_told {
        return;
    }
    let here = TestRegion::new(&ends.a, 4096, AccessRights::ALL);
    let there = TestRegion::new(&ends.b, 4096, AccessRights::ALL);
    for wr_id in 100..110 {
        ends.on_a(wr_id, Op::Recv { into: here.extent_at(0, 8) });
        ends.on_b(wr_id, Op::Recv { into: there.extent_at(0, 8) });
    }
    let bad =
        RemoteLocation { key: RemoteKey(!there.keys.remote.0), addr: 0, purpose: crate::RegionPurpose::Data };
    // Flushed here, because operations that a device receives after the error are a different case.
    ends.b.flush();
    ends.on_a(1, Op::Write { from: OpSource::Inline(&[1]), to: there.remote_at(0), imm: None });
    ends.on_a(2, Op::Write { from: OpSource::Inline(&[1]), to: bad, imm: None });
    ends.on_a(3, Op::Write { from: OpSource::Inline(&[1]), to: there.remote_at(0), imm: None });
    ends.on_a(4, Op::Nop);
    let seen = ends.expect_completions(14, 10);
    let status = |wr_id: u64| match wr_id {
        1 => OpStatus::Ok,
        2 => OpStatus::RemoteAccess,
        _ => OpStatus::Flushed,
    };
    let posted: Vec<u64> =
        seen.a.iter().filter(|one| one.done == CompletionKind::Posted).map(|one| one.wr_id).collect();
    assert_eq!(posted, [1, 2, 3, 4]);
    for one in &seen.a {
        assert_eq!(one.status, status(one.wr_id), "{one:?}");
    }
    for list in [&seen.a, &seen.b] {
        let received: Vec<u64> =
            list.iter().filter(|one| one.done == CompletionKind::Received).map(|one| one.wr_id).collect();
        assert_eq!(received, (100..110).collect::<Vec<_>>());
    }
    assert!(seen.b.iter().all(|one| one.status == OpStatus::Flushed));
}

/// Local keys that are not valid on this side, or ranges outside their region, are refused before anything is taken.
pub fn foreign_local_keys_are_refused<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let here = TestRegion::new(&ends.a, 4096, AccessRights::ALL);
    let to = TestRegion::new(&ends.b, 4096, AccessRights::ALL);
    let before = ends.a.post_credits(ends.at_a);
    let bad = [
        RegionExtent { key: LocalKey(here.keys.local.0 ^ (1 << 40)), offset: 0, len: 8 },
        here.extent_at(4090, 8),
        here.extent_at(u64::MAX, 8),
    ];
    for extent in bad {
        let ops = [
            Op::Write { from: OpSource::Region(extent), to: to.remote_at(0), imm: None },
            Op::Recv { into: extent },
            Op::Read { into: extent, from: to.remote_at(0) },
        ];
        for op in ops {
            let posted = ends.a.post(ends.at_a, 1, op, true);
            assert_eq!(posted, Err(PostError::Refused(OpStatus::LocalProtection)), "{op:?}");
        }
    }
    assert_eq!(ends.a.post_credits(ends.at_a), before);
    ends.expect_completions(0, 0);
}
