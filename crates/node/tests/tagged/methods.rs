//! Copy methods: each one alone, the sender's preferences that are granted or not, and the learned choice.

use std::collections::VecDeque;

use trunkline_node::tagged::{TaggedEvent, TaggedFailure, TaggedRequestId, TaggedSendStart};
use trunkline_proto::tagged::{CopyMethod, MethodChoice, SETTLED, StridedRows};
use trunkline_proto::time::Duration;

use crate::kind::Call;
use crate::two::{Two, WHERE, Where, pattern};

const METHODS: [CopyMethod; 3] = [CopyMethod::Pull, CopyMethod::Turns, CopyMethod::Stage];

fn by(method: CopyMethod) -> Two {
    let mut two = Two::new();
    [&mut two.a, &mut two.b]
        .into_iter()
        .for_each(|one| one.endpoint.set_copy_choice(MethodChoice::Fixed(method)));
    two
}

/// Sends one message; its receive is posted before the send, or after the message has arrived.
fn exchange(two: &mut Two, (from, to): (Where, Where), len: usize, rows: [StridedRows; 2], early: bool) {
    let room = |rows: StridedRows| rows.spanned_bytes(len as u64).unwrap() as usize;
    let (source, target) = (two.a.buffer(from, room(rows[0])), two.b.buffer(to, room(rows[1])));
    let (sent_from, got_into) = (source.in_rows(rows[0]), target.in_rows(rows[1]));
    two.a.fill(&sent_from, len as u64);
    let posted = (!early).then(|| two.post(1, &got_into));
    let sent = two.send(1, &sent_from);
    if early {
        two.rest();
    }
    let received = posted.unwrap_or_else(|| two.post(1, &got_into));
    let ends = two.both(sent, received);
    assert!(ends.iter().all(Result::is_ok), "{from:?} to {to:?}, {len} bytes, early: {early}: {ends:?}");
    assert!(two.b.bytes(&got_into) == pattern(len, len as u64), "{from:?} to {to:?}, {len} bytes");
    two.a.free(&source);
    two.b.free(&target);
}

/// Returns the messages that the receiver copied, that the sender copied, and that were staged.
fn counts(two: &Two) -> [u64; 3] {
    let (sender, receiver) = (two.a.endpoint.counts(), two.b.endpoint.counts());
    assert_eq!((sender.mapped, receiver.mapped), (sender.by_sender, receiver.by_receiver));
    [receiver.by_receiver, sender.by_sender, sender.staged]
}

#[test]
fn each_method_copies_messages_as_specified() {
    let rows = |block, stride| StridedRows::new(block, stride).unwrap();
    let layouts =
        [[StridedRows::WHOLE; 2], [rows(8, 24), StridedRows::WHOLE], [rows(1000, 1024), rows(8, 8)]];
    for (method, (from, to)) in METHODS
        .into_iter()
        .flat_map(|method| WHERE.map(|from| WHERE.map(|to| (method, (from, to)))))
        .flatten()
    {
        let mut two = by(method);
        // Each row is copied on its own.
        let short = [16_000, 200_000].into_iter().flat_map(|len| layouts.map(|layout| (len, layout)));
        for (len, layout) in short.chain([((3 << 20) + 8, layouts[0])]) {
            // Two messages of each kind; with the alternating method the sender copies the second one.
            [false, true].into_iter().for_each(|early| exchange(&mut two, (from, to), len, layout, early));
        }
        let expected = match (method, from, to) {
            (CopyMethod::Turns, Where::Own, Where::Own) => [7, 7, 0],
            (CopyMethod::Pull | CopyMethod::Turns, Where::Own, _) => [14, 0, 0],
            (_, Where::Other, Where::Own) => [0, 14, 0],
            (CopyMethod::Stage, Where::Own, _) | (_, Where::Other, Where::Other) => [0, 0, 14],
        };
        assert_eq!(counts(&two), expected, "{method:?}, {from:?} to {to:?}");
        let fallbacks = two.a.endpoint.counts().fallbacks + two.b.endpoint.counts().fallbacks;
        assert_eq!(fallbacks, 0, "{method:?}, {from:?} to {to:?}");
        two.rest();
        assert_eq!(
            [&two.a, &two.b].map(|one| one
                .endpoint
                .node()
                .exporter()
                .list_exports()
                .map(|of| of.pins)
                .sum::<u32>()),
            [0; 2]
        );
    }
}

