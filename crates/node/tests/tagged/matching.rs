//! The matching of messages to receives, for every copy method.

use trunkline_mem::MemoryRange;
use trunkline_node::ipc::MessageBuffer;
use trunkline_node::tagged::{ReceiveRefused, SendRefused, TaggedEvent, TaggedFailure, TaggedSendStart};

use crate::two::{ALL, Two, Where, pattern};

#[test]
fn long_and_short_messages_of_one_tag_do_not_overtake_each_other() {
    let mut two = Two::new();
    let lens = [8, 200_000, 16, 100_000, 0, 9000, 8192];
    for early in [true, false] {
        let place = |n: usize| if n.is_multiple_of(2) { Where::Own } else { Where::Other };
        let sources: Vec<_> = lens.iter().enumerate().map(|(n, len)| two.a.buffer(place(n), *len)).collect();
        let targets: Vec<_> =
            lens.iter().enumerate().map(|(n, len)| two.b.buffer(place(n + 1), *len)).collect();
        sources.iter().zip(0..).for_each(|(source, seed)| two.a.fill(source, seed));
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        if early {
            sent = sources.iter().map(|source| two.send(4, source)).collect();
            two.rest();
        }
        received.extend(targets.iter().map(|target| two.post(4, target)));
        if !early {
            sent = sources.iter().map(|source| two.send(4, source)).collect();
        }
        for (n, (sent, received)) in sent.into_iter().zip(received).enumerate() {
            let ends = two.both(sent, received);
            assert_eq!(ends[1].as_ref().unwrap().len, lens[n] as u64);
            assert!(ends[0].is_ok() && two.b.bytes(&targets[n]) == pattern(lens[n], n as u64), "message {n}");
        }
        sources.iter().for_each(|source| two.a.free(source));
        targets.iter().for_each(|target| two.b.free(target));
    }
}

#[test]
fn receive_matches_any_peer_and_masked_tags() {
    let mut two = Two::new();
    let (source, target) = (two.a.buffer(Where::Other, 8), two.b.buffer(Where::Other, 8));
    let strict = two.post(0x12, &target);
    let loose = two.b.endpoint.receive(None, 0x2, 0xf, target.clone()).unwrap();
    let sent = two.send(0xff2, &source);
    assert_eq!(sent, TaggedSendStart::Done);
    assert_eq!(two.received(loose).unwrap().tag, 0xff2);
    two.rest();
    assert_eq!(two.b.endpoint.test(strict), None);
    let _ = two.send(0x12, &source);
    assert_eq!(two.received(strict).unwrap().tag, 0x12);
}

#[test]
fn short_messages_are_received_without_a_request() {
    let mut two = Two::new();
    let to = two.a.other;
    assert_eq!(two.a.endpoint.send_bytes(to, 1, b"hello"), Ok(TaggedSendStart::Done));
    assert_eq!(two.a.endpoint.send_bytes(to, 2, &[0; 8193]), Err(SendRefused::Outside));
    let long = two.a.buffer(Where::Other, 9000);
    let sent = two.send(3, &long);
    two.rest();
    let mut bytes = [0; 5];
    assert!(two.b.endpoint.take_bytes(None, 2, ALL, &mut bytes).is_none());
    assert!(
        two.b.endpoint.take_bytes(None, 3, ALL, &mut bytes).is_none(),
        "a long message has no bytes here"
    );
    let done = two.b.endpoint.take_bytes(None, 1, ALL, &mut bytes).unwrap().unwrap();
    assert_eq!((done.len, &bytes), (5, b"hello"));
    assert!(
        two.b.endpoint.take_bytes(None, 1, ALL, &mut bytes).is_none(),
        "a message can be taken only once"
    );
    assert_eq!(two.a.endpoint.send_bytes(to, 4, b"long"), Ok(TaggedSendStart::Done));
    two.rest();
    let cut = two.b.endpoint.take_bytes(None, 4, ALL, &mut bytes[..2]).unwrap();
    assert!(matches!(cut, Err(TaggedFailure::Truncated { len: 4, room: 2, .. })) && bytes[..2] == *b"lo");
    let target = two.b.buffer(Where::Other, 9000);
    let received = two.post(3, &target);
    assert!(two.both(sent, received).iter().all(Result::is_ok));
}

