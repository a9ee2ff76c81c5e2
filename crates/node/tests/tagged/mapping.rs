//! A kind of memory whose mapping thread is played by the test. Endpoints work while it is busy, and no event before
//! its reply leaves a mapping behind.

use trunkline_node::ipc::{LeaveReason, MessageBuffer};
use trunkline_node::tagged::{TaggedEvent, TaggedFailure, TaggedRequestId, TaggedSendStart};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::limits::MAPPING_REQUESTS_MAX;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::InboxSizes;

use crate::kind::Call;
use crate::two::{One, Two, Where, pattern};

const LEN: usize = 20_000;

/// Two endpoints. The second one has a mapping thread, and pulls the messages of the first one.
fn two_beside() -> Two {
    let mut two = Two::new();
    two.b.kind().map_beside();
    two.a.endpoint.set_copy_choice(MethodChoice::Fixed(CopyMethod::Pull));
    two
}

/// Starts a message whose memory must be mapped first; returns its source, its target, and both requests.
fn begin(two: &mut Two, seed: u64) -> (MessageBuffer, MessageBuffer, TaggedSendStart, TaggedRequestId) {
    let (source, target) = (two.a.buffer(Where::Own, LEN), two.b.buffer(Where::Own, LEN));
    two.a.fill(&source, seed);
    let received = two.post(seed, &target);
    let sent = two.send(seed, &source);
    (source, target, sent, received)
}

/// Exchanges a short message of host memory.
fn exchange(two: &mut Two) {
    let (to, from) = (two.a.other, two.b.other);
    assert_eq!(two.a.endpoint.send_bytes(to, 900, &[1, 2]), Ok(TaggedSendStart::Done));
    let mut word = [0; 2];
    for _ in 0..10_000 {
        if let Some(taken) = two.b.endpoint.take_bytes(Some(from), 900, u64::MAX, &mut word) {
            assert_eq!((taken.map(|done| done.len), word), (Ok(2), [1, 2]));
            return;
        }
        two.step();
    }
    panic!("the short message of host memory did not arrive");
}

/// Drives one endpoint and its mapping thread until the condition holds.
fn serve_until(one: &mut One, mut now: Instant, is: impl Fn(&One) -> bool) {
    for _ in 0..1_000_000 {
        if is(one) {
            return;
        }
        now = now + Duration::from_micros(100);
        one.endpoint.progress(now);
        while let Some(event) = one.endpoint.next_event() {
            one.events.push(event);
        }
        one.kind().serve_mappings();
    }
    panic!("the condition did not hold: {:?}", one.endpoint.node().counts());
}

#[test]
fn messages_continue_while_memory_is_opened() {
    let mut two = two_beside();
    let (_source, target, sent, received) = begin(&mut two, 1);
    for _ in 0..100 {
        exchange(&mut two);
        two.step();
    }
    two.rest();
    assert_eq!(two.b.endpoint.test(received), None);
    assert_eq!(two.b.endpoint.node().counts().maps, 0);
    assert_eq!(two.b.kind().serve_mappings(), 1);
    assert!(two.both(sent, received).iter().all(Result::is_ok));
    assert!(two.b.bytes(&target) == pattern(LEN, 1));
    assert_eq!(two.b.endpoint.node().counts().maps, 1);
}

#[test]
fn exporter_is_notified_after_the_unmapping() {
    let mut two = two_beside();
    let (source, _target, sent, received) = begin(&mut two, 1);
    two.rest();
    assert_eq!(two.b.kind().serve_mappings(), 1);
    assert!(two.both(sent, received).iter().all(Result::is_ok));
    let address = source.own_address().unwrap();
    assert!(two.a.endpoint.node_mut().release_export(address));
    for _ in 0..100 {
        exchange(&mut two);
        two.step();
    }
    two.rest();
    assert!(
        two.a.endpoint.node().is_exported(address, 1),
        "the memory must stay exported until it is unmapped"
    );
    // The driver refuses twice, so the request is posted again.
    two.b.fail(Call::Close, 2);
    for _ in 0..3 {
        assert_eq!(two.b.kind().serve_mappings(), 1);
        assert!(two.a.endpoint.node().is_exported(address, 1));
        two.rest();
    }
    assert!(!two.a.endpoint.node().is_exported(address, 1));
    let counts = two.b.endpoint.node().counts();
    assert_eq!((counts.maps, counts.unmaps, counts.unmap_failures, counts.leaks), (1, 1, 1, 0));
}

