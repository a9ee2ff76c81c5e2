//! Cases: the effect of each operation without errors.

use super::pair::{
    ConformanceSetup, PolledCompletions, TestRegion, default_config, pattern_byte, zeroed_bytes,
};
use crate::{AccessRights, Caps, CompletionKind, MatchKey, Op, OpSource, OpStatus, Rail, RegionPurpose};

/// Sizes around every boundary that a fabric may have.
pub(super) const SIZES: [usize; 22] = [
    0,
    1,
    7,
    8,
    31,
    32,
    33,
    63,
    64,
    95,
    96,
    97,
    192,
    193,
    4096,
    8191,
    16384,
    65536,
    65537,
    300_001,
    1 << 20,
    (5 << 20) + 13,
];
const LARGEST: usize = (5 << 20) + 13;

/// Sends of every size fill receives, oldest first, with length and immediate.
pub fn sends_fill_receives_in_order<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let from = TestRegion::new(&ends.a, LARGEST, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, LARGEST, AccessRights::LOCAL);
    from.fill_pattern(1);
    for (round, len) in SIZES.into_iter().enumerate() {
        let round = round as u64;
        let imm = round.is_multiple_of(2).then_some(round as u32);
        let size = len as u64;
        ends.on_b(100 + round, Op::Recv { into: into.extent_at(0, size) });
        let body = OpSource::Region(from.extent_at(0, size));
        ends.on_a(round, Op::Send { head: &[], body, imm });
        let seen = ends.expect_completions(1, 1);
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (round, OpStatus::Ok));
        let got = seen.b[0];
        assert_eq!((got.wr_id, got.done, got.status), (100 + round, CompletionKind::Received, OpStatus::Ok));
        assert_eq!((got.imm, got.len), (imm, size));
        assert!(into.read_bytes(0, len) == from.read_bytes(0, len), "{len} bytes differ");
    }
}

/// The inline head and the body of a send arrive joined.
pub fn sends_join_head_and_body<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let from = TestRegion::new(&ends.a, 200_000, AccessRights::LOCAL);
    let most = ends.a.caps().inline_max as usize;
    assert!(most >= Caps::INLINE_MIN as usize, "a record has no room inline: {most} bytes");
    let room = 200_000 + 2 * most as u64;
    let into = TestRegion::new(&ends.b, room as usize, AccessRights::LOCAL);
    from.fill_pattern(2);
    let head: Vec<u8> = (0..most as u64).map(|at| pattern_byte(3, at)).collect();
    for head_len in [0, 1, 16, most] {
        for body_len in [0usize, 1, 8, 100, 200_000] {
            let total = (head_len + body_len) as u64;
            ends.on_b(1, Op::Recv { into: into.extent_at(0, room) });
            let body = OpSource::Region(from.extent_at(0, body_len as u64));
            ends.on_a(2, Op::Send { head: &head[..head_len], body, imm: Some(9) });
            let seen = ends.expect_completions(1, 1);
            assert_eq!((seen.b[0].status, seen.b[0].imm, seen.b[0].len), (OpStatus::Ok, Some(9), total));
            assert!(into.read_bytes(0, head_len) == head[..head_len], "the head differs");
            assert!(
                into.read_bytes(head_len as u64, body_len) == from.read_bytes(0, body_len),
                "the body differs"
            );
        }
        ends.on_b(1, Op::Recv { into: into.extent_at(0, room) });
        ends.on_a(2, Op::Send { head: &head[..head_len], body: OpSource::Inline(&head), imm: None });
        let seen = ends.expect_completions(1, 1);
        assert_eq!((seen.b[0].status, seen.b[0].len), (OpStatus::Ok, (head_len + most) as u64));
        assert_eq!(into.read_bytes(head_len as u64, most), head);
    }
}

/// Writes of every size change exactly their destination; the target gets no completion.
pub fn writes_land_at_every_size<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let from = TestRegion::new(&ends.a, LARGEST + 5, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, LARGEST + 64, AccessRights::WRITE);
    from.fill_pattern(4);
    for len in SIZES {
        for shift in [0, 3] {
            into.memory.write(0, &zeroed_bytes(len + 64)).unwrap_or_else(|e| panic!("clear: {e}"));
            let source = OpSource::Region(from.extent_at(shift, len as u64));
            ends.on_a(7, Op::Write { from: source, to: into.remote_at(8 + shift), imm: None });
            let seen = ends.expect_completions(1, 0);
            assert_eq!((seen.a[0].done, seen.a[0].status), (CompletionKind::Posted, OpStatus::Ok));
            flush_writes(&mut ends);
            assert!(into.read_bytes(8 + shift, len) == from.read_bytes(shift, len), "{len} bytes differ");
            assert_eq!(into.read_bytes(0, 8 + shift as usize), vec![0; 8 + shift as usize], "bytes before");
            assert_eq!(into.read_bytes(8 + shift + len as u64, 16), [0; 16], "bytes after");
        }
    }
}

