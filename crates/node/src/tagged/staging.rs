//! Pieces of messages whose copies are asynchronous, into the stage of a peer and out of the own inbox. At most two
//! each way are in progress. A piece is announced, or its room released, after its copy and in the order of
//! positions. No message ends while a copy from or to its memory is in progress.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::{CopyBatch, CopyError, IpcMemory, StagePin};
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::StagePiece;
use trunkline_proto::wire::ipc::CopyOutcome;
use trunkline_proto::wire::tagged::TaggedAnswer;

use super::copy_ahead::CopyAhead;
use super::endpoint::TaggedEndpoint;
use super::learned::MethodOutcome;
use super::peer::TaggedPeerId;
use super::request::{
    MessageRequest, MessageStatus, ReceiveStep, SendStep, StartedReceive, StartedSend, TaggedFailure,
};
use super::ring::InvalidConsumedCount;
use super::send::PieceProgress;
use super::{DEVICE_PIECE, PIECES_AHEAD};
use crate::ipc::StageOffset;

/// A piece, and the state of its copy.
#[derive(Debug)]
pub(super) struct StagedPiece {
    /// The request of this process that it belongs to.
    request: SlotId,
    /// Its offset in the buffer.
    from: u64,
    piece: StagePiece,
    copy: CopyAhead,
}

/// Copies to a peer that is gone. They are polled until they have ended; until then their staging memory stays
/// pinned.
#[derive(Debug)]
pub(super) struct AbandonedCopies {
    batches: Vec<CopyBatch>,
    _pins: [Option<StagePin>; 2],
}

impl StagedPiece {
    const fn new(request: SlotId, from: u64, piece: StagePiece) -> Self {
        Self { request, from, piece, copy: CopyAhead::new() }
    }
}

impl<M: IpcMemory, S: OobStream> TaggedEndpoint<M, S> {
    /// Begins to copy the next piece of a message to a peer, and announces the pieces whose copies have ended.
    pub(super) fn stage_ahead(&mut self, to: TaggedPeerId, request: SlotId) -> PieceProgress {
        if let Some(step) = self.announce_staged(to) {
            return step;
        }
        let Some(peer) = self.peers.get_mut(to.0 as usize) else { return PieceProgress::Over };
        let Some(outbox) = &mut peer.outbox else { return PieceProgress::Over };
        let Some(MessageRequest::Send(StartedSend { way: SendStep::Pieces { want, done, .. }, .. })) =
            self.requests.get_mut(request)
        else {
            return PieceProgress::Over;
        };
        let under_way = peer.staging.len();
        let fails = peer.staging.iter().any(|piece| piece.copy.failed.is_some());
        if *done == *want || under_way >= PIECES_AHEAD || fails {
            return PieceProgress::Full;
        }
        let left = (*want - *done).min(DEVICE_PIECE.into()) as u32;
        match outbox.reserve_stage(left) {
            Ok(Some((piece, _))) => {
                peer.staging.push_back(StagedPiece::new(request, *done, piece));
                *done += u64::from(piece.len);
                self.announce_staged(to).unwrap_or(PieceProgress::Moved)
            }
            Ok(None) => PieceProgress::Full,
            Err(InvalidConsumedCount) => {
                self.report_violation(to);
                PieceProgress::Over
            }
        }
    }

