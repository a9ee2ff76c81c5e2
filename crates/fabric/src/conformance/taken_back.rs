//! Matched operations that their owner takes back before they meet their other half, and those that do not fit it.

use super::ops::land;
use super::pair::add;
use super::{Ends, Region, Seen, Setup, default_config};
use crate::{Access, Completion, Done, Match, Op, Rail, Source, Status};

/// Longer than what any fabric sends in one piece.
const LONG: usize = 3 << 20;

/// Two ends with few places. None where sends do not wait for what they are paired with: there the target has them when they are
/// taken back, and what does not fit ends its link.
fn small_ends<S: Setup>(setup: &S) -> Option<Ends<S::Rail>> {
    let mut config = default_config();
    (config.depth, config.recv_depth) = (4, 4);
    let ends = setup.pair(&config);
    (ends.a.caps().matched && ends.a.caps().sends_wait).then_some(ends)
}

/// What is taken back never completes, gives its place in the queue free, and meets nobody; what was not posted, or has met
/// its other half, is not taken back.
pub fn matched_operations_can_be_taken_back<S: Setup>(setup: &S) {
    let Some(mut ends) = small_ends(setup) else { return };
    let into = Region::new(&ends.b, 8, Access::LOCAL);
    // More often than there are places.
    for round in 0..20 {
        ends.on_a(round, Op::MatchedSend { from: Source::Inline(&[1]), key: Match(1) });
        ends.on_b(round, Op::MatchedRecv { into: into.extent(0, 1), key: Match(2) });
        ends.expect(0, 0);
        assert!(ends.a.take_back(ends.at_a, round) && ends.b.take_back(ends.at_b, round));
        assert!(!ends.a.take_back(ends.at_a, round) && !ends.b.take_back(ends.at_b, round), "twice");
        // Before anything was sent.
        ends.on_b(99, Op::MatchedRecv { into: into.extent(0, 1), key: Match(2) });
        assert!(ends.b.take_back(ends.at_b, 99));
    }
    // The other halves of all of them come too late, once both NICs have heard.
    ends.expect(0, 0);
    ends.on_a(50, Op::MatchedSend { from: Source::Inline(&[2]), key: Match(2) });
    ends.on_b(51, Op::MatchedRecv { into: into.extent(4, 1), key: Match(1) });
    ends.expect(0, 0);
    ends.on_b(52, Op::MatchedRecv { into: into.extent(5, 1), key: Match(2) });
    ends.on_a(53, Op::MatchedSend { from: Source::Inline(&[3]), key: Match(1) });
    let seen = ends.expect(2, 2);
    assert!(seen.a.iter().chain(&seen.b).all(|one| one.status == Status::Ok));
    assert!(!ends.a.take_back(ends.at_a, 50) && !ends.b.take_back(ends.at_b, 52), "it has completed");
    land(&mut ends);
    assert_eq!(into.bytes(0, 6), [0, 0, 0, 0, 3, 2]);
}

/// A receive is taken back whenever: its send completes well or can be taken back, what was in its memory stays, and the
/// link goes on.
pub fn matched_receives_are_taken_back_under_sends<S: Setup>(setup: &S) {
    for polls in 0..6 {
        let Some(mut ends) = small_ends(setup) else { return };
        let from = Region::new(&ends.a, LONG, Access::LOCAL);
        let into = Region::new(&ends.b, LONG, Access::LOCAL);
        from.fill(3);
        let source = Source::Region(from.extent(0, LONG as u64));
        ends.on_b(1, Op::MatchedRecv { into: into.extent(0, LONG as u64), key: Match(1) });
        ends.on_a(2, Op::MatchedSend { from: source, key: Match(1) });
        let mut seen = Seen::default();
        (0..polls).for_each(|_| ends.poll(&mut seen));
        let taken = ends.b.take_back(ends.at_b, 1);
        assert!(!taken || seen.b.is_empty(), "it had completed");
        let before = into.bytes(0, LONG);
        // The link carries others meanwhile and afterwards.
        ends.on_b(3, Op::MatchedRecv { into: into.extent(0, 1), key: Match(2) });
        ends.on_a(4, Op::MatchedSend { from: Source::Inline(&[7]), key: Match(2) });
        if !taken {
            continue;
        }
        ends.settle(&mut seen);
        let waits = ends.a.take_back(ends.at_a, 2);
        let a = 1 + usize::from(!waits) - seen.a.len();
        let b = 1 - seen.b.len();
        let rest = ends.expect(a, b);
        add(&mut seen.a, rest.a.into_iter());
        add(&mut seen.b, rest.b.into_iter());
        let sent = seen.a.iter().any(|one| (one.wr_id, one.status) == (2, Status::Ok));
        assert_eq!((sent, seen.a.len()), (!waits, 1 + usize::from(!waits)), "{:?}", seen.a);
        let got: Vec<_> = seen.b.iter().map(|one| (one.wr_id, one.done, one.status)).collect();
        assert_eq!(got, [(3, Done::Received, Status::Ok)]);
        land(&mut ends);
        assert!(into.bytes(1, LONG - 1) == before[1..], "bytes came after {polls} polls");
    }
}

/// A matched send that is longer than its receive ends so on both sides, whichever was posted first, whether it was to
/// complete or not; no byte of it is placed, and what else is on the link goes on.
pub fn matched_sends_that_are_too_long_harm_nobody<S: Setup>(setup: &S) {
    let Some(mut ends) = small_ends(setup) else { return };
    let from = Region::new(&ends.a, LONG, Access::LOCAL);
    let into = Region::new(&ends.b, LONG + 8, Access::LOCAL);
    from.fill(4);
    let ends_as = |seen: &[Completion], wr_id: u64| {
        seen.iter().filter(|one| one.wr_id == wr_id).map(|one| (one.done, one.status)).collect::<Vec<_>>()
    };
    // Room for the queue is given back each time.
    for round in 0..20 {
        let first = round % 2 == 0;
        let len = [1, 40, 4_000, LONG as u64][round % 4];
        let send = Op::MatchedSend { from: Source::Region(from.extent(0, len)), key: Match(1) };
        let receive = Op::MatchedRecv { into: into.extent(8, len - 1), key: Match(1) };
        if first {
            ends.on_b(1, receive);
            ends.expect(0, 0);
        }
        let at_a = ends.at_a;
        ends.a.post(at_a, 2, send, round % 3 > 0).unwrap_or_else(|error| panic!("post: {error}"));
        if !first {
            ends.expect(0, 0);
            ends.on_b(1, receive);
        }
        ends.on_a(3, Op::MatchedSend { from: Source::Inline(&[9]), key: Match(2) });
        ends.on_b(4, Op::MatchedRecv { into: into.extent(0, 1), key: Match(2) });
        let seen = ends.expect(2, 2);
        assert_eq!(ends_as(&seen.a, 2), [(Done::Posted, Status::TooLong)], "round {round}");
        assert_eq!(ends_as(&seen.b, 1), [(Done::Received, Status::TooLong)], "round {round}");
        assert_eq!(ends_as(&seen.a, 3), [(Done::Posted, Status::Ok)]);
        assert_eq!(ends_as(&seen.b, 4), [(Done::Received, Status::Ok)]);
        assert!(!ends.a.take_back(at_a, 2) && !ends.b.take_back(ends.at_b, 1), "it has completed");
    }
    land(&mut ends);
    assert!(into.bytes(8, LONG).iter().all(|byte| *byte == 0), "bytes were placed");
}
