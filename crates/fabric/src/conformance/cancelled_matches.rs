//! Cases: matched operations that their owner cancels before they are paired, and sends that do not fit their receive.

use super::ops::flush_writes;
use super::pair::extend_completions;
use super::{ConformanceSetup, PolledCompletions, RailPair, TestRegion, default_config};
use crate::{AccessRights, Completion, CompletionKind, MatchKey, Op, OpSource, OpStatus, Rail};

/// Longer than the longest message that any fabric sends in one piece.
const LONG: usize = 3 << 20;

/// Opens two ends with short queues. Returns `None` where matched sends do not wait for their receives: there a cancelled send is already at the
/// target, and a send that does not fit ends its link.
fn small_ends<S: ConformanceSetup>(setup: &S) -> Option<RailPair<S::Rail>> {
    let mut config = default_config();
    (config.depth, config.recv_depth) = (4, 4);
    let ends = setup.open_pair(&config);
    (ends.a.caps().matched && ends.a.caps().sends_wait).then_some(ends)
}

/// A cancelled operation never completes, frees its slot in the queue, and is never paired. An operation that was not posted, or is
/// already paired, is not cancelled.
pub fn matched_operations_can_be_taken_back<S: ConformanceSetup>(setup: &S) {
    let Some(mut ends) = small_ends(setup) else { return };
    let into = TestRegion::new(&ends.b, 8, AccessRights::LOCAL);
    // More rounds than the queue has slots.
    for round in 0..20 {
        ends.on_a(round, Op::MatchedSend { from: OpSource::Inline(&[1]), key: MatchKey(1) });
        ends.on_b(round, Op::MatchedRecv { into: into.extent_at(0, 1), key: MatchKey(2) });
        ends.expect_completions(0, 0);
        assert!(ends.a.take_back(ends.at_a, round) && ends.b.take_back(ends.at_b, round));
        assert!(!ends.a.take_back(ends.at_a, round) && !ends.b.take_back(ends.at_b, round), "twice");
        // Cancelled before any send was posted.
        ends.on_b(99, Op::MatchedRecv { into: into.extent_at(0, 1), key: MatchKey(2) });
        assert!(ends.b.take_back(ends.at_b, 99));
    }
    // The other halves of all of them are posted too late, once both NICs have processed the cancellations.
    ends.expect_completions(0, 0);
    ends.on_a(50, Op::MatchedSend { from: OpSource::Inline(&[2]), key: MatchKey(2) });
    ends.on_b(51, Op::MatchedRecv { into: into.extent_at(4, 1), key: MatchKey(1) });
    ends.expect_completions(0, 0);
    ends.on_b(52, Op::MatchedRecv { into: into.extent_at(5, 1), key: MatchKey(2) });
    ends.on_a(53, Op::MatchedSend { from: OpSource::Inline(&[3]), key: MatchKey(1) });
    let seen = ends.expect_completions(2, 2);
    assert!(seen.a.iter().chain(&seen.b).all(|one| one.status == OpStatus::Ok));
    assert!(!ends.a.take_back(ends.at_a, 50) && !ends.b.take_back(ends.at_b, 52), "it has completed");
    flush_writes(&mut ends);
    assert_eq!(into.read_bytes(0, 6), [0, 0, 0, 0, 3, 2]);
}