/// Makes the writes of `a` visible at `b`, where that needs a flush.
pub(super) fn flush_writes<R: Rail>(ends: &mut super::RailPair<R>) {
    if ends.b.caps().needs_flush {
        ends.on_b(u64::MAX, Op::Flush);
        ends.expect_completions(0, 1);
    }
}

/// A write with immediate completes at the target after its bytes are placed.
pub fn writes_with_immediate_notify_the_target<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let from = TestRegion::new(&ends.a, LARGEST, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, LARGEST, AccessRights::WRITE);
    let vouched = ends.b.caps().remote_len;
    ends.lend_receives(&from, &into);
    for (round, len) in SIZES.into_iter().enumerate() {
        from.fill_pattern(round as u64);
        let source = OpSource::Region(from.extent_at(0, len as u64));
        let imm = Some(u32::MAX - round as u32);
        ends.on_a(7, Op::Write { from: source, to: into.remote_at(0), imm });
        let seen = ends.expect_completions(1, 1);
        let told = seen.b[0];
        assert_eq!(
            (told.done, told.status, told.imm, told.wr_id),
            (CompletionKind::Written, OpStatus::Ok, imm, 0)
        );
        assert!(!vouched || told.len == len as u64, "length {} instead of {len}", told.len);
        flush_writes(&mut ends);
        assert!(into.read_bytes(0, len) == from.read_bytes(0, len), "{len} bytes differ");
    }
    let head = [5u8; 24];
    ends.on_a(8, Op::Write { from: OpSource::Inline(&head), to: into.remote_at(40), imm: Some(1) });
    let seen = ends.expect_completions(1, 1);
    assert_eq!(seen.b[0].imm, Some(1));
    flush_writes(&mut ends);
    assert_eq!(into.read_bytes(40, 24), head);
}

/// Reads of every size fetch the peer's bytes.
pub fn reads_fetch_every_size<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let into = TestRegion::new(&ends.a, LARGEST, AccessRights::LOCAL);
    let from = TestRegion::new(&ends.b, LARGEST + 8, AccessRights::READ_WRITE);
    from.fill_pattern(6);
    for len in SIZES {
        ends.on_a(3, Op::Read { into: into.extent_at(0, len as u64), from: from.remote_at(8) });
        let seen = ends.expect_completions(1, 0);
        assert_eq!(
            (seen.a[0].wr_id, seen.a[0].done, seen.a[0].status),
            (3, CompletionKind::Posted, OpStatus::Ok)
        );
        assert!(into.read_bytes(0, len) == from.read_bytes(8, len), "{len} bytes differ");
    }
    let mut seen = PolledCompletions::default();
    for round in 0..200 {
        let into = into.extent_at(round * 8, 8);
        ends.post_a(round, Op::Read { into, from: from.remote_at(round * 8) }, true, &mut seen);
    }
    let rest = ends.expect_completions(200 - seen.a.len(), 0);
    let order: Vec<u64> = seen.a.iter().chain(&rest.a).map(|one| one.wr_id).collect();
    assert_eq!(order, (0..200).collect::<Vec<_>>(), "reads complete in order");
    assert_eq!(into.read_bytes(0, 1600), from.read_bytes(0, 1600));
}

/// Fetch-add and compare-swap change the word and return its old value.
pub fn atomics_return_the_old_value<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().atomics {
        return;
    }
    let old = TestRegion::new(&ends.a, 16, AccessRights::LOCAL);
    let word = TestRegion::new(&ends.b, 64, AccessRights::ALL);
    let mut value = u64::MAX - 2;
    word.memory.store(8, value).unwrap_or_else(|e| panic!("{e}"));
    for add in [1, 5, u64::MAX] {
        ends.on_a(1, Op::FetchAdd { old: old.extent_at(8, 8), at: word.remote_at(8), add });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
        assert_eq!(old.memory.load(8), Ok(value));
        value = value.wrapping_add(add);
        assert_eq!(word.memory.load(8), Ok(value));
    }
    for (expect, swap) in [(value, 77), (value, 78), (77, 79)] {
        let before = word.memory.load(8).unwrap_or_default();
        ends.on_a(2, Op::CompareSwap { old: old.extent_at(0, 8), at: word.remote_at(8), expect, swap });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
        assert_eq!(old.memory.load(0), Ok(before));
        assert_eq!(word.memory.load(8), Ok(if before == expect { swap } else { before }));
    }
    assert_eq!(word.memory.load(8), Ok(79));
}

