//! Handles that a thread returns to the driver, played by the test. They count as exported until the driver has them,
//! and messages continue meanwhile.

use trunkline_node::ipc::MessageBuffer;
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::limits::MAPPING_REQUESTS_MAX;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::Duration;
use trunkline_proto::wire::tagged::InboxSizes;

use crate::two::{Two, Where, pattern};

const LEN: usize = 20_000;

/// Two endpoints, of which the first one has a thread that returns handles.
fn two_beside() -> Two {
    let two = Two::with(
        InboxSizes::new(1024, 512, 1 << 18).unwrap(),
        ExportAmount { entries: 1 << 10, bytes: 1 << 40 },
    );
    two.a.kind().map_beside();
    two
}

/// Sends a message that the second endpoint copies itself, so that its source is exported.
fn exported(two: &mut Two, seed: u64) -> MessageBuffer {
    two.a.endpoint.set_copy_choice(MethodChoice::Fixed(CopyMethod::Pull));
    let (source, target) = (two.a.buffer(Where::Own, LEN), two.b.buffer(Where::Own, LEN));
    two.a.fill(&source, seed);
    let received = two.post(seed, &target);
    let sent = two.send(seed, &source);
    assert!(two.both(sent, received).iter().all(Result::is_ok));
    assert!(two.b.bytes(&target) == pattern(LEN, seed));
    source
}

#[test]
fn handle_counts_until_the_driver_takes_it_back() {
    let mut two = two_beside();
    let address = exported(&mut two, 1).own_address().unwrap();
    assert!(two.a.endpoint.node_mut().release_export(address));
    two.rest();
    assert_eq!(two.b.endpoint.node().counts().unmaps, 1);
    exported(&mut two, 2);
    assert!(two.a.endpoint.node().is_exported(address, 1), "the driver has not taken the handle back yet");
    assert_eq!((two.a.kind().handles(), two.a.endpoint.node().counts().unexports), ([2, 0], 0));
    assert_eq!(two.a.kind().serve_mappings(), 1);
    two.rest();
    assert!(!two.a.endpoint.node().is_exported(address, 1));
    assert_eq!((two.a.kind().handles(), two.a.endpoint.node().counts().unexports), ([2, 1], 1));
}

#[test]
fn full_queue_delays_unexports_and_loses_none() {
    let mut two = two_beside();
    let count = MAPPING_REQUESTS_MAX as u64 + 20;
    let all: Vec<MessageBuffer> = (1..=count).map(|seed| exported(&mut two, seed)).collect();
    for buffer in &all {
        assert!(two.a.endpoint.node_mut().release_export(buffer.own_address().unwrap()));
    }
    two.rest();
    assert_eq!(two.a.kind().serve_mappings(), MAPPING_REQUESTS_MAX);
    two.rest();
    assert_eq!(two.a.kind().serve_mappings(), 20);
    two.rest();
    assert_eq!(two.a.kind().handles(), [count, count]);
    assert_eq!(two.a.endpoint.node().counts().unexports, count);
}

#[test]
fn endpoint_closes_after_its_handles_are_returned() {
    let mut two = two_beside();
    exported(&mut two, 1);
    let Two { mut a, b, now, .. } = two;
    drop(b);
    a.endpoint.close(now);
    for step in 0..5000 {
        a.endpoint.progress(now + Duration::from_millis(step));
    }
    assert!(!a.endpoint.is_closed(), "the driver has not taken the handle back yet");
    assert_eq!(a.kind().serve_mappings(), 1);
    for step in 5000..5100 {
        a.endpoint.progress(now + Duration::from_millis(step));
    }
    assert!(a.endpoint.is_closed());
    assert_eq!(a.kind().handles(), [1, 1]);
}
