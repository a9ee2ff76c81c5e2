//! A process's part in exchanging tagged messages: peers, requests and progress. Called by its one owner; never
//! waits.

use std::collections::VecDeque;

use trunkline_fabric::OobStream;
use trunkline_mem::SharedMemory;
use trunkline_mem::gpu::FreeCount;
use trunkline_mem::ipc::{CallFailure, IpcMemory};
use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::slots::{SlotId, SlotTable};
use trunkline_proto::tagged::{MethodChoice, TagMatcher};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::{InboxSizes, TaggedAnswer};

use super::endpoint_page::EndpointPage;
use super::peer::{InboundChannel, OutboundChannel, TaggedPeer, TaggedPeerId};
use super::pinning::InboxPin;
use super::receive::UnexpectedMessage;
use super::request::{
    MessageRequest, ReceiveStep, StartedReceive, StartedSend, TaggedFailure, TaggedRequestId,
};
use super::ring::InvalidConsumedCount;
use super::staging::AbandonedCopies;
use super::{CALLS_PER_LOOK, KEPT_MAX, MessageStatus, RECEIVES_MAX, REQUESTS_MAX, SPARE_MAX, UNSAID_MAX};
use crate::ipc::{
    ArrivalId, FreeHook, IpcNode, LeaveReason, NeighbourId, NodeConfig as Sharing, NodeEvent, NodeJoinError,
    ProtocolViolation, ReceiveOutcome,
};

/// The period of stream reads that no inbox requests: they detect the death of a peer.
const LISTEN: Duration = Duration::from_millis(1);

/// Configures an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct TaggedConfig {
    /// The configuration of its node.
    pub sharing: Sharing,
    /// The sizes of the inbox that it makes for each peer.
    pub inbox: InboxSizes,
    /// The choice of the copy method for long messages.
    pub copy: MethodChoice,
}

/// Counts the messages of an endpoint. Its node has further counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TaggedCounts {
    /// Messages that were sent as a whole through a ring.
    pub eager: u64,
    /// Messages that this process copied directly: the sum of the two counts below.
    pub mapped: u64,
    /// Messages that it copied as their receiver.
    pub by_receiver: u64,
    /// Messages that it copied as their sender.
    pub by_sender: u64,
    /// Messages that this process sent in pieces.
    pub staged: u64,
    /// Those among `staged` that were meant to be copied directly: memory was not exported, mapped or copied, here or
    /// by the receiver.
    pub fallbacks: u64,
    /// Messages that arrived before their receives.
    pub early: u64,
}

/// Something that happened in an endpoint.
#[derive(Debug)]
pub enum TaggedEvent {
    /// From now on messages can be sent to this peer.
    Met {
        /// The peer.
        peer: TaggedPeerId,
        /// The random name of its process.
        process: [u8; 16],
    },
    /// A peer is gone. Messages that it sent completely can still be received; all its other messages have failed.
    Left {
        /// The peer.
        peer: TaggedPeerId,
        /// The reason.
        why: LeaveReason,
    },
}

