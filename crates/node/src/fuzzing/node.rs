//! A node that shares memory with a neighbour which says anything, handles of
//! real memory with any byte changed among it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_fabric::{Frame, OobError, OobStream};
use trunkline_mem::Memory;
use trunkline_mem::ipc::{Device, IpcMemory as _, Passing};
use trunkline_proto::fuzzing::variants;
use trunkline_proto::intervals::Span;
use trunkline_proto::ipc::exporter::Amount;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::{Announce, Handle, Hello, Message, Name, Names, Outcome, Reference};

use crate::ipc::{ArrivalId, Config, Neighbour, Node, Notice, OPERATIONS_MAX, OperationId, Send, Sending};

/// Bytes of each allocation of both ends.
const LEN: usize = 64 << 10;

/// Steps of one input.
const STEPS_MAX: usize = 256;

/// What was said in both directions.
#[derive(Debug, Default)]
struct Said {
    to: VecDeque<Frame>,
    from: VecDeque<Message>,
    over: bool,
}

/// A stream whose other end is the script.
#[derive(Clone, Debug, Default)]
struct Stream(Arc<Mutex<Said>>);

impl Stream {
    fn with<T>(&self, act: impl FnOnce(&mut Said) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OobStream for Stream {
    fn send(&mut self, frame: Frame) -> Result<(), OobError> {
        let message = Message::from_bytes(&frame.bytes);
        assert!(message.is_ok(), "a node says {message:?}");
        self.with(|said| said.from.extend(message));
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<Frame>, OobError> {
        self.with(|said| match said.to.pop_front() {
            None if said.over => Err(OobError::Closed),
            frame => Ok(frame),
        })
    }
}

/// A node, its neighbour, and what an honest neighbour would have to believe.
struct World {
    node: Node<Device, Stream>,
    neighbour: Neighbour,
    theirs: Device,
    /// Two allocations of the neighbour, two of the node.
    addrs: [usize; 4],
    stream: Stream,
    now: Instant,
    arrivals: Vec<ArrivalId>,
    receiving: Vec<ArrivalId>,
    sending: Vec<OperationId>,
    left: bool,
    /// What the node has said.
    said: Spoken,
}

/// What one end may say next.
#[derive(Debug, Default)]
struct Spoken {
    hello: bool,
    bye: bool,
    /// Names that it announced and was not told to be let go.
    announced: BTreeSet<Name>,
    asked: BTreeSet<Name>,
    /// Operations that it has begun.
    operations: Vec<u64>,
}

/// Four bytes a step: what happens, and three numbers.
pub(super) fn node(bytes: &[u8]) {
    let Some(mut world) = World::new() else { return };
    for step in bytes.chunks_exact(4).take(STEPS_MAX) {
        world.step(step[0], step[1], step[2], step[3]);
        world.go_on();
    }
    world.end();
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
    variants(&scripts.map(<[[u8; 4]]>::concat))
}

impl World {
    fn new() -> Option<Self> {
        let theirs = Device::create(1, 1 << 20).ok()?;
        let mine = Device::join(1, &theirs.descriptor().ok()?).ok()?;
        let mut addrs = [0; 4];
        for (at, addr) in addrs.iter_mut().enumerate() {
            *addr = if at < 2 { theirs.alloc(LEN) } else { mine.alloc(LEN) }.ok()?;
        }
        let mut config = Config::new([1; 16], Amount { entries: 1, bytes: 1 << 30 });
        config.exporting.passing = 1;
        #[cfg(feature = "mutants")]
        if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
            let name = String::leak(name);
            config.mutant =
                trunkline_proto::mutant::Mutant::named(name.strip_prefix("fuzz-").unwrap_or(name));
        }
        let mut node = Node::new(mine, config);
        let stream = Stream::default();
        let neighbour = node.join(stream.clone()).ok()?;
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
            said: Spoken::default(),
        })
    }

    fn step(&mut self, what: u8, a: u8, b: u8, c: u8) {
        let name = Name::new(SlotId { slot: u32::from(a % 4), generation: 1 + u32::from(a / 4 % 2) });
        let Some(name) = name else { return };
        let number = u64::from(b);
        let part = Span::new(u64::from(b) * 512, u64::from(c) + 1);
        match what % 16 {
            0 => self.announce(name, b, c),
            1 => {
                let Some(part) = part else { return };
                self.say(&Message::Refer { operation: u64::from(c), reference: Reference { name, part } });
            }
            2 if !self.arrivals.is_empty() => {
                let arrival = self.arrivals.swap_remove(usize::from(a) % self.arrivals.len());
                let Ok(into) = Memory::try_heap(256) else { return };
                if self.node.receive(arrival, into).is_ok() {
                    self.receiving.push(arrival);
                }
            }
            3 => self.names(name, Message::Retire),
            4 => self.say(&Message::Hello(Hello { process: [b; 16], operations: u32::from(a % 16).max(1) })),
            5 => self.send(usize::from(a % 2), usize::from(b) * 256, !c.is_multiple_of(2)),
            6 => {
                let outcome = [Outcome::Copied, Outcome::NotMapped, Outcome::Ended][usize::from(b % 3)];
                let known = self.said.operations.get(usize::from(a) % self.said.operations.len().max(1));
                let operation = known.copied().filter(|_| c < 200).unwrap_or(number);
                self.say(&Message::Done { operation, outcome });
            }
            7 => self.names(name, Message::Retired),
            8 => self.say(&Message::Bye),
            9 => self.stream.with(|said| said.over = true),
            10 => self.now = self.now + Duration::secs(number),
            11 => _ = self.node.release(self.addrs[2 + usize::from(a % 2)]),
            12 if !self.arrivals.is_empty() => {
                let arrival = self.arrivals.swap_remove(usize::from(a) % self.arrivals.len());
                let _gone = self.node.refuse(arrival);
            }
            13 => self.say_bytes(vec![a, b, c, 0, 0, 0, 0, 0], None),
            14 => self.node.drain(self.neighbour),
            _ => self.node.trim(number),
        }
    }