    /// Announces the earliest piece to a peer, if its copy has ended; `None`: it has not, or there is no piece.
    fn announce_staged(&mut self, to: TaggedPeerId) -> Option<PieceProgress> {
        let peer = self.peers.get_mut(to.0 as usize)?;
        let outbox = peer.outbox.as_mut()?;
        let mut first_has_ended = None;
        for piece in &mut peer.staging {
            let Some(MessageRequest::Send(sending)) = self.requests.get(piece.request) else { continue };
            let (memory, (from, len)) = (self.node.memory(), (piece.from, u64::from(piece.piece.len)));
            let place = StageOffset { memory: outbox.memory(), at: outbox.piece_offset(piece.piece) };
            let is_ready = peer.pins[1].is_ready_for(&sending.buffer);
            let begin = |batch: &mut _| match is_ready {
                true => sending.buffer.begin_stage(memory, batch, from, place, len),
                false => Err(CopyError::Busy),
            };
            let ended = piece.copy.advance_copy(memory, begin);
            first_has_ended.get_or_insert(ended);
        }
        if first_has_ended != Some(true) {
            return None;
        }
        // Other replies may have filled the ring since the piece was begun.
        match outbox.has_room() {
            Ok(true) => {}
            Ok(false) => return Some(PieceProgress::Full),
            Err(InvalidConsumedCount) => {
                self.report_violation(to);
                return Some(PieceProgress::Over);
            }
        }
        let StagedPiece { request, piece, copy, .. } = peer.staging.pop_front()?;
        let Some(MessageRequest::Send(sending)) = self.requests.get(request) else {
            return Some(PieceProgress::Over);
        };
        let SendStep::Pieces { receive, want, done } = sending.way else { return Some(PieceProgress::Over) };
        if let Some(failed) = copy.failed {
            if let Some(next) = peer.staging.front_mut() {
                next.copy.failed = Some(failed);
                return Some(PieceProgress::Moved);
            }
            // The bytes cannot be read any more. The receiver waits for them, so its receive is ended with an error.
            self.send_answer(to, TaggedAnswer::Done { request: receive, outcome: CopyOutcome::Ended });
            self.record_outcome(to, request, MethodOutcome::Other);
            self.end_request(request, Err(failed));
            return Some(PieceProgress::Over);
        }
        // `has_room` was checked above.
        let _ =
            outbox.push_answer(&TaggedAnswer::Piece { receive, position: piece.position, len: piece.len });
        if done < want || !peer.staging.is_empty() {
            return Some(PieceProgress::Moved);
        }
        let position = outbox.staged_position();
        let end = MessageStatus { peer: to, tag: sending.tag, len: sending.buffer.len() };
        if self.timed > 0 {
            self.learn_of_stage(to, request, position);
        }
        self.end_request(request, Ok(end));
        Some(PieceProgress::Over)
    }

    /// Begins to copy a piece out of the stage.
    pub(super) fn unstage_ahead(&mut self, from: TaggedPeerId, id: SlotId, piece: StagePiece) {
        let Some(peer) = self.peers.get_mut(from.0 as usize) else { return };
        let mut staged = StagedPiece::new(id, 0, piece);
        match self.requests.get_mut(id) {
            Some(MessageRequest::Receive(StartedReceive { way, .. })) if way.matched_peer() == Some(from) => {
                if let ReceiveStep::Offered(matched, operation) = way {
                    let operation = *operation;
                    *way = ReceiveStep::Pieces(*matched, 0);
                    self.node.finish_operation(operation, CopyOutcome::NotMapped, self.now);
                }
                match way {
                    ReceiveStep::Pieces(matched, got) if matched.want - *got >= u64::from(piece.len) => {
                        staged.from = *got;
                        *got += u64::from(piece.len);
                    }
                    _ => return self.report_violation(from),
                }
            }
            // The receive has ended; the piece's room in the stage is released in order.
            _ => staged.copy.skip_copy(),
        }
        peer.unstaging.push_back(staged);
        self.unstaging += 1;
        self.end_unstaging(from);
    }

    /// Whether a peer's replies are left in their ring for now.
    #[inline]
    pub(super) fn is_unstaging(&self, from: TaggedPeerId) -> bool {
        let under_way = self.peers.get(from.0 as usize).map_or(0, |peer| peer.unstaging.len());
        under_way >= PIECES_AHEAD
    }

    /// Polls all copies out of inboxes; returns whether any has ended.
    pub(super) fn end_all_unstaging(&mut self) -> bool {
        let before = self.unstaging;
        for number in 0..self.peers.len() {
            self.end_unstaging(TaggedPeerId(number as u32));
        }
        before != self.unstaging
    }

