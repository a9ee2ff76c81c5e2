//! Every way to transfer the bytes of a message.

use trunkline_node::tagged::{MessageStatus, TaggedCounts, TaggedFailure};
use trunkline_proto::tagged::{RowRuns, StridedRows};

use crate::kind::Call;
use crate::two::{ALL, Two, WHERE, Where, pattern};

const LENS: [usize; 13] = [0, 1, 8, 47, 48, 49, 112, 113, 4096, 8192, 8193, 65_536, (3 << 20) + 5];

#[test]
fn messages_of_all_lengths_arrive_between_any_memories() {
    let mut two = Two::new();
    for (from, to) in WHERE.into_iter().flat_map(|from| WHERE.map(|to| (from, to))) {
        for (len, early) in LENS.into_iter().flat_map(|len| [(len, false), (len, true)]) {
            let (source, target) = (two.a.buffer(from, len), two.b.buffer(to, len));
            two.a.fill(&source, len as u64);
            let tag = 0x1_0000_0000 + len as u64;
            let (sent, received) = if early {
                let sent = two.send(tag, &source);
                two.rest();
                assert_eq!(two.b.endpoint.probe(None, tag, ALL).unwrap().len, len as u64);
                (sent, two.post(tag, &target))
            } else {
                let received = two.post(tag, &target);
                (two.send(tag, &source), received)
            };
            let [sent, received] = two.both(sent, received);
            let done = MessageStatus { peer: two.b.other, tag, len: len as u64 };
            assert_eq!((sent.is_ok(), received), (true, Ok(done)));
            assert!(two.b.bytes(&target) == pattern(len, len as u64), "{len} bytes, {from:?} to {to:?}");
            two.a.free(&source);
            two.b.free(&target);
        }
    }
}

/// Returns the counts of the sender and of the receiver.
fn counts(two: &Two) -> [TaggedCounts; 2] {
    [two.a.endpoint.counts(), two.b.endpoint.counts()]
}

#[test]
fn mappable_long_messages_are_copied_once() {
    for (from, to) in WHERE.into_iter().flat_map(|from| WHERE.map(|to| (from, to))) {
        let mut two = Two::new();
        let (source, target) = (two.a.buffer(from, 100_000), two.b.buffer(to, 100_000));
        for _ in 0..3 {
            let received = two.post(1, &target);
            let sent = two.send(1, &source);
            assert!(two.both(sent, received).iter().all(Result::is_ok));
        }
        let [sender, receiver] = counts(&two);
        let (by_receiver, by_sender) = match (from, to) {
            (Where::Own, _) => (3, 0),
            (Where::Other, Where::Own) => (0, 3),
            (Where::Other, Where::Other) => (0, 0),
        };
        assert_eq!([receiver.mapped, sender.mapped], [by_receiver, by_sender], "{from:?} to {to:?}");
        assert_eq!(sender.staged, 3 - by_receiver - by_sender);
        assert_eq!(sender.fallbacks + receiver.fallbacks, 0);
        let node = [&two.a, &two.b].map(|one| one.endpoint.node().counts());
        assert!(node[0].exports + node[1].exports <= 1 && node[0].maps + node[1].maps <= 1);
    }
}

