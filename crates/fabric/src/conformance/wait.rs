//! Cases: links that wait for a completion queue. Only the first case runs where a NIC does not support it.

use std::time::Instant;

use trunkline_proto::reserve::try_filled;

use super::pair::{ConformanceSetup, LIMIT, PolledCompletions, RailPair, TestRegion, default_config};
use crate::{
    AccessRights, Completion, CompletionKind, CqId, CqPosition, LinkAddress, LinkControl, LinkId, MatchKey,
    Op, OpSource, OpStatus, PostError, Rail, RailConfig, RemoteKey,
};

/// The awaited link and its waiter: a main link between two rails, and a companion on a third one, of the NIC of the
/// main link's first rail. The companion's other end is on its own rail.
struct CompanionSetup<R: Rail> {
    main: RailPair<R>,
    side: R,
    companion: LinkId,
    loopback: LinkId,
    /// The word in which the companion counts.
    counter: TestRegion,
    old: TestRegion,
    /// The completions that the third rail's polls have returned.
    told: Vec<Completion>,
}

fn open_companion<S: ConformanceSetup>(setup: &S, config: &RailConfig) -> Option<CompanionSetup<S::Rail>> {
    let (rail, _) = setup.open_rails(&default_config());
    if !rail.caps().wait {
        return None;
    }
    let [a, side, b] = setup.open_trio(config).unwrap_or_else(|| panic!("the setup opened no three rails"));
    let mut main = RailPair { a, b, at_a: LinkId(0), at_b: LinkId(0) };
    (main.at_a, main.at_b) = main.add_link();
    let counter = TestRegion::new(&side, 64, AccessRights::ALL);
    let old = TestRegion::new(&side, 64, AccessRights::LOCAL);
    let mut all = CompanionSetup {
        main,
        side,
        companion: LinkId(0),
        loopback: LinkId(0),
        counter,
        old,
        told: Vec::new(),
    };
    (all.companion, all.loopback) = all.connect_pair();
    Some(all)
}

/// Polls once, for at most `most` completions.
fn poll_some<R: Rail>(rail: &mut R, most: usize) -> Vec<Completion> {
    let mut out = try_filled(Completion::BLANK, most).unwrap_or_else(|e| panic!("allocate: {e}")).into_vec();
    rail.flush();
    let count = rail.poll(&mut out);
    out.truncate(count);
    out
}

fn rail_queue<R: Rail>(rail: &R) -> CqPosition {
    rail.cq_position().unwrap_or_else(|| panic!("the rail has `Caps::wait` but no queue position"))
}

impl<R: Rail> CompanionSetup<R> {
    /// Creates two more links of the third rail, connected to each other.
    fn connect_pair(&mut self) -> (LinkId, LinkId) {
        let one = self.side.create_link().unwrap_or_else(|e| panic!("create: {e}"));
        let two = self.side.create_link().unwrap_or_else(|e| panic!("create: {e}"));
        let address = |rail: &R, link| -> LinkAddress {
            rail.link_address(link).unwrap_or_else(|e| panic!("address: {e}"))
        };
        let of_one = address(&self.side, one);
        let of_two = address(&self.side, two);
        self.side.connect(one, of_two).unwrap_or_else(|e| panic!("connect: {e}"));
        self.side.connect(two, of_one).unwrap_or_else(|e| panic!("connect: {e}"));
        (one, two)
    }

    fn try_post(&mut self, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        self.side.post(self.companion, wr_id, op, signalled)
    }

    /// Posts on the companion, which must have a credit.
    fn post_companion(&mut self, wr_id: u64, op: Op<'_>, signalled: bool) {
        self.try_post(wr_id, op, signalled).unwrap_or_else(|e| panic!("post {op:?}: {e}"));
    }

