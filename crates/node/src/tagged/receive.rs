//! Receives messages: matches them to posted receives, or keeps them as unexpected. Called by the endpoint's owner
//! and its progress calls.

use trunkline_fabric::OobStream;
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{CopyError, IpcMemory};
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::{
    MemoryReach, ReceiveMethod, SendMethod, StridedRows, TagPattern, choose_receive_method,
};
use trunkline_proto::wire::ipc::{CopyOutcome, ExportName, ExportReference};
use trunkline_proto::wire::tagged::{TaggedAnswer, TaggedMessage};

use super::copy_ahead::is_copied_ahead;
use super::eager::EagerSource;
use super::endpoint::TaggedEndpoint;
use super::peer::TaggedPeerId;
use super::request::{
    MatchedMessage, MessageRequest, ReceiveStep, StartedReceive, TaggedFailure, TaggedRequestId,
};
use super::{FRAMES_PER_CALL, MessageStatus, SPARE_MAX};
use crate::ipc::{
    ArrivalId, MessageBuffer, NeighbourId, ReceiveOutcome, ReferenceStart, SendRequest, StageOffset,
};

/// A message that arrived before its receive.
#[derive(Debug)]
pub(super) enum UnexpectedMessage {
    /// All bytes of it.
    Eager(Vec<u8>),
    /// The sender has the bytes.
    Ready { request: SlotId, len: u64, pieces: bool },
    /// The bytes are in the sender's memory, which may be mapped.
    Refer { request: SlotId, arrival: ArrivalId, len: u64, rows: StridedRows, offer: bool },
}

