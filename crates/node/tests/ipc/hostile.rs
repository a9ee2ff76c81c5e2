//! Neighbours that violate the protocol: each one is removed, and the node keeps nothing of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use trunkline_fabric::{OobError, OobFrame, OobStream};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{
    CopyPlace, HandlePassing, IpcHandle as Given, IpcMemory as _, MemfdDevice, PrivateMemory,
};
use trunkline_node::ipc::{
    IpcNode, IpcSendStart, LeaveReason, NeighbourId, NodeConfig, NodeEvent, OPERATIONS_MAX,
    ProtocolViolation, ReceiveOutcome, SendRequest,
};
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::{ExportAmount, FallbackReason};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::ipc::{
    CopyOutcome, ExportAnnouncement, ExportHandle, ExportName, ExportNames, ExportReference, IpcHello,
    IpcMessage,
};

const NOW: Instant = Instant(1);
const LEN: usize = 1 << 20;

/// The messages of both directions.
#[derive(Debug, Default)]
struct Said {
    to: VecDeque<OobFrame>,
    from: Vec<IpcMessage>,
    /// The PID of the other end, if the stream knows it.
    process: Option<u32>,
}

/// A stream whose other end is played by the test.
#[derive(Clone, Debug, Default)]
struct Stream(Arc<Mutex<Said>>);

impl OobStream for Stream {
    fn send(&mut self, frame: OobFrame) -> Result<(), OobError> {
        self.0.lock().unwrap().from.push(IpcMessage::from_bytes(&frame.bytes).unwrap());
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
        Ok(self.0.lock().unwrap().to.pop_front())
    }

    fn peer_pid(&self) -> Option<u32> {
        self.0.lock().unwrap().process
    }
}

/// A node, and a neighbour that is played by the test.
struct World {
    node: IpcNode<MemfdDevice, Stream>,
    theirs: MemfdDevice,
    addr: usize,
    stream: Stream,
    neighbour: NeighbourId,
}

impl World {
    /// Creates a node whose neighbour has sent nothing.
    fn silent() -> Self {
        let theirs = MemfdDevice::create(3, 64 << 20).unwrap();
        let mine = MemfdDevice::join(3, &theirs.descriptor().unwrap()).unwrap();
        let config = NodeConfig::new([7; 16], ExportAmount { entries: 16, bytes: 1 << 40 });
        let mut node = IpcNode::new(mine, config);
        let stream = Stream::default();
        let neighbour = node.join_neighbour(stream.clone()).unwrap();
        let addr = theirs.alloc(LEN).unwrap();
        theirs.write(CopyPlace::Own(addr), &[0x5a; LEN]).unwrap();
        Self { node, theirs, addr, stream, neighbour }
    }

    fn new() -> Self {
        let mut world = Self::silent();
        world.say(&IpcMessage::Hello(IpcHello { process: [8; 16], operations: 9 }));
        assert!(matches!(world.node.next_event(), Some(NodeEvent::Met { process: [8, ..], .. })));
        assert_eq!(world.heard(), [IpcMessage::Hello(IpcHello { process: [7; 16], operations: 128 })]);
        world
    }

    fn say_bytes(&mut self, bytes: Vec<u8>, descriptor: bool) {
        let fd = descriptor.then(|| self.theirs.descriptor().unwrap());
        self.stream.0.lock().unwrap().to.push_back(OobFrame { bytes, fd: fd.map(Into::into) });
        while self.node.progress(NOW) {}
    }

    fn say(&mut self, message: &IpcMessage) {
        self.say_bytes(message.to_bytes(), false);
    }

    fn heard(&self) -> Vec<IpcMessage> {
        std::mem::take(&mut self.stream.0.lock().unwrap().from)
    }

    fn handle(&self) -> Given {
        let of = self.theirs.allocation_of(self.addr).unwrap();
        self.theirs.export(&of, HandlePassing::Bytes).unwrap().handle
    }

    /// Creates an announcement of the neighbour's memory with that length.
    fn announce(&self, slot: u32, len: u64) -> ExportAnnouncement {
        let given = self.handle();
        let handle = ExportHandle::new(given.kind(), given.bytes()).unwrap();
        let span = ByteSpan::new(self.addr as u64, len).unwrap();
        ExportAnnouncement { name: name(slot), span, device: 3, descriptor: false, handle }
    }

