//! Two endpoints of tagged messages in one process, driven by a list of actions: sends and receives of every size and both kinds of
//! memory, cancelled receives, ends. An action may write any word of an inbox, as a hostile peer can. Without such a word each receive
//! gets the message that send order and post order say, whole; with one, no byte outside of a posted receive changes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_fabric::{Frame, OobError, OobStream};
use trunkline_mem::ipc::{At, Device, IpcMemory as _};
use trunkline_mem::{Memory, Shared};
use trunkline_proto::fuzzing::{Action, read_actions, variants, write_script};
use trunkline_proto::ipc::exporter::Amount;
use trunkline_proto::tagged::{Choice, Method};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::Message;
use trunkline_proto::wire::tagged::Inbox;

use crate::ipc::{Buffer, Config as Sharing};
use crate::planted::planted;
use crate::tagged::{Begun, Config, Done, Endpoint, Event, Failed, PeerId, RequestId};

/// Actions of one input, and messages of them.
const ACTIONS_MAX: usize = 160;
const MESSAGES_MAX: usize = 40;
/// Lengths of messages and receives: through the ring, in one copy, in pieces.
const LENS: [usize; 8] = [0, 8, 100, 900, 5000, 20_000, 40_000, 70_000];
/// Bytes before and after each receive, which no message may reach.
const EDGE: usize = 32;
const CANARY: u8 = 0xc5;
/// Rounds in which two endpoints come to rest.
const ROUNDS_MAX: usize = 20_000;

/// Frames in both directions, and whether the stream is over.
#[derive(Debug, Default)]
struct Frames {
    to: [VecDeque<Frame>; 2],
    over: bool,
    /// Per endpoint, the inbox that its peer writes into.
    inboxes: [Option<Memory>; 2],
}

/// One end of a stream between the two.
#[derive(Clone, Debug)]
struct Pipe(Arc<Mutex<Frames>>, usize);

