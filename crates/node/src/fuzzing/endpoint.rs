//! Two endpoints of tagged messages in one process, driven by a list of actions: sends and receives of all sizes and
//! both kinds of memory, cancelled receives, ends. An action may write any word of an inbox, as a hostile peer can.
//! Without such a write, each receive gets the whole message that send order and post order define. With one, no byte
//! outside of a posted receive changes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_fabric::{OobError, OobFrame, OobStream};
use trunkline_mem::ipc::{CopyPlace, IpcMemory as _, MemfdDevice};
use trunkline_mem::{MemoryRange, SharedMemory};
use trunkline_proto::fuzzing::{FuzzAction, make_variants, read_actions, write_script};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::IpcMessage;
use trunkline_proto::wire::tagged::InboxSizes;

use crate::ipc::{MessageBuffer, NodeConfig as Sharing};
use crate::tagged::{
    MessageStatus, TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedFailure, TaggedPeerId, TaggedRequestId,
    TaggedSendStart,
};

/// Limits of actions, and of messages, in one input.
const ACTIONS_MAX: usize = 160;
const MESSAGES_MAX: usize = 40;
/// Lengths of messages and receives: for the ring, for direct copies, and for pieces.
const LENS: [usize; 8] = [0, 8, 100, 900, 5000, 20_000, 40_000, 70_000];
/// Guard bytes before and after each receive, which no message may change.
const EDGE: usize = 32;
const CANARY: u8 = 0xc5;
/// Rounds within which two endpoints must become idle.
const ROUNDS_MAX: usize = 20_000;

/// Frames in both directions, and whether the stream has ended.
#[derive(Debug, Default)]
struct FrameQueues {
    to: [VecDeque<OobFrame>; 2],
    over: bool,
    /// Per endpoint, the inbox that its peer writes into.
    inboxes: [Option<MemoryRange>; 2],
}

/// One end of the stream between the two endpoints.
#[derive(Clone, Debug)]
struct FramePipe(Arc<Mutex<FrameQueues>>, usize);

impl FramePipe {
    fn with_frames<T>(&self, act: impl FnOnce(&mut FrameQueues) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OobStream for FramePipe {
    fn send(&mut self, frame: OobFrame) -> Result<(), OobError> {
        if let (Ok(IpcMessage::Inbox(inbox)), Some(fd)) = (IpcMessage::from_bytes(&frame.bytes), &frame.fd) {
            let mapped = SharedMemory::map_peer(&fd.fd, inbox.file_bytes()).ok();
            self.with_frames(|frames| frames.inboxes[self.1] = mapped);
        }
        self.with_frames(|frames| match frames.over {
            true => Err(OobError::Closed),
            false => {
                frames.to[1 - self.1].push_back(frame);
                Ok(())
            }
        })
    }

    fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
        self.with_frames(|frames| match frames.to[self.1].pop_front() {
            None if frames.over => Err(OobError::Closed),
            frame => Ok(frame),
        })
    }
}

/// A message that was sent.
struct FuzzedSend {
    tag: u64,
    bytes: Vec<u8>,
    memory: FuzzedMemory,
    request: Option<TaggedRequestId>,
    end: Option<Result<MessageStatus, TaggedFailure>>,
}

/// A receive that was posted.
struct FuzzedReceive {
    tag: u64,
    mask: u64,
    len: usize,
    memory: FuzzedMemory,
    request: TaggedRequestId,
    end: Option<Result<MessageStatus, TaggedFailure>>,
}

/// The memory of a message.
enum FuzzedMemory {
    Own(usize),
    Other(MemoryRange),
}

struct TestedEndpoint {
    endpoint: TaggedEndpoint<MemfdDevice, FramePipe>,
    peer: TaggedPeerId,
    sends: Vec<FuzzedSend>,
    receives: Vec<FuzzedReceive>,
    /// Memory that no message uses.
    secret: usize,
    met: bool,
    left: bool,
}

struct EndpointFuzzer {
    ends: [TestedEndpoint; 2],
    pipe: FramePipe,
    now: Instant,
    hostile: bool,
    /// Whether the stream has ended, or an endpoint closes.
    over: bool,
}

/// Runs one input: four bytes per action, which are its kind, its endpoint, and two numbers. The first byte of the
/// input chooses the copy method.
pub(super) fn fuzz_endpoints(bytes: &[u8]) {
    let Some((how, actions)) = read_actions(bytes, ACTIONS_MAX) else { return };
    let Some(mut world) = EndpointFuzzer::new(how) else { return };
    actions.for_each(|action| world.apply_action(action));
    world.finish_and_check();
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
    make_variants(&all)
}

impl EndpointFuzzer {
    fn new(how: u8) -> Option<Self> {
        let first = MemfdDevice::create(3, 16 << 20).ok()?;
        let second = MemfdDevice::join(3, &first.descriptor().ok()?).ok()?;
        let fixed = [CopyMethod::Pull, CopyMethod::Turns, CopyMethod::Stage].map(MethodChoice::Fixed);
        let copy = fixed.get(usize::from(how % 4)).copied().unwrap_or_default();
        let pipe = FramePipe(Arc::default(), 0);
        let other = FramePipe(pipe.0.clone(), 1);
        let ends = [
            TestedEndpoint::new(first, 1, copy, pipe.clone())?,
            TestedEndpoint::new(second, 2, copy, other)?,
        ];
        Some(Self { ends, pipe, now: Instant(0), hostile: false, over: false })
    }

