//! Asynchronous copies, by a driver whose long copies land only when a test permits it.

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, OobListener as _, OobTransport as _};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::MemfdDevice;
use trunkline_node::ipc::{MessageBuffer, NodeConfig as Sharing};
use trunkline_node::tagged::{
    DEVICE_PIECE, TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedFailure, TaggedPeerId, TaggedRequestId,
    TaggedSendStart,
};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::InboxSizes;

use crate::kind::{Call, Kind};
use crate::two::{ALL, Two, Where, pattern};

/// Bytes of a long copy.
const LONG: usize = 2 << 20;
/// Bytes of a piece.
const PIECE: usize = DEVICE_PIECE as usize;
/// Bytes of a copy that is not long.
const SHORT: usize = 100_000;

type One = TaggedEndpoint<Kind, UnixStream>;

/// An endpoint that receives from two others.
struct Three {
    hub: One,
    /// The other endpoints, each with its id of the hub; `None` once one is dead.
    others: [Option<(One, TaggedPeerId)>; 2],
    peers: [TaggedPeerId; 2],
    now: Instant,
    left: usize,
}

impl Three {
    fn new() -> Self {
        let host = UnixHost::new(|_, _| {});
        let device = MemfdDevice::create(3, 64 << 20).unwrap();
        let inbox = InboxSizes::new(1024, 512, 1 << 21).unwrap();
        let endpoint = |number: u8| {
            let memory = Kind::new(MemfdDevice::join(3, &device.descriptor().unwrap()).unwrap());
            let budget = ExportAmount { entries: 16, bytes: 1 << 40 };
            let sharing = Sharing::new([number; 16], budget);
            let copy = MethodChoice::Fixed(CopyMethod::Pull);
            TaggedEndpoint::new(memory, TaggedConfig { sharing, inbox, copy }, Instant(0))
        };
        let mut hub = endpoint(0);
        hub.node().memory().hold(PIECE);
        let mut listener = host.oob().listen().unwrap();
        let joined = [1, 2].map(|number| {
            let mut other = endpoint(number);
            // Its copies are asynchronous, too, but none is held.
            other.node().memory().hold(usize::MAX);
            let to_hub = other.join_peer(host.oob().connect(&listener.listen_address()).unwrap()).unwrap();
            let of_other = loop {
                if let Some(stream) = listener.accept().unwrap() {
                    break hub.join_peer(stream).unwrap();
                }
            };
            ((other, to_hub), of_other)
        });
        let peers = [joined[0].1, joined[1].1];
        let others = joined.map(|(other, _)| Some(other));
        let mut three = Self { hub, others, peers, now: Instant(0), left: 0 };
        (0..200).for_each(|_| three.step());
        three
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_micros(100);
        self.hub.progress(self.now);
        while let Some(event) = self.hub.next_event() {
            self.left += usize::from(matches!(event, TaggedEvent::Left { .. }));
        }
        for (other, _) in self.others.iter_mut().flatten() {
            other.progress(self.now);
            while other.next_event().is_some() {}
        }
    }

    /// Sends own memory of another endpoint to the hub, and posts the receive for it.
    fn begin(&mut self, from: usize, len: usize, into: &MessageBuffer) -> TaggedRequestId {
        let peer = self.peers[from];
        let received = self.hub.receive(Some(peer), 7, ALL, into.clone()).unwrap();
        let (other, to) = self.others[from].as_mut().unwrap();
        let source = MessageBuffer::from_own(other.node().memory().device.alloc(len).unwrap(), len as u64);
        source.write_bytes(&other.node().memory().device, 0, &pattern(len, from as u64)).unwrap();
        assert!(matches!(other.send(*to, 7, &source), Ok(TaggedSendStart::Request(_))));
        received
    }

    fn own(&self, len: usize) -> MessageBuffer {
        MessageBuffer::from_own(self.hub.node().memory().device.alloc(len).unwrap(), len as u64)
    }

    fn is_there(&self, buffer: &MessageBuffer, from: usize) -> bool {
        let mut bytes = vec![0; buffer.len() as usize];
        buffer.read_bytes(&self.hub.node().memory().device, 0, &mut bytes).unwrap();
        bytes == pattern(bytes.len(), from as u64)
    }

    /// Makes progress until a long copy is in progress.
    fn until_under_way(&mut self) {
        let begun = (0..10_000).any(|_| {
            self.step();
            self.hub.node().memory().under_way() > 0
        });
        assert!(begun, "no long copy was begun");
    }

    /// Makes progress, releasing the held copies in each step, until a receive has ended; returns its result.
    fn ended(&mut self, request: TaggedRequestId) -> Result<(), TaggedFailure> {
        for _ in 0..10_000 {
            if let Some(end) = self.hub.test(request) {
                return end.map(|_| ());
            }
            self.hub.node().memory().let_go();
            self.step();
        }
        panic!("the receive did not end");
    }
}

