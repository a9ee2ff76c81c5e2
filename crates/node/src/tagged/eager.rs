//! Short messages of memory whose copies are asynchronous. A message to be sent is copied into the peer's ring and
//! published after its copy. Until then no other message is sent to that peer, so that messages stay in order. A
//! received message is copied out of the ring. Messages behind it are read meanwhile, and its cells are released
//! after the copy.

use trunkline_fabric::OobStream;
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{CopyBatch, CopyError, IpcMemory};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::tagged::TaggedMessage;

use super::copy_ahead::CopyAhead;
use super::endpoint::TaggedEndpoint;
use super::peer::TaggedPeerId;
use super::request::{
    MatchedMessage, MessageRequest, MessageStatus, ReceiveStep, SendStep, StartedReceive, StartedSend,
    TaggedRequestId,
};
use super::send::{SendRefused, TaggedSendStart};
use crate::ipc::{MessageBuffer, StageOffset};

/// A message that is being copied into a peer's ring.
#[derive(Debug)]
pub(super) struct EagerSend {
    request: SlotId,
    message: TaggedMessage,
    copy: CopyAhead,
}

/// A message that is being copied to the buffer of its receive.
#[derive(Debug)]
pub(super) struct EagerReceive {
    request: SlotId,
    matched: MatchedMessage,
    source: EagerSource,
    copy: CopyAhead,
}

/// Where the bytes of a short message are.
#[derive(Debug)]
pub(super) enum EagerSource {
    /// In the ring, with their frame at that position.
    Ring(u64),
    /// In a kept buffer: the message arrived before its receive.
    Kept(MemoryRange),
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Begins to copy a short message into the ring of a peer. The ring must have room for it, and no other such copy
    /// may be in progress.
    #[inline(never)]
    pub(super) fn send_eager_ahead(
        &mut self,
        to: TaggedPeerId,
        tag: u64,
        buffer: &MessageBuffer,
    ) -> Result<TaggedSendStart, SendRefused> {
        if self.requests.len() >= self.requests.capacity() {
            return Ok(TaggedSendStart::Busy);
        }
        let sending = StartedSend { peer: to, tag, buffer: buffer.clone(), way: SendStep::Eager };
        let Ok(request) = self.requests.insert(MessageRequest::Send(sending)) else {
            return Ok(TaggedSendStart::Busy);
        };
        if let Some(peer) = self.peers.get_mut(to.0 as usize) {
            let message = TaggedMessage::Eager { tag, len: buffer.len() as u32 };
            peer.eager_send = Some(EagerSend { request, message, copy: CopyAhead::new() });
            self.eager_copies += 1;
        }
        self.end_eager_send(to);
        match self.requests.get(request) {
            Some(MessageRequest::Ended(end)) => {
                let refused = end.is_err();
                self.requests.remove(request);
                if refused { Err(SendRefused::Outside) } else { Ok(TaggedSendStart::Done) }
            }
            _ => Ok(TaggedSendStart::Request(TaggedRequestId(request))),
        }
    }

