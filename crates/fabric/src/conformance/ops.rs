//! Cases: what each operation does when all is well.

use super::pair::{Region, Seen, Setup, default_config, pattern, zeros};
use crate::{Access, Caps, Done, Match, Op, Purpose, Rail, Source, Status};

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
pub fn sends_fill_receives_in_order<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    let from = Region::new(&ends.a, LARGEST, Access::LOCAL);
    let into = Region::new(&ends.b, LARGEST, Access::LOCAL);
    from.fill(1);
    for (round, len) in SIZES.into_iter().enumerate() {
        let round = round as u64;
        let imm = round.is_multiple_of(2).then_some(round as u32);
        let size = len as u64;
        ends.on_b(100 + round, Op::Recv { into: into.extent(0, size) });
        let body = Source::Region(from.extent(0, size));
        ends.on_a(round, Op::Send { head: &[], body, imm });
        let seen = ends.expect(1, 1);
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (round, Status::Ok));
        let got = seen.b[0];
        assert_eq!((got.wr_id, got.done, got.status), (100 + round, Done::Received, Status::Ok));
        assert_eq!((got.imm, got.len), (imm, size));
        assert!(into.bytes(0, len) == from.bytes(0, len), "{len} bytes differ");
    }
}

/// The inline head and the body of a send arrive joined.
pub fn sends_join_head_and_body<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    let from = Region::new(&ends.a, 200_000, Access::LOCAL);
    let most = ends.a.caps().inline_max as usize;
    assert!(most >= Caps::INLINE_MIN as usize, "a record has no room inline: {most} bytes");
    let room = 200_000 + 2 * most as u64;
    let into = Region::new(&ends.b, room as usize, Access::LOCAL);
    from.fill(2);
    let head: Vec<u8> = (0..most as u64).map(|at| pattern(3, at)).collect();
    for head_len in [0, 1, 16, most] {
        for body_len in [0usize, 1, 8, 100, 200_000] {
            let total = (head_len + body_len) as u64;
            ends.on_b(1, Op::Recv { into: into.extent(0, room) });
            let body = Source::Region(from.extent(0, body_len as u64));
            ends.on_a(2, Op::Send { head: &head[..head_len], body, imm: Some(9) });
            let seen = ends.expect(1, 1);
            assert_eq!((seen.b[0].status, seen.b[0].imm, seen.b[0].len), (Status::Ok, Some(9), total));
            assert!(into.bytes(0, head_len) == head[..head_len], "the head differs");
            assert!(into.bytes(head_len as u64, body_len) == from.bytes(0, body_len), "the body differs");
        }
        ends.on_b(1, Op::Recv { into: into.extent(0, room) });
        ends.on_a(2, Op::Send { head: &head[..head_len], body: Source::Inline(&head), imm: None });
        let seen = ends.expect(1, 1);
        assert_eq!((seen.b[0].status, seen.b[0].len), (Status::Ok, (head_len + most) as u64));
        assert_eq!(into.bytes(head_len as u64, most), head);
    }
}

/// Writes of every size land where they should and nowhere else; nothing is told to the target.
pub fn writes_land_at_every_size<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    let from = Region::new(&ends.a, LARGEST + 5, Access::LOCAL);
    let into = Region::new(&ends.b, LARGEST + 64, Access::WRITE);
    from.fill(4);
    for len in SIZES {
        for shift in [0, 3] {
            into.memory.write(0, &zeros(len + 64)).unwrap_or_else(|e| panic!("clear: {e}"));
            let source = Source::Region(from.extent(shift, len as u64));
            ends.on_a(7, Op::Write { from: source, to: into.remote(8 + shift), imm: None });
            let seen = ends.expect(1, 0);
            assert_eq!((seen.a[0].done, seen.a[0].status), (Done::Posted, Status::Ok));
            land(&mut ends);
            assert!(into.bytes(8 + shift, len) == from.bytes(shift, len), "{len} bytes differ");
            assert_eq!(into.bytes(0, 8 + shift as usize), vec![0; 8 + shift as usize], "bytes before");
            assert_eq!(into.bytes(8 + shift + len as u64, 16), [0; 16], "bytes after");
        }
    }
}

/// Makes what `a` wrote visible at `b`, where that needs doing.
pub(super) fn land<R: Rail>(ends: &mut super::Ends<R>) {
    if ends.b.caps().needs_flush {
        ends.on_b(u64::MAX, Op::Flush);
        ends.expect(0, 1);
    }
}