    /// Returns a wait for completion number `index` of the main link's first rail.
    fn wait_op(&self, index: u64) -> Op<'static> {
        Op::Wait { cq: rail_queue(&self.main.a).id, index }
    }

    /// Returns an operation that adds one to the counter.
    fn add_op(&self) -> Op<'static> {
        Op::FetchAdd { old: self.old.extent_at(0, 8), at: self.counter.remote_at(0), add: 1 }
    }

    fn counter_value(&self) -> u64 {
        self.counter.memory.load(0).unwrap_or_else(|e| panic!("load: {e}"))
    }

    /// Polls the third rail until `enough` returns true, and then for a while, to check that nothing more happens.
    fn poll_until(&mut self, enough: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !enough(self) {
            self.told.extend(poll_some(&mut self.side, 5));
            assert!(
                started.elapsed() < LIMIT,
                "completions are missing: {:?}, {}",
                self.told,
                self.counter_value()
            );
        }
        for _ in 0..200 {
            self.told.extend(poll_some(&mut self.side, 5));
        }
    }

    /// Returns the completions of the third rail since the last call, by `wr_id`: `count` of them.
    fn take_completions(&mut self, count: usize) -> Vec<(u64, OpStatus)> {
        self.poll_until(|all| all.told.len() >= count);
        std::mem::take(&mut self.told).into_iter().map(|one| (one.wr_id, one.status)).collect()
    }

    /// Checks that the third rail returns exactly these completions.
    fn expect_completions(&mut self, want: &[(u64, OpStatus)]) {
        assert_eq!(self.take_completions(want.len()), want);
    }

    /// Checks that the counter reaches `want`, and does not exceed it.
    fn expect_count(&mut self, want: u64) {
        self.poll_until(|all| all.counter_value() >= want);
        assert_eq!(self.counter_value(), want);
    }

    /// Ends one operation of the main link, so that its queue produces one more.
    fn produce_completion(&mut self) {
        self.main.on_a(0, Op::Nop);
        let seen = self.main.poll_until(|seen| !seen.a.is_empty());
        assert_eq!((seen.a.len(), seen.a[0].status), (1, OpStatus::Ok));
    }

    /// Breaks the main link by a write that the target refuses.
    fn break_main(&mut self) {
        let to = crate::RemoteLocation {
            key: RemoteKey(0x5555_0000_aaaa_ffff),
            addr: 0,
            purpose: crate::RegionPurpose::Data,
        };
        self.main.on_a(77, Op::Write { from: OpSource::Inline(&[1]), to, imm: None });
    }
}

fn ok_statuses(wr_ids: impl IntoIterator<Item = u64>) -> Vec<(u64, OpStatus)> {
    wr_ids.into_iter().map(|wr_id| (wr_id, OpStatus::Ok)).collect()
}

/// A wait for an unknown queue, or on a NIC that cannot wait, is refused before anything is taken.
pub fn waits_for_unknown_queues_are_refused<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let able = ends.a.caps().wait;
    assert_eq!(ends.a.cq_position().is_some(), able);
    let known = ends.a.cq_position().map_or(0, |cq| cq.id.0);
    let before = ends.a.post_credits(ends.at_a);
    for id in [!known, known ^ 1 << 63, known ^ 1 << 32] {
        let posted = ends.a.post(ends.at_a, 1, Op::Wait { cq: CqId(id), index: 0 }, true);
        assert!(matches!(posted, Err(PostError::Refused(_))), "{posted:?}");
        assert!(!able || posted == Err(PostError::Refused(OpStatus::LocalProtection)), "{posted:?}");
    }
    assert_eq!(ends.a.post_credits(ends.at_a), before);
    ends.on_a(2, Op::Nop);
    assert_eq!(ends.expect_completions(1, 0).a[0].wr_id, 2);
}

