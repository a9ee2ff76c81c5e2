//! A process's part in exchanging messages.

use std::collections::VecDeque;

use trunkline_fabric::OobStream;
use trunkline_mem::Shared;
use trunkline_mem::gpu::FreeCount;
use trunkline_mem::ipc::{Cause, IpcMemory};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::slots::{SlotId, Slots};
use trunkline_proto::tagged::{Choice, Matcher};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::{Answer, Inbox};

use super::peer::{Inward, Outward, Peer, PeerId};
use super::pinning::InboxPin;
use super::receive::Kept;
use super::request::{Failed, Got, Receiving, Request, RequestId, Sending};
use super::ring::NeverThere;
use super::shown::Shown;
use super::staging::AbandonedCopies;
use super::{CALLS_PER_LOOK, Done, KEPT_MAX, RECEIVES_MAX, REQUESTS_MAX, SPARE_MAX, UNSAID_MAX};
use crate::ipc::{
    ArrivalId, Broken, Config as Sharing, Hook, JoinError, Leave, Neighbour, Node, Notice, Receipt,
};

/// How often the streams are read when nothing says that they have something: so a death is heard.
const LISTEN: Duration = Duration::millis(1);

/// What an endpoint may do.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How its memory is shared.
    pub sharing: Sharing,
    /// How large the inbox is that it makes for each peer.
    pub inbox: Inbox,
    /// Who copies long messages.
    pub copy: Choice,
}

/// What an endpoint has done, besides what its node counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Messages that went whole through a ring.
    pub eager: u64,
    /// Messages that this process copied in one go: as many as the two below.
    pub mapped: u64,
    /// Those that it copied as their receiver.
    pub by_receiver: u64,
    /// Those that it copied as their sender.
    pub by_sender: u64,
    /// Messages that this process sent in pieces.
    pub staged: u64,
    /// Of them those that should have been copied in one go: memory was not exported, mapped or copied, here or by the receiver.
    pub fallbacks: u64,
    /// Messages that came before their receives.
    pub early: u64,
}

/// Something has happened.
#[derive(Debug)]
pub enum Event {
    /// A peer can be sent to from now on.
    Met {
        /// Which.
        peer: PeerId,
        /// The random name of its process.
        process: [u8; 16],
    },
    /// A peer is gone. What it sent whole can still be received; everything else with it has failed.
    Left {
        /// Which.
        peer: PeerId,
        /// Why.
        why: Leave,
    },
}