/// A write with immediate is told to the target after its bytes are placed.
pub fn writes_with_immediate_tell_the_target<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let from = Region::new(&ends.a, LARGEST, Access::LOCAL);
    let into = Region::new(&ends.b, LARGEST, Access::WRITE);
    let vouched = ends.b.caps().remote_len;
    ends.lend(&from, &into);
    for (round, len) in SIZES.into_iter().enumerate() {
        from.fill(round as u64);
        let source = Source::Region(from.extent(0, len as u64));
        let imm = Some(u32::MAX - round as u32);
        ends.on_a(7, Op::Write { from: source, to: into.remote(0), imm });
        let seen = ends.expect(1, 1);
        let told = seen.b[0];
        assert_eq!((told.done, told.status, told.imm, told.wr_id), (Done::Written, Status::Ok, imm, 0));
        assert!(!vouched || told.len == len as u64, "length {} instead of {len}", told.len);
        land(&mut ends);
        assert!(into.bytes(0, len) == from.bytes(0, len), "{len} bytes differ");
    }
    let head = [5u8; 24];
    ends.on_a(8, Op::Write { from: Source::Inline(&head), to: into.remote(40), imm: Some(1) });
    let seen = ends.expect(1, 1);
    assert_eq!(seen.b[0].imm, Some(1));
    land(&mut ends);
    assert_eq!(into.bytes(40, 24), head);
}

/// Reads of every size bring the peer's bytes.
pub fn reads_fetch_every_size<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    let into = Region::new(&ends.a, LARGEST, Access::LOCAL);
    let from = Region::new(&ends.b, LARGEST + 8, Access::READ_WRITE);
    from.fill(6);
    for len in SIZES {
        ends.on_a(3, Op::Read { into: into.extent(0, len as u64), from: from.remote(8) });
        let seen = ends.expect(1, 0);
        assert_eq!((seen.a[0].wr_id, seen.a[0].done, seen.a[0].status), (3, Done::Posted, Status::Ok));
        assert!(into.bytes(0, len) == from.bytes(8, len), "{len} bytes differ");
    }
    let mut seen = Seen::default();
    for round in 0..200 {
        let into = into.extent(round * 8, 8);
        ends.post_a(round, Op::Read { into, from: from.remote(round * 8) }, true, &mut seen);
    }
    let rest = ends.expect(200 - seen.a.len(), 0);
    let order: Vec<u64> = seen.a.iter().chain(&rest.a).map(|one| one.wr_id).collect();
    assert_eq!(order, (0..200).collect::<Vec<_>>(), "reads complete in order");
    assert_eq!(into.bytes(0, 1600), from.bytes(0, 1600));
}

/// Fetch-add and compare-swap change the word and return what was there.
pub fn atomics_return_the_old_value<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().atomics {
        return;
    }
    let old = Region::new(&ends.a, 16, Access::LOCAL);
    let word = Region::new(&ends.b, 64, Access::ALL);
    let mut value = u64::MAX - 2;
    word.memory.store(8, value).unwrap_or_else(|e| panic!("{e}"));
    for add in [1, 5, u64::MAX] {
        ends.on_a(1, Op::FetchAdd { old: old.extent(8, 8), at: word.remote(8), add });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
        assert_eq!(old.memory.load(8), Ok(value));
        value = value.wrapping_add(add);
        assert_eq!(word.memory.load(8), Ok(value));
    }
    for (expect, swap) in [(value, 77), (value, 78), (77, 79)] {
        let before = word.memory.load(8).unwrap_or_default();
        ends.on_a(2, Op::CompareSwap { old: old.extent(0, 8), at: word.remote(8), expect, swap });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
        assert_eq!(old.memory.load(0), Ok(before));
        assert_eq!(word.memory.load(8), Ok(if before == expect { swap } else { before }));
    }
    assert_eq!(word.memory.load(8), Ok(79));
}