    /// The neighbour announces memory of its own: as it is, or with a byte of the handle changed, or longer than it is.
    fn announce(&mut self, name: Name, how: u8, change: u8) {
        let addr = self.addrs[usize::from(how % 2)];
        let passing = if how & 4 == 0 { Passing::Bytes } else { Passing::Descriptor };
        let Ok(of) = self.theirs.allocation_of(addr) else { return };
        let Ok(export) = self.theirs.export(&of, passing) else { return };
        let mut bytes = export.handle.bytes().to_vec();
        if let Some(byte) = bytes.get_mut(usize::from(change >> 2)).filter(|_| change != 0) {
            *byte ^= 1 << (change & 3);
        }
        let len = (LEN as u64) << u32::from(how & 2 != 0);
        let (Some(span), Some(handle)) =
            (Span::new(addr as u64, len), Handle::new(export.handle.kind(), &bytes))
        else {
            return;
        };
        let descriptor = export.descriptor.is_some() != (how & 8 != 0);
        let announce = Announce { name, span, device: 1, descriptor, handle };
        self.say_bytes(Message::Announce(announce).to_bytes(), export.descriptor);
    }

    fn names(&mut self, name: Name, say: impl Fn(Names) -> Message) {
        if let Some(names) = Names::new(&[name]) {
            self.say(&say(names));
        }
    }

    fn say(&mut self, message: &Message) {
        self.say_bytes(message.to_bytes(), None);
    }

    fn say_bytes(&mut self, bytes: Vec<u8>, fd: Option<std::os::fd::OwnedFd>) {
        self.stream.with(|said| said.to.push_back(Frame { bytes, fd: fd.map(Into::into) }));
    }

    fn send(&mut self, which: usize, offset: usize, passing: bool) {
        let send = Send { addr: self.addrs[2 + which] + offset, len: 64, passing };
        if let Ok(Sending::Begun(operation)) = self.node.send(self.neighbour, &send, self.now) {
            assert!(!self.left, "something is sent to who has left");
            self.sending.push(operation);
        }
    }

    /// The node does what there is to do. It comes to rest, whatever it was told.
    fn go_on(&mut self) {
        let mut calls = 0;
        while self.node.progress(self.now) {
            calls += 1;
            assert!(calls < 1000, "it goes on for ever");
        }
        while let Some(notice) = self.node.notice() {
            assert!(!self.left, "{notice:?} of who has left");
            match notice {
                Notice::Met { .. } | Notice::Inbox { .. } => {}
                Notice::Arrived { arrival, .. } => self.arrivals.push(arrival),
                Notice::Received { arrival, .. } => take(&mut self.receiving, &arrival),
                Notice::Sent { operation, .. } => take(&mut self.sending, &operation),
                Notice::Left { .. } => self.left = true,
            }
        }
        assert!(self.arrivals.len() + self.receiving.len() <= 4 * OPERATIONS_MAX + STEPS_MAX);
        let counts = self.node.counts();
        assert!(counts.leaks == 0 && counts.unmaps <= counts.maps && counts.unexports <= counts.exports);
        for message in self.stream.with(|said| std::mem::take(&mut said.from)) {
            self.said.check(&message);
        }
    }

    /// Whatever was said, all of it ends.
    fn end(mut self) {
        self.node.close(self.now);
        self.go_on();
        self.now = self.now + Duration::secs(3);
        self.go_on();
        let counts = self.node.counts();
        assert!(self.left && self.node.is_closed(), "{counts:?}");
        assert!(self.sending.is_empty() && self.receiving.is_empty(), "something never ended");
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

/// It is there, once.
fn take<T: PartialEq + std::fmt::Debug>(all: &mut Vec<T>, one: &T) {
    let at = all.iter().position(|other| other == one);
    assert!(at.is_some(), "{one:?} has ended, and was not begun or ended before");
    if let Some(at) = at {
        all.swap_remove(at);
    }
}

impl Spoken {
    /// Whether the node may say that, as docs/wire.md has it.
    fn check(&mut self, message: &Message) {
        assert!(self.hello != matches!(message, Message::Hello(_)), "{message:?} out of turn");
        assert!(!self.bye, "{message:?} after BYE");
        match message {
            Message::Hello(_) => self.hello = true,
            Message::Announce(one) => {
                self.asked.remove(&one.name);
                assert!(self.announced.insert(one.name), "{one:?} is announced twice");
            }
            Message::Refer { operation, reference } => {
                assert!(self.announced.contains(&reference.name), "{reference:?} was not announced");
                assert!(!self.asked.contains(&reference.name), "{reference:?} is being let go");
                self.operations.push(*operation);
            }
            Message::Retire(names) => {
                for name in names.get() {
                    assert!(self.announced.remove(name), "{name:?} was not announced");
                    self.asked.insert(*name);
                }
            }
            Message::Done { .. } | Message::Retired(_) | Message::Inbox(_) => {}
            Message::Bye => self.bye = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::Numbers;

    use super::*;

    #[test]
    fn random_scripts_end() {
        let mut numbers = Numbers::new(5);
        for seed in node_seeds() {
            node(&seed);
        }
        for _ in 0..300 {
            let steps = 4 * numbers.below(64);
            let mut bytes: Vec<u8> = (0..steps).map(|_| numbers.next_u64() as u8).collect();
            if let Some([what, takes, ..]) = bytes.get_mut(..4) {
                (*what, *takes) = (4, 9);
            }
            node(&bytes);
        }
    }
}
