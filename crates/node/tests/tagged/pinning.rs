//! Pins of inboxes, whose thread is played by the test. Copies of a device wait for the pin, messages of host memory do
//! not, and no event before the thread's reply leaves a pin behind.

use trunkline_mem::MemoryRange;
use trunkline_node::ipc::LeaveReason;
use trunkline_node::tagged::{TaggedEvent, TaggedFailure, TaggedRequestId, TaggedSendStart};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::InboxSizes;

use crate::kind::{Call, Kind};
use crate::two::{One, Two, Where, pattern};

const LENS: [usize; 2] = [300, 40_000];

/// Two endpoints that cannot export, with asynchronous copies; endpoint `number` has a thread that pins.
fn two_beside(number: u8) -> Two {
    let inbox = InboxSizes::new(1024, 512, 1 << 21).unwrap();
    let two = Two::with_kinds(inbox, ExportAmount { entries: 16, bytes: 1 << 40 }, |of, kind: &Kind| {
        kind.hold(usize::MAX);
        if of == number {
            kind.map_beside();
        }
    });
    two.a.fail(Call::Export, u64::MAX);
    two.b.fail(Call::Export, u64::MAX);
    two
}

fn send_host(two: &mut Two) {
    let host = MemoryRange::heap(300);
    host.write(0, &pattern(300, 5)).unwrap();
    let target = two.b.buffer(Where::Other, 300);
    let received = two.post(5, &target);
    let sent = two.send(5, &host.into());
    assert!(two.both(sent, received).iter().all(Result::is_ok));
    assert!(two.b.bytes(&target) == pattern(300, 5));
}

#[test]
fn receive_waits_for_the_pin_of_its_inbox() {
    for len in LENS {
        let mut two = two_beside(2);
        let (source, target) = (two.a.buffer(Where::Own, len), two.b.buffer(Where::Own, len));
        two.a.fill(&source, 1);
        let received = two.post(1, &target);
        let sent = two.send(1, &source);
        two.rest();
        send_host(&mut two);
        assert_eq!((two.b.endpoint.test(received), two.b.kind().pins()), (None, 0), "{len}");
        assert_eq!(two.b.kind().serve_mappings(), 2, "requests for its inbox and for its peer's inbox");
        assert!(two.both(sent, received).iter().all(Result::is_ok), "{len}");
        assert!(two.b.bytes(&target) == pattern(len, 1));
        assert_eq!(two.b.kind().pins(), 2);
    }
}

#[test]
fn send_waits_for_the_pin_of_its_peer() {
    for len in LENS {
        let mut two = two_beside(1);
        send_host(&mut two);
        let (source, target) = (two.a.buffer(Where::Own, len), two.b.buffer(Where::Own, len));
        two.a.fill(&source, 1);
        let received = two.post(1, &target);
        let TaggedSendStart::Request(sent) = two.send(1, &source) else {
            panic!("the send must wait, as the inbox is not pinned")
        };
        two.rest();
        assert_eq!((two.a.endpoint.test(sent), two.b.endpoint.test(received)), (None, None), "{len}");
        assert_eq!(two.a.kind().serve_mappings(), 2);
        assert!(two.both(TaggedSendStart::Request(sent), received).iter().all(Result::is_ok), "{len}");
        assert!(two.b.bytes(&target) == pattern(len, 1));
    }
}

/// Drives one endpoint alone; its peer makes no progress.
fn go_on_alone(one: &mut One, now: Instant) {
    for step in 0..1000 {
        one.endpoint.progress(now + Duration::from_millis(step));
        while let Some(event) = one.endpoint.next_event() {
            one.events.push(event);
        }
    }
}

/// Returns an endpoint whose peer has died, and a receive for a message that arrived before.
fn alone(serves: bool) -> (One, TaggedRequestId) {
    let mut two = two_beside(2);
    let (source, target) = (two.a.buffer(Where::Own, LENS[0]), two.b.buffer(Where::Own, LENS[0]));
    two.a.fill(&source, 1);
    let received = two.post(1, &target);
    let sent = two.send(1, &source);
    assert!(two.sent(sent).is_ok());
    two.rest();
    if serves {
        assert_eq!(two.b.kind().serve_mappings(), 2);
    }
    let Two { a, mut b, now, .. } = two;
    drop(a);
    go_on_alone(&mut b, now);
    assert!(
        matches!(b.events.last(), Some(TaggedEvent::Left { why: LeaveReason::Died, .. })),
        "{:?}",
        b.events
    );
    (b, received)
}

#[test]
fn message_of_a_dead_peer_waits_for_the_pin() {
    let (mut b, received) = alone(false);
    assert_eq!(b.endpoint.test(received), None, "the message arrived whole, but its inbox is not pinned");
    assert_eq!(b.kind().serve_mappings(), 1, "the request for the dead peer's inbox was withdrawn");
    go_on_alone(&mut b, Instant(0) + Duration::from_secs(9));
    assert!(matches!(b.endpoint.test(received), Some(Ok(_)) | Some(Err(TaggedFailure::Gone))));
    b.kind().serve_mappings();
    assert_eq!(b.kind().pins(), 0);
}

#[test]
fn dead_peer_leaves_no_pin_behind() {
    let two = two_beside(2);
    let Two { a, mut b, now, .. } = two;
    drop(a);
    go_on_alone(&mut b, now);
    assert_eq!(b.kind().serve_mappings(), 0, "no request may be left");
    assert_eq!(b.kind().pins(), 0);
    assert_eq!(b.kind().fill_queue().len(), trunkline_proto::limits::MAPPING_REQUESTS_MAX);
    let (b, _) = alone(true);
    assert_eq!(b.kind().pins(), 0, "its pins must be released");
}

#[test]
fn full_queue_delays_pins_and_fails_none() {
    let inbox = InboxSizes::new(1024, 512, 1 << 18).unwrap();
    let tickets = std::cell::RefCell::new(Vec::new());
    let mut two = Two::with_kinds(inbox, ExportAmount { entries: 16, bytes: 1 << 40 }, |of, kind: &Kind| {
        kind.hold(usize::MAX);
        if of == 2 {
            kind.map_beside();
            *tickets.borrow_mut() = kind.fill_queue();
        }
    });
    send_host(&mut two);
    two.b.kind().empty_queue(tickets.take());
    two.rest();
    assert_eq!(two.b.kind().serve_mappings(), 2);
    two.rest();
    assert_eq!(two.b.kind().pins(), 2);
}