#[test]
fn receive_is_cancellable_until_its_message_arrives() {
    let mut two = Two::new();
    let (source, target) = (two.a.buffer(Where::Other, 50_000), two.b.buffer(Where::Other, 50_000));
    let received = two.post(1, &target);
    assert!(two.b.endpoint.cancel_receive(received));
    assert_eq!(two.b.endpoint.test(received), Some(Err(TaggedFailure::Cancelled)));
    assert!(!two.b.endpoint.cancel_receive(received), "the receive has ended");
    let sent = two.send(1, &source);
    let received = two.post(1, &target);
    two.until("the message is staged", |two| two.a.endpoint.counts().staged == 1);
    assert!(!two.b.endpoint.cancel_receive(received), "its message is being received");
    assert!(two.both(sent, received).iter().all(Result::is_ok));
}

#[test]
fn only_complete_messages_outlive_their_sender() {
    for by_death in [true, false] {
        let mut two = Two::new();
        let (short, long) = (two.a.buffer(Where::Other, 100), two.a.buffer(Where::Own, 100_000));
        two.a.fill(&short, 1);
        let _ = (two.send(1, &short), two.send(2, &long));
        let (target, other) = (two.b.buffer(Where::Other, 100), two.b.buffer(Where::Other, 100_000));
        let never = two.post(9, &other);
        let back = two.b.endpoint.send(two.b.other, 5, &two.b.buffer(Where::Other, 100_000)).unwrap();
        if !by_death {
            two.a.endpoint.close(two.now);
            two.until("the endpoint is closed", |two| two.a.endpoint.is_closed());
        }
        let Two { a, mut b, mut now, .. } = two;
        drop(a);
        while !matches!(b.events.last(), Some(TaggedEvent::Left { .. })) {
            now = now + trunkline_proto::time::Duration::from_micros(100);
            b.endpoint.progress(now);
            b.events.extend(b.endpoint.next_event());
        }
        let TaggedSendStart::Request(back) = back else { panic!("{back:?}") };
        assert_eq!(b.endpoint.test(back), Some(Err(TaggedFailure::Gone)));
        assert_eq!(b.endpoint.test(never), Some(Err(TaggedFailure::Gone)));
        let whole = b.endpoint.receive(Some(b.other), 1, ALL, target.clone()).unwrap();
        assert!(b.endpoint.test(whole).unwrap().is_ok());
        assert_eq!(b.bytes(&target), pattern(100, 1));
        let rest = b.endpoint.receive(Some(b.other), 2, ALL, other.clone());
        let gone = match rest {
            Ok(request) => matches!(b.endpoint.test(request), Some(Err(TaggedFailure::Gone))),
            Err(error) => error == ReceiveRefused::Gone,
        };
        assert!(gone, "messages that the peer had not sent completely are lost");
        assert_eq!(b.endpoint.receive(Some(b.other), 3, ALL, other.clone()), Err(ReceiveRefused::Gone));
        assert_eq!(b.endpoint.send(b.other, 1, &other), Err(SendRefused::Gone));
        assert_eq!(b.endpoint.node().counts().leaks, 0);
    }
}

#[test]
fn buffers_outside_of_their_memory_are_refused() {
    let mut two = Two::new();
    let (to, from) = (two.a.other, two.b.other);
    let memory = MemoryRange::heap(100);
    for len in [101, 20_000] {
        let outside = MessageBuffer::from_memory(memory.clone(), 0, len);
        assert_eq!(two.a.endpoint.send(to, 1, &outside), Err(SendRefused::Outside));
        let refused = two.b.endpoint.receive(Some(from), 1, ALL, outside);
        assert_eq!(refused, Err(ReceiveRefused::Outside));
    }
    let addr = two.a.buffer(Where::Own, 20_000).own_address().unwrap();
    let outside = MessageBuffer::from_own(addr, 20_000 + (1 << 20));
    assert_eq!(two.a.endpoint.send(to, 1, &outside), Err(SendRefused::Outside));
    two.rest();
    assert!(two.b.endpoint.probe(None, 0, 0).is_none(), "a refused message must not be sent");
}