/// A wait holds every kind of operation behind it, nothing before it, and nothing else.
pub fn waits_hold_later_operations<S: ConformanceSetup>(setup: &S) {
    let Some(mut all) = open_companion(setup, &default_config()) else { return };
    if !all.main.a.caps().write_data {
        return;
    }
    let len = 1 << 20;
    let from = TestRegion::new(&all.side, len, AccessRights::ALL);
    let into = TestRegion::new(&all.side, len, AccessRights::ALL);
    from.fill_pattern(1);
    let large = OpSource::Region(from.extent_at(0, len as u64));
    let small = OpSource::Inline(&[7; 8]);
    let word = all.old.extent_at(8, 8);
    all.post_companion(1, Op::Write { from: large, to: into.remote_at(0), imm: None }, true);
    all.post_companion(2, all.wait_op(rail_queue(&all.main.a).next), true);
    all.post_companion(3, Op::Write { from: small, to: into.remote_at(0), imm: Some(9) }, true);
    all.post_companion(4, Op::Send { head: &[1], body: small, imm: None }, true);
    all.post_companion(5, Op::Read { into: from.extent_at(0, 8), from: all.counter.remote_at(8) }, true);
    all.post_companion(6, all.add_op(), true);
    all.post_companion(
        7,
        Op::CompareSwap { old: word, at: all.counter.remote_at(16), expect: 0, swap: 5 },
        true,
    );
    all.post_companion(8, Op::Nop, true);
    let matched = all.side.caps().matched;
    if matched {
        all.post_companion(9, Op::MatchedSend { from: large, key: MatchKey(1) }, true);
    } else {
        all.post_companion(9, Op::Nop, true);
    }
    let loopback = all.loopback;
    let mut there = |wr_id, op| all.side.post(loopback, wr_id, op, true).unwrap_or_else(|e| panic!("{e}"));
    there(40, Op::Recv { into: into.extent_at(0, 64) });
    if matched {
        there(41, Op::MatchedRecv { into: into.extent_at(0, len as u64), key: MatchKey(1) });
    }
    // The other direction, other links of the rail, and a flush are not held.
    there(42, Op::FetchAdd { old: all.old.extent_at(0, 8), at: all.counter.remote_at(24), add: 3 });
    all.post_companion(43, Op::Flush, true);
    let (other, _) = all.connect_pair();
    all.side.post(other, 44, Op::Nop, true).unwrap_or_else(|e| panic!("{e}"));
    let mut news = all.take_completions(4);
    news.sort_unstable_by_key(|one| one.0);
    assert_eq!(news, ok_statuses([1, 42, 43, 44]));
    assert!(all.side.caps().needs_flush || into.read_bytes(0, len) == from.read_bytes(0, len));
    let words = [0, 16, 24].map(|at| all.counter.memory.load(at).ok());
    assert_eq!(words, [Some(0), Some(0), Some(3)]);
    let arrivals = 2 + usize::from(matched);
    all.produce_completion();
    all.poll_until(|all| all.told.len() >= 8 + arrivals);
    let (posted, mut arrived): (Vec<_>, Vec<_>) =
        std::mem::take(&mut all.told).into_iter().partition(|one| one.link == all.companion);
    assert_eq!(posted.iter().map(|one| one.wr_id).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 8, 9]);
    arrived.sort_unstable_by_key(|one| one.wr_id);
    assert_eq!(arrived.iter().map(|one| one.wr_id).collect::<Vec<_>>(), [0, 40, 41][..arrivals]);
    let words = [0, 16].map(|at| all.counter.memory.load(at).ok());
    assert_eq!(words, [Some(1), Some(5)]);
}

/// Every completion of the awaited rail counts, of whatever kind, and a wait ends with its own: not one before.
pub fn waits_end_with_their_completion<S: ConformanceSetup>(setup: &S) {
    let Some(mut all) = open_companion(setup, &default_config()) else { return };
    if !all.main.a.caps().write_data {
        return;
    }
    let here = TestRegion::new(&all.main.a, 4096, AccessRights::ALL);
    let mut expected = 0;
    for _ in 0..5 {
        let first = rail_queue(&all.main.a).next;
        for number in 0..12 {
            all.post_companion(number, all.wait_op(first.wrapping_add(number)), number % 2 == 0);
            all.post_companion(number, all.add_op(), false);
        }
        all.expect_count(expected);
        for number in 0..4 {
            all.main.on_a(number, Op::Recv { into: here.extent_at(0, 8) });
            all.main.on_a(number, Op::Read { into: here.extent_at(64, 0), from: here.remote_at(0) });
            all.main.on_b(number, Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None });
            let to = here.remote_at(128);
            all.main.on_b(number, Op::Write { from: OpSource::Inline(&[1]), to, imm: Some(1) });
        }
        let mut kinds = Vec::new();
        let started = Instant::now();
        while kinds.len() < 12 {
            poll_some(&mut all.main.b, 5);
            let came = poll_some(&mut all.main.a, 1);
            expected += came.len() as u64;
            kinds.extend(came.iter().map(|one| one.done));
            assert_eq!(rail_queue(&all.main.a).next, first.wrapping_add(kinds.len() as u64));
            all.expect_count(expected);
            assert!(started.elapsed() < LIMIT, "no completion arrived after {kinds:?}");
        }
        let of = |kind| kinds.iter().filter(|done| **done == kind).count();
        assert_eq!(
            [CompletionKind::Posted, CompletionKind::Received, CompletionKind::Written].map(of),
            [4, 4, 4]
        );
        poll_some(&mut all.main.b, 50);
        all.expect_completions(&ok_statuses([0, 2, 4, 6, 8, 10]));
    }
}