/// Why a peer cannot join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoEndpoint {
    /// The memory for its inbox cannot be allocated.
    #[error("cannot allocate an inbox: {0}")]
    Inbox(#[from] CallFailure),
    /// The system has no memory for the tables.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The node rejects it.
    #[error(transparent)]
    Join(#[from] NodeJoinError),
}

/// A process's part in exchanging messages. It has one owner, which calls [`TaggedEndpoint::progress`] repeatedly.
#[derive(Debug)]
pub struct TaggedEndpoint<M, S> {
    pub(super) node: IpcNode<M, S>,
    inbox: InboxSizes,
    pub(super) peers: Vec<TaggedPeer>,
    /// Processes whose HELLO has arrived, but not their inbox.
    greeted: Vec<(NeighbourId, [u8; 16])>,
    pub(super) requests: SlotTable<MessageRequest>,
    pub(super) matcher: TagMatcher<SlotId, UnexpectedMessage>,
    /// Direct copies in progress, with their requests.
    pub(super) copies: Vec<(ArrivalId, SlotId)>,
    pub(super) spare: Vec<Vec<u8>>,
    events: VecDeque<TaggedEvent>,
    pub(super) counts: TaggedCounts,
    pub(super) now: Instant,
    /// The status page, if it is published.
    pub(super) shown: Option<EndpointPage>,
    pub(super) hook: FreeHook,
    /// A preloaded library's count of GPU memory frees.
    pub(super) free_count: Option<FreeCount>,
    pub(super) choice: MethodChoice,
    /// Whether neighbours can map memory of this kind.
    pub(super) maps: bool,
    /// Whether all memory is of this kind.
    pub(super) everything: bool,
    /// Messages that are being timed.
    pub(super) timed: usize,
    /// Pieces that are being copied out of inboxes.
    pub(super) unstaging: usize,
    /// Short messages that are being copied into rings, or to their receives.
    pub(super) eager_copies: usize,
    /// Peers that are gone; their event is deferred until the copies out of their inboxes have ended.
    pub(super) deferred: Vec<(NeighbourId, LeaveReason)>,
    pub(super) abandoned: Vec<AbandonedCopies>,
    listen: Instant,
    calls: u32,
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Creates an endpoint that shares memory of that kind and has no peers yet.
    #[must_use]
    pub fn new(memory: M, config: TaggedConfig, now: Instant) -> Self {
        let maps = memory.caps().maps;
        let everything = memory.is_everything();
        Self {
            node: IpcNode::new(memory, config.sharing),
            inbox: config.inbox,
            peers: Vec::new(),
            greeted: Vec::new(),
            requests: SlotTable::new(REQUESTS_MAX),
            matcher: TagMatcher::new(RECEIVES_MAX, KEPT_MAX),
            copies: Vec::new(),
            spare: Vec::with_capacity(SPARE_MAX),
            events: VecDeque::new(),
            counts: TaggedCounts::default(),
            now,
            shown: None,
            hook: FreeHook::default(),
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

    /// Adds a peer, over a stream on which nothing was sent yet. Messages can be sent to it after
    /// [`TaggedEvent::Met`].
    ///
    /// # Errors
    /// [`NoEndpoint`].
    pub fn join_peer(&mut self, stream: S) -> Result<TaggedPeerId, NoEndpoint> {
        // Allocate before the node takes the stream: on failure the stream returns with the error.
        try_grow(&mut self.peers, 1)?;
        self.matcher.grow_sources(self.peers.len() + 1)?;
        let shared = SharedMemory::new("trunkline.inbox", self.inbox.file_bytes() as usize)?;
        let file = shared.descriptor()?;
        let neighbour = self.node.join_neighbour(stream)?;
        self.node.give_inbox(neighbour, self.inbox, file);
        let id = TaggedPeerId(self.peers.len() as u32);
        let inbox_pin = InboxPin::request_pin(self.node.memory(), shared.memory().clone());
        let pins = [inbox_pin, InboxPin::Settled(None)];
        self.peers.push(TaggedPeer {
            neighbour,
            inbox: InboundChannel::new(self.inbox, &shared),
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

    /// Does a bounded part of the pending work; returns whether anything happened. If not, the caller may rest.
    #[inline]
    pub fn progress(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut moved = false;
        for number in 0..self.peers.len() {
            let id = TaggedPeerId(number as u32);
            moved |= self.read_messages(id);
            moved |= self.read_answers(id);
            moved |= self.send_pieces(id);
        }
        if self.eager_copies > 0 {
            moved |= self.end_eager_copies();
        }
        if self.timed > 0 {
            self.poll_stages();
        }
        if self.unstaging > 0 {
            moved |= self.end_all_unstaging();
        }
        if self.node.is_copying() {
            moved |= self.node.copy_arrivals();
            moved |= self.take_notices();
        }
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS_PER_LOOK) {
            moved |= self.poll_streams(now);
        }
        moved
    }

    /// Polls the slow sources: the streams, and the housekeeping of the node.
    #[inline(never)]
    fn poll_streams(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for number in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(number) else { break };
            if peer.inbox.take_frames_flag() {
                let neighbour = peer.neighbour;
                moved |= self.node.receive_messages_from(neighbour, now);
            }
            moved |= self.send_deferred_answers(TaggedPeerId(number as u32));
        }
        if now >= self.listen {
            self.listen = now + LISTEN;
            moved |= self.poll_frees_and_page() | self.node.progress(now);
        } else {
            moved |= self.node.run_housekeeping(now);
        }
        moved |= self.take_notices();
        if !self.abandoned.is_empty() {
            self.end_abandoned();
        }
        for peer in &mut self.peers {
            for pin in &mut peer.pins {
                moved |= pin.poll_pin(self.node.memory());
            }
            let said = self.node.sent_frames(peer.neighbour);
            peer.outbox.iter_mut().for_each(|outbox| outbox.publish_frame_count(said));
        }
        moved
    }

    /// Returns the next event, in the order in which they happened.
    pub fn next_event(&mut self) -> Option<TaggedEvent> {
        self.events.pop_front()
    }

    /// Returns the result of a request, if it has ended, and frees the request.
    #[inline]
    pub fn test(&mut self, request: TaggedRequestId) -> Option<Result<MessageStatus, TaggedFailure>> {
        match self.requests.get(request.0) {
            Some(MessageRequest::Ended(_)) => {}
            Some(_) => return None,
            None => return Some(Err(TaggedFailure::Cancelled)),
        }
        match self.requests.remove(request.0) {
            Some(MessageRequest::Ended(end)) => Some(end),
            _ => None,
        }
    }

    /// Whether a peer is gone.
    #[must_use]
    pub fn is_gone(&self, peer: TaggedPeerId) -> bool {
        self.peers.get(peer.0 as usize).is_none_or(|peer| peer.gone)
    }

    /// Returns the id of a peer in [`TaggedEndpoint::node`].
    #[must_use]
    pub fn neighbour_of(&self, peer: TaggedPeerId) -> Option<NeighbourId> {
        self.peers.get(peer.0 as usize).map(|peer| peer.neighbour)
    }

    /// Returns the peer of a neighbour of the node.
    #[must_use]
    pub fn find_peer(&self, neighbour: NeighbourId) -> Option<TaggedPeerId> {
        let at = self.peers.iter().position(|peer| peer.neighbour == neighbour)?;
        Some(TaggedPeerId(at as u32))
    }

    /// Returns the node, which shares the memory.
    pub const fn node(&self) -> &IpcNode<M, S> {
        &self.node
    }

    /// Returns the node, to change its limits.
    pub const fn node_mut(&mut self) -> &mut IpcNode<M, S> {
        &mut self.node
    }

    /// Returns the counts.
    #[must_use]
    pub const fn counts(&self) -> TaggedCounts {
        self.counts
    }

    /// Rejects a peer: it counts as gone from now on.
    pub fn refuse_peer(&mut self, peer: TaggedPeerId) {
        if let Some(peer) = self.peers.get(peer.0 as usize) {
            self.node.report_violation(peer.neighbour, ProtocolViolation::Stranger);
        }
    }

    /// Stops sharing and notifies the peers, after the messages that were sent. Continues in
    /// [`TaggedEndpoint::progress`] until [`TaggedEndpoint::is_closed`].
    pub fn close(&mut self, now: Instant) {
        self.node.close(now);
    }

    /// Whether the node is closed: no neighbours, exports or mappings are left.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.node.is_closed()
    }

    fn take_notices(&mut self) -> bool {
        let mut taken = false;
        while let Some(notice) = self.node.next_event() {
            taken = true;
            match notice {
                NodeEvent::Met { neighbour, process } => self.greeted.push((neighbour, process)),
                NodeEvent::Inbox { neighbour, inbox, file } => {
                    if let Some(peer) = self.peer_of(neighbour) {
                        self.open_outbox(peer, inbox, &file);
                    }
                }
                NodeEvent::Received { arrival, receipt } => self.finish_copy(arrival, receipt),
                // Peers of an endpoint never send messages by the node's stream.
                NodeEvent::Arrived { arrival, .. } => _ = self.node.refuse_arrival(arrival),
                NodeEvent::Sent { .. } => {}
                NodeEvent::Left { neighbour, why } => self.lose_peer(neighbour, why),
            }
        }
        taken
    }

    fn peer_of(&self, neighbour: NeighbourId) -> Option<TaggedPeerId> {
        let at = self.peers.iter().position(|peer| peer.neighbour == neighbour && !peer.gone)?;
        Some(TaggedPeerId(at as u32))
    }

    /// Maps the inbox that a peer has made for this process.
    fn open_outbox(&mut self, id: TaggedPeerId, inbox: InboxSizes, file: &std::os::fd::OwnedFd) {
        let Some(peer) = self.peers.get_mut(id.0 as usize) else { return };
        let neighbour = peer.neighbour;
        match SharedMemory::map_peer(file, inbox.file_bytes()) {
            Ok(memory) => {
                peer.pins[1] = InboxPin::request_pin(self.node.memory(), memory.clone());
                peer.outbox = Some(OutboundChannel::new(inbox, memory));
                let at = self.greeted.iter().position(|(of, _)| *of == neighbour);
                if let Some((_, process)) = at.map(|at| self.greeted.swap_remove(at)) {
                    self.events.push_back(TaggedEvent::Met { peer: id, process });
                }
            }
            Err(_) => self.node.report_violation(neighbour, ProtocolViolation::Descriptor),
        }
    }

    /// Handles the end of a direct copy.
    fn finish_copy(&mut self, arrival: ArrivalId, receipt: ReceiveOutcome) {
        let Some(at) = self.copies.iter().position(|(of, _)| *of == arrival) else { return };
        let (_, request) = self.copies.swap_remove(at);
        match self.requests.get(request) {
            Some(MessageRequest::Send(_)) => self.finish_placing(request, &receipt),
            Some(MessageRequest::Receive(_)) => self.finish_fetching(request, &receipt),
            Some(MessageRequest::Ended(_)) | None => {}
        }
    }

    /// Ends a peer that is gone: messages that it sent completely are read, and all its other messages fail.
    pub(super) fn lose_peer(&mut self, neighbour: NeighbourId, why: LeaveReason) {
        let Some(id) = self.peer_of(neighbour) else { return };
        let is_copied = self.peers.get(id.0 as usize).is_some_and(|peer| !peer.unstaging.is_empty());
        if is_copied {
            return self.deferred.push((neighbour, why));
        }
        if let Some(peer) = self.peers.get_mut(id.0 as usize) {
            (peer.gone, peer.outbox) = (true, None);
            peer.unsaid.clear();
            peer.pieces.clear();
        }
        self.forget_learned(id);
        self.greeted.retain(|(of, _)| *of != neighbour);
        while self.read_message(id) {}
        self.abandon_copies(id);
        let with = |request: &MessageRequest| match request {
            MessageRequest::Send(StartedSend { peer, .. }) => *peer == id,
            // Its whole message has arrived.
            MessageRequest::Receive(StartedReceive { way: ReceiveStep::Eager(_), .. }) => false,
            MessageRequest::Receive(receive) => receive.way.matched_peer() == Some(id),
            MessageRequest::Ended(_) => false,
        };
        for (_, request) in self.requests.iter_mut().filter(|(_, request)| with(request)) {
            *request = MessageRequest::Ended(Err(TaggedFailure::Gone));
        }
        while let Some(request) = self.matcher.take_orphan(id.0) {
            self.end_request(request, Err(TaggedFailure::Gone));
        }
        self.events.push_back(TaggedEvent::Left { peer: id, why });
    }

    #[inline]
    pub(super) fn end_request(&mut self, request: SlotId, end: Result<MessageStatus, TaggedFailure>) {
        if let Some(request) = self.requests.get_mut(request) {
            *request = MessageRequest::Ended(end);
        }
    }

    /// Sends a reply, now or as soon as there is room.
    #[inline]
    pub(super) fn send_answer(&mut self, to: TaggedPeerId, answer: TaggedAnswer) {
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return };
        let Some(outbox) = &mut peer.outbox else { return };
        let said = if peer.unsaid.is_empty() { outbox.push_answer(&answer) } else { Ok(false) };
        match said {
            Ok(true) => {}
            Ok(false) if peer.unsaid.len() < UNSAID_MAX => peer.unsaid.push_back(answer),
            Ok(false) | Err(InvalidConsumedCount) => self.report_violation(to),
        }
    }

    fn send_deferred_answers(&mut self, to: TaggedPeerId) -> bool {
        let mut moved = false;
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return false };
        while let (Some(answer), Some(outbox)) = (peer.unsaid.front(), &mut peer.outbox) {
            match outbox.push_answer(answer) {
                Ok(true) => _ = peer.unsaid.pop_front(),
                Ok(false) => break,
                Err(InvalidConsumedCount) => {
                    self.report_violation(to);
                    return true;
                }
            }
            moved = true;
        }
        moved
    }

    /// Marks a peer that violated the protocol.
    pub(super) fn report_violation(&mut self, peer: TaggedPeerId) {
        if let Some(peer) = self.peers.get_mut(peer.0 as usize) {
            peer.outbox = None;
            self.node.report_violation(peer.neighbour, ProtocolViolation::Cell);
        }
    }
}