/// Bytes in rows, between any memories, with another layout at each end: with every copy method, and when a driver
/// fails.
#[test]
fn rows_arrive_intact_in_any_other_layout() {
    let rows = |block, stride| StridedRows::new(block, stride).unwrap();
    let layouts = [StridedRows::WHOLE, rows(8, 24), rows(1000, 1024), rows(7, 7), rows(65_536, 70_000)];
    for (from, to) in WHERE.into_iter().flat_map(|from| WHERE.map(|to| (from, to))) {
        let mut two = Two::new();
        for (number, (out, into)) in
            layouts.into_iter().flat_map(|out| layouts.map(|into| (out, into))).enumerate()
        {
            // The length is a multiple of the rows of both layouts, for short and long messages.
            for len in [7 * 8 * 125, 7 * 1000 * 8 * 4] {
                let room = |rows: StridedRows| rows.spanned_bytes(len).unwrap() as usize;
                let (source, target) = (two.a.buffer(from, room(out)), two.b.buffer(to, room(into)));
                two.b.fill(&target, 99);
                let (sent_from, got_into) = (source.in_rows(out), target.in_rows(into));
                let len = sent_from.len().min(got_into.len());
                two.a.fill(&sent_from, number as u64);
                if number.is_multiple_of(3) {
                    [&two.a, &two.b].iter().for_each(|one| one.fail(Call::Open, 1));
                }
                let (received, sent) = (two.post(1, &got_into), two.send(1, &sent_from));
                let [sent, received] = two.both(sent, received);
                let whole = got_into.len() >= sent_from.len();
                assert_eq!(
                    (sent.is_ok(), received.is_ok()),
                    (true, whole),
                    "{out:?} to {into:?}: {received:?}"
                );
                let expected = pattern(sent_from.len() as usize, number as u64);
                let got = two.b.bytes(&got_into);
                assert!(
                    got[..len as usize] == expected[..len as usize],
                    "{from:?} {out:?} to {to:?} {into:?}"
                );
                // Bytes between the rows must be unchanged.
                let (all, mut was) = (two.b.bytes(&target), pattern(target.len() as usize, 99));
                for ([at, _], run) in RowRuns::new([into, StridedRows::WHOLE], 0, len) {
                    was[at as usize..][..run as usize].copy_from_slice(&all[at as usize..][..run as usize]);
                }
                assert!(all == was, "bytes between the rows were written: {into:?}");
                [&two.a, &two.b].iter().for_each(|one| one.fail(Call::Open, 0));
                two.a.free(&source);
                two.b.free(&target);
            }
        }
        if from == Where::Own || to == Where::Own {
            let [a, b] = counts(&two);
            assert!(a.mapped + b.mapped > 0 && a.fallbacks + b.fallbacks > 0, "{a:?} {b:?}");
        }
    }
}

#[test]
fn sender_may_rewrite_memory_after_completion() {
    let mut two = Two::new();
    for (from, to) in WHERE.into_iter().flat_map(|from| WHERE.map(|to| (from, to))) {
        for len in [100, 20_000, 5 << 20] {
            let (source, target) = (two.a.buffer(from, len), two.b.buffer(to, len));
            two.a.fill(&source, 1);
            let received = two.post(1, &target);
            let sent = two.send(1, &source);
            two.sent(sent).unwrap();
            two.a.fill(&source, 2);
            two.received(received).unwrap();
            assert!(two.b.bytes(&target) == pattern(len, 1), "{len} bytes, {from:?} to {to:?}");
            two.a.free(&source);
            two.b.free(&target);
        }
    }
}

#[test]
fn burst_of_parts_is_exported_and_mapped_once() {
    let mut two = Two::new();
    let (source, target) = (two.a.buffer(Where::Own, 1 << 20), two.b.buffer(Where::Other, 16_384));
    two.a.fill(&source, 9);
    let part = |n: u64| source.sub_buffer(n * 16_384, 16_384).unwrap();
    let sent: Vec<_> = (0..64).map(|n| two.send(n, &part(n))).collect();
    two.rest();
    for (n, begun) in sent.into_iter().enumerate() {
        let received = two.post(n as u64, &target);
        assert!(two.both(begun, received).iter().all(Result::is_ok));
        assert!(two.b.bytes(&target) == pattern(1 << 20, 9)[n * 16_384..][..16_384]);
    }
    let [a, b] = [&two.a, &two.b].map(|one| one.endpoint.node().counts());
    assert_eq!((a.exports, b.maps, a.sent), (1, 1, 64));
}