/// A wait for a past completion ends at once, even for the oldest completion.
pub fn waits_for_past_completions_end_at_once<S: ConformanceSetup>(setup: &S) {
    let Some(mut all) = open_companion(setup, &default_config()) else { return };
    let first = rail_queue(&all.main.a).next;
    for _ in 0..30 {
        all.produce_completion();
    }
    for number in [29, 0, 15] {
        all.post_companion(number, all.wait_op(first.wrapping_add(number)), true);
    }
    all.expect_completions(&ok_statuses([29, 0, 15]));
    all.post_companion(30, all.wait_op(first.wrapping_add(30)), true);
    all.expect_completions(&[]);
    all.produce_completion();
    all.expect_completions(&ok_statuses([30]));
}

/// An error in the queue fails the waits for that completion and later ones, and no others; their link fails with
/// them.
pub fn errors_fail_the_waits_for_later_completions<S: ConformanceSetup>(setup: &S) {
    for before in [true, false] {
        for signalled in [true, false] {
            let Some(mut all) = open_companion(setup, &default_config()) else { return };
            let from = TestRegion::new(&all.side, 1 << 20, AccessRights::LOCAL);
            let into = TestRegion::new(&all.side, 1 << 20, AccessRights::WRITE);
            let first = rail_queue(&all.main.a).next;
            let wait = |all: &mut CompanionSetup<S::Rail>| {
                for number in 0..7 {
                    let large = OpSource::Region(from.extent_at(0, 1 << 20));
                    all.post_companion(
                        100 + number,
                        Op::Write { from: large, to: into.remote_at(0), imm: None },
                        true,
                    );
                    all.post_companion(200 + number, all.wait_op(first.wrapping_add(number)), signalled);
                    all.post_companion(300 + number, all.add_op(), signalled);
                }
            };
            let go = |all: &mut CompanionSetup<S::Rail>| {
                for _ in 0..4 {
                    all.main.on_a(1, Op::Nop);
                }
                all.break_main();
                all.main.on_a(1, Op::Nop);
                all.main.on_a(1, Op::Nop);
                all.main.expect_completions(7, 0);
            };
            if before {
                wait(&mut all);
                go(&mut all);
            } else {
                go(&mut all);
                wait(&mut all);
            }
            let mut want: Vec<(u64, OpStatus)> = Vec::new();
            for number in 0..7 {
                let status = if number < 4 { OpStatus::Ok } else { OpStatus::Flushed };
                // Operations before the first wait that fails complete with their own result.
                let write = if number < 5 { OpStatus::Ok } else { OpStatus::Flushed };
                want.push((100 + number, write));
                if signalled || number >= 4 {
                    want.extend([(200 + number, status), (300 + number, status)]);
                }
            }
            assert_eq!(all.take_completions(want.len()), want, "before {before}, signalled {signalled}");
            assert_eq!(all.counter_value(), 4, "the counter differs from the successful waits");
            let refused = Err(PostError::Refused(OpStatus::Flushed));
            assert_eq!(all.try_post(1, Op::Nop, true), refused);
            assert_eq!(all.side.post(all.loopback, 1, Op::Nop, true), refused);
        }
    }
}