impl Pipe {
    fn with<T>(&self, act: impl FnOnce(&mut Frames) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OobStream for Pipe {
    fn send(&mut self, frame: Frame) -> Result<(), OobError> {
        if let (Ok(Message::Inbox(inbox)), Some(fd)) = (Message::from_bytes(&frame.bytes), &frame.fd) {
            let mapped = Shared::map(&fd.fd, inbox.bytes()).ok();
            self.with(|frames| frames.inboxes[self.1] = mapped);
        }
        self.with(|frames| match frames.over {
            true => Err(OobError::Closed),
            false => {
                frames.to[1 - self.1].push_back(frame);
                Ok(())
            }
        })
    }

    fn recv(&mut self) -> Result<Option<Frame>, OobError> {
        self.with(|frames| match frames.to[self.1].pop_front() {
            None if frames.over => Err(OobError::Closed),
            frame => Ok(frame),
        })
    }
}

/// A message that was sent.
struct Sent {
    tag: u64,
    bytes: Vec<u8>,
    memory: Place,
    request: Option<RequestId>,
    end: Option<Result<Done, Failed>>,
}

/// A receive that was posted.
struct Received {
    tag: u64,
    mask: u64,
    len: usize,
    memory: Place,
    request: RequestId,
    end: Option<Result<Done, Failed>>,
}

/// Memory of a message.
enum Place {
    Own(usize),
    Other(Memory),
}

struct End {
    endpoint: Endpoint<Device, Pipe>,
    peer: PeerId,
    sends: Vec<Sent>,
    receives: Vec<Received>,
    /// Memory that no message uses.
    secret: usize,
    met: bool,
    left: bool,
}

struct World {
    ends: [End; 2],
    pipe: Pipe,
    now: Instant,
    hostile: bool,
    /// The stream has ended, or one of them closes.
    over: bool,
}

/// Four bytes per action: its kind, at which end, and two numbers. The first byte of the input chooses who copies.
pub(super) fn actions(bytes: &[u8]) {
    let Some((how, actions)) = read_actions(bytes, ACTIONS_MAX) else { return };
    let Some(mut world) = World::new(how) else { return };
    actions.for_each(|action| world.act(action));
    world.end();
}

pub(super) fn action_seeds() -> Vec<Vec<u8>> {
    let send = 0;
    let receive = 2;
    let step = 4;
    let cancel = 6;
    let scribble = 8;
    let close = 10;
    let all = |what, at| (0..8).map(|len| [what, at, len, len % 3]).collect::<Vec<_>>();
    let scripts: [Vec<[u8; 4]>; 6] = [
        [vec![[5, 0, 0, 0]], all(receive, 1), all(send, 0), vec![[5, 0, 0, 0]]].concat(),
        [
            vec![[5, 0, 0, 0]],
            all(send, 0),
            all(send, 1),
            vec![[5, 0, 0, 0]],
            all(receive, 1),
            all(receive, 0),
        ]
        .concat(),
        [vec![[5, 0, 0, 0]], all(receive, 0), vec![[cancel, 0, 3, 0], [cancel, 0, 0, 0]], all(send, 1)]
            .concat(),
        [
            vec![[5, 0, 0, 0], [send, 0, 1, 0], [scribble, 1, 3, 9]],
            all(send, 0),
            all(receive, 1),
            vec![[9, 1, 2, 255]],
        ]
        .concat(),
        [vec![[5, 0, 0, 0]], all(send, 0), vec![[step, 1, 3, 0], [close, 0, 0, 0]], all(receive, 1)].concat(),
        [vec![[5, 0, 0, 0]], all(receive, 1), all(send, 0), vec![[step, 0, 1, 0], [11, 0, 0, 0]]].concat(),
    ];
    let all: Vec<Vec<u8>> = (0..).zip(scripts).map(|(how, script)| write_script(how, &script)).collect();
    variants(&all)
}

impl World {
    fn new(how: u8) -> Option<Self> {
        let first = Device::create(3, 16 << 20).ok()?;
        let second = Device::join(3, &first.descriptor().ok()?).ok()?;
        let fixed = [Method::Pull, Method::Turns, Method::Stage].map(Choice::Fixed);
        let copy = fixed.get(usize::from(how % 4)).copied().unwrap_or_default();
        let pipe = Pipe(Arc::default(), 0);
        let other = Pipe(pipe.0.clone(), 1);
        let ends = [End::new(first, 1, copy, pipe.clone())?, End::new(second, 2, copy, other)?];
        Some(Self { ends, pipe, now: Instant(0), hostile: false, over: false })
    }

    fn act(&mut self, Action { what, at, one, two }: Action) {
        match what % 12 {
            0 | 1 => self.send(at, one, two),
            2 | 3 => self.receive(at, one, two),
            4 => (0..=one % 8).for_each(|_| self.step(at)),
            5 => self.settle(),
            6 => self.cancel(at, usize::from(one)),
            7 => {
                let found = self.ends[at].endpoint.probe(None, (u64::from(two % 4), u64::from(one % 4)));
                assert!(found.is_none_or(|found| self.hostile
                    || found.tag & u64::from(one % 4) == u64::from((two % 4) & (one % 4))));
            }
            8 | 9 => self.scribble(at, u64::from(one) * 8, u64::from(two) << (8 * (what % 12 == 9) as u32)),
            10 if two.is_multiple_of(8) => {
                self.over = true;
                self.ends[at].endpoint.close(self.now);
            }
            11 if two.is_multiple_of(8) => {
                self.over = true;
                self.pipe.with(|frames| frames.over = true);
            }
            _ => {}
        }
    }

    fn send(&mut self, at: usize, len: u8, how: u8) {
        let is_met = self.ends[at].met;
        let now = self.now;
        let end = &mut self.ends[at];
        if !is_met || end.sends.len() >= MESSAGES_MAX {
            return;
        }
        let len = LENS[usize::from(len % 8)];
        let tag = u64::from(how % 4);
        let fill = end.sends.len() as u8;
        let bytes: Vec<u8> =
            (0..len).map(|at| fill.wrapping_mul(31).wrapping_add((at % 251) as u8)).collect();
        let Some((memory, buffer)) = end.place(&bytes, 0, how & 4 != 0) else { return };
        match end.endpoint.send(end.peer, tag, &buffer) {
            Ok(Begun::Busy) => end.free(memory),
            Ok(begun) => {
                let request = if let Begun::Request(request) = begun { Some(request) } else { None };
                end.sends.push(Sent { tag, bytes, memory, request, end: None });
            }
            Err(error) => {
                assert!(self.hostile || self.over, "a send is refused at {now:?}: {error}");
                end.free(memory);
            }
        }
    }

    fn receive(&mut self, at: usize, len: u8, how: u8) {
        let end = &mut self.ends[at];
        if !end.met || end.receives.len() >= MESSAGES_MAX {
            return;
        }
        let len = LENS[usize::from(len % 8)];
        let tag = u64::from(how % 4);
        let mask = u64::from(how / 4 % 4);
        let Some((memory, buffer)) = end.place(&vec![CANARY; len], EDGE, how & 64 != 0) else { return };
        let from = (how & 128 != 0).then_some(end.peer);
        match end.endpoint.receive(from, (tag, mask), buffer) {
            Ok(request) => end.receives.push(Received { tag, mask, len, memory, request, end: None }),
            Err(error) => {
                assert!(self.hostile || self.over, "a receive is refused: {error}");
                end.free(memory);
            }
        }
    }

    fn cancel(&mut self, at: usize, which: usize) {
        let end = &mut self.ends[at];
        let count = end.receives.len().max(1);
        let Some(receive) = end.receives.get_mut(which % count).filter(|receive| receive.end.is_none())
        else {
            return;
        };
        if end.endpoint.cancel(receive.request) {
            receive.end = end.endpoint.test(receive.request);
            assert_eq!(receive.end, Some(Err(Failed::Cancelled)));
        }
    }

    fn step(&mut self, at: usize) {
        self.now = self.now + Duration::micros(100);
        let end = &mut self.ends[at];
        end.endpoint.progress(self.now);
        while let Some(event) = end.endpoint.event() {
            match event {
                Event::Met { peer, .. } => {
                    assert!(peer == end.peer && !end.met && !end.left);
                    end.met = true;
                }
                Event::Left { peer, .. } => {
                    assert!(peer == end.peer && !end.left, "a peer leaves twice");
                    assert!(self.hostile || self.over, "a peer is told as gone, and is not");
                    end.left = true;
                }
            }
        }
        end.test();
    }

    /// Both go on until nothing moves.
    fn settle(&mut self) {
        let mut still = 0;
        for _ in 0..ROUNDS_MAX {
            let before = self.left();
            [0, 1].into_iter().for_each(|at| self.step(at));
            still = if self.left() == before { still + 1 } else { 0 };
            if still > 100 {
                return;
            }
        }
        panic!("the two never come to rest");
    }

    /// The numbers of things under way, which change when anything proceeds.
    fn left(&self) -> [usize; 4] {
        let open = |end: &End| {
            let sends = end.sends.iter().filter(|send| send.request.is_some() && send.end.is_none()).count();
            sends + end.receives.iter().filter(|receive| receive.end.is_none()).count()
        };
        let counts = |end: &End| {
            let counts = end.endpoint.counts();
            (counts.early + counts.eager + counts.staged) as usize
        };
        let [a, b] = &self.ends;
        [open(a), open(b), counts(a), counts(b)]
    }

    /// The peer of an end writes a word of its inbox.
    fn scribble(&mut self, at: usize, offset: u64, word: u64) {
        let inbox = self.pipe.with(|frames| frames.inboxes[at].clone());
        if let Some(inbox) = inbox {
            self.hostile |= inbox.store(offset, word).is_ok();
        }
    }

    /// Checks the properties that hold at the end after any actions.
    fn end(mut self) {
        self.settle();
        if !self.hostile && !self.over {
            let [a, b] = &self.ends;
            compare(a, b);
            compare(b, a);
        }
        self.over = true;
        self.pipe.with(|frames| frames.over = true);
        self.now = self.now + Duration::secs(5);
        self.settle();
        for end in &mut self.ends {
            for receive in end.receives.iter_mut().filter(|receive| receive.end.is_none()) {
                assert!(end.endpoint.cancel(receive.request), "a receive of a peer that is gone goes on");
                receive.end = end.endpoint.test(receive.request);
                assert!(receive.end.is_some());
            }
            let open = end.sends.iter().find(|send| send.request.is_some() && send.end.is_none());
            assert!(open.is_none(), "a send to a peer that is gone never ends");
            end.check();
        }
    }
}

/// Each message went to the first posted receive that fits of those that no earlier message took.
fn compare(from: &End, to: &End) {
    let mut taken = vec![false; to.receives.len()];
    for sent in &from.sends {
        let fits = |(at, receive): &(usize, &Received)| {
            !taken[*at]
                && receive.end != Some(Err(Failed::Cancelled))
                && (receive.tag ^ sent.tag) & receive.mask == 0
        };
        let Some((at, receive)) = to.receives.iter().enumerate().find(fits) else { continue };
        taken[at] = true;
        let (len, room) = (sent.bytes.len() as u64, receive.len as u64);
        let whole = Done { peer: to.peer, tag: sent.tag, len };
        let expected = if len > room {
            Err(Failed::Truncated { peer: to.peer, tag: sent.tag, len, room })
        } else {
            Ok(whole)
        };
        assert_eq!(receive.end, Some(expected), "receive {at} of {} bytes", receive.len);
        let arrived = sent.bytes.len().min(receive.len);
        assert!(
            to.bytes(receive)[EDGE..][..arrived] == sent.bytes[..arrived],
            "receive {at} got other bytes"
        );
        assert!(sent.request.is_none() || sent.end.as_ref().is_some_and(Result::is_ok), "{:?}", sent.end);
    }
    for (receive, taken) in to.receives.iter().zip(taken).filter(|(_, taken)| !*taken) {
        assert!(matches!(receive.end, None | Some(Err(Failed::Cancelled))), "{:?} {taken}", receive.end);
    }
}

impl End {
    fn new(memory: Device, number: u8, copy: Choice, pipe: Pipe) -> Option<Self> {
        let secret = memory.alloc(4096).ok()?;
        memory.write(At::Own(secret), &[CANARY; 4096]).ok()?;
        let of = Sharing::new([number; 16], Amount { entries: 8, bytes: 1 << 24 });
        let sharing = Sharing { mutant: planted(), ..of };
        let config = Config { sharing, inbox: Inbox::new(64, 64, 1 << 16).ok()?, copy };
        let mut endpoint = Endpoint::new(memory, config, Instant(0));
        let peer = endpoint.join(pipe).ok()?;
        let sends = Vec::new();
        let receives = Vec::new();
        Some(Self { endpoint, peer, sends, receives, secret, met: false, left: false })
    }

    /// New memory with these bytes between edges.
    fn place(&self, bytes: &[u8], edge: usize, own: bool) -> Option<(Place, Buffer)> {
        let mut all = vec![CANARY; bytes.len() + 2 * edge];
        all[edge..][..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len() as u64;
        if own && !bytes.is_empty() {
            let addr = self.endpoint.node().memory().alloc(all.len()).ok()?;
            self.endpoint.node().memory().write(At::Own(addr), &all).ok()?;
            return Some((Place::Own(addr), Buffer::own(addr + edge, len)));
        }
        let memory = Memory::heap(all.len().max(1));
        memory.write(0, &all).ok()?;
        Some((Place::Other(memory.clone()), Buffer::of(memory, edge as u64, len)))
    }

    fn free(&self, place: Place) {
        if let Place::Own(addr) = place {
            assert!(self.endpoint.node().memory().free(addr).is_ok());
        }
    }

    fn read(&self, place: &Place, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = match place {
            Place::Own(addr) => self.endpoint.node().memory().read(At::Own(*addr), &mut bytes).is_ok(),
            Place::Other(memory) => memory.read(0, &mut bytes).is_ok(),
        };
        assert!(read);
        bytes
    }

    fn bytes(&self, receive: &Received) -> Vec<u8> {
        self.read(&receive.memory, receive.len + 2 * EDGE)
    }

    /// Asks for the end of each request that has not told it.
    fn test(&mut self) {
        for send in self.sends.iter_mut().filter(|send| send.end.is_none()) {
            send.end = send.request.and_then(|request| self.endpoint.test(request));
        }
        for receive in self.receives.iter_mut().filter(|receive| receive.end.is_none()) {
            receive.end = self.endpoint.test(receive.request);
        }
    }

    /// Bytes that no message may reach are as they were.
    fn check(&self) {
        let secret = self.read(&Place::Own(self.secret), 4096);
        assert!(secret.iter().all(|byte| *byte == CANARY), "memory that no message uses was written");
        for receive in &self.receives {
            let bytes = self.bytes(receive);
            let edges = bytes[..EDGE].iter().chain(&bytes[EDGE + receive.len..]);
            assert!(edges.into_iter().all(|byte| *byte == CANARY), "bytes around a receive were written");
        }
        for sent in &self.sends {
            assert!(self.read(&sent.memory, sent.bytes.len()) == sent.bytes, "a sent message was changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::{Numbers, random_script};

    use super::*;

    #[test]
    fn random_actions_hold() {
        action_seeds().iter().for_each(|seed| actions(seed));
        let mut numbers = Numbers::new(23);
        for _ in 0..200 {
            let mut script = [random_script(&mut numbers, 64), vec![0; 4]].concat();
            // They meet first.
            script[1] = 5;
            actions(&script);
        }
    }
}
