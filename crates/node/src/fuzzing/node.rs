//! A node with a neighbour that sends arbitrary messages, among them handles of real memory with any byte changed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_fabric::{OobError, OobFrame, OobStream};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{HandlePassing, IpcMemory as _, MemfdDevice};
use trunkline_proto::fuzzing::make_variants;
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::{
    CopyOutcome, ExportAnnouncement, ExportHandle, ExportName, ExportNames, ExportReference, IpcHello,
    IpcMessage,
};

use crate::ipc::{
    ArrivalId, IpcNode, IpcSendStart, NeighbourId, NodeConfig, NodeEvent, OPERATIONS_MAX, OperationId,
    SendRequest,
};

/// Bytes of each allocation of both ends.
const LEN: usize = 64 << 10;

/// Steps of one input.
const STEPS_MAX: usize = 256;

/// The frames in both directions.
#[derive(Debug, Default)]
struct ScriptedFrames {
    to: VecDeque<OobFrame>,
    from: VecDeque<IpcMessage>,
    over: bool,
}

/// A stream whose other end is the script.
#[derive(Clone, Debug, Default)]
struct ScriptedStream(Arc<Mutex<ScriptedFrames>>);

impl ScriptedStream {
    fn with_frames<T>(&self, act: impl FnOnce(&mut ScriptedFrames) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OobStream for ScriptedStream {
    fn send(&mut self, frame: OobFrame) -> Result<(), OobError> {
        let message = IpcMessage::from_bytes(&frame.bytes);
        assert!(message.is_ok(), "a node sent an invalid message: {message:?}");
        self.with_frames(|said| said.from.extend(message));
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
        self.with_frames(|said| match said.to.pop_front() {
            None if said.over => Err(OobError::Closed),
            frame => Ok(frame),
        })
    }
}

/// A node, its neighbour, and the state by which an honest neighbour checks the node's messages.
struct NodeFuzzer {
    node: IpcNode<MemfdDevice, ScriptedStream>,
    neighbour: NeighbourId,
    theirs: MemfdDevice,
    /// Two allocations of the neighbour, then two of the node.
    addrs: [usize; 4],
    stream: ScriptedStream,
    now: Instant,
    arrivals: Vec<ArrivalId>,
    receiving: Vec<ArrivalId>,
    sending: Vec<OperationId>,
    left: bool,
    /// Checks the messages of the node.
    said: ProtocolChecker,
}

/// The protocol state of one end, which decides the messages that it may send next.
#[derive(Debug, Default)]
struct ProtocolChecker {
    hello: bool,
    bye: bool,
    /// Names that it announced and did not request back.
    announced: BTreeSet<ExportName>,
    asked: BTreeSet<ExportName>,
    /// Operations that it has begun.
    operations: Vec<u64>,
}

/// Runs one input: four bytes per step, an action and three numbers.
pub(super) fn fuzz_node(bytes: &[u8]) {
    let Some(mut world) = NodeFuzzer::new() else { return };
    for step in bytes.chunks_exact(4).take(STEPS_MAX) {
        world.apply_step(step[0], step[1], step[2], step[3]);
        world.run_until_idle();
    }
    world.finish_and_check();
}

pub(super) fn node_seeds() -> Vec<Vec<u8>> {
    let announce = 0;
    let refer = 1;
    let receive = 2;
    let retire = 3;
    let hello = 4;
    let send = 5;
    let done = 6;
    let scripts: [&[[u8; 4]]; 5] = [
        &[[hello, 9, 0, 0], [announce, 1, 0, 0], [refer, 1, 0, 9], [receive, 0, 0, 0], [retire, 1, 0, 0]],
        &[[hello, 9, 0, 0], [send, 0, 5, 0], [done, 0, 0, 0], [send, 0, 5, 0], [14, 0, 0, 0], [7, 0, 0, 0]],
        &[[hello, 9, 0, 0], [refer, 2, 0, 9], [receive, 0, 0, 0], [announce, 2, 1, 77], [8, 0, 0, 0]],
        &[[hello, 2, 0, 0], [announce, 1, 2, 0], [refer, 1, 0, 9], [receive, 0, 0, 0], [9, 0, 0, 0]],
        &[[hello, 9, 0, 0], [send, 1, 5, 1], [send, 1, 6, 1], [done, 1, 1, 0], [10, 0, 0, 0], [11, 1, 0, 0]],
    ];
    make_variants(&scripts.map(<[[u8; 4]]>::concat))
}

impl NodeFuzzer {
    fn new() -> Option<Self> {
        let theirs = MemfdDevice::create(1, 1 << 20).ok()?;
        let mine = MemfdDevice::join(1, &theirs.descriptor().ok()?).ok()?;
        let mut addrs = [0; 4];
        for (at, addr) in addrs.iter_mut().enumerate() {
            *addr = if at < 2 { theirs.alloc(LEN) } else { mine.alloc(LEN) }.ok()?;
        }
        let mut config = NodeConfig::new([1; 16], ExportAmount { entries: 1, bytes: 1 << 30 });
        config.exporting.passing = 1;
        let mut node = IpcNode::new(mine, config);
        let stream = ScriptedStream::default();
        let neighbour = node.join_neighbour(stream.clone()).ok()?;
        Some(Self {
            node,
            neighbour,
            theirs,
            addrs,
            stream,
            now: Instant(1),
            arrivals: Vec::new(),
            receiving: Vec::new(),
            sending: Vec::new(),
            left: false,
            said: ProtocolChecker::default(),
        })
    }

    fn apply_step(&mut self, what: u8, a: u8, b: u8, c: u8) {
        let name = ExportName::new(SlotId { slot: u32::from(a % 4), generation: 1 + u32::from(a / 4 % 2) });
        let Some(name) = name else { return };
        let number = u64::from(b);
        let part = ByteSpan::new(u64::from(b) * 512, u64::from(c) + 1);
        match what % 16 {
            0 => self.announce_memory(name, b, c),
            1 => {
                let Some(part) = part else { return };
                self.send_message(&IpcMessage::Refer {
                    operation: u64::from(c),
                    reference: ExportReference { name, part },
                });
            }
            2 if !self.arrivals.is_empty() => {
                let arrival = self.arrivals.swap_remove(usize::from(a) % self.arrivals.len());
                let Ok(into) = MemoryRange::try_heap(256) else { return };
                if self.node.receive(arrival, into).is_ok() {
                    self.receiving.push(arrival);
                }
            }
            3 => self.send_names(name, IpcMessage::Retire),
            4 => self.send_message(&IpcMessage::Hello(IpcHello {
                process: [b; 16],
                operations: u32::from(a % 16).max(1),
            })),
            5 => self.send_memory(usize::from(a % 2), usize::from(b) * 256, !c.is_multiple_of(2)),
            6 => {
                let outcome =
                    [CopyOutcome::Copied, CopyOutcome::NotMapped, CopyOutcome::Ended][usize::from(b % 3)];
                let known = self.said.operations.get(usize::from(a) % self.said.operations.len().max(1));
                let operation = known.copied().filter(|_| c < 200).unwrap_or(number);
                self.send_message(&IpcMessage::Done { operation, outcome });
            }
            7 => self.send_names(name, IpcMessage::Retired),
            8 => self.send_message(&IpcMessage::Bye),
            9 => self.stream.with_frames(|said| said.over = true),
            10 => self.now = self.now + Duration::from_secs(number),
            11 => _ = self.node.release_export(self.addrs[2 + usize::from(a % 2)]),
            12 if !self.arrivals.is_empty() => {
                let arrival = self.arrivals.swap_remove(usize::from(a) % self.arrivals.len());
                let _gone = self.node.refuse_arrival(arrival);
            }
            13 => self.send_bytes(vec![a, b, c, 0, 0, 0, 0, 0], None),
            14 => self.node.drain_neighbour(self.neighbour),
            _ => self.node.trim_exports(number),
        }
    }

    /// The neighbour announces its own memory: correctly, with one byte of the handle changed, or with a length
    /// beyond its end.
    fn announce_memory(&mut self, name: ExportName, how: u8, change: u8) {
        let addr = self.addrs[usize::from(how % 2)];
        let passing = if how & 4 == 0 { HandlePassing::Bytes } else { HandlePassing::Descriptor };
        let Ok(of) = self.theirs.allocation_of(addr) else { return };
        let Ok(export) = self.theirs.export(&of, passing) else { return };
        let mut bytes = export.handle.bytes().to_vec();
        if let Some(byte) = bytes.get_mut(usize::from(change >> 2)).filter(|_| change != 0) {
            *byte ^= 1 << (change & 3);
        }
        let len = (LEN as u64) << u32::from(how & 2 != 0);
        let (Some(span), Some(handle)) =
            (ByteSpan::new(addr as u64, len), ExportHandle::new(export.handle.kind(), &bytes))
        else {
            return;
        };
        let descriptor = export.descriptor.is_some() != (how & 8 != 0);
        let announce = ExportAnnouncement { name, span, device: 1, descriptor, handle };
        self.send_bytes(IpcMessage::Announce(announce).to_bytes(), export.descriptor);
    }

    fn send_names(&mut self, name: ExportName, say: impl Fn(ExportNames) -> IpcMessage) {
        if let Some(names) = ExportNames::new(&[name]) {
            self.send_message(&say(names));
        }
    }

    fn send_message(&mut self, message: &IpcMessage) {
        self.send_bytes(message.to_bytes(), None);
    }

    fn send_bytes(&mut self, bytes: Vec<u8>, fd: Option<std::os::fd::OwnedFd>) {
        self.stream.with_frames(|said| said.to.push_back(OobFrame { bytes, fd: fd.map(Into::into) }));
    }

    fn send_memory(&mut self, which: usize, offset: usize, passing: bool) {
        let send = SendRequest { addr: self.addrs[2 + which] + offset, len: 64, passing };
        if let Ok(IpcSendStart::Begun(operation)) = self.node.send(self.neighbour, &send, self.now) {
            assert!(!self.left, "a message is sent to a neighbour that has left");
            self.sending.push(operation);
        }
    }

    /// Runs the node until it is idle, and handles its events. It must become idle after any messages.
    fn run_until_idle(&mut self) {
        let mut calls = 0;
        while self.node.progress(self.now) {
            calls += 1;
            assert!(calls < 1000, "the node does not become idle within 1000 calls");
        }
        while let Some(notice) = self.node.next_event() {
            assert!(!self.left, "{notice:?} of a neighbour that has left");
            match notice {
                NodeEvent::Met { .. } | NodeEvent::Inbox { .. } => {}
                NodeEvent::Arrived { arrival, .. } => self.arrivals.push(arrival),
                NodeEvent::Received { arrival, .. } => remove_once(&mut self.receiving, &arrival),
                NodeEvent::Sent { operation, .. } => remove_once(&mut self.sending, &operation),
                NodeEvent::Left { .. } => self.left = true,
            }
        }
        assert!(self.arrivals.len() + self.receiving.len() <= 4 * OPERATIONS_MAX + STEPS_MAX);
        let counts = self.node.counts();
        assert!(counts.leaks == 0 && counts.unmaps <= counts.maps && counts.unexports <= counts.exports);
        for message in self.stream.with_frames(|said| std::mem::take(&mut said.from)) {
            self.said.check_message(&message);
        }
    }

    /// Closes the node, and checks that every operation has ended, whatever the messages were.
    fn finish_and_check(mut self) {
        self.node.close(self.now);
        self.run_until_idle();
        self.now = self.now + Duration::from_secs(3);
        self.run_until_idle();
        let counts = self.node.counts();
        assert!(self.left && self.node.is_closed(), "{counts:?}");
        assert!(self.sending.is_empty() && self.receiving.is_empty(), "an operation has not ended");
        assert_eq!((counts.maps, counts.exports), (counts.unmaps, counts.unexports));
        for addr in &self.addrs[2..] {
            assert!(self.node.memory().free(*addr).is_ok());
        }
        for addr in &self.addrs[..2] {
            assert!(self.theirs.free(*addr).is_ok());
        }
        drop(self.stream);
        let usage = self.theirs.usage();
        assert!(usage.as_ref().is_ok_and(|usage| usage.used == 0), "{usage:?}");
    }
}

/// Removes the only entry that equals `one`.
fn remove_once<T: PartialEq + std::fmt::Debug>(all: &mut Vec<T>, one: &T) {
    let at = all.iter().position(|other| other == one);
    assert!(at.is_some(), "{one:?} has ended, and was not begun or ended before");
    if let Some(at) = at {
        all.swap_remove(at);
    }
}

impl ProtocolChecker {
    /// Checks that the node may send that message, by docs/wire.md.
    fn check_message(&mut self, message: &IpcMessage) {
        assert!(self.hello != matches!(message, IpcMessage::Hello(_)), "{message:?} out of turn");
        assert!(!self.bye, "{message:?} after BYE");
        match message {
            IpcMessage::Hello(_) => self.hello = true,
            IpcMessage::Announce(one) => {
                self.asked.remove(&one.name);
                assert!(self.announced.insert(one.name), "{one:?} is announced twice");
            }
            IpcMessage::Refer { operation, reference } => {
                assert!(self.announced.contains(&reference.name), "{reference:?} was not announced");
                assert!(!self.asked.contains(&reference.name), "{reference:?} was requested back");
                self.operations.push(*operation);
            }
            IpcMessage::Retire(names) => {
                for name in names.get() {
                    assert!(self.announced.remove(name), "{name:?} was not announced");
                    self.asked.insert(*name);
                }
            }
            IpcMessage::Done { .. } | IpcMessage::Retired(_) | IpcMessage::Inbox(_) => {}
            IpcMessage::Bye => self.bye = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::RandomNumbers;

    use super::*;

    #[test]
    fn random_scripts_leave_the_node_closed() {
        let mut numbers = RandomNumbers::new(5);
        for seed in node_seeds() {
            fuzz_node(&seed);
        }
        for _ in 0..300 {
            let steps = 4 * numbers.next_below(64);
            let mut bytes: Vec<u8> = (0..steps).map(|_| numbers.next_u64() as u8).collect();
            if let Some([what, takes, ..]) = bytes.get_mut(..4) {
                (*what, *takes) = (4, 9);
            }
            fuzz_node(&bytes);
        }
    }
}
