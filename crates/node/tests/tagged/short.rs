//! Short messages of device memory while a kernel runs, by a driver whose copies land only when a test permits it. No
//! call waits for the copies.

use trunkline_mem::MemoryRange;
use trunkline_node::ipc::MessageBuffer;
use trunkline_node::tagged::{TaggedFailure, TaggedSendStart};

use crate::kind::Call;
use crate::two::{ALL, Two, Where, pattern};

/// A short message that needs more than one cell.
const LEN: usize = 300;

/// Two endpoints, one of which has a running kernel and copies that do not land.
fn two_with_kernel(sends: bool) -> Two {
    let two = Two::new();
    let one = if sends { &two.a } else { &two.b };
    one.kind().hold(1);
    one.kind().run_kernel(true);
    two
}

/// Ends the kernel, and lets all copies land.
fn end_kernel(two: &Two) {
    for one in [&two.a, &two.b] {
        one.kind().run_kernel(false);
        one.kind().let_go();
    }
}

fn fill(two: &Two, buffer: &MessageBuffer, seed: u64) {
    let bytes = pattern(buffer.len() as usize, seed);
    buffer.write_bytes(&two.a.kind().device, 0, &bytes).unwrap();
}

fn host(seed: u64) -> MessageBuffer {
    let memory = MemoryRange::heap(LEN);
    memory.write(0, &pattern(LEN, seed)).unwrap();
    memory.into()
}

#[test]
fn short_send_does_not_wait_for_a_kernel() {
    let mut two = two_with_kernel(true);
    let source = two.a.buffer(Where::Own, LEN);
    fill(&two, &source, 1);
    let targets = [(); 3].map(|()| two.b.buffer(Where::Other, LEN));
    let received = [1, 2, 3].map(|tag| two.post(ALL, &targets[tag - 1]));
    let to = two.a.other;
    let TaggedSendStart::Request(sent) = two.a.endpoint.send(to, ALL, &source).unwrap() else {
        panic!("the send must be a request, as its copy has not landed")
    };
    // Later messages, short or long, must not overtake it.
    let long = MessageBuffer::from_memory(MemoryRange::heap(100_000), 0, 100_000);
    for later in [&host(2), &long] {
        assert_eq!(two.a.endpoint.send(to, ALL, later), Ok(TaggedSendStart::Busy));
    }
    assert_eq!(two.a.endpoint.send_bytes(to, ALL, &[1]), Ok(TaggedSendStart::Busy));
    // Messages that arrive meanwhile are received.
    let (into, from) = (two.a.buffer(Where::Other, LEN), two.b.other);
    let other = two.a.endpoint.receive(Some(to), 5, ALL, into.clone()).unwrap();
    assert_eq!(two.b.endpoint.send(from, 5, &host(7)), Ok(TaggedSendStart::Done));
    two.rest();
    assert!(
        matches!(two.a.endpoint.test(other), Some(Ok(_))),
        "the other message must not wait for the copy"
    );
    assert!(two.a.bytes(&into) == pattern(LEN, 7));
    assert_eq!(two.a.endpoint.test(sent), None);
    assert_eq!(two.b.endpoint.test(received[0]), None, "the message must not be published before its copy");
    end_kernel(&two);
    assert!(two.sent(TaggedSendStart::Request(sent)).is_ok());
    let later = [2, 3].map(|seed| two.send(ALL, &host(seed)));
    assert!(later.iter().all(|begun| *begun == TaggedSendStart::Done));
    for (request, (target, seed)) in received.into_iter().zip(targets.iter().zip(1..)) {
        assert_eq!(two.received(request).map(|done| done.len), Ok(LEN as u64));
        assert!(two.b.bytes(target) == pattern(LEN, seed), "message {seed}");
    }
    assert_eq!(two.a.endpoint.counts().eager, 3);
}

#[test]
fn short_receive_does_not_wait_for_a_kernel() {
    for early in [false, true] {
        let mut two = two_with_kernel(false);
        let (into, beside) = (two.b.buffer(Where::Own, LEN), two.b.buffer(Where::Other, LEN));
        let posted = (!early).then(|| two.post(1, &into));
        assert_eq!(two.send(1, &host(1)), TaggedSendStart::Done);
        two.rest();
        let received = posted.unwrap_or_else(|| two.post(1, &into));
        let other = two.post(2, &beside);
        assert_eq!(two.send(2, &host(2)), TaggedSendStart::Done);
        assert!(two.received(other).is_ok(), "the other message must not wait for the copy");
        assert!(two.b.bytes(&beside) == pattern(LEN, 2));
        assert_eq!(two.b.endpoint.test(received), None, "early: {early}");
        assert_eq!(two.b.kind().under_way(), 1);
        end_kernel(&two);
        assert_eq!(two.received(received).map(|done| done.len), Ok(LEN as u64));
        assert!(two.b.bytes(&into) == pattern(LEN, 1), "early: {early}");
    }
}