#[test]
fn long_copy_delays_no_message_of_another_peer() {
    for own in [true, false] {
        let mut three = Three::new();
        let other = || MessageBuffer::from_memory(MemoryRange::heap(LONG), 0, LONG as u64);
        let into = if own { three.own(LONG) } else { other() };
        let beside = three.own(SHORT);
        let long = three.begin(0, LONG, &into);
        three.until_under_way();
        let short = three.begin(1, SHORT, &beside);
        let came = (0..10_000).find_map(|_| {
            three.step();
            three.hub.test(short)
        });
        assert!(matches!(came, Some(Ok(_))), "another peer's message must not wait for the long copy");
        assert!(three.is_there(&beside, 1));
        assert_eq!(three.hub.test(long), None, "the receive must not end before its copy");
        assert!(!three.is_there(&into, 0) && three.hub.node().memory().under_way() == 1);
        assert_eq!(three.ended(long), Ok(()));
        assert!(three.is_there(&into, 0));
    }
}

#[test]
fn two_long_copies_run_at_once() {
    let mut three = Three::new();
    let into = [three.own(LONG), three.own(LONG)];
    let requests = [0, 1].map(|from| three.begin(from, LONG, &into[from]));
    let both = (0..10_000).any(|_| {
        three.step();
        three.hub.node().memory().under_way() == 2
    });
    assert!(both, "both copies must be in progress at once");
    for from in [0, 1] {
        assert_eq!(three.ended(requests[from]), Ok(()));
        assert!(three.is_there(&into[from], from));
    }
}

/// A driver cannot cancel a copy. So the receive ends when the copy has ended, and not when the sender dies.
#[test]
fn dead_peer_is_reported_after_its_copies() {
    let mut three = Three::new();
    let into = three.own(LONG);
    let long = three.begin(0, LONG, &into);
    three.until_under_way();
    three.others[0] = None;
    (0..2_000).for_each(|_| three.step());
    assert_eq!((three.hub.test(long), three.left), (None, 0), "its copy is still in progress");
    assert_eq!(three.hub.node().counts().unmaps, 0);
    three.hub.node().memory().let_go();
    let gone = (0..10_000).find_map(|_| {
        three.step();
        three.hub.test(long)
    });
    assert_eq!((gone, three.left), (Some(Err(TaggedFailure::Gone)), 1));
    (0..2_000).for_each(|_| three.step());
    assert_eq!(three.hub.node().counts().unmaps, 1);
}

/// Both buffers are in device memory, and neither can be exported.
#[test]
fn two_large_device_pieces_are_in_progress() {
    const LEN: usize = 4 << 20;
    let inbox = InboxSizes::new(1024, 512, 4 * DEVICE_PIECE).unwrap();
    let mut two = Two::with(inbox, ExportAmount { entries: 16, bytes: 1 << 40 });
    for one in [&two.a, &two.b] {
        one.kind().hold(100_000);
        one.fail(Call::Export, u64::MAX);
    }
    let (source, target) = (two.a.buffer(Where::Own, LEN), two.b.buffer(Where::Own, LEN));
    two.a.fill(&source, 9);
    let (received, sent) = (two.post(1, &target), two.send(1, &source));
    (0..2_000).for_each(|_| two.step());
    let under_way = |two: &Two| [two.a.kind().under_way(), two.b.kind().under_way()];
    assert_eq!(under_way(&two), [2, 0], "a piece must not be announced before it is in the stage");
    two.a.kind().let_go();
    (0..2_000).for_each(|_| two.step());
    assert_eq!(under_way(&two), [2, 2], "both ends must copy");
    two.b.kind().let_go();
    for _ in 0..100 {
        (0..200).for_each(|_| two.step());
        assert!(under_way(&two).iter().all(|many| *many <= 2), "{:?}", under_way(&two));
        two.a.kind().let_go();
        two.b.kind().let_go();
    }
    assert!(two.both(sent, received).iter().all(Result::is_ok));
    assert!(two.b.bytes(&target) == pattern(LEN, 9));
    for one in [&two.a, &two.b] {
        assert_eq!(one.kind().lens(), [PIECE; LEN / PIECE]);
    }
}

/// If the sender dies, a receive ends only once nothing can write to its memory any more.
#[test]
fn receive_from_dead_peer_ends_after_copies() {
    let mut three = Three::new();
    three.hub.node().memory().fail(Call::Export as u64, u64::MAX);
    three.others.iter().flatten().for_each(|(other, _)| {
        other.node().memory().fail(Call::Export as u64, u64::MAX);
    });
    assert_eq!(three.hub.node().memory().pins(), 4, "an inbox and an outbox per peer");
    let into = three.own(LONG);
    let request = three.begin(0, LONG, &into);
    three.until_under_way();
    three.others[0] = None;
    (0..2_000).for_each(|_| three.step());
    assert_eq!((three.hub.test(request), three.left), (None, 0), "its pieces are still being copied");
    assert!(three.hub.node().memory().under_way() > 0);
    let end = three.ended(request);
    assert_eq!(end, Err(TaggedFailure::Gone));
    assert_eq!((three.hub.node().memory().under_way(), three.left), (0, 1));
    assert_eq!(three.hub.node().memory().pins(), 2, "the pins of the dead peer must be released");
}