    fn refer(&mut self, operation: u64, slot: u32, start: u64, len: u64) {
        let reference = ExportReference { name: name(slot), part: ByteSpan::new(start, len).unwrap() };
        self.say(&IpcMessage::Refer { operation, reference });
    }

    /// Receives the next arrival into new memory.
    fn receive(&mut self, len: usize) -> MemoryRange {
        let Some(NodeEvent::Arrived { arrival, .. }) = self.node.next_event() else {
            panic!("the node must report an arrival")
        };
        let into = MemoryRange::heap(len);
        self.node.receive(arrival, into.clone()).unwrap();
        while self.node.progress(NOW) {}
        into
    }

    fn receipt(&mut self) -> ReceiveOutcome {
        match self.node.next_event() {
            Some(NodeEvent::Received { receipt, .. }) => receipt,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the violation for which the node removed the neighbour, and checks that nothing of it is left.
    fn broke(mut self) -> ProtocolViolation {
        let why = loop {
            match self.node.next_event() {
                Some(NodeEvent::Left { why: LeaveReason::Broken(why), neighbour }) => {
                    assert_eq!(neighbour, self.neighbour);
                    break why;
                }
                Some(NodeEvent::Left { why, .. }) => panic!("{why:?}"),
                Some(_) => {}
                None => panic!("the node did not report the violation"),
            }
        };
        assert!(self.node.next_event().is_none(), "a removed neighbour must cause no further events");
        assert!(self.node.importer().is_gone(self.neighbour.source()));
        let counts = self.node.counts();
        assert_eq!((counts.maps, counts.broken, counts.leaks), (counts.unmaps, 1, 0));
        self.node.close(NOW);
        while self.node.progress(NOW) {}
        assert!(self.node.is_closed());
        why
    }
}

fn name(slot: u32) -> ExportName {
    ExportName::new(SlotId { slot, generation: 1 }).unwrap()
}

fn names(slots: &[u32]) -> ExportNames {
    ExportNames::new(&slots.iter().map(|slot| name(*slot)).collect::<Vec<_>>()).unwrap()
}

#[test]
fn conforming_neighbour_is_served() {
    let mut world = World::new();
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    world.refer(77, 1, 64, 4096);
    let memory = world.receive(4096);
    assert_eq!(world.receipt(), ReceiveOutcome::Copied);
    let mut found = [0; 4096];
    memory.read(0, &mut found).unwrap();
    assert_eq!(found, [0x5a; 4096]);
    assert_eq!(world.heard(), [IpcMessage::Done { operation: 77, outcome: CopyOutcome::Copied }]);
    world.say(&IpcMessage::Retire(names(&[1])));
    assert_eq!(world.heard(), [IpcMessage::Retired(names(&[1]))]);
    world.say(&IpcMessage::Bye);
    assert_eq!(world.heard(), [IpcMessage::Bye]);
    assert!(matches!(world.node.next_event(), Some(NodeEvent::Left { why: LeaveReason::Bye, .. })));
}

#[test]
fn invalid_frames_end_the_neighbour() {
    for bytes in [vec![], vec![1; 7], vec![9, 1, 0, 0, 0, 0, 0, 0], vec![6, 2, 0, 0, 0, 0, 0, 0]] {
        let mut world = World::new();
        world.say_bytes(bytes, false);
        assert!(matches!(world.broke(), ProtocolViolation::Message(_)));
    }
}

#[test]
fn hello_must_be_first_and_single() {
    let mut world = World::new();
    world.say(&IpcMessage::Hello(IpcHello { process: [8; 16], operations: 9 }));
    assert!(matches!(world.broke(), ProtocolViolation::Turn));
    let mut world = World::silent();
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    assert!(matches!(world.broke(), ProtocolViolation::Turn));
    let mut world = World::silent();
    let addr = world.node.memory().alloc(64).unwrap();
    let sending = world.node.send(world.neighbour, &SendRequest { addr, len: 64, passing: false }, NOW);
    assert_eq!(sending, Ok(IpcSendStart::Busy), "nothing may be sent to a neighbour before its hello");
    assert!(world.heard().len() == 1);
}

#[test]
fn unannounced_descriptors_end_the_neighbour() {
    let mut world = World::new();
    let announce = ExportAnnouncement { descriptor: false, ..world.announce(1, LEN as u64) };
    world.say_bytes(IpcMessage::Announce(announce).to_bytes(), true);
    assert!(matches!(world.broke(), ProtocolViolation::Descriptor));
    let mut world = World::new();
    world.say_bytes(IpcMessage::Bye.to_bytes(), true);
    assert!(matches!(world.broke(), ProtocolViolation::Descriptor));
}

#[test]
fn replies_to_unknown_operations_end_the_neighbour() {
    let mut world = World::new();
    world.say(&IpcMessage::Done { operation: 1 << 32, outcome: CopyOutcome::Copied });
    assert!(matches!(world.broke(), ProtocolViolation::NoOperation));
    let mut world = World::new();
    world.say(&IpcMessage::Retired(names(&[0])));
    assert!(matches!(world.broke(), ProtocolViolation::News(_)));
    // A second reply to the same operation.
    let mut world = World::new();
    let addr = world.node.memory().alloc(64).unwrap();
    let sending = world.node.send(world.neighbour, &SendRequest { addr, len: 64, passing: false }, NOW);
    assert!(matches!(sending, Ok(IpcSendStart::Begun(_))));
    let operation = match world.heard()[..] {
        [IpcMessage::Announce(_), IpcMessage::Refer { operation, .. }] => operation,
        ref other => panic!("{other:?}"),
    };
    world.say(&IpcMessage::Done { operation, outcome: CopyOutcome::Copied });
    assert!(matches!(world.node.next_event(), Some(NodeEvent::Sent { .. })));
    world.say(&IpcMessage::Done { operation, outcome: CopyOutcome::Copied });
    assert!(matches!(world.broke(), ProtocolViolation::NoOperation));
}

#[test]
fn invalid_names_end_the_neighbour() {
    let mut world = World::new();
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    assert!(matches!(world.broke(), ProtocolViolation::Announce(_)));
    let mut world = World::new();
    world.say(&IpcMessage::Retire(names(&[1])));
    assert!(matches!(world.broke(), ProtocolViolation::Retire(_)));
    let mut world = World::new();
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    world.refer(1, 1, LEN as u64 - 3, 4);
    assert!(matches!(world.broke(), ProtocolViolation::Arrive(_)));
    // The same part, but referred to before the announcement.
    let mut world = World::new();
    world.refer(1, 1, LEN as u64 - 3, 4);
    let _into = world.receive(4);
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    assert!(matches!(world.broke(), ProtocolViolation::Outside));
}

#[test]
fn stale_and_excess_names_end_the_neighbour() {
    let mut world = World::new();
    let newer = ExportName::new(SlotId { slot: 1, generation: 2 }).unwrap();
    let announce = ExportAnnouncement { name: newer, ..world.announce(1, LEN as u64) };
    world.say(&IpcMessage::Announce(announce));
    world.refer(1, 1, 0, 8);
    assert!(matches!(world.broke(), ProtocolViolation::Arrive(_)));
    let mut world = World::new();
    for slot in 0..64 {
        world.refer(u64::from(slot), slot, 0, 8);
        assert!(matches!(world.node.next_event(), Some(NodeEvent::Arrived { .. })));
    }
    world.refer(64, 64, 0, 8);
    assert!(matches!(world.broke(), ProtocolViolation::Arrive(_)));
}

#[test]
fn closing_node_refuses_sends_and_neighbours() {
    let mut world = World::new();
    let addr = world.node.memory().alloc(64).unwrap();
    world.node.close(NOW);
    let send = SendRequest { addr, len: 64, passing: true };
    assert_eq!(
        world.node.send(world.neighbour, &send, NOW),
        Ok(IpcSendStart::Elsewhere(FallbackReason::Closing))
    );
    assert!(world.node.join_neighbour(Stream::default()).is_err());
    // Messages that arrive before the neighbour's BYE are ignored.
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    assert_eq!(world.heard(), [IpcMessage::Bye]);
    world.say(&IpcMessage::Bye);
    assert!(world.node.is_closed());
}

#[test]
fn operations_beyond_the_limit_end_the_neighbour() {
    let mut world = World::new();
    world.say(&IpcMessage::Announce(world.announce(1, LEN as u64)));
    for operation in 0..OPERATIONS_MAX as u64 {
        world.refer(operation, 1, 0, 8);
        assert!(matches!(world.node.next_event(), Some(NodeEvent::Arrived { .. })));
    }
    world.refer(0, 1, 0, 8);
    assert!(matches!(world.broke(), ProtocolViolation::TooMany));
}

#[test]
fn sends_stop_at_the_limit_of_the_neighbour() {
    let mut world = World::new();
    let addr = world.node.memory().alloc(64).unwrap();
    let send = SendRequest { addr, len: 64, passing: false };
    for _ in 0..9 {
        assert!(matches!(world.node.send(world.neighbour, &send, NOW), Ok(IpcSendStart::Begun(_))));
    }
    assert_eq!(world.node.send(world.neighbour, &send, NOW), Ok(IpcSendStart::Busy));
}

#[test]
fn memory_behind_false_handles_is_not_copied() {
    // A handle of less memory than was announced.
    let mut world = World::new();
    world.say(&IpcMessage::Announce(world.announce(1, 2 * LEN as u64)));
    world.refer(5, 1, LEN as u64 - 8, 16);
    let _into = world.receive(16);
    assert!(matches!(world.broke(), ProtocolViolation::Length { .. }));
    // A handle with one changed byte: nothing is mapped, and the neighbour receives that outcome.
    let len = World::new().handle().bytes().len();
    for at in 0..len {
        let mut world = World::new();
        let mut announce = world.announce(1, LEN as u64);
        let mut bytes = announce.handle.as_bytes().to_vec();
        bytes[at] ^= 0x40;
        announce.handle = ExportHandle::new(announce.handle.memory_kind(), &bytes).unwrap();
        world.say(&IpcMessage::Announce(announce));
        world.refer(5, 1, 0, 16);
        let _into = world.receive(16);
        assert_eq!(world.receipt(), ReceiveOutcome::NotMapped, "byte {at}");
        assert_eq!(world.heard(), [IpcMessage::Done { operation: 5, outcome: CopyOutcome::NotMapped }]);
        assert_eq!(world.node.counts().map_failures, 1);
    }
}

/// A neighbour that announces memory of any process. The node uses the process that the stream reports, and never
/// another one.
#[test]
fn neighbour_announces_only_memory_of_its_process() {
    let here = std::process::id();
    for (process, said, receipt) in [
        (None, here, ReceiveOutcome::Copied),
        (Some(here), here, ReceiveOutcome::Copied),
        (Some(here), 1, ReceiveOutcome::Copied),
        (Some(1), here, ReceiveOutcome::NotMapped),
        (Some(0), here, ReceiveOutcome::NotMapped),
    ] {
        let theirs = PrivateMemory::new().unwrap();
        let addr = theirs.alloc(64).unwrap();
        let stream = Stream::default();
        stream.0.lock().unwrap().process = process;
        let config = NodeConfig::new([7; 16], ExportAmount { entries: 16, bytes: 1 << 40 });
        let mut node = IpcNode::new(PrivateMemory::new().unwrap(), config);
        node.join_neighbour(stream.clone()).unwrap();
        let of = theirs.allocation_of(addr).unwrap();
        let given = theirs.export(&of, HandlePassing::Bytes).unwrap().handle.of_process(said);
        let handle = ExportHandle::new(given.kind(), given.bytes()).unwrap();
        let span = ByteSpan::new(0, of.len as u64).unwrap();
        let reference = ExportReference { name: name(1), part: ByteSpan::new(addr as u64, 64).unwrap() };
        for message in [
            IpcMessage::Hello(IpcHello { process: [8; 16], operations: 9 }),
            IpcMessage::Announce(ExportAnnouncement {
                name: name(1),
                span,
                device: 0,
                descriptor: false,
                handle,
            }),
            IpcMessage::Refer { operation: 5, reference },
        ] {
            stream.0.lock().unwrap().to.push_back(OobFrame { bytes: message.to_bytes(), fd: None });
        }
        while node.progress(NOW) {}
        let arrival = loop {
            if let NodeEvent::Arrived { arrival, .. } =
                node.next_event().expect("the node must report an arrival")
            {
                break arrival;
            }
        };
        node.receive(arrival, MemoryRange::heap(64)).unwrap();
        while node.progress(NOW) {}
        let Some(NodeEvent::Received { receipt: found, .. }) = node.next_event() else {
            panic!("the node did not report the outcome of the receive")
        };
        assert_eq!(found, receipt, "{process:?} {said}");
    }
}