/// Matched sends meet the receives of their key, in order, whatever was posted first.
pub fn matched_sends_find_their_receives<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().matched {
        return;
    }
    let from = Region::new(&ends.a, LARGEST, Access::LOCAL);
    let into = Region::new(&ends.b, LARGEST + 4096, Access::LOCAL);
    from.fill(8);
    for len in SIZES {
        ends.on_b(5, Op::MatchedRecv { into: into.extent(3, len as u64 + 100), key: Match(len as u64) });
        let source = Source::Region(from.extent(0, len as u64));
        ends.on_a(6, Op::MatchedSend { from: source, key: Match(len as u64) });
        let seen = ends.expect(1, 1);
        assert_eq!((seen.a[0].wr_id, seen.a[0].done, seen.a[0].status), (6, Done::Posted, Status::Ok));
        let got = seen.b[0];
        assert_eq!((got.wr_id, got.done, got.status, got.len), (5, Done::Received, Status::Ok, len as u64));
        assert!(into.bytes(3, len) == from.bytes(0, len), "{len} bytes differ");
    }
    // Two of each key, posted in mixed order: first posted, first paired.
    for (wr_id, key) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
        let byte = [wr_id as u8 + 1];
        ends.on_a(wr_id, Op::MatchedSend { from: Source::Inline(&byte), key: Match(key) });
    }
    for (wr_id, key) in [(10, 2), (11, 1), (12, 1), (13, 2)] {
        ends.on_b(wr_id, Op::MatchedRecv { into: into.extent(wr_id, 1), key: Match(key) });
    }
    let seen = ends.expect(4, 4);
    assert!(seen.b.iter().all(|one| one.status == Status::Ok && one.len == 1));
    assert_eq!(into.bytes(10, 4), [2, 1, 3, 4]);
}

/// A matched send without its receive is held, and holds up nothing else.
pub fn matched_sends_wait_for_their_receives<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().matched {
        return;
    }
    let from = Region::new(&ends.a, 100_000, Access::LOCAL);
    let into = Region::new(&ends.b, 100_000, Access::WRITE);
    from.fill(9);
    let source = Source::Region(from.extent(0, 100_000));
    ends.on_a(1, Op::MatchedSend { from: source, key: Match(4) });
    ends.on_a(2, Op::Write { from: Source::Inline(&[1]), to: into.remote(0), imm: None });
    let seen = ends.expect(1, 0);
    assert_eq!(seen.a[0].wr_id, 2);
    ends.on_b(3, Op::MatchedRecv { into: into.extent(0, 100_000), key: Match(5) });
    ends.expect(0, 0);
    ends.on_b(4, Op::MatchedRecv { into: into.extent(0, 100_000), key: Match(4) });
    let seen = ends.expect(1, 1);
    assert_eq!((seen.a[0].wr_id, seen.b[0].wr_id), (1, 4));
    land(&mut ends);
    assert!(into.bytes(0, 100_000) == from.bytes(0, 100_000));
}

/// A flush completes.
pub fn flushes_complete<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    ends.on_b(12, Op::Flush);
    let seen = ends.expect(0, 1);
    assert_eq!((seen.b[0].wr_id, seen.b[0].done, seen.b[0].status), (12, Done::Posted, Status::Ok));
}

/// A no-operation completes after what was posted before it.
pub fn nops_complete_in_order<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    let from = Region::new(&ends.a, LARGEST, Access::LOCAL);
    let into = Region::new(&ends.b, LARGEST, Access::WRITE);
    let source = Source::Region(from.extent(0, LARGEST as u64));
    ends.on_a(1, Op::Write { from: source, to: into.remote(0), imm: None });
    ends.on_a(2, Op::Nop);
    let order: Vec<u64> = ends.expect(2, 0).a.iter().map(|one| one.wr_id).collect();
    assert_eq!(order, [1, 2]);
}

/// Unsignalled operations complete only by failing.
pub fn unsignalled_operations_stay_silent<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    let into = Region::new(&ends.b, 4096, Access::WRITE);
    let mut seen = Seen::default();
    for round in 0..2000u64 {
        let bytes = round.to_le_bytes();
        let op = Op::Write { from: Source::Inline(&bytes), to: into.remote(round % 512 * 8), imm: None };
        ends.post_a(round, op, false, &mut seen);
    }
    // Comes after all of them.
    ends.post_a(5000, Op::Nop, true, &mut seen);
    let rest = ends.expect(1 - seen.a.len(), 0);
    let told: Vec<u64> = seen.a.iter().chain(&rest.a).map(|one| one.wr_id).collect();
    assert!(told == [5000] && seen.b.is_empty(), "{told:?}");
    land(&mut ends);
    for word in 0..512u64 {
        let last = (0..2000).rev().find(|round| round % 512 == word);
        assert_eq!(into.memory.load(word * 8).ok(), last);
    }
}

