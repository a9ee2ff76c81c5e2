//! Sends messages. The owner begins a send; the receiver's replies continue it.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::{CopyMethod, MemoryReach, MethodChoice, SendMethod, StridedRows, is_eager};
use trunkline_proto::wire::ipc::{CopyOutcome, ExportReference};
use trunkline_proto::wire::tagged::{TaggedAnswer, TaggedMessage};

use super::copy_ahead::is_copied_ahead;
use super::endpoint::TaggedEndpoint;
use super::learned::MethodOutcome;
use super::peer::TaggedPeerId;
use super::request::{MessageRequest, MessageStatus, SendStep, StartedSend, TaggedFailure, TaggedRequestId};
use super::ring::InvalidConsumedCount;
use super::{PIECE, PIECES_PER_CALL};
use crate::ipc::{MessageBuffer, ReceiveOutcome, ReferenceStart, SendError, SendRequest, StageOffset};

/// How a send has started.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum TaggedSendStart {
    /// The message was sent; its memory may be written.
    Done,
    /// The memory must not change until [`TaggedEndpoint::test`] returns the result.
    Request(TaggedRequestId),
    /// Nothing was sent, for lack of room: call again, after [`TaggedEndpoint::progress`].
    Busy,
}

/// A message cannot be sent; the call changed nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefused {
    /// The peer is unknown, or gone.
    #[error("cannot send: the peer is unknown, or has left or died")]
    Gone,
    /// The bytes are not all allocated, or not in one allocation.
    #[error("cannot send: the bytes of the buffer are not all in one allocation")]
    Outside,
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// The address of a buffer, if neighbours could access it.
    pub(super) fn address_of(&self, buffer: &MessageBuffer) -> Option<usize> {
        if self.everything { buffer.host_address() } else { buffer.own_address() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`SendRefused`].
    #[inline]
    pub fn send(
        &mut self,
        to: TaggedPeerId,
        tag: u64,
        buffer: &MessageBuffer,
    ) -> Result<TaggedSendStart, SendRefused> {
        let len = buffer.len();
        if is_eager(len) {
            let node = &self.node;
            let fill = |offset, there: StageOffset<'_>, len| {
                buffer.copy_to_stage(node.memory(), offset, there, len).map_err(|_| SendRefused::Outside)
            };
            let peer =
                self.peers.get_mut(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
            let is_blocked = peer.eager_send.is_some();
            let Some(outbox) = peer.outbox.as_mut().filter(|_| !is_blocked) else {
                return Ok(TaggedSendStart::Busy);
            };
            let message = TaggedMessage::Eager { tag, len: len as u32 };
            let cells = message.cell_count();
            if cells <= outbox.eager_cells() {
                return match outbox.messages.has_room(cells) {
                    Ok(true) if is_copied_ahead(node.memory(), buffer) => {
                        self.send_eager_ahead(to, tag, buffer)
                    }
                    Ok(true) => {
                        outbox.messages.push_eager(&message.to_words(), len, cells, fill)?;
                        self.counts.eager += 1;
                        Ok(TaggedSendStart::Done)
                    }
                    Ok(false) => Ok(TaggedSendStart::Busy),
                    Err(InvalidConsumedCount) => {
                        self.report_violation(to);
                        Err(SendRefused::Gone)
                    }
                };
            }
        }
        self.send_long(to, tag, buffer, self.choice)
    }

    /// Sends a message that its receiver copies, if it is a long message of mappable memory. The configured choice
    /// does not apply, and nothing is learned from the message.
    ///
    /// # Errors
    /// [`SendRefused`].
    pub fn send_to_be_read(
        &mut self,
        to: TaggedPeerId,
        tag: u64,
        buffer: &MessageBuffer,
    ) -> Result<TaggedSendStart, SendRefused> {
        if is_eager(buffer.len()) {
            return self.send(to, tag, buffer);
        }
        self.send_long(to, tag, buffer, MethodChoice::Fixed(CopyMethod::Pull))
    }

    /// Whether peers could read a buffer: its memory is mappable and exported; the call exports it if needed. `None`:
    /// call again, after [`TaggedEndpoint::progress`]. `peer` may be any peer; a new export is announced to it.
    ///
    /// # Errors
    /// [`SendRefused`].
    pub fn is_readable(
        &mut self,
        peer: TaggedPeerId,
        buffer: &MessageBuffer,
    ) -> Result<Option<bool>, SendRefused> {
        let known = self.peers.get(peer.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let neighbour = known.neighbour;
        let span = buffer.rows().spanned_bytes(buffer.len()).filter(|_| self.maps && !buffer.is_empty());
        let Some((addr, span)) = self.address_of(buffer).zip(span) else { return Ok(Some(false)) };
        if !buffer.is_there(self.node.memory()) {
            return Err(SendRefused::Outside);
        }
        match self.node.make_reference(
            neighbour,
            &SendRequest { addr, len: span as usize, passing: false },
            self.now,
        ) {
            Ok(ReferenceStart::Refer(operation, _)) => {
                // The operation was never sent, so it ends here.
                self.node.finish_operation(operation, CopyOutcome::Ended, self.now);
                Ok(Some(true))
            }
            Ok(ReferenceStart::Busy) => Ok(None),
            Ok(ReferenceStart::Elsewhere(_)) => Ok(Some(false)),
            Err(SendError::Gone) => Err(SendRefused::Gone),
            Err(_) => Err(SendRefused::Outside),
        }
    }

    /// Sends a short message from a slice. The bytes are copied before the call returns.
    ///
    /// # Errors
    /// [`SendRefused`]; `Outside` if there are more bytes than
    /// [`EAGER_MAX`](trunkline_proto::wire::tagged::EAGER_MAX).
    #[inline]
    pub fn send_bytes(
        &mut self,
        to: TaggedPeerId,
        tag: u64,
        bytes: &[u8],
    ) -> Result<TaggedSendStart, SendRefused> {
        let len = bytes.len() as u64;
        if !is_eager(len) {
            return Err(SendRefused::Outside);
        }
        let peer = self.peers.get_mut(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let is_blocked = peer.eager_send.is_some();
        let Some(outbox) = peer.outbox.as_mut().filter(|_| !is_blocked) else {
            return Ok(TaggedSendStart::Busy);
        };
        let message = TaggedMessage::Eager { tag, len: len as u32 };
        let cells = message.cell_count();
        if cells > outbox.eager_cells() {
            return Err(SendRefused::Outside);
        }
        match outbox.messages.has_room(cells) {
            Ok(true) => {}
            Ok(false) => return Ok(TaggedSendStart::Busy),
            Err(InvalidConsumedCount) => {
                self.report_violation(to);
                return Err(SendRefused::Gone);
            }
        }
        let fill = |offset: u64, to: StageOffset<'_>, len: u64| {
            let part = bytes.get(offset as usize..(offset + len) as usize).unwrap_or_default();
            to.memory.write(to.at, part).map_err(|_| SendRefused::Outside)
        };
        outbox.messages.push_eager(&message.to_words(), len, cells, fill)?;
        self.counts.eager += 1;
        Ok(TaggedSendStart::Done)
    }

    #[inline(never)]
    fn send_long(
        &mut self,
        to: TaggedPeerId,
        tag: u64,
        buffer: &MessageBuffer,
        choice: MethodChoice,
    ) -> Result<TaggedSendStart, SendRefused> {
        let peer = self.peers.get_mut(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let neighbour = peer.neighbour;
        let is_blocked = peer.eager_send.is_some();
        let Some(outbox) = peer.outbox.as_mut().filter(|_| !is_blocked) else {
            return Ok(TaggedSendStart::Busy);
        };
        match outbox.messages.has_room(1) {
            Ok(true) if self.requests.len() < self.requests.capacity() => {}
            Ok(_) => return Ok(TaggedSendStart::Busy),
            Err(InvalidConsumedCount) => {
                self.report_violation(to);
                return Err(SendRefused::Gone);
            }
        }
        if !buffer.is_there(self.node.memory()) {
            return Err(SendRefused::Outside);
        }
        let len = buffer.len();
        let span = buffer.rows().spanned_bytes(len).filter(|_| len > 0);
        let reached = self.address_of(buffer).zip(span);
        let reach = if reached.is_some() { MemoryReach::Mapped } else { MemoryReach::Private };
        let plan = self.plan_send(to, len, reach, choice);
        let pieces = plan.way == SendMethod::Ready { pieces: true };
        let mut sent = SendStep::Ready { pieces, unshared: false };
        let mut reference = None;
        let mut failed = false;
        let before = self.node.exporter().counts().announced;
        if let (SendMethod::Refer { offer }, Some((addr, span))) = (plan.way, reached) {
            let message = SendRequest { addr, len: span as usize, passing: false };
            match self.node.make_reference(neighbour, &message, self.now) {
                Ok(ReferenceStart::Refer(operation, place)) => {
                    (sent, reference) = (SendStep::Referred { operation, offer }, Some((place, offer)));
                }
                Ok(ReferenceStart::Busy) => return Ok(TaggedSendStart::Busy),
                Ok(ReferenceStart::Elsewhere(_)) => {
                    (sent, failed) = (SendStep::Ready { pieces, unshared: true }, true);
                }
                Err(SendError::Gone) => return Err(SendRefused::Gone),
                Err(_) => return Err(SendRefused::Outside),
            }
        }
        let sending = StartedSend { peer: to, tag, buffer: buffer.clone(), way: sent };
        let Ok(request) = self.requests.insert(MessageRequest::Send(sending)) else {
            return Ok(TaggedSendStart::Busy);
        };
        let message = match reference {
            Some((reference, offer)) => {
                TaggedMessage::Refer { tag, request, reference, rows: buffer.rows(), offer }
            }
            None => TaggedMessage::Ready { tag, request, len, pieces },
        };
        let outbox = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.outbox.as_mut());
        outbox.into_iter().for_each(|outbox| outbox.messages.push(&message.to_words()));
        let new = failed || self.node.exporter().counts().announced != before;
        self.record_sent(to, request, len, plan, new);
        if failed {
            self.record_outcome(to, request, MethodOutcome::FellBack);
        }
        Ok(TaggedSendStart::Request(TaggedRequestId(request)))
    }

    /// Handles CLEAR: the receiver requests the message in pieces.
    pub(super) fn on_clear(
        &mut self,
        from: TaggedPeerId,
        request: SlotId,
        receive: SlotId,
        want: u64,
        unmapped: bool,
    ) {
        let Some(MessageRequest::Send(sending)) = self.requests.get_mut(request) else { return };
        let (operation, unshared) = match sending.way {
            SendStep::Ready { unshared, .. } => (None, unshared || unmapped),
            SendStep::Referred { operation, .. } => (Some(operation), true),
            SendStep::Eager | SendStep::Placing { .. } | SendStep::Pieces { .. } => return,
        };
        if sending.peer != from || want > sending.buffer.len() {
            return self.report_violation(from);
        }
        sending.way = SendStep::Pieces { receive, want, done: 0 };
        if let Some(operation) = operation {
            let outcome = if unmapped { CopyOutcome::NotMapped } else { CopyOutcome::Ended };
            self.node.finish_operation(operation, outcome, self.now);
            self.record_outcome(from, request, MethodOutcome::FellBack);
        }
        self.counts.fallbacks += u64::from(unshared);
        self.counts.staged += 1;
        if let Some(peer) = self.peers.get_mut(from.0 as usize) {
            peer.pieces.push_back(request);
        }
    }

    /// Handles OFFER: the receiver requests a copy into its memory.
    pub(super) fn on_offer(
        &mut self,
        from: TaggedPeerId,
        request: SlotId,
        receive: SlotId,
        to: &ExportReference,
        rows: StridedRows,
    ) {
        let Some(neighbour) = self.peers.get(from.0 as usize).map(|peer| peer.neighbour) else { return };
        let Some(MessageRequest::Send(StartedSend { peer, way, buffer, .. })) = self.requests.get(request)
        else {
            return;
        };
        let operation = match way {
            SendStep::Ready { pieces: false, .. } => None,
            SendStep::Referred { operation, offer: true } => Some(*operation),
            // This message did not allow an offer.
            SendStep::Ready { .. } | SendStep::Referred { offer: false, .. } => {
                return self.report_violation(from);
            }
            SendStep::Eager | SendStep::Placing { .. } | SendStep::Pieces { .. } => return,
        };
        let want = rows.whole_in(to.part.len());
        let buffer = buffer.clone();
        if *peer != from || want > buffer.len() {
            return self.report_violation(from);
        }
        // A receiver that sends an offer has not used the reference.
        operation
            .into_iter()
            .for_each(|operation| _ = self.node.finish_operation(operation, CopyOutcome::Ended, self.now));
        self.read_announcement(neighbour, to.name);
        let begun = match self.node.accept_reference(neighbour, to) {
            Ok(Some(arrival)) => self.node.write_offered(arrival, buffer, rows).is_ok().then_some(arrival),
            Ok(None) => None,
            Err(broken) => return self.node.report_violation(neighbour, broken),
        };
        let Some(MessageRequest::Send(sending)) = self.requests.get_mut(request) else { return };
        match begun {
            Some(arrival) => {
                sending.way = SendStep::Placing { receive, want };
                self.copies.push((arrival, request));
            }
            None => self.send_in_pieces(request, receive, want),
        }
    }

    /// Falls back from a direct copy to pieces.
    fn send_in_pieces(&mut self, request: SlotId, receive: SlotId, want: u64) {
        let Some(MessageRequest::Send(sending)) = self.requests.get_mut(request) else { return };
        let to = sending.peer;
        sending.way = SendStep::Pieces { receive, want, done: 0 };
        self.counts.fallbacks += 1;
        self.counts.staged += 1;
        if let Some(peer) = self.peers.get_mut(to.0 as usize) {
            peer.pieces.push_back(request);
        }
        self.record_outcome(to, request, MethodOutcome::FellBack);
    }

    /// Handles the end of the copy into the receiver's memory.
    pub(super) fn finish_placing(&mut self, request: SlotId, receipt: &ReceiveOutcome) {
        let Some(MessageRequest::Send(StartedSend {
            peer,
            tag,
            way: SendStep::Placing { receive, want },
            buffer,
        })) = self.requests.get(request)
        else {
            return;
        };
        let peer = *peer;
        let tag = *tag;
        let receive = *receive;
        let want = *want;
        let len = buffer.len();
        match receipt {
            ReceiveOutcome::Copied => {
                (self.counts.mapped, self.counts.by_sender) =
                    (self.counts.mapped + 1, self.counts.by_sender + 1);
                self.record_outcome(peer, request, MethodOutcome::Came);
                self.send_answer(peer, TaggedAnswer::Done { request: receive, outcome: CopyOutcome::Copied });
                self.end_request(request, Ok(MessageStatus { peer, tag, len }));
            }
            ReceiveOutcome::NotMapped | ReceiveOutcome::NotCopied(_) => {
                self.send_in_pieces(request, receive, want)
            }
            ReceiveOutcome::Lost => {
                self.record_outcome(peer, request, MethodOutcome::Other);
                self.end_request(request, Err(TaggedFailure::Gone));
            }
        }
    }

    /// Handles DONE: the receiver has the message, or has ended it.
    pub(super) fn on_sent(&mut self, from: TaggedPeerId, request: SlotId, outcome: CopyOutcome) {
        let Some(MessageRequest::Send(StartedSend { peer, tag, way, buffer })) = self.requests.get(request)
        else {
            return;
        };
        let done = MessageStatus { peer: *peer, tag: *tag, len: buffer.len() };
        let operation = match way {
            _ if *peer != from => return,
            SendStep::Ready { .. } => None,
            SendStep::Referred { operation, .. } => Some(*operation),
            SendStep::Eager | SendStep::Placing { .. } | SendStep::Pieces { .. } => return,
        };
        let fate = if outcome == CopyOutcome::Copied { MethodOutcome::Came } else { MethodOutcome::Other };
        self.record_outcome(from, request, fate);
        operation
            .into_iter()
            .for_each(|operation| _ = self.node.finish_operation(operation, outcome, self.now));
        self.end_request(
            request,
            if outcome == CopyOutcome::Copied { Ok(done) } else { Err(TaggedFailure::Gone) },
        );
    }

    /// Stages some pieces of the first sends in the queue; returns whether there was progress.
    #[inline]
    pub(super) fn send_pieces(&mut self, to: TaggedPeerId) -> bool {
        let Some(first) = self.peers.get(to.0 as usize).and_then(|peer| peer.pieces.front()) else {
            return false;
        };
        let mut request = *first;
        let mut moved = false;
        let ahead = self.node.memory().batch_bytes().is_some();
        for _ in 0..PIECES_PER_CALL {
            let step = if ahead { self.stage_ahead(to, request) } else { self.send_piece(to, request) };
            match step {
                PieceProgress::Full => break,
                PieceProgress::Moved => moved = true,
                PieceProgress::Over => {
                    moved = true;
                    let Some(peer) = self.peers.get_mut(to.0 as usize) else { break };
                    peer.pieces.pop_front();
                    let Some(next) = peer.pieces.front() else { break };
                    request = *next;
                }
            }
        }
        moved
    }

    fn send_piece(&mut self, to: TaggedPeerId, request: SlotId) -> PieceProgress {
        let Some(outbox) = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.outbox.as_mut()) else {
            return PieceProgress::Over;
        };
        let Some(MessageRequest::Send(sending)) = self.requests.get_mut(request) else {
            return PieceProgress::Over;
        };
        let SendStep::Pieces { receive, want, done } = &mut sending.way else { return PieceProgress::Over };
        let left = (*want - *done).min(PIECE.into()) as u32;
        let (piece, at) = match outbox.reserve_stage(left) {
            Ok(Some(taken)) => taken,
            Ok(None) => return PieceProgress::Full,
            Err(InvalidConsumedCount) => {
                self.report_violation(to);
                return PieceProgress::Over;
            }
        };
        let len = u64::from(piece.len);
        let stage = StageOffset { memory: outbox.memory(), at };
        if let Err(error) = sending.buffer.copy_to_stage(self.node.memory(), *done, stage, len) {
            // The bytes cannot be read any more. The receiver waits for them, so its receive is ended with an error.
            let answer = TaggedAnswer::Done { request: *receive, outcome: CopyOutcome::Ended };
            self.send_answer(to, answer);
            self.record_outcome(to, request, MethodOutcome::Other);
            self.end_request(request, Err(error.into()));
            return PieceProgress::Over;
        }
        let answer = TaggedAnswer::Piece { receive: *receive, position: piece.position, len: piece.len };
        *done += len;
        let over = done == want;
        let end = MessageStatus { peer: to, tag: sending.tag, len: sending.buffer.len() };
        // `reserve_stage` has checked that there is room.
        let _ = outbox.push_answer(&answer);
        let position = outbox.staged_position();
        if over {
            if self.timed > 0 {
                self.learn_of_stage(to, request, position);
            }
            self.end_request(request, Ok(end));
            return PieceProgress::Over;
        }
        PieceProgress::Moved
    }
}

/// The result of one step of a send in pieces.
pub(super) enum PieceProgress {
    /// There is no room.
    Full,
    /// A piece was staged.
    Moved,
    /// The last piece was staged, or the send has ended.
    Over,
}