/// A receive cannot be posted; the call changed nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveRefused {
    /// The peer is unknown, or is gone and none of its messages is left.
    #[error("cannot receive: the peer is unknown, or has left or died")]
    Gone,
    /// The memory is not allocated.
    #[error("cannot receive: the bytes of the buffer are not all in one allocation")]
    Outside,
    /// The limit of receives, or of requests, is reached.
    #[error("cannot receive: too many receives or requests are pending; complete some of them")]
    TooMany,
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Receives the earliest matching message, of that peer or of any, whose tag agrees with `tag` in the bits of
    /// `mask`. The buffer must not be used until [`TaggedEndpoint::test`] returns the result.
    ///
    /// # Errors
    /// [`ReceiveRefused`].
    #[inline]
    pub fn receive(
        &mut self,
        from: Option<TaggedPeerId>,
        tag: u64,
        mask: u64,
        into: MessageBuffer,
    ) -> Result<TaggedRequestId, ReceiveRefused> {
        if !into.is_there(self.node.memory()) && !into.is_empty() {
            return Err(ReceiveRefused::Outside);
        }
        let pattern = TagPattern { source: from.map(|peer| peer.0), tag, mask };
        if self.requests.len() >= self.requests.capacity() {
            return Err(ReceiveRefused::TooMany);
        }
        if self.matcher.unexpected_count() > 0
            && let Some((source, tag, message)) = self.matcher.take_unexpected(&pattern)
        {
            return self.take_early(TaggedPeerId(source), tag, message, into);
        }
        // Messages that a peer sent completely before it was gone are already in the matcher.
        let gone = |peer: TaggedPeerId| self.peers.get(peer.0 as usize).is_none_or(|peer| peer.gone);
        if from.is_some_and(gone) {
            return Err(ReceiveRefused::Gone);
        }
        self.post_receive(pattern, into)
    }

    fn post_receive(
        &mut self,
        pattern: TagPattern,
        buffer: MessageBuffer,
    ) -> Result<TaggedRequestId, ReceiveRefused> {
        let receiving = MessageRequest::Receive(StartedReceive { buffer, way: ReceiveStep::Posted(None) });
        let request = self.requests.insert(receiving).map_err(|_| ReceiveRefused::TooMany)?;
        let Ok(posted) = self.matcher.post_receive(pattern, request) else {
            self.requests.remove(request);
            return Err(ReceiveRefused::TooMany);
        };
        if let Some(MessageRequest::Receive(StartedReceive { way, .. })) = self.requests.get_mut(request) {
            *way = ReceiveStep::Posted(Some(posted));
        }
        Ok(TaggedRequestId(request))
    }

    /// Receives a short message that has already arrived, without a request.
    ///
    /// `None`: no message matches, or a long one does, which [`TaggedEndpoint::probe`] reports.
    pub fn take_bytes(
        &mut self,
        from: Option<TaggedPeerId>,
        tag: u64,
        mask: u64,
        into: &mut [u8],
    ) -> Option<Result<MessageStatus, TaggedFailure>> {
        let pattern = TagPattern { source: from.map(|peer| peer.0), tag, mask };
        self.read_until_match(&pattern);
        let (_, _, UnexpectedMessage::Eager(_)) = self.matcher.probe_unexpected(&pattern)? else {
            return None;
        };
        let (source, tag, message) = self.matcher.take_unexpected(&pattern)?;
        let (peer, UnexpectedMessage::Eager(bytes)) = (TaggedPeerId(source), message) else { return None };
        let room = bytes.len().min(into.len());
        let to = into.get_mut(..room)?;
        let from = bytes.get(..room)?;
        to.copy_from_slice(from);
        let len = bytes.len() as u64;
        let room = room as u64;
        self.recycle_buffer(bytes);
        let end = MatchedMessage { peer, tag, len, want: room, request: SlotId::from_bits(0) }.final_result();
        Some(end)
    }

    /// Returns the sender, tag and length of the message that a receive would match now, if one has arrived.
    #[must_use]
    pub fn probe(&mut self, from: Option<TaggedPeerId>, tag: u64, mask: u64) -> Option<MessageStatus> {
        let pattern = TagPattern { source: from.map(|peer| peer.0), tag, mask };
        self.read_until_match(&pattern);
        let (source, tag, message) = self.matcher.probe_unexpected(&pattern)?;
        let len = match message {
            UnexpectedMessage::Eager(bytes) => bytes.len() as u64,
            UnexpectedMessage::Ready { len, .. } | UnexpectedMessage::Refer { len, .. } => *len,
        };
        Some(MessageStatus { peer: TaggedPeerId(source), tag, len })
    }

    /// Reads messages without a posted receive, until one matches.
    fn read_until_match(&mut self, pattern: &TagPattern) {
        let sources = pattern.source.map_or(0..self.peers.len() as u32, |source| source..source + 1);
        for source in sources {
            while self.matcher.probe_unexpected(pattern).is_none() && self.read_message(TaggedPeerId(source))
            {
            }
        }
    }

    /// Cancels a receive that no message has matched; returns whether it was cancelled. [`TaggedEndpoint::test`] then
    /// returns [`TaggedFailure::Cancelled`].
    pub fn cancel_receive(&mut self, request: TaggedRequestId) -> bool {
        let Some(MessageRequest::Receive(StartedReceive { way: ReceiveStep::Posted(Some(posted)), .. })) =
            self.requests.get(request.0)
        else {
            return false;
        };
        let cancelled = self.matcher.cancel_receive(*posted).is_some();
        if cancelled {
            self.end_request(request.0, Err(TaggedFailure::Cancelled));
        }
        cancelled
    }

    /// Completes or continues a receive with a message that arrived before it.
    fn take_early(
        &mut self,
        peer: TaggedPeerId,
        tag: u64,
        message: UnexpectedMessage,
        into: MessageBuffer,
    ) -> Result<TaggedRequestId, ReceiveRefused> {
        let room = into.len();
        let of = |len: u64, request| MatchedMessage { peer, tag, len, want: len.min(room), request };
        let ended = MessageRequest::Ended(Err(TaggedFailure::Gone));
        let id = self.requests.insert(ended).map_err(|_| ReceiveRefused::TooMany)?;
        match message {
            UnexpectedMessage::Eager(bytes) => {
                let matched = of(bytes.len() as u64, SlotId::from_bits(0));
                let part = bytes.get(..matched.want as usize).unwrap_or_default();
                if !part.is_empty() && is_copied_ahead(self.node.memory(), &into) {
                    let kept = MemoryRange::try_heap(part.len()).inspect(|kept| {
                        // `kept` and `part` have the same length.
                        let _ = kept.write(0, part);
                    });
                    self.recycle_buffer(bytes);
                    match kept {
                        Ok(kept) => {
                            self.set_receiving(
                                id,
                                StartedReceive { buffer: into, way: ReceiveStep::Eager(matched) },
                            );
                            self.take_eager_ahead(id, matched, EagerSource::Kept(kept));
                        }
                        Err(error) => self.end_request(id, Err(TaggedFailure::from(CopyError::from(error)))),
                    }
                    return Ok(TaggedRequestId(id));
                }
                let written =
                    if part.is_empty() { Ok(()) } else { into.write_bytes(self.node.memory(), 0, part) };
                self.recycle_buffer(bytes);
                self.end_request(
                    id,
                    written.map_err(TaggedFailure::from).and_then(|()| matched.final_result()),
                );
            }
            UnexpectedMessage::Ready { request, len, pieces } => {
                self.begin_ready(id, of(len, request), into, pieces)
            }
            UnexpectedMessage::Refer { request, arrival, len, rows, offer } => {
                self.begin_refer(id, of(len, request), arrival, rows, offer, into);
            }
        }
        Ok(TaggedRequestId(id))
    }

    fn recycle_buffer(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Reads a bounded number of a peer's messages, while receives are posted that they could match; returns whether
    /// there were any.
    #[inline]
    pub(super) fn read_messages(&mut self, from: TaggedPeerId) -> bool {
        let mut moved = false;
        for _ in 0..FRAMES_PER_CALL {
            if !self.matcher.has_posted_for(from.0) || !self.read_message(from) {
                break;
            }
            moved = true;
        }
        moved
    }

    /// Reads the next message of a peer, if there is one and it can be stored.
    #[inline]
    pub(super) fn read_message(&mut self, from: TaggedPeerId) -> bool {
        let Some(peer) = self.peers.get(from.0 as usize) else { return false };
        let Some(words) = peer.inbox.messages.next() else { return false };
        let cells = match TaggedMessage::from_words(&words) {
            Ok(message) if message.cell_count() < peer.inbox.messages.cell_count() => {
                if !self.take_message(from, message) {
                    return false;
                }
                message.cell_count()
            }
            Ok(_) | Err(_) => {
                self.report_violation(from);
                return false;
            }
        };
        if let Some(peer) = self.peers.get_mut(from.0 as usize) {
            peer.inbox.messages.consume_frame(cells);
        }
        true
    }

    /// Handles one message; returns `false` if it cannot be stored now.
    #[inline]
    fn take_message(&mut self, from: TaggedPeerId, message: TaggedMessage) -> bool {
        let (TaggedMessage::Eager { tag, .. }
        | TaggedMessage::Ready { tag, .. }
        | TaggedMessage::Refer { tag, .. }) = message;
        match self.matcher.take_posted(from.0, tag) {
            Some(request) => {
                self.begin_receive(request, from, message);
                true
            }
            None => self.keep_unexpected(from, message),
        }
    }

    /// Starts the posted receive that a message has matched.
    #[inline]
    fn begin_receive(&mut self, id: SlotId, peer: TaggedPeerId, message: TaggedMessage) {
        let Some(MessageRequest::Receive(receiving)) = self.requests.get_mut(id) else { return };
        let room = receiving.buffer.len();
        match message {
            TaggedMessage::Eager { tag, len } => {
                let len = u64::from(len);
                let want = len.min(room);
                let matched = MatchedMessage { peer, tag, len, want, request: SlotId::from_bits(0) };
                let node = &self.node;
                let buffer = &receiving.buffer;
                if want > 0 && is_copied_ahead(node.memory(), buffer) {
                    let position =
                        self.peers.get(peer.0 as usize).map(|of| of.inbox.messages.next_position());
                    let source = EagerSource::Ring(position.unwrap_or(0));
                    return self.take_eager_ahead(id, matched, source);
                }
                let Some(from) = self.peers.get(peer.0 as usize) else { return };
                let take = |offset, from: StageOffset<'_>, part| {
                    buffer.copy_from_stage(node.memory(), offset, from, part)
                };
                let taken: Result<(), CopyError> = from.inbox.messages.visit_payload(want, take);
                self.end_request(
                    id,
                    taken.map_err(TaggedFailure::from).and_then(|()| matched.final_result()),
                );
            }
            TaggedMessage::Ready { tag, request, len, pieces } => {
                let buffer = receiving.buffer.clone();
                self.begin_ready(
                    id,
                    MatchedMessage { peer, tag, len, want: len.min(room), request },
                    buffer,
                    pieces,
                );
            }
            TaggedMessage::Refer { tag, request, reference, rows, offer } => {
                let buffer = receiving.buffer.clone();
                let len = rows.whole_in(reference.part.len());
                let matched = MatchedMessage { peer, tag, len, want: len.min(room), request };
                match self.admit_reference(peer, &reference) {
                    Some(arrival) => self.begin_refer(id, matched, arrival, rows, offer, buffer),
                    None => self.end_request(id, Err(TaggedFailure::Gone)),
                }
            }
        }
    }

    /// Accepts a reference of a peer; `None`: the peer is gone, or has violated the protocol.
    pub(super) fn admit_reference(
        &mut self,
        peer: TaggedPeerId,
        reference: &ExportReference,
    ) -> Option<ArrivalId> {
        let neighbour = self.peers.get(peer.0 as usize).filter(|peer| !peer.gone)?.neighbour;
        self.read_announcement(neighbour, reference.name);
        match self.node.accept_reference(neighbour, reference) {
            Ok(arrival) => arrival,
            Err(broken) => {
                self.node.report_violation(neighbour, broken);
                None
            }
        }
    }

    /// Reads the announcement of a name from the stream, if it was not read yet. The sender announces a name before
    /// it sends the message.
    #[inline]
    pub(super) fn read_announcement(&mut self, neighbour: NeighbourId, name: ExportName) {
        if !self.node.knows_name(neighbour, name) {
            self.node.receive_messages_from(neighbour, self.now);
        }
    }

    /// Keeps a message that matches no receive yet; returns whether there was room for it.
    fn keep_unexpected(&mut self, from: TaggedPeerId, message: TaggedMessage) -> bool {
        if !self.matcher.has_room(from.0) {
            return false;
        }
        let (tag, kept) = match message {
            TaggedMessage::Eager { tag, len } => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.resize(len as usize, 0);
                let Some(peer) = self.peers.get(from.0 as usize) else { return true };
                let take = |offset: u64, from: StageOffset<'_>, part: u64| {
                    let into = bytes.get_mut(offset as usize..(offset + part) as usize).unwrap_or_default();
                    from.memory.read(from.at, into)
                };
                // The frame is inside the ring, as its length was checked.
                let _ = peer.inbox.messages.visit_payload(len.into(), take);
                (tag, UnexpectedMessage::Eager(bytes))
            }
            TaggedMessage::Ready { tag, request, len, pieces } => {
                (tag, UnexpectedMessage::Ready { request, len, pieces })
            }
            TaggedMessage::Refer { tag, request, reference, rows, offer } => {
                match self.admit_reference(from, &reference) {
                    Some(arrival) => {
                        let len = rows.whole_in(reference.part.len());
                        (tag, UnexpectedMessage::Refer { request, arrival, len, rows, offer })
                    }
                    None => return true,
                }
            }
        };
        self.counts.early += 1;
        // `has_room` was checked above.
        let _ = self.matcher.keep_unexpected(from.0, tag, kept);
        true
    }

    /// Handles READY: replies how the sender is to transfer the message.
    fn begin_ready(&mut self, id: SlotId, matched: MatchedMessage, buffer: MessageBuffer, pieces: bool) {
        let MatchedMessage { peer, request, want, .. } = matched;
        if self.peers.get(peer.0 as usize).is_none_or(|peer| peer.gone) {
            return self.end_request(id, Err(TaggedFailure::Gone));
        }
        if want == 0 {
            self.send_answer(peer, TaggedAnswer::Done { request, outcome: CopyOutcome::Copied });
            return self.end_request(id, matched.final_result());
        }
        let mut unshared = false;
        if self.choose_reply(&buffer, SendMethod::Ready { pieces }) == ReceiveMethod::Offer {
            match self.offer_memory(id, matched, &buffer) {
                Some(true) => return,
                Some(false) => unshared = true,
                None => {}
            }
        }
        self.clear(id, matched, buffer, unshared);
    }

    /// Requests the message in pieces; `unshared`: because memory of this process was not exported.
    fn clear(&mut self, id: SlotId, matched: MatchedMessage, buffer: MessageBuffer, unshared: bool) {
        let MatchedMessage { peer, request, want, .. } = matched;
        self.set_receiving(id, StartedReceive { buffer, way: ReceiveStep::Pieces(matched, 0) });
        self.send_answer(peer, TaggedAnswer::Clear { request, receive: id, len: want, unmapped: unshared });
    }

    fn choose_reply(&self, buffer: &MessageBuffer, way: SendMethod) -> ReceiveMethod {
        let reach =
            if self.address_of(buffer).is_some() { MemoryReach::Mapped } else { MemoryReach::Private };
        choose_receive_method(reach, way)
    }

    /// Offers memory of this process, so that the sender copies into it. `None`: the end of the bytes cannot be
    /// expressed; `Some(false)`: the memory was not exported.
    fn offer_memory(&mut self, id: SlotId, matched: MatchedMessage, buffer: &MessageBuffer) -> Option<bool> {
        let MatchedMessage { peer, request, want, .. } = matched;
        let neighbour = self.peers.get(peer.0 as usize)?.neighbour;
        let rows = buffer.rows();
        let addr = self.address_of(buffer)?;
        // A reference ends with a whole row; otherwise it would not define where the bytes end.
        let span = rows.spanned_bytes(want).filter(|span| rows.packed_bytes(*span).is_some())?;
        let message = SendRequest { addr, len: span as usize, passing: false };
        let Ok(ReferenceStart::Refer(operation, reference)) =
            self.node.make_reference(neighbour, &message, self.now)
        else {
            return Some(false);
        };
        self.set_receiving(
            id,
            StartedReceive { buffer: buffer.clone(), way: ReceiveStep::Offered(matched, operation) },
        );
        self.send_answer(peer, TaggedAnswer::Offer { request, receive: id, reference, rows });
        Some(true)
    }

    /// Handles a reference to the sender's memory: begins to copy from it, or offers the own memory to the sender.
    fn begin_refer(
        &mut self,
        id: SlotId,
        matched: MatchedMessage,
        arrival: ArrivalId,
        rows: StridedRows,
        offer: bool,
        buffer: MessageBuffer,
    ) {
        let MatchedMessage { peer, request, want, .. } = matched;
        if want == 0 {
            let _ = self.node.refuse_arrival(arrival);
            self.send_answer(peer, TaggedAnswer::Done { request, outcome: CopyOutcome::Copied });
            return self.end_request(id, matched.final_result());
        }
        if self.choose_reply(&buffer, SendMethod::Refer { offer }) == ReceiveMethod::Offer
            && self.offer_memory(id, matched, &buffer) == Some(true)
        {
            let _ = self.node.refuse_arrival(arrival);
            return;
        }
        if self.node.receive_part(arrival, buffer.clone(), want, rows).is_err() {
            return self.end_request(id, Err(TaggedFailure::Gone));
        }
        self.set_receiving(id, StartedReceive { buffer, way: ReceiveStep::Copying(matched) });
        self.copies.push((arrival, id));
    }

    #[inline]
    fn set_receiving(&mut self, id: SlotId, receiving: StartedReceive) {
        if let Some(request) = self.requests.get_mut(id) {
            *request = MessageRequest::Receive(receiving);
        }
    }

    /// Handles the end of the copy from the sender's memory.
    pub(super) fn finish_fetching(&mut self, id: SlotId, receipt: &ReceiveOutcome) {
        let Some(MessageRequest::Receive(StartedReceive { way: ReceiveStep::Copying(matched), .. })) =
            self.requests.get(id)
        else {
            return;
        };
        let (matched, &MatchedMessage { peer, request, want, .. }) = (*matched, matched);
        match receipt {
            ReceiveOutcome::Copied => {
                (self.counts.mapped, self.counts.by_receiver) =
                    (self.counts.mapped + 1, self.counts.by_receiver + 1);
                self.send_answer(peer, TaggedAnswer::Done { request, outcome: CopyOutcome::Copied });
                self.end_request(id, matched.final_result());
            }
            ReceiveOutcome::NotMapped | ReceiveOutcome::NotCopied(_) => {
                if let Some(MessageRequest::Receive(receiving)) = self.requests.get_mut(id) {
                    receiving.way = ReceiveStep::Pieces(matched, 0);
                }
                self.send_answer(
                    peer,
                    TaggedAnswer::Clear { request, receive: id, len: want, unmapped: true },
                );
            }
            ReceiveOutcome::Lost => self.end_request(id, Err(TaggedFailure::Gone)),
        }
    }

    /// Reads a bounded number of a peer's replies; returns whether there were any.
    #[inline]
    pub(super) fn read_answers(&mut self, from: TaggedPeerId) -> bool {
        let mut moved = false;
        for _ in 0..FRAMES_PER_CALL {
            let Some(peer) = self.peers.get_mut(from.0 as usize) else { break };
            let Some(words) = peer.inbox.answers.next() else { break };
            // The next reply may announce one piece more than may be in progress.
            if self.unstaging > 0 && self.is_unstaging(from) {
                break;
            }
            let Some(peer) = self.peers.get_mut(from.0 as usize) else { break };
            peer.inbox.answers.consume_frame(1);
            moved = true;
            match TaggedAnswer::from_words(&words) {
                Ok(answer) => self.take_answer(from, &answer),
                Err(_) => {
                    self.report_violation(from);
                    break;
                }
            }
        }
        moved
    }

    fn take_answer(&mut self, from: TaggedPeerId, answer: &TaggedAnswer) {
        match *answer {
            TaggedAnswer::Clear { request, receive, len, unmapped } => {
                self.on_clear(from, request, receive, len, unmapped);
            }
            TaggedAnswer::Offer { request, receive, reference, rows } => {
                self.on_offer(from, request, receive, &reference, rows);
            }
            TaggedAnswer::Piece { receive, position, len } => self.on_piece(from, receive, position, len),
            TaggedAnswer::Done { request, outcome } => match self.requests.get(request) {
                Some(MessageRequest::Receive(_)) => self.on_placed(from, request, outcome),
                Some(MessageRequest::Send(_)) => self.on_sent(from, request, outcome),
                Some(MessageRequest::Ended(_)) | None => {}
            },
        }
    }

    /// Handles PIECE: bytes are in the stage.
    fn on_piece(&mut self, from: TaggedPeerId, id: SlotId, position: u64, len: u32) {
        let Some(peer) = self.peers.get(from.0 as usize) else { return };
        let Some(staged) = peer.inbox.staged_piece(position, len) else {
            return self.report_violation(from);
        };
        if self.node.memory().batch_bytes().is_some() {
            return self.unstage_ahead(from, id, trunkline_proto::tagged::StagePiece { position, len });
        }
        let ended = match self.requests.get_mut(id) {
            Some(MessageRequest::Receive(StartedReceive { buffer, way }))
                if way.matched_peer() == Some(from) =>
            {
                if let ReceiveStep::Offered(matched, operation) = way {
                    let operation = *operation;
                    *way = ReceiveStep::Pieces(*matched, 0);
                    self.node.finish_operation(operation, CopyOutcome::NotMapped, self.now);
                }
                match way {
                    ReceiveStep::Pieces(matched, got) if matched.want - *got >= u64::from(len) => {
                        let written = buffer.copy_from_stage(self.node.memory(), *got, staged, len.into());
                        *got += u64::from(len);
                        match written {
                            Ok(()) => (*got == matched.want).then(|| matched.final_result()),
                            Err(error) => Some(Err(error.into())),
                        }
                    }
                    _ => return self.report_violation(from),
                }
            }
            _ => None,
        };
        peer.inbox.release_piece(position, len);
        ended.into_iter().for_each(|end| self.end_request(id, end));
    }

    /// Handles DONE for a receive: the sender has copied the message, or cannot send it.
    fn on_placed(&mut self, from: TaggedPeerId, id: SlotId, outcome: CopyOutcome) {
        let Some(MessageRequest::Receive(StartedReceive { way, .. })) = self.requests.get(id) else { return };
        let (matched, operation) = match way {
            ReceiveStep::Offered(matched, operation) if matched.peer == from => (*matched, Some(*operation)),
            ReceiveStep::Pieces(matched, _) if matched.peer == from && outcome != CopyOutcome::Copied => {
                (*matched, None)
            }
            _ => return,
        };
        operation
            .into_iter()
            .for_each(|operation| _ = self.node.finish_operation(operation, outcome, self.now));
        if self.unstaging > 0 && self.fail_behind_copies(from, id, TaggedFailure::Unsent) {
            return;
        }
        self.end_request(
            id,
            if outcome == CopyOutcome::Copied { matched.final_result() } else { Err(TaggedFailure::Unsent) },
        );
    }
}