/// Writes, sends and reads of mixed sizes in both directions at once stay in order and whole.
pub fn both_directions_at_once<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let size = 256 << 10;
    let sides = [(Region::new(&ends.a, size, Access::ALL)), (Region::new(&ends.b, size, Access::ALL))];
    let from = [Region::new(&ends.a, size, Access::LOCAL), Region::new(&ends.b, size, Access::LOCAL)];
    ends.lend(&sides[0], &sides[1]);
    from[0].fill(20);
    from[1].fill(21);
    for round in 0..40u64 {
        let len = (round * 7919) % size as u64;
        let source = |side: usize| Source::Region(from[side].extent(0, len));
        ends.on_a(round, Op::Write { from: source(0), to: sides[1].remote(0), imm: Some(round as u32) });
        ends.on_b(round, Op::Write { from: source(1), to: sides[0].remote(0), imm: Some(round as u32) });
        let seen = ends.expect(2, 2);
        assert!(seen.a.iter().chain(&seen.b).all(|one| one.status == Status::Ok));
        if ends.b.caps().needs_flush {
            ends.on_a(1, Op::Flush);
            ends.on_b(1, Op::Flush);
            ends.expect(1, 1);
        }
        assert!(sides[1].bytes(0, len as usize) == from[0].bytes(0, len as usize));
        assert!(sides[0].bytes(0, len as usize) == from[1].bytes(0, len as usize));
    }
}

/// When a write that is to complete once its bytes are there does so, they are: copied and registered ones, with and without an
/// immediate. Its target makes a call now and then only, as some take nothing meanwhile.
pub fn placed_writes_complete_when_they_are_there<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().placed_writes {
        return;
    }
    let from = Region::new(&ends.a, LARGEST, Access::LOCAL);
    let into = Region::new(&ends.b, LARGEST, Access::WRITE);
    let tells = ends.a.caps().write_data && !ends.a.caps().immediate_takes_receive;
    for round in 1..=20u64 {
        from.fill(round);
        let bytes = from.bytes(0, if round % 2 == 0 { 8 } else { LARGEST });
        let source = match round % 2 {
            0 => Source::Inline(&bytes),
            _ => Source::Region(from.extent(0, LARGEST as u64)),
        };
        let imm = (round % 4 > 1 && tells).then_some(round as u32);
        let op = Op::PlacedWrite { from: source, to: into.remote(0), imm };
        ends.a.post(ends.at_a, round, op, true).unwrap_or_else(|e| panic!("post: {e}"));
        let seen = ends.until_a();
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (round, Status::Ok));
        assert!(into.bytes(0, bytes.len()) == bytes, "round {round}");
        ends.until(|later| later.b.len() + seen.b.len() == usize::from(imm.is_some()));
    }
}

/// When an operation that does nothing completes, what was posted before it is there: payload and records, told or not.
pub fn nops_prove_that_all_before_arrived<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    // More than what a connection holds on its way, where a message may be that long.
    let size = (16 << 20).min(ends.a.caps().message_max as usize);
    let from = Region::new(&ends.a, size, Access::LOCAL);
    let into = Region::new(&ends.b, size, Access::WRITE);
    let records = Region::with(&ends.b, 4096, Access::WRITE, Purpose::Records);
    for round in 1..=5u64 {
        from.fill(round);
        let source = Source::Region(from.extent(0, size as u64));
        let op = Op::Write { from: source, to: into.remote(0), imm: None };
        ends.a.post(ends.at_a, 1, op, false).unwrap_or_else(|e| panic!("post: {e}"));
        let bytes = round.to_le_bytes();
        let op = Op::Write { from: Source::Inline(&bytes), to: records.remote(8 * round), imm: None };
        ends.a.post(ends.at_a, 2, op, false).unwrap_or_else(|e| panic!("post: {e}"));
        ends.on_a(3, Op::Nop);
        let seen = ends.until(|seen| !seen.a.is_empty());
        assert_eq!((seen.a[0].wr_id, seen.a[0].status), (3, Status::Ok));
        assert_eq!(records.bytes(8 * round, 8), bytes, "round {round}");
        assert!(into.bytes(0, size) == from.bytes(0, size), "round {round}");
    }
}