#[test]
fn driver_failures_are_staged_and_counted() {
    for (call, from, to) in [
        (Call::Export, Where::Own, Where::Other),
        (Call::Open, Where::Own, Where::Other),
        (Call::Copy, Where::Own, Where::Other),
        (Call::Export, Where::Other, Where::Own),
        (Call::Open, Where::Other, Where::Own),
        (Call::Export, Where::Own, Where::Own),
    ] {
        let mut two = Two::new();
        let (source, target) = (two.a.buffer(from, 300_000), two.b.buffer(to, 300_000));
        for round in 0..4 {
            two.a.fill(&source, round);
            // The first two times, the driver of the end that makes this call fails.
            if round < 2 {
                let who = match (call, from) {
                    (Call::Export, Where::Own) | (Call::Open | Call::Copy, Where::Other) => &two.a,
                    _ => &two.b,
                };
                who.fail(call, 1);
            }
            let received = two.post(7, &target);
            let sent = two.send(7, &source);
            let ends = two.both(sent, received);
            assert!(ends.iter().all(Result::is_ok), "{call:?} {from:?} {to:?} round {round}: {ends:?}");
            assert!(
                two.b.bytes(&target) == pattern(300_000, round),
                "{call:?} {from:?} to {to:?} round {round}"
            );
        }
        // If the receiver can share its memory instead, the message is still copied directly. All staged messages must
        // count as fallbacks.
        let [sender, receiver] = counts(&two);
        let staged = if (from, to) == (Where::Own, Where::Own) { 0..=0 } else { 2..=4 };
        assert!(
            staged.contains(&sender.staged) && sender.fallbacks == sender.staged && receiver.fallbacks == 0,
            "{call:?} {from:?} {to:?}: {sender:?} {receiver:?}"
        );
    }
}

#[test]
fn too_long_message_is_truncated_and_reported() {
    let mut two = Two::new();
    for (from, to) in WHERE.into_iter().flat_map(|from| WHERE.map(|to| (from, to))) {
        for (len, room) in [(8, 3), (1, 0), (5000, 4999), (100_000, 10), (100_000, 65_536), (100_000, 0)] {
            for early in [false, true] {
                let (source, target) = (two.a.buffer(from, len), two.b.buffer(to, room));
                two.a.fill(&source, 3);
                let begun = early.then(|| two.send(5, &source));
                if early {
                    two.rest();
                }
                let received = two.post(5, &target);
                let begun = begun.unwrap_or_else(|| two.send(5, &source));
                let [sent, received] = two.both(begun, received);
                assert!(sent.is_ok(), "truncation must not fail the send: {sent:?}");
                let peer = two.b.other;
                let cut = TaggedFailure::Truncated { peer, tag: 5, len: len as u64, room: room as u64 };
                assert_eq!(received, Err(cut), "{len} to {room}, {from:?} to {to:?}");
                assert!(two.b.bytes(&target) == pattern(len, 3)[..room]);
                two.a.free(&source);
                two.b.free(&target);
            }
        }
    }
}

#[test]
fn freed_memory_ends_both_requests() {
    let mut two = Two::new();
    // The receiver frees its memory while pieces arrive.
    let source = two.a.buffer(Where::Other, 1 << 20);
    let target = two.b.buffer(Where::Own, 1 << 20);
    two.b.fail(Call::Export, 1);
    let (received, sent) = (two.post(1, &target), two.send(1, &source));
    two.step();
    two.b.free(&target);
    let [sent, received] = two.both(sent, received);
    assert!(matches!(received, Err(TaggedFailure::Copy(_))), "{received:?}");
    assert!(sent.is_ok(), "{sent:?}");
    // The sender frees its memory.
    let source = two.a.buffer(Where::Own, 1 << 20);
    let target = two.b.buffer(Where::Other, 1 << 20);
    two.a.fail(Call::Export, 1);
    let (received, sent) = (two.post(2, &target), two.send(2, &source));
    two.a.free(&source);
    let [sent, received] = two.both(sent, received);
    assert!(matches!(sent, Err(TaggedFailure::Copy(_))), "{sent:?}");
    assert_eq!(received, Err(TaggedFailure::Unsent));
}