/// Matched sends are paired with the receives of their key, in order, whichever was posted first.
pub fn matched_sends_find_their_receives<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().matched {
        return;
    }
    let from = TestRegion::new(&ends.a, LARGEST, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, LARGEST + 4096, AccessRights::LOCAL);
    from.fill_pattern(8);
    for len in SIZES {
        ends.on_b(
            5,
            Op::MatchedRecv { into: into.extent_at(3, len as u64 + 100), key: MatchKey(len as u64) },
        );
        let source = OpSource::Region(from.extent_at(0, len as u64));
        ends.on_a(6, Op::MatchedSend { from: source, key: MatchKey(len as u64) });
        let seen = ends.expect_completions(1, 1);
        assert_eq!(
            (seen.a[0].wr_id, seen.a[0].done, seen.a[0].status),
            (6, CompletionKind::Posted, OpStatus::Ok)
        );
        let got = seen.b[0];
        assert_eq!(
            (got.wr_id, got.done, got.status, got.len),
            (5, CompletionKind::Received, OpStatus::Ok, len as u64)
        );
        assert!(into.read_bytes(3, len) == from.read_bytes(0, len), "{len} bytes differ");
    }
    // Two of each key, posted in mixed order: first posted, first paired.
    for (wr_id, key) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
        let byte = [wr_id as u8 + 1];
        ends.on_a(wr_id, Op::MatchedSend { from: OpSource::Inline(&byte), key: MatchKey(key) });
    }
    for (wr_id, key) in [(10, 2), (11, 1), (12, 1), (13, 2)] {
        ends.on_b(wr_id, Op::MatchedRecv { into: into.extent_at(wr_id, 1), key: MatchKey(key) });
    }
    let seen = ends.expect_completions(4, 4);
    assert!(seen.b.iter().all(|one| one.status == OpStatus::Ok && one.len == 1));
    assert_eq!(into.read_bytes(10, 4), [2, 1, 3, 4]);
}

/// A matched send without its receive is held, and holds up nothing else.
pub fn matched_sends_wait_for_their_receives<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().matched {
        return;
    }
    let from = TestRegion::new(&ends.a, 100_000, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, 100_000, AccessRights::WRITE);
    from.fill_pattern(9);
    let source = OpSource::Region(from.extent_at(0, 100_000));
    ends.on_a(1, Op::MatchedSend { from: source, key: MatchKey(4) });
    ends.on_a(2, Op::Write { from: OpSource::Inline(&[1]), to: into.remote_at(0), imm: None });
    let seen = ends.expect_completions(1, 0);
    assert_eq!(seen.a[0].wr_id, 2);
    ends.on_b(3, Op::MatchedRecv { into: into.extent_at(0, 100_000), key: MatchKey(5) });
    ends.expect_completions(0, 0);
    ends.on_b(4, Op::MatchedRecv { into: into.extent_at(0, 100_000), key: MatchKey(4) });
    let seen = ends.expect_completions(1, 1);
    assert_eq!((seen.a[0].wr_id, seen.b[0].wr_id), (1, 4));
    flush_writes(&mut ends);
    assert!(into.read_bytes(0, 100_000) == from.read_bytes(0, 100_000));
}

/// A flush completes.
pub fn flushes_complete<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    ends.on_b(12, Op::Flush);
    let seen = ends.expect_completions(0, 1);
    assert_eq!(
        (seen.b[0].wr_id, seen.b[0].done, seen.b[0].status),
        (12, CompletionKind::Posted, OpStatus::Ok)
    );
}

/// A no-operation completes after the operations posted before it.
pub fn nops_complete_in_order<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let from = TestRegion::new(&ends.a, LARGEST, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, LARGEST, AccessRights::WRITE);
    let source = OpSource::Region(from.extent_at(0, LARGEST as u64));
    ends.on_a(1, Op::Write { from: source, to: into.remote_at(0), imm: None });
    ends.on_a(2, Op::Nop);
    let order: Vec<u64> = ends.expect_completions(2, 0).a.iter().map(|one| one.wr_id).collect();
    assert_eq!(order, [1, 2]);
}

/// Unsignalled operations complete only by failing.
pub fn unsignalled_operations_complete_only_on_failure<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let into = TestRegion::new(&ends.b, 4096, AccessRights::WRITE);
    let mut seen = PolledCompletions::default();
    for round in 0..2000u64 {
        let bytes = round.to_le_bytes();
        let op = Op::Write { from: OpSource::Inline(&bytes), to: into.remote_at(round % 512 * 8), imm: None };
        ends.post_a(round, op, false, &mut seen);
    }
    // Completes after all of them.
    ends.post_a(5000, Op::Nop, true, &mut seen);
    let rest = ends.expect_completions(1 - seen.a.len(), 0);
    let told: Vec<u64> = seen.a.iter().chain(&rest.a).map(|one| one.wr_id).collect();
    assert!(told == [5000] && seen.b.is_empty(), "{told:?}");
    flush_writes(&mut ends);
    for word in 0..512u64 {
        let last = (0..2000).rev().find(|round| round % 512 == word);
        assert_eq!(into.memory.load(word * 8).ok(), last);
    }
}