    fn apply_action(&mut self, FuzzAction { what, at, one, two }: FuzzAction) {
        match what % 12 {
            0 | 1 => self.send_message(at, one, two),
            2 | 3 => self.post_receive(at, one, two),
            4 => (0..=one % 8).for_each(|_| self.progress_end(at)),
            5 => self.run_until_idle(),
            6 => self.cancel_receive(at, usize::from(one)),
            7 => {
                let found = self.ends[at].endpoint.probe(None, u64::from(two % 4), u64::from(one % 4));
                assert!(found.is_none_or(|found| self.hostile
                    || found.tag & u64::from(one % 4) == u64::from((two % 4) & (one % 4))));
            }
            8 | 9 => {
                self.corrupt_inbox(at, u64::from(one) * 8, u64::from(two) << (8 * (what % 12 == 9) as u32))
            }
            10 if two.is_multiple_of(8) => {
                self.over = true;
                self.ends[at].endpoint.close(self.now);
            }
            11 if two.is_multiple_of(8) => {
                self.over = true;
                self.pipe.with_frames(|frames| frames.over = true);
            }
            _ => {}
        }
    }

    fn send_message(&mut self, at: usize, len: u8, how: u8) {
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
        let Some((memory, buffer)) = end.allocate_message(&bytes, 0, how & 4 != 0) else { return };
        match end.endpoint.send(end.peer, tag, &buffer) {
            Ok(TaggedSendStart::Busy) => end.free_message(memory),
            Ok(begun) => {
                let request =
                    if let TaggedSendStart::Request(request) = begun { Some(request) } else { None };
                end.sends.push(FuzzedSend { tag, bytes, memory, request, end: None });
            }
            Err(error) => {
                assert!(self.hostile || self.over, "a send is refused at {now:?}: {error}");
                end.free_message(memory);
            }
        }
    }

    fn post_receive(&mut self, at: usize, len: u8, how: u8) {
        let end = &mut self.ends[at];
        if !end.met || end.receives.len() >= MESSAGES_MAX {
            return;
        }
        let len = LENS[usize::from(len % 8)];
        let tag = u64::from(how % 4);
        let mask = u64::from(how / 4 % 4);
        let Some((memory, buffer)) = end.allocate_message(&vec![CANARY; len], EDGE, how & 64 != 0) else {
            return;
        };
        let from = (how & 128 != 0).then_some(end.peer);
        match end.endpoint.receive(from, tag, mask, buffer) {
            Ok(request) => end.receives.push(FuzzedReceive { tag, mask, len, memory, request, end: None }),
            Err(error) => {
                assert!(self.hostile || self.over, "a receive is refused: {error}");
                end.free_message(memory);
            }
        }
    }

    fn cancel_receive(&mut self, at: usize, which: usize) {
        let end = &mut self.ends[at];
        let count = end.receives.len().max(1);
        let Some(receive) = end.receives.get_mut(which % count).filter(|receive| receive.end.is_none())
        else {
            return;
        };
        if end.endpoint.cancel_receive(receive.request) {
            receive.end = end.endpoint.test(receive.request);
            assert_eq!(receive.end, Some(Err(TaggedFailure::Cancelled)));
        }
    }