/// A receive is cancelled at any time: its send completes successfully or can be cancelled, the bytes in its memory stay unchanged, and the
/// link stays usable.
pub fn matched_receives_are_taken_back_under_sends<S: ConformanceSetup>(setup: &S) {
    for polls in 0..6 {
        let Some(mut ends) = small_ends(setup) else { return };
        let from = TestRegion::new(&ends.a, LONG, AccessRights::LOCAL);
        let into = TestRegion::new(&ends.b, LONG, AccessRights::LOCAL);
        from.fill_pattern(3);
        let source = OpSource::Region(from.extent_at(0, LONG as u64));
        ends.on_b(1, Op::MatchedRecv { into: into.extent_at(0, LONG as u64), key: MatchKey(1) });
        ends.on_a(2, Op::MatchedSend { from: source, key: MatchKey(1) });
        let mut seen = PolledCompletions::default();
        (0..polls).for_each(|_| ends.poll(&mut seen));
        let taken = ends.b.take_back(ends.at_b, 1);
        assert!(!taken || seen.b.is_empty(), "it had completed");
        let before = into.read_bytes(0, LONG);
        // The link carries other operations meanwhile and afterwards.
        ends.on_b(3, Op::MatchedRecv { into: into.extent_at(0, 1), key: MatchKey(2) });
        ends.on_a(4, Op::MatchedSend { from: OpSource::Inline(&[7]), key: MatchKey(2) });
        if !taken {
            continue;
        }
        ends.settle(&mut seen);
        let waits = ends.a.take_back(ends.at_a, 2);
        let a = 1 + usize::from(!waits) - seen.a.len();
        let b = 1 - seen.b.len();
        let rest = ends.expect_completions(a, b);
        extend_completions(&mut seen.a, rest.a.into_iter());
        extend_completions(&mut seen.b, rest.b.into_iter());
        let sent = seen.a.iter().any(|one| (one.wr_id, one.status) == (2, OpStatus::Ok));
        assert_eq!((sent, seen.a.len()), (!waits, 1 + usize::from(!waits)), "{:?}", seen.a);
        let got: Vec<_> = seen.b.iter().map(|one| (one.wr_id, one.done, one.status)).collect();
        assert_eq!(got, [(3, CompletionKind::Received, OpStatus::Ok)]);
        flush_writes(&mut ends);
        assert!(into.read_bytes(1, LONG - 1) == before[1..], "bytes arrived after {polls} polls");
    }
}

/// A matched send that is longer than its receive fails on both sides, whichever was posted first and whether it was
/// signalled or not. None of its bytes is placed, and other operations of the link continue.
pub fn matched_sends_too_long_keep_the_link_usable<S: ConformanceSetup>(setup: &S) {
    let Some(mut ends) = small_ends(setup) else { return };
    let from = TestRegion::new(&ends.a, LONG, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, LONG + 8, AccessRights::LOCAL);
    from.fill_pattern(4);
    let ends_as = |seen: &[Completion], wr_id: u64| {
        seen.iter().filter(|one| one.wr_id == wr_id).map(|one| (one.done, one.status)).collect::<Vec<_>>()
    };
    // The slot in the queue is freed each time.
    for round in 0..20 {
        let first = round % 2 == 0;
        let len = [1, 40, 4_000, LONG as u64][round % 4];
        let send = Op::MatchedSend { from: OpSource::Region(from.extent_at(0, len)), key: MatchKey(1) };
        let receive = Op::MatchedRecv { into: into.extent_at(8, len - 1), key: MatchKey(1) };
        if first {
            ends.on_b(1, receive);
            ends.expect_completions(0, 0);
        }
        let at_a = ends.at_a;
        ends.a.post(at_a, 2, send, round % 3 > 0).unwrap_or_else(|error| panic!("post: {error}"));
        if !first {
            ends.expect_completions(0, 0);
            ends.on_b(1, receive);
        }
        ends.on_a(3, Op::MatchedSend { from: OpSource::Inline(&[9]), key: MatchKey(2) });
        ends.on_b(4, Op::MatchedRecv { into: into.extent_at(0, 1), key: MatchKey(2) });
        let seen = ends.expect_completions(2, 2);
        assert_eq!(ends_as(&seen.a, 2), [(CompletionKind::Posted, OpStatus::TooLong)], "round {round}");
        assert_eq!(ends_as(&seen.b, 1), [(CompletionKind::Received, OpStatus::TooLong)], "round {round}");
        assert_eq!(ends_as(&seen.a, 3), [(CompletionKind::Posted, OpStatus::Ok)]);
        assert_eq!(ends_as(&seen.b, 4), [(CompletionKind::Received, OpStatus::Ok)]);
        assert!(!ends.a.take_back(at_a, 2) && !ends.b.take_back(ends.at_b, 1), "it has completed");
    }
    flush_writes(&mut ends);
    assert!(into.read_bytes(8, LONG).iter().all(|byte| *byte == 0), "bytes were placed");
}