/// Drives one endpoint alone for a second of its clock; its peer makes no progress.
fn go_on_alone(one: &mut One, now: Instant) -> Instant {
    for step in 0..1000 {
        one.endpoint.progress(now + Duration::from_millis(step));
        while let Some(event) = one.endpoint.next_event() {
            one.events.push(event);
        }
    }
    now + Duration::from_secs(1)
}

#[test]
fn dead_peer_leaves_no_opening_behind() {
    let mut two = two_beside();
    let (_source, _target, _sent, received) = begin(&mut two, 1);
    two.rest();
    let Two { a, mut b, now, .. } = two;
    drop(a);
    let now = go_on_alone(&mut b, now);
    assert!(
        matches!(b.events.last(), Some(TaggedEvent::Left { why: LeaveReason::Died, .. })),
        "{:?}",
        b.events
    );
    assert_eq!(b.endpoint.test(received), Some(Err(TaggedFailure::Gone)));
    b.endpoint.close(now);
    b.endpoint.progress(now);
    assert!(!b.endpoint.is_closed(), "the mapping thread has not replied yet");
    serve_until(&mut b, now, |one| one.endpoint.is_closed());
    let counts = b.endpoint.node().counts();
    assert_eq!((counts.maps, counts.leaks), (counts.unmaps, 0));
}

#[test]
fn memory_opened_for_a_refused_peer_is_closed() {
    let mut two = two_beside();
    let (_source, _target, _sent, received) = begin(&mut two, 1);
    two.rest();
    let other = two.b.other;
    two.b.endpoint.refuse_peer(other);
    let now = go_on_alone(&mut two.b, two.now);
    assert_eq!(two.b.endpoint.test(received), Some(Err(TaggedFailure::Gone)));
    assert_eq!(two.b.endpoint.node().counts().maps, 0, "the mapping thread has not opened it yet");
    assert_eq!(two.b.kind().serve_mappings(), 1);
    let now = go_on_alone(&mut two.b, now);
    assert_eq!(two.b.kind().serve_mappings(), 1, "a request to close the mapping must be posted");
    two.b.endpoint.close(now);
    serve_until(&mut two.b, now, |one| one.endpoint.is_closed());
    let counts = two.b.endpoint.node().counts();
    assert_eq!((counts.maps, counts.unmaps, counts.leaks), (1, 1, 0));
}

#[test]
fn endpoint_closes_after_a_pending_opening() {
    let mut two = two_beside();
    let (_source, _target, _sent, _received) = begin(&mut two, 1);
    two.rest();
    let now = two.now;
    two.b.endpoint.close(now);
    two.a.endpoint.close(now);
    two.rest();
    assert!(!two.b.endpoint.is_closed(), "the mapping thread has not replied yet");
    for _ in 0..10_000 {
        two.b.kind().serve_mappings();
        two.step();
    }
    assert!(two.a.endpoint.is_closed() && two.b.endpoint.is_closed());
    let counts = two.b.endpoint.node().counts();
    assert_eq!((counts.maps, counts.unmaps, counts.leaks), (1, 1, 0));
}

#[test]
fn message_is_staged_when_opening_fails() {
    let mut two = two_beside();
    let (_source, target, sent, received) = begin(&mut two, 1);
    two.rest();
    two.b.fail(Call::Open, 1);
    assert_eq!(two.b.kind().serve_mappings(), 1);
    assert!(two.both(sent, received).iter().all(Result::is_ok));
    assert!(two.b.bytes(&target) == pattern(LEN, 1));
    let counts = two.b.endpoint.node().counts();
    assert_eq!((counts.maps, counts.map_failures), (0, 1));
}

#[test]
fn full_queue_delays_openings_and_fails_none() {
    let inbox = InboxSizes::new(1024, 512, 1 << 18).unwrap();
    let mut two = Two::with(inbox, ExportAmount { entries: 1 << 10, bytes: 1 << 40 });
    two.b.kind().map_beside();
    two.a.endpoint.set_copy_choice(MethodChoice::Fixed(CopyMethod::Pull));
    let count = MAPPING_REQUESTS_MAX as u64 + 20;
    let messages: Vec<_> = (1..=count).map(|seed| begin(&mut two, seed)).collect();
    two.rest();
    exchange(&mut two);
    assert_eq!(two.b.kind().serve_mappings(), MAPPING_REQUESTS_MAX);
    two.rest();
    assert_eq!(two.b.kind().serve_mappings(), 20);
    for (seed, (_, target, sent, received)) in (1..).zip(messages) {
        assert!(two.both(sent, received).iter().all(Result::is_ok), "{seed}");
        assert!(two.b.bytes(&target) == pattern(LEN, seed), "{seed}");
    }
    let counts = two.b.endpoint.node().counts();
    assert_eq!((counts.maps, counts.map_failures), (count, 0));
}