    fn progress_end(&mut self, at: usize) {
        self.now = self.now + Duration::from_micros(100);
        let end = &mut self.ends[at];
        end.endpoint.progress(self.now);
        while let Some(event) = end.endpoint.next_event() {
            match event {
                TaggedEvent::Met { peer, .. } => {
                    assert!(peer == end.peer && !end.met && !end.left);
                    end.met = true;
                }
                TaggedEvent::Left { peer, .. } => {
                    assert!(peer == end.peer && !end.left, "a peer leaves twice");
                    assert!(self.hostile || self.over, "a live peer is reported as gone");
                    end.left = true;
                }
            }
        }
        end.test_requests();
    }

    /// Runs both endpoints until neither makes progress.
    fn run_until_idle(&mut self) {
        let mut still = 0;
        for _ in 0..ROUNDS_MAX {
            let before = self.count_pending();
            [0, 1].into_iter().for_each(|at| self.progress_end(at));
            still = if self.count_pending() == before { still + 1 } else { 0 };
            if still > 100 {
                return;
            }
        }
        panic!("the endpoints do not become idle");
    }

    /// Returns counts of pending and started messages; they change with any progress.
    fn count_pending(&self) -> [usize; 4] {
        let open = |end: &TestedEndpoint| {
            let sends = end.sends.iter().filter(|send| send.request.is_some() && send.end.is_none()).count();
            sends + end.receives.iter().filter(|receive| receive.end.is_none()).count()
        };
        let counts = |end: &TestedEndpoint| {
            let counts = end.endpoint.counts();
            (counts.early + counts.eager + counts.staged) as usize
        };
        let [a, b] = &self.ends;
        [open(a), open(b), counts(a), counts(b)]
    }

    /// Writes a word of an endpoint's inbox, as its peer can.
    fn corrupt_inbox(&mut self, at: usize, offset: u64, word: u64) {
        let inbox = self.pipe.with_frames(|frames| frames.inboxes[at].clone());
        if let Some(inbox) = inbox {
            self.hostile |= inbox.store(offset, word).is_ok();
        }
    }

    /// Checks the properties that hold at the end after any actions.
    fn finish_and_check(mut self) {
        self.run_until_idle();
        if !self.hostile && !self.over {
            let [a, b] = &self.ends;
            compare_messages(a, b);
            compare_messages(b, a);
        }
        self.over = true;
        self.pipe.with_frames(|frames| frames.over = true);
        self.now = self.now + Duration::from_secs(5);
        self.run_until_idle();
        for end in &mut self.ends {
            for receive in end.receives.iter_mut().filter(|receive| receive.end.is_none()) {
                assert!(
                    end.endpoint.cancel_receive(receive.request),
                    "a receive from a peer that is gone has not ended"
                );
                receive.end = end.endpoint.test(receive.request);
                assert!(receive.end.is_some());
            }
            let open = end.sends.iter().find(|send| send.request.is_some() && send.end.is_none());
            assert!(open.is_none(), "a send to a peer that is gone has not ended");
            end.check_untouched();
        }
    }
}

/// Checks that each message went to the first matching receive that no earlier message took.
fn compare_messages(from: &TestedEndpoint, to: &TestedEndpoint) {
    let mut taken = vec![false; to.receives.len()];
    for sent in &from.sends {
        let fits = |(at, receive): &(usize, &FuzzedReceive)| {
            !taken[*at]
                && receive.end != Some(Err(TaggedFailure::Cancelled))
                && (receive.tag ^ sent.tag) & receive.mask == 0
        };
        let Some((at, receive)) = to.receives.iter().enumerate().find(fits) else { continue };
        taken[at] = true;
        let (len, room) = (sent.bytes.len() as u64, receive.len as u64);
        let whole = MessageStatus { peer: to.peer, tag: sent.tag, len };
        let expected = if len > room {
            Err(TaggedFailure::Truncated { peer: to.peer, tag: sent.tag, len, room })
        } else {
            Ok(whole)
        };
        assert_eq!(receive.end, Some(expected), "receive {at} of {} bytes", receive.len);
        let arrived = sent.bytes.len().min(receive.len);
        assert!(
            to.received_bytes(receive)[EDGE..][..arrived] == sent.bytes[..arrived],
            "receive {at} has wrong bytes"
        );
        assert!(sent.request.is_none() || sent.end.as_ref().is_some_and(Result::is_ok), "{:?}", sent.end);
    }
    for (receive, taken) in to.receives.iter().zip(taken).filter(|(_, taken)| !*taken) {
        assert!(
            matches!(receive.end, None | Some(Err(TaggedFailure::Cancelled))),
            "{:?} {taken}",
            receive.end
        );
    }
}

impl TestedEndpoint {
    fn new(memory: MemfdDevice, number: u8, copy: MethodChoice, pipe: FramePipe) -> Option<Self> {
        let secret = memory.alloc(4096).ok()?;
        memory.write(CopyPlace::Own(secret), &[CANARY; 4096]).ok()?;
        let sharing = Sharing::new([number; 16], ExportAmount { entries: 8, bytes: 1 << 24 });
        let config = TaggedConfig { sharing, inbox: InboxSizes::new(64, 64, 1 << 16).ok()?, copy };
        let mut endpoint = TaggedEndpoint::new(memory, config, Instant(0));
        let peer = endpoint.join_peer(pipe).ok()?;
        let sends = Vec::new();
        let receives = Vec::new();
        Some(Self { endpoint, peer, sends, receives, secret, met: false, left: false })
    }