#[test]
fn impossible_copy_method_preference_loses_no_message() {
    for (call, expected, fallbacks) in [
        // The receiver cannot export, so it copies itself.
        (Call::Export, [2, 0, 0], 0),
        // The receiver exports, but the sender fails to map its memory, or to copy to it.
        (Call::Open, [1, 0, 1], 1),
        (Call::Copy, [1, 0, 1], 1),
    ] {
        let mut two = by(CopyMethod::Turns);
        exchange(&mut two, (Where::Own, Where::Own), 100_000, [StridedRows::WHOLE; 2], false);
        match call {
            Call::Export => two.b.fail(call, 1),
            _ => two.a.fail(call, 1),
        }
        exchange(&mut two, (Where::Own, Where::Own), 100_000, [StridedRows::WHOLE; 2], false);
        let found = [&two.a, &two.b].map(|one| one.endpoint.counts().fallbacks);
        assert_eq!((counts(&two), found), (expected, [fallbacks, 0]), "{call:?}");
    }
}

/// Only messages of mappable memory alternate; private messages in between do not count.
#[test]
fn private_messages_do_not_count_as_turns() {
    let mut two = by(CopyMethod::Turns);
    for _ in 0..6 {
        exchange(&mut two, (Where::Own, Where::Own), 100_000, [StridedRows::WHOLE; 2], false);
        exchange(&mut two, (Where::Other, Where::Other), 100_000, [StridedRows::WHOLE; 2], false);
    }
    assert_eq!(counts(&two), [3, 3, 6]);
}

#[test]
fn sender_copy_of_long_message_is_truncated() {
    for early in [false, true] {
        for room in [0, 10, 65_536] {
            let mut two = by(CopyMethod::Turns);
            exchange(&mut two, (Where::Own, Where::Own), 100_000, [StridedRows::WHOLE; 2], false);
            let (source, target) = (two.a.buffer(Where::Own, 100_000), two.b.buffer(Where::Own, room));
            two.a.fill(&source, 3);
            let posted = (!early).then(|| two.post(5, &target));
            let begun = two.send(5, &source);
            two.rest();
            let posted = posted.unwrap_or_else(|| two.post(5, &target));
            let [sent, received] = two.both(begun, posted);
            let peer = two.b.other;
            let cut = TaggedFailure::Truncated { peer, tag: 5, len: 100_000, room: room as u64 };
            assert_eq!((sent.is_ok(), received), (true, Err(cut)));
            assert!(two.b.bytes(&target) == pattern(100_000, 3)[..room]);
            assert_eq!(counts(&two), [1, u64::from(room > 0), 0]);
        }
    }
}

#[test]
fn death_during_sender_copy_ends_other_request() {
    for receiver_dies in [true, false] {
        let mut two = by(CopyMethod::Turns);
        exchange(&mut two, (Where::Own, Where::Own), 8 << 20, [StridedRows::WHOLE; 2], false);
        let (source, target) = (two.a.buffer(Where::Own, 8 << 20), two.b.buffer(Where::Own, 8 << 20));
        let received = two.post(1, &target);
        let TaggedSendStart::Request(sent) = two.send(1, &source) else {
            panic!("a long message must be a request")
        };
        // Each step copies only a part of it.
        (0..4).for_each(|_| two.step());
        assert_eq!((two.a.endpoint.test(sent), two.b.endpoint.test(received)), (None, None));
        assert!(two.a.endpoint.node().is_copying() && !two.b.endpoint.node().is_copying());
        let Two { a, b, mut now, .. } = two;
        let (mut left, request) = if receiver_dies {
            drop(b);
            (a, sent)
        } else {
            drop(a);
            (b, received)
        };
        while !matches!(left.events.last(), Some(TaggedEvent::Left { .. })) {
            now = now + Duration::from_micros(100);
            left.endpoint.progress(now);
            left.events.extend(left.endpoint.next_event());
        }
        assert_eq!(
            left.endpoint.test(request),
            Some(Err(TaggedFailure::Gone)),
            "receiver dies: {receiver_dies}"
        );
        assert_eq!(left.endpoint.node().counts().leaks, 0);
        assert!(!left.endpoint.is_timing());
    }
}