/// A message is copied out of the ring for a long time, while others fill the ring again and again.
#[test]
fn cells_stay_while_they_are_copied() {
    let mut two = two_with_kernel(false);
    two.b.kind().run_kernel(false);
    let into = [(); 2].map(|()| two.b.buffer(Where::Own, LEN));
    let received = into.each_ref().map(|into| two.post(1, into));
    assert_eq!([two.send(1, &host(1)), two.send(1, &host(2))], [TaggedSendStart::Done; 2]);
    let (to, target) = (two.a.other, two.b.buffer(Where::Other, LEN));
    let (mut busy, mut others) = (false, 0_u64);
    for _ in 0..10_000 {
        let waiting = two.post(2, &target);
        busy = two.a.endpoint.send(to, 2, &host(9)).unwrap() == TaggedSendStart::Busy;
        if busy {
            break;
        }
        others += 1;
        assert!(two.received(waiting).is_ok());
    }
    assert!(busy, "cells must not be released while they are copied");
    assert!(others > 50, "{others} messages");
    two.b.kind().let_go();
    for (request, (into, seed)) in received.into_iter().zip(into.iter().zip(1..)) {
        assert!(two.received(request).is_ok());
        assert!(two.b.bytes(into) == pattern(LEN, seed), "message {seed}");
    }
    assert!(matches!(two.send(2, &host(9)), TaggedSendStart::Done), "all cells must be free again");
}

#[test]
fn failed_copy_fails_its_message_alone() {
    let mut two = Two::new();
    two.a.kind().hold(1);
    let (source, target) = (two.a.buffer(Where::Own, LEN), two.b.buffer(Where::Other, LEN));
    fill(&two, &source, 1);
    let received = two.post(1, &target);
    for round in 0..100 {
        let begun = two.send(1, &source);
        two.a.fail(Call::End, 1);
        two.a.kind().let_go();
        assert!(matches!(two.sent(begun), Err(TaggedFailure::Copy(_))), "round {round}");
    }
    two.rest();
    assert_eq!(two.b.endpoint.test(received), None, "no part of a failed message may be published");
    assert_eq!(two.send(1, &host(2)), TaggedSendStart::Done);
    assert!(two.received(received).is_ok());
    assert!(two.b.bytes(&target) == pattern(LEN, 2));
    let gone = MessageBuffer::from_own(source.own_address().unwrap(), 1 << 12);
    assert!(two.a.endpoint.send(two.a.other, 1, &gone).is_err());
}

/// A message that a peer sent completely is received after its death, and the buffer stays in use until then.
#[test]
fn short_copies_outlive_their_sender() {
    let mut two = two_with_kernel(false);
    let into = two.b.buffer(Where::Own, LEN);
    let received = two.post(1, &into);
    assert_eq!(two.send(1, &host(1)), TaggedSendStart::Done);
    two.until("the copy is in progress", |two| two.b.kind().under_way() > 0);
    let to = two.a.other;
    two.a.endpoint.refuse_peer(to);
    two.rest();
    assert!(two.b.endpoint.is_gone(two.b.other));
    assert_eq!(two.b.endpoint.test(received), None);
    assert_eq!(two.b.kind().pins(), 1, "the inbox must stay pinned while it is copied from");
    end_kernel(&two);
    assert!(two.received(received).is_ok());
    assert!(two.b.bytes(&into) == pattern(LEN, 1));
    assert_eq!(two.b.kind().pins(), 0);
}

#[test]
fn short_send_to_dead_peer_fails() {
    let mut two = two_with_kernel(true);
    let source = two.a.buffer(Where::Own, LEN);
    let begun = two.send(1, &source);
    two.b.endpoint.refuse_peer(two.b.other);
    two.rest();
    assert_eq!(two.sent(begun), Err(TaggedFailure::Gone));
    assert_eq!(two.a.kind().pins(), 2, "the ring must stay pinned while the copy writes it");
    end_kernel(&two);
    two.rest();
    assert_eq!(two.a.kind().pins(), 0);
}