    fn end_unstaging(&mut self, from: TaggedPeerId) {
        while let Some(peer) = self.peers.get_mut(from.0 as usize) {
            let mut first_has_ended = None;
            for piece in &mut peer.unstaging {
                let of = match self.requests.get(piece.request) {
                    Some(MessageRequest::Receive(receiving)) => Some(&receiving.buffer),
                    _ => None,
                };
                let memory = self.node.memory();
                let len = piece.piece.len;
                let staged = peer.inbox.staged_piece(piece.piece.position, len);
                let at = piece.from;
                let inbox = staged.zip(of);
                let begin = |batch: &mut _| match inbox {
                    Some((_, buffer)) if !peer.pins[0].is_ready_for(buffer) => Err(CopyError::Busy),
                    Some((place, buffer)) => buffer.begin_unstage(memory, batch, at, place, len.into()),
                    None => Ok(()),
                };
                let ended = piece.copy.advance_copy(memory, begin);
                first_has_ended.get_or_insert(ended);
            }
            if first_has_ended != Some(true) {
                break;
            }
            let Some(StagedPiece { request, piece, copy, .. }) = peer.unstaging.pop_front() else { break };
            self.unstaging -= 1;
            peer.inbox.release_piece(piece.position, piece.len);
            let more = peer.unstaging.iter_mut().find(|other| other.request == request);
            let end = match (self.requests.get(request), copy.failed, more) {
                (Some(MessageRequest::Receive(_)), Some(failed), Some(next)) => {
                    next.copy.failed = Some(failed);
                    None
                }
                (Some(MessageRequest::Receive(_)), Some(failed), None) => Some(Err(failed)),
                (
                    Some(MessageRequest::Receive(StartedReceive {
                        way: ReceiveStep::Pieces(matched, got),
                        ..
                    })),
                    None,
                    None,
                ) => (*got == matched.want).then(|| matched.final_result()),
                _ => None,
            };
            end.into_iter().for_each(|end| self.end_request(request, end));
        }
        self.lose_deferred_peer(from);
    }

    /// Makes a receive whose pieces are being copied fail after the last of those copies; returns `false` if there is
    /// none.
    pub(super) fn fail_behind_copies(
        &mut self,
        from: TaggedPeerId,
        id: SlotId,
        failed: TaggedFailure,
    ) -> bool {
        let peer = self.peers.get_mut(from.0 as usize);
        let last = peer.and_then(|peer| peer.unstaging.iter_mut().rfind(|piece| piece.request == id));
        last.map(|piece| piece.copy.failed = Some(failed)).is_some()
    }

    /// Ends a peer that is gone, if its end was deferred for copies out of its inbox and they have ended.
    fn lose_deferred_peer(&mut self, peer: TaggedPeerId) {
        if self.deferred.is_empty() {
            return;
        }
        let Some(of) = self.peers.get(peer.0 as usize).filter(|of| of.unstaging.is_empty()) else { return };
        let neighbour = of.neighbour;
        if let Some(at) = self.deferred.iter().position(|(other, _)| *other == neighbour) {
            let (_, why) = self.deferred.swap_remove(at);
            self.lose_peer(neighbour, why);
        }
    }

    /// Abandons the copies to a peer that is gone. Its inbox here stays pinned while messages are copied out of it.
    pub(super) fn abandon_copies(&mut self, peer: TaggedPeerId) {
        let eager = self.drop_eager_send(peer);
        let Some(peer) = self.peers.get_mut(peer.0 as usize) else { return };
        let pieces = peer.staging.drain(..).filter_map(|piece| piece.copy.into_batch());
        let batches: Vec<CopyBatch> = pieces.chain(eager).collect();
        let memory = self.node.memory();
        let [inbox, outbox] = &mut peer.pins;
        let inbox = if peer.eager_receives.is_empty() { inbox.end_pin(memory) } else { None };
        let pins = [inbox, outbox.end_pin(memory)];
        if !batches.is_empty() {
            self.abandoned.push(AbandonedCopies { batches, _pins: pins });
        }
    }

    /// Polls abandoned copies, and drops those that have ended.
    pub(super) fn end_abandoned(&mut self) {
        let memory = self.node.memory();
        self.abandoned.retain_mut(|of| {
            of.batches.retain(|batch| memory.has_ended(batch) == Ok(false));
            !of.batches.is_empty()
        });
    }
}