    /// Publishes the message that is being copied into a peer's ring, if its copy has ended; returns whether it has.
    fn end_eager_send(&mut self, to: TaggedPeerId) -> bool {
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return false };
        let (Some(eager), Some(outbox)) = (&mut peer.eager_send, &mut peer.outbox) else { return false };
        let Some(MessageRequest::Send(sending)) = self.requests.get(eager.request) else { return false };
        let memory = self.node.memory();
        let len = sending.buffer.len();
        let messages = &mut outbox.messages;
        let is_ready = peer.pins[1].is_ready_for(&sending.buffer);
        let begin = |batch: &mut _| {
            if !is_ready {
                return Err(CopyError::Busy);
            }
            let fill = |done, place: StageOffset<'_>, part| {
                sending.buffer.begin_stage(memory, batch, done, place, part)
            };
            messages.fill_eager(len, fill)
        };
        if !eager.copy.advance_copy(memory, begin) {
            return false;
        }
        let done = MessageStatus { peer: to, tag: sending.tag, len };
        let Some(EagerSend { request, message, copy }) = peer.eager_send.take() else { return false };
        self.eager_copies -= 1;
        match copy.failed {
            Some(failed) => {
                messages.mark_unpublished();
                self.end_request(request, Err(failed));
            }
            None => {
                messages.publish_eager(&message.to_words(), message.cell_count());
                self.counts.eager += 1;
                self.end_request(request, Ok(done));
            }
        }
        true
    }

    /// Drops the message that is being copied into the ring of a peer that is gone; returns its batch in progress.
    pub(super) fn drop_eager_send(&mut self, to: TaggedPeerId) -> Option<CopyBatch> {
        let eager = self.peers.get_mut(to.0 as usize)?.eager_send.take()?;
        self.eager_copies -= 1;
        eager.copy.into_batch()
    }

    /// Begins to copy a short message to the buffer of its receive, and changes the receive to that state.
    #[inline(never)]
    pub(super) fn take_eager_ahead(&mut self, id: SlotId, matched: MatchedMessage, source: EagerSource) {
        if let Some(MessageRequest::Receive(StartedReceive { way, .. })) = self.requests.get_mut(id) {
            *way = ReceiveStep::Eager(matched);
        }
        let Some(peer) = self.peers.get_mut(matched.peer.0 as usize) else { return };
        peer.eager_receives.push_back(EagerReceive { request: id, matched, source, copy: CopyAhead::new() });
        self.eager_copies += 1;
        self.end_eager_receives(matched.peer);
    }

    /// Completes the receives of a peer's short messages whose copies have ended; returns whether there were any.
    fn end_eager_receives(&mut self, from: TaggedPeerId) -> bool {
        let Some(peer) = self.peers.get_mut(from.0 as usize) else { return false };
        let mut at = 0;
        let before = peer.eager_receives.len();
        while let Some(eager) = peer.eager_receives.get_mut(at) {
            let EagerReceive { request, matched, source, copy } = eager;
            let memory = self.node.memory();
            let messages = &peer.inbox.messages;
            let want = matched.want;
            let buffer = match self.requests.get(*request) {
                Some(MessageRequest::Receive(receiving)) => Some(&receiving.buffer),
                _ => None,
            };
            let begin = |batch: &mut _| match (buffer, &*source) {
                (None, _) => Ok(()),
                (Some(buffer), EagerSource::Ring(_)) if !peer.pins[0].is_ready_for(buffer) => {
                    Err(CopyError::Busy)
                }
                (Some(buffer), EagerSource::Kept(kept)) => {
                    buffer.begin_unstage(memory, batch, 0, StageOffset { memory: kept, at: 0 }, want)
                }
                (Some(buffer), EagerSource::Ring(position)) => {
                    let take = |done, place: StageOffset<'_>, part| {
                        buffer.begin_unstage(memory, batch, done, place, part)
                    };
                    messages.bytes_at(*position, want, take)
                }
            };
            if !copy.advance_copy(memory, begin) {
                if copy.is_waiting() {
                    // The kind has no room for later copies either.
                    break;
                }
                at += 1;
                continue;
            }
            let end = copy.failed.take().map_or(matched.final_result(), Err);
            let request = *request;
            peer.eager_receives.remove(at);
            self.eager_copies -= 1;
            if let Some(ended) = self.requests.get_mut(request) {
                *ended = MessageRequest::Ended(end);
            }
        }
        let in_ring = peer.eager_receives.iter().filter_map(|eager| match eager.source {
            EagerSource::Ring(position) => Some(position),
            EagerSource::Kept(_) => None,
        });
        peer.inbox.messages.keep_from(in_ring.min());
        if peer.gone && peer.eager_receives.is_empty() {
            drop(peer.pins[0].end_pin(self.node.memory()));
        }
        before != peer.eager_receives.len()
    }

    /// Polls all copies of short messages; returns whether any has ended.
    pub(super) fn end_eager_copies(&mut self) -> bool {
        let mut ended = false;
        for number in 0..self.peers.len() {
            let peer = TaggedPeerId(number as u32);
            ended |= self.end_eager_send(peer) | self.end_eager_receives(peer);
        }
        ended
    }
}