/// When the awaited rail is closed, all waits for it end, and no new one can be posted.
pub fn closed_rails_fail_their_waits<S: ConformanceSetup>(setup: &S) {
    let Some(mut all) = open_companion(setup, &default_config()) else { return };
    let first = rail_queue(&all.main.a).next;
    all.produce_completion();
    all.post_companion(1, all.wait_op(first), true);
    all.post_companion(2, all.wait_op(first.wrapping_add(1)), true);
    all.post_companion(3, all.add_op(), true);
    all.expect_completions(&ok_statuses([1]));
    let again = all.wait_op(first);
    let other = all.connect_pair().0;
    let CompanionSetup { main: RailPair { a, .. }, mut side, companion, counter, .. } = all;
    drop(a);
    let mut told = Vec::new();
    let started = Instant::now();
    let mut rest = 200;
    while rest > 0 {
        rest -= u32::from(told.len() >= 2);
        assert!(started.elapsed() < LIMIT, "{told:?}");
        told.extend(poll_some(&mut side, 5).into_iter().map(|one| (one.wr_id, one.status)));
    }
    assert_eq!(told, [(2, OpStatus::Flushed), (3, OpStatus::Flushed)]);
    assert_eq!(counter.memory.load(0), Ok(0));
    assert_eq!(side.post(companion, 1, Op::Nop, true), Err(PostError::Refused(OpStatus::Flushed)));
    assert_eq!(side.post(other, 1, again, true), Err(PostError::Refused(OpStatus::LocalProtection)));
}

/// A link may wait for the queue of its own rail, also for operations that it posted itself. A wait for an operation behind the wait lasts
/// until the link fails.
pub fn waits_may_be_for_their_own_rail<S: ConformanceSetup>(setup: &S) {
    let Some(all) = open_companion(setup, &default_config()) else { return };
    let mut ends = all.main;
    let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
    let CqPosition { id, next } = rail_queue(&ends.a);
    let write =
        |byte: &'static [u8; 1]| Op::Write { from: OpSource::Inline(byte), to: into.remote_at(0), imm: None };
    ends.on_a(1, write(&[1]));
    ends.on_a(2, Op::Wait { cq: id, index: next });
    ends.on_a(3, write(&[3]));
    ends.on_a(4, Op::Wait { cq: id, index: next.wrapping_add(2) });
    ends.on_a(5, Op::Nop);
    let order: Vec<u64> = ends.expect_completions(5, 0).a.iter().map(|one| one.wr_id).collect();
    assert_eq!(order, [1, 2, 3, 4, 5]);
    ends.on_a(6, Op::Wait { cq: id, index: next.wrapping_add(5) });
    ends.on_a(7, write(&[7]));
    ends.expect_completions(0, 0);
    // Another link of the rail continues, and produces the completion that the first link waits for.
    let (at_a, _) = ends.add_link();
    ends.a.post(at_a, 8, Op::Nop, true).unwrap_or_else(|e| panic!("{e}"));
    let order: Vec<u64> = ends.expect_completions(3, 0).a.iter().map(|one| one.wr_id).collect();
    assert_eq!(order, [8, 6, 7]);
    ends.on_a(9, Op::Wait { cq: id, index: next.wrapping_add(8) });
    ends.on_a(10, write(&[10]));
    ends.expect_completions(0, 0);
    ends.a.fail_link(ends.at_a);
    let seen = ends.poll_until(|seen| seen.a.len() == 2);
    assert_eq!(seen.a.iter().map(|one| one.wr_id).collect::<Vec<_>>(), [9, 10]);
    assert!(seen.a.iter().all(|one| one.status != OpStatus::Ok));
}

/// A queue full of waits accepts no more, and has all its credits again when they end.
pub fn waits_fill_the_queue<S: ConformanceSetup>(setup: &S) {
    let config = RailConfig { depth: 10, ..default_config() };
    let Some(mut all) = open_companion(setup, &config) else { return };
    for signalled in [true, false] {
        for _ in 0..30 {
            let next = rail_queue(&all.main.a).next;
            let credits = u64::from(all.side.post_credits(all.companion));
            assert!(credits > 0 && credits <= 10);
            for number in 0..credits {
                all.post_companion(number, all.wait_op(next.wrapping_add(number / 6)), signalled);
            }
            assert_eq!(all.side.post_credits(all.companion), 0);
            assert_eq!(all.try_post(99, all.wait_op(next), signalled), Err(PostError::Busy));
            assert_eq!(all.try_post(99, Op::Nop, signalled), Err(PostError::Busy));
            all.expect_completions(&[]);
            assert_eq!(all.try_post(99, Op::Nop, signalled), Err(PostError::Busy));
            let ended = |from: u64, to| ok_statuses((from..to).filter(|_| signalled));
            all.produce_completion();
            all.expect_completions(&ended(0, credits.min(6)));
            all.produce_completion();
            all.expect_completions(&ended(6, credits.max(6)));
            // Unsignalled waits have ended when their credits are back.
            all.poll_until(|all| all.side.post_credits(all.companion) >= 6);
        }
    }
}