/// A peer cannot join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoEndpoint {
    /// The memory that its messages would come to.
    #[error("no memory for an inbox: {0}")]
    Inbox(#[from] Cause),
    /// The system has no memory for its tables.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The node does not take it.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// A process's part in exchanging messages. Has one owner, who calls [`Endpoint::progress`] again and again.
#[derive(Debug)]
pub struct Endpoint<M, S> {
    pub(super) node: Node<M, S>,
    inbox: Inbox,
    pub(super) peers: Vec<Peer>,
    /// Processes that have said who they are and not yet where they read.
    greeted: Vec<(Neighbour, [u8; 16])>,
    pub(super) requests: Slots<Request>,
    pub(super) matcher: Matcher<SlotId, Kept>,
    /// What is copied in one go, and for which request.
    pub(super) copies: Vec<(ArrivalId, SlotId)>,
    pub(super) spare: Vec<Vec<u8>>,
    events: VecDeque<Event>,
    pub(super) counts: Counts,
    pub(super) now: Instant,
    pub(super) mutant: Mutant,
    /// What others see of it, if they are to.
    pub(super) shown: Option<Shown>,
    pub(super) hook: Hook,
    /// Frees of GPU memory that a preloaded library counts.
    pub(super) free_count: Option<FreeCount>,
    pub(super) choice: Choice,
    /// Whether others map memory of this kind.
    pub(super) maps: bool,
    /// Whether all memory is of this kind.
    pub(super) everything: bool,
    /// Messages whose time is taken.
    pub(super) timed: usize,
    /// Pieces that are copied out of inboxes.
    pub(super) unstaging: usize,
    /// Short messages that are copied into rings, and out of them or from where they are kept.
    pub(super) eager_copies: usize,
    /// Peers that are gone, and are told as gone behind those copies.
    pub(super) deferred: Vec<(Neighbour, Leave)>,
    pub(super) abandoned: Vec<AbandonedCopies>,
    listen: Instant,
    calls: u32,
}

impl<M: IpcMemory, S: OobStream> Endpoint<M, S> {
    /// One that shares that kind of memory, with nobody yet.
    #[must_use]
    pub fn new(memory: M, config: Config, now: Instant) -> Self {
        let maps = memory.caps().maps;
        let everything = memory.is_everything();
        Self {
            node: Node::new(memory, config.sharing),
            inbox: config.inbox,
            peers: Vec::new(),
            greeted: Vec::new(),
            requests: Slots::new(REQUESTS_MAX),
            matcher: Matcher::new(RECEIVES_MAX, KEPT_MAX, config.sharing.mutant),
            copies: Vec::new(),
            spare: Vec::with_capacity(SPARE_MAX),
            events: VecDeque::new(),
            counts: Counts::default(),
            now,
            mutant: config.sharing.mutant,
            shown: None,
            hook: Hook::default(),
            free_count: None,
            choice: config.copy,
            maps,
            everything,
            timed: 0,
            unstaging: 0,
            eager_copies: 0,
            deferred: Vec::new(),
            abandoned: Vec::new(),
            listen: now,
            calls: 0,
        }
    }

    /// A further process, over a stream that nothing was said on. It can be sent to once it is [`Event::Met`].
    ///
    /// # Errors
    /// [`NoEndpoint`].
    pub fn join(&mut self, stream: S) -> Result<PeerId, NoEndpoint> {
        // Memory first: the stream is given back with the error.
        try_grow(&mut self.peers, 1)?;
        self.matcher.grow(self.peers.len() + 1)?;
        let shared = Shared::new("trunkline.inbox", self.inbox.bytes() as usize)?;
        let file = shared.descriptor()?;
        let neighbour = self.node.join(stream)?;
        self.node.give_inbox(neighbour, self.inbox, file);
        let id = PeerId(self.peers.len() as u32);
        let inbox_pin = InboxPin::request_pin(self.node.memory(), shared.memory().clone());
        let pins = [inbox_pin, InboxPin::Settled(None)];
        self.peers.push(Peer {
            neighbour,
            inbox: Inward::new(self.inbox, &shared),
            outbox: None,
            gone: false,
            unsaid: VecDeque::new(),
            pieces: VecDeque::new(),
            staging: VecDeque::new(),
            unstaging: VecDeque::new(),
            eager_send: None,
            eager_receives: VecDeque::new(),
            pins,
            learned: None,
        });
        Ok(id)
    }

    /// Does what there is to do, a bounded part of it; whether anything happened. If not, whoever waits may rest.
    #[inline]
    pub fn progress(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut moved = false;
        for number in 0..self.peers.len() {
            let id = PeerId(number as u32);
            moved |= self.read_messages(id);
            moved |= self.read_answers(id);
            moved |= self.send_pieces(id);
        }
        if self.eager_copies > 0 {
            moved |= self.end_eager_copies();
        }
        if self.timed > 0 {
            self.look_at_stages();
        }
        if self.unstaging > 0 {
            moved |= self.end_all_unstaging();
        }
        if self.node.is_copying() {
            moved |= self.node.copy();
            moved |= self.take_notices();
        }
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS_PER_LOOK) {
            moved |= self.look(now);
        }
        moved
    }

    /// Looks at what comes seldom: the streams, and what the node does by itself.
    #[inline(never)]
    fn look(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for number in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(number) else { break };
            if peer.inbox.has_news() {
                let neighbour = peer.neighbour;
                moved |= self.node.hear_from(neighbour, now);
            }
            moved |= self.say_unsaid(PeerId(number as u32));
        }
        if now >= self.listen {
            self.listen = now + LISTEN;
            moved |= self.look_beside() | self.node.progress(now);
        } else {
            moved |= self.node.attend(now);
        }
        moved |= self.take_notices();
        if !self.abandoned.is_empty() {
            self.end_abandoned();
        }
        for peer in &mut self.peers {
            for pin in &mut peer.pins {
                moved |= pin.poll_pin(self.node.memory());
            }
            let said = self.node.said(peer.neighbour);
            peer.outbox.iter_mut().for_each(|outbox| outbox.told(said));
        }
        moved
    }

    /// What has happened, in order.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How a message ended, if it has; its request is over then.
    #[inline]
    pub fn test(&mut self, request: RequestId) -> Option<Result<Done, Failed>> {
        match self.requests.get(request.0) {
            Some(Request::Ended(_)) => {}
            Some(_) => return None,
            None => return Some(Err(Failed::Cancelled)),
        }
        match self.requests.remove(request.0) {
            Some(Request::Ended(end)) => Some(end),
            _ => None,
        }
    }

    /// Whether a peer is gone.
    #[must_use]
    pub fn is_gone(&self, peer: PeerId) -> bool {
        self.peers.get(peer.0 as usize).is_none_or(|peer| peer.gone)
    }

    /// What a peer is called in [`Endpoint::node`].
    #[must_use]
    pub fn neighbour(&self, peer: PeerId) -> Option<Neighbour> {
        self.peers.get(peer.0 as usize).map(|peer| peer.neighbour)
    }

    /// Which peer a neighbour of the node is.
    #[must_use]
    pub fn peer(&self, neighbour: Neighbour) -> Option<PeerId> {
        let at = self.peers.iter().position(|peer| peer.neighbour == neighbour)?;
        Some(PeerId(at as u32))
    }

    /// The memory, and what is shared of it.
    pub const fn node(&self) -> &Node<M, S> {
        &self.node
    }

    /// The same, to change what may be kept.
    pub const fn node_mut(&mut self) -> &mut Node<M, S> {
        &mut self.node
    }

    /// What has been done.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// A peer is not wanted: it counts as gone from now on.
    pub fn refuse(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.get(peer.0 as usize) {
            self.node.break_off(peer.neighbour, Broken::Stranger);
        }
    }

    /// Shares nothing any more and tells so, once what was sent is done with. Goes on in [`Endpoint::progress`] until
    /// [`Endpoint::is_closed`].
    pub fn close(&mut self, now: Instant) {
        self.node.close(now);
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.node.is_closed()
    }

    fn take_notices(&mut self) -> bool {
        let mut taken = false;
        while let Some(notice) = self.node.notice() {
            taken = true;
            match notice {
                Notice::Met { neighbour, process } => self.greeted.push((neighbour, process)),
                Notice::Inbox { neighbour, inbox, file } => {
                    if let Some(peer) = self.peer_of(neighbour) {
                        self.open(peer, inbox, &file);
                    }
                }
                Notice::Received { arrival, receipt } => self.copied(arrival, receipt),
                // Whoever speaks to this endpoint sends no messages by the node's stream.
                Notice::Arrived { arrival, .. } => _ = self.node.refuse(arrival),
                Notice::Sent { .. } => {}
                Notice::Left { neighbour, why } => self.left(neighbour, why),
            }
        }
        taken
    }

    fn peer_of(&self, neighbour: Neighbour) -> Option<PeerId> {
        let at = self.peers.iter().position(|peer| peer.neighbour == neighbour && !peer.gone)?;
        Some(PeerId(at as u32))
    }

    /// A peer has said where it reads.
    fn open(&mut self, id: PeerId, inbox: Inbox, file: &std::os::fd::OwnedFd) {
        let Some(peer) = self.peers.get_mut(id.0 as usize) else { return };
        let neighbour = peer.neighbour;
        match Shared::map(file, inbox.bytes()) {
            Ok(memory) => {
                peer.pins[1] = InboxPin::request_pin(self.node.memory(), memory.clone());
                peer.outbox = Some(Outward::new(inbox, memory, self.mutant));
                let at = self.greeted.iter().position(|(of, _)| *of == neighbour);
                if let Some((_, process)) = at.map(|at| self.greeted.swap_remove(at)) {
                    self.events.push_back(Event::Met { peer: id, process });
                }
            }
            Err(_) => self.node.break_off(neighbour, Broken::Descriptor),
        }
    }

    /// What was copied in one go has ended.
    fn copied(&mut self, arrival: ArrivalId, receipt: Receipt) {
        let Some(at) = self.copies.iter().position(|(of, _)| *of == arrival) else { return };
        let (_, request) = self.copies.swap_remove(at);
        match self.requests.get(request) {
            Some(Request::Send(_)) => self.placed(request, &receipt),
            Some(Request::Receive(_)) => self.fetched(request, &receipt),
            Some(Request::Ended(_)) | None => {}
        }
    }

    /// A peer is gone: what it sent whole is taken in, and everything else with it fails.
    pub(super) fn left(&mut self, neighbour: Neighbour, why: Leave) {
        let Some(id) = self.peer_of(neighbour) else { return };
        let is_copied = self.peers.get(id.0 as usize).is_some_and(|peer| !peer.unstaging.is_empty());
        if is_copied && !self.mutant.is("tagged-gives-back-under-copies") {
            return self.deferred.push((neighbour, why));
        }
        if let Some(peer) = self.peers.get_mut(id.0 as usize) {
            (peer.gone, peer.outbox) = (true, None);
            peer.unsaid.clear();
            peer.pieces.clear();
        }
        self.unlearn(id);
        self.greeted.retain(|(of, _)| *of != neighbour);
        while self.read_message(id) {}
        self.abandon_copies(id);
        let with = |request: &Request| match request {
            _ if self.mutant.is("tagged-forgets-the-dead") => false,
            Request::Send(Sending { peer, .. }) => *peer == id,
            // All of its message is here.
            Request::Receive(Receiving { way: Got::Eager(_), .. }) => false,
            Request::Receive(receive) => receive.way.peer() == Some(id),
            Request::Ended(_) => false,
        };
        for (_, request) in self.requests.iter_mut().filter(|(_, request)| with(request)) {
            *request = Request::Ended(Err(Failed::Gone));
        }
        while let Some(request) = self.matcher.orphan(id.0) {
            self.end(request, Err(Failed::Gone));
        }
        self.events.push_back(Event::Left { peer: id, why });
    }

    #[inline]
    pub(super) fn end(&mut self, request: SlotId, end: Result<Done, Failed>) {
        if let Some(request) = self.requests.get_mut(request) {
            *request = Request::Ended(end);
        }
    }

    /// Says an answer, now or as soon as there is room.
    #[inline]
    pub(super) fn say(&mut self, to: PeerId, answer: Answer) {
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return };
        let Some(outbox) = &mut peer.outbox else { return };
        let said = if peer.unsaid.is_empty() { outbox.say(&answer) } else { Ok(false) };
        match said {
            Ok(true) => {}
            Ok(false) if peer.unsaid.len() < UNSAID_MAX || self.mutant.is("tagged-waits-for-the-deaf") => {
                peer.unsaid.push_back(answer);
            }
            Ok(false) | Err(NeverThere) => self.broken(to),
        }
    }

    fn say_unsaid(&mut self, to: PeerId) -> bool {
        let mut moved = false;
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return false };
        while let (Some(answer), Some(outbox)) = (peer.unsaid.front(), &mut peer.outbox) {
            match outbox.say(answer) {
                Ok(true) => _ = peer.unsaid.pop_front(),
                Ok(false) => break,
                Err(NeverThere) => {
                    self.broken(to);
                    return true;
                }
            }
            moved = true;
        }
        moved
    }

    /// A peer did what cannot be.
    pub(super) fn broken(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.get_mut(peer.0 as usize) {
            peer.outbox = None;
            self.node.break_off(peer.neighbour, Broken::Cell);
        }
    }
}