/// Writes, sends and reads of mixed sizes in both directions at once stay in order and whole.
pub fn both_directions_keep_order_at_once<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let size = 256 << 10;
    let sides = [
        (TestRegion::new(&ends.a, size, AccessRights::ALL)),
        (TestRegion::new(&ends.b, size, AccessRights::ALL)),
    ];
    let from = [
        TestRegion::new(&ends.a, size, AccessRights::LOCAL),
        TestRegion::new(&ends.b, size, AccessRights::LOCAL),
    ];
    ends.lend_receives(&sides[0], &sides[1]);
    from[0].fill_pattern(20);
    from[1].fill_pattern(21);
    for round in 0..40u64 {
        let len = (round * 7919) % size as u64;
        let source = |side: usize| OpSource::Region(from[side].extent_at(0, len));
        ends.on_a(round, Op::Write { from: source(0), to: sides[1].remote_at(0), imm: Some(round as u32) });
        ends.on_b(round, Op::Write { from: source(1), to: sides[0].remote_at(0), imm: Some(round as u32) });
        let seen = ends.expect_completions(2, 2);
        assert!(seen.a.iter().chain(&seen.b).all(|one| one.status == OpStatus::Ok));
        if ends.b.caps().needs_flush {
            ends.on_a(1, Op::Flush);
            ends.on_b(1, Op::Flush);
            ends.expect_completions(1, 1);
        }
        assert!(sides[1].read_bytes(0, len as usize) == from[0].read_bytes(0, len as usize));
        assert!(sides[0].read_bytes(0, len as usize) == from[1].read_bytes(0, len as usize));
    }
}

/// A placed write completes only once its bytes have been placed: inline and registered ones, with and without an
/// immediate. Its target makes a call only occasionally, because some NICs take no bytes without one.
pub fn placed_writes_complete_after_placement<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().placed_writes {
        return;
    }
    let from = TestRegion::new(&ends.a, LARGEST, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, LARGEST, AccessRights::WRITE);
    let tells = ends.a.caps().write_data && !ends.a.caps().immediate_takes_receive;
    for round in 1..=20u64 {
        from.fill_pattern(round);
        let bytes = from.read_bytes(0, if round % 2 == 0 { 8 } else { LARGEST });
        let source = match round % 2 {
            0 => OpSource::Inline(&bytes),
            _ => OpSource::Region(from.extent_at(0, LARGEST as u64)),
        };
        let imm = (round % 4 > 1 && tells).then_some(round as u32);
        let op = Op::PlacedWrite { from: source, to: into.remote_at(0), imm };
        ends.a.post(ends.at_a, round, op, true).unwrap_or_else(|e| panic!("post: {e}"));
        let seen = ends.poll_until_a();
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (round, OpStatus::Ok));
        assert!(into.read_bytes(0, bytes.len()) == bytes, "round {round}");
        ends.poll_until(|later| later.b.len() + seen.b.len() == usize::from(imm.is_some()));
    }
}

/// When a no-operation completes, the operations posted before it have arrived: payload and records, with and without completions.
pub fn nops_prove_that_earlier_operations_arrived<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    // More than a connection holds in transit, if messages may be that long.
    let size = (16 << 20).min(ends.a.caps().message_max as usize);
    let from = TestRegion::new(&ends.a, size, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, size, AccessRights::WRITE);
    let records = TestRegion::with_purpose(&ends.b, 4096, AccessRights::WRITE, RegionPurpose::Records);
    for round in 1..=5u64 {
        from.fill_pattern(round);
        let source = OpSource::Region(from.extent_at(0, size as u64));
        let op = Op::Write { from: source, to: into.remote_at(0), imm: None };
        ends.a.post(ends.at_a, 1, op, false).unwrap_or_else(|e| panic!("post: {e}"));
        let bytes = round.to_le_bytes();
        let op = Op::Write { from: OpSource::Inline(&bytes), to: records.remote_at(8 * round), imm: None };
        ends.a.post(ends.at_a, 2, op, false).unwrap_or_else(|e| panic!("post: {e}"));
        ends.on_a(3, Op::Nop);
        let seen = ends.poll_until(|seen| !seen.a.is_empty());
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (3, OpStatus::Ok));
        assert_eq!(records.read_bytes(8 * round, 8), bytes, "round {round}");
        assert!(into.read_bytes(0, size) == from.read_bytes(0, size), "round {round}");
    }
}