    /// Allocates memory with these bytes between guard bytes.
    fn allocate_message(
        &self,
        bytes: &[u8],
        edge: usize,
        own: bool,
    ) -> Option<(FuzzedMemory, MessageBuffer)> {
        let mut all = vec![CANARY; bytes.len() + 2 * edge];
        all[edge..][..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len() as u64;
        if own && !bytes.is_empty() {
            let addr = self.endpoint.node().memory().alloc(all.len()).ok()?;
            self.endpoint.node().memory().write(CopyPlace::Own(addr), &all).ok()?;
            return Some((FuzzedMemory::Own(addr), MessageBuffer::from_own(addr + edge, len)));
        }
        let memory = MemoryRange::heap(all.len().max(1));
        memory.write(0, &all).ok()?;
        Some((FuzzedMemory::Other(memory.clone()), MessageBuffer::from_memory(memory, edge as u64, len)))
    }

    fn free_message(&self, place: FuzzedMemory) {
        if let FuzzedMemory::Own(addr) = place {
            assert!(self.endpoint.node().memory().free(addr).is_ok());
        }
    }

    fn read_memory(&self, place: &FuzzedMemory, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = match place {
            FuzzedMemory::Own(addr) => {
                self.endpoint.node().memory().read(CopyPlace::Own(*addr), &mut bytes).is_ok()
            }
            FuzzedMemory::Other(memory) => memory.read(0, &mut bytes).is_ok(),
        };
        assert!(read);
        bytes
    }

    fn received_bytes(&self, receive: &FuzzedReceive) -> Vec<u8> {
        self.read_memory(&receive.memory, receive.len + 2 * EDGE)
    }

    /// Tests each request that has not ended.
    fn test_requests(&mut self) {
        for send in self.sends.iter_mut().filter(|send| send.end.is_none()) {
            send.end = send.request.and_then(|request| self.endpoint.test(request));
        }
        for receive in self.receives.iter_mut().filter(|receive| receive.end.is_none()) {
            receive.end = self.endpoint.test(receive.request);
        }
    }

    /// Checks the bytes that no message may change.
    fn check_untouched(&self) {
        let secret = self.read_memory(&FuzzedMemory::Own(self.secret), 4096);
        assert!(secret.iter().all(|byte| *byte == CANARY), "memory that no message uses was written");
        for receive in &self.receives {
            let bytes = self.received_bytes(receive);
            let edges = bytes[..EDGE].iter().chain(&bytes[EDGE + receive.len..]);
            assert!(edges.into_iter().all(|byte| *byte == CANARY), "bytes around a receive were written");
        }
        for sent in &self.sends {
            assert!(
                self.read_memory(&sent.memory, sent.bytes.len()) == sent.bytes,
                "a sent message was changed"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::{RandomNumbers, random_script};

    use super::*;

    #[test]
    fn random_actions_hold() {
        action_seeds().iter().for_each(|seed| fuzz_endpoints(seed));
        let mut numbers = RandomNumbers::new(23);
        for _ in 0..200 {
            let mut script = [random_script(&mut numbers, 64), vec![0; 4]].concat();
            // The script makes the endpoints meet first.
            script[1] = 5;
            fuzz_endpoints(&script);
        }
    }
}