/// Sends messages of one buffer into another one, up to 8 at a time. The clock advances by the slower of the two
/// copies, whose bytes cost that many picoseconds at the sender and at the receiver. Returns how many the sender
/// copied.
fn stream(two: &mut Two, len: usize, count: u64, costs: [u64; 2]) -> u64 {
    two.stands_still = true;
    let (source, target) = (two.a.buffer(Where::Own, len), two.b.buffer(Where::Own, len));
    let before = two.a.endpoint.counts().by_sender;
    let mut copied = [&two.a, &two.b].map(|one| one.kind().copied());
    let mut flying: VecDeque<(TaggedSendStart, TaggedRequestId)> = VecDeque::new();
    for _ in 0..count {
        let received = two.post(1, &target);
        let sent = two.send(1, &source);
        flying.push_back((sent, received));
        while flying.len() >= 8 {
            two.step();
            let now = [&two.a, &two.b].map(|one| one.kind().copied());
            let took = [0, 1].map(|at| (now[at] - copied[at]) * costs[at] / 1000);
            copied = now;
            two.now = two.now + Duration(took[0].max(took[1]) + 500);
            let TaggedSendStart::Request(sent) = flying[0].0 else {
                panic!("a long message must be a request")
            };
            if let Some(end) = two.a.endpoint.test(sent) {
                end.unwrap();
                let (_, received) = flying.pop_front().unwrap();
                two.received(received).unwrap();
            }
        }
    }
    for (sent, received) in flying {
        assert!(two.both(sent, received).iter().all(Result::is_ok));
    }
    two.a.free(&source);
    two.b.free(&target);
    two.a.endpoint.counts().by_sender - before
}

#[test]
fn chooser_follows_the_faster_method() {
    let mut two = Two::new();
    // Both ends copy at the same speed, so alternating is the fastest.
    stream(&mut two, 64 << 10, 3000, [50, 50]);
    let turns = stream(&mut two, 64 << 10, 1000, [50, 50]);
    assert!(turns > 350, "the sender copied {turns} of 1000");
    // The sender becomes slow.
    stream(&mut two, 64 << 10, 3000, [1000, 50]);
    let turns = stream(&mut two, 64 << 10, 1000, [1000, 50]);
    assert!(turns < 150, "the slow sender copied {turns} of 1000");
    // The sender becomes fast again.
    stream(&mut two, 64 << 10, 20_000, [50, 50]);
    let turns = stream(&mut two, 64 << 10, 1000, [50, 50]);
    assert!(turns > 350, "the sender, fast again, copied {turns} of 1000");
    assert!(!two.a.endpoint.is_timing());
    assert_eq!(two.a.endpoint.counts().staged, 0, "mappable memory must not be staged");
}

#[test]
fn chooser_abandons_a_failing_method() {
    let mut two = Two::new();
    two.a.fail(Call::Open, u64::MAX);
    stream(&mut two, 64 << 10, 3000, [50, 50]);
    let before = two.a.endpoint.counts().fallbacks;
    stream(&mut two, 64 << 10, 1000, [50, 50]);
    let fallbacks = two.a.endpoint.counts().fallbacks - before;
    assert!(before > 0 && fallbacks < 60, "{before}, then {fallbacks} of 1000");
}

/// Acceptance case M24. The alternating method is tried only where memory is reused. Otherwise the receiver would
/// export memory that is allocated for one message, too.
#[test]
fn new_memory_is_exported_by_one_side_only() {
    let mut two = Two::new();
    for _ in 0..3 * SETTLED {
        exchange(&mut two, (Where::Own, Where::Own), 10_000, [StridedRows::WHOLE; 2], false);
    }
    assert_eq!((counts(&two)[1], two.b.endpoint.node().counts().exports), (0, 0));
}