/// A link that ends flushes its waits, whichever side ended it, and the operations that they held were not executed.
pub fn ending_links_flush_their_waits<S: ConformanceSetup>(setup: &S) {
    for by_peer in [true, false] {
        let Some(mut all) = open_companion(setup, &default_config()) else { return };
        let next = rail_queue(&all.main.a).next;
        all.post_companion(1, all.wait_op(next), true);
        all.post_companion(2, all.add_op(), true);
        all.post_companion(3, all.wait_op(next), false);
        all.post_companion(4, all.add_op(), false);
        all.expect_completions(&[]);
        if by_peer {
            all.side.destroy_link(all.loopback)
        } else {
            all.side.fail_link(all.companion)
        }
        let news = all.take_completions(4);
        assert_eq!(news.iter().map(|one| one.0).collect::<Vec<_>>(), [1, 2, 3, 4], "{news:?}");
        assert!(news.iter().all(|one| one.1 != OpStatus::Ok), "{news:?}");
        all.produce_completion();
        all.expect_completions(&[]);
        assert_eq!(all.counter_value(), 0);
        all.side.destroy_link(all.companion);
    }
}

/// The companion waits for the completion of each put of the main link and adds one. The counter is never ahead of the number of
/// completed puts, and in the end has counted all.
pub fn companions_count_completed_operations<S: ConformanceSetup>(setup: &S) {
    const PUTS: u64 = 1000;
    let Some(mut all) = open_companion(setup, &RailConfig { depth: 20, ..default_config() }) else { return };
    let into = TestRegion::new(&all.main.b, 8 * PUTS as usize, AccessRights::WRITE);
    let first = rail_queue(&all.main.a).next;
    let mut put = 0;
    let mut booked = 0;
    let mut ended = 0;
    let mut seen = 0;
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    let started = Instant::now();
    while seen < PUTS {
        dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        match dice >> 62 {
            0 if put < PUTS => {
                let bytes = (put + 1).to_le_bytes();
                let op = Op::Write { from: OpSource::Inline(&bytes), to: into.remote_at(8 * put), imm: None };
                put += u64::from(all.main.a.post(all.main.at_a, put, op, true).is_ok());
            }
            1 if booked < PUTS && all.side.post_credits(all.companion) >= 2 => {
                all.post_companion(booked, all.wait_op(first.wrapping_add(booked)), false);
                all.post_companion(booked, all.add_op(), false);
                booked += 1;
            }
            2 => {
                poll_some(&mut all.main.b, 3);
                let some = poll_some(&mut all.main.a, 1 + dice as usize % 5);
                assert!(some.iter().all(|one| one.status == OpStatus::Ok));
                ended += some.len() as u64;
            }
            _ => assert_eq!(poll_some(&mut all.side, 5), []),
        }
        let count = all.counter_value();
        assert!(count <= ended && count <= booked && count >= seen, "{count} of {ended}, {booked} booked");
        if !all.main.b.caps().needs_flush {
            for done in seen..count {
                assert_eq!(into.memory.load(8 * done), Ok(done + 1), "counted before it arrived");
            }
        }
        seen = count;
        assert!(started.elapsed() < LIMIT, "{count} of {ended}, {booked} booked");
    }
    let mut rest = PolledCompletions::default();
    all.main.settle(&mut rest);
    assert!(rest.a.is_empty());
    all.expect_completions(&[]);
    assert_eq!(all.counter_value(), PUTS);
}
