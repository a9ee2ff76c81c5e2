//! Messages that go: begun by their owner, carried on by the receiver's answers.

use trunkline_fabric::OobStream;
use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::{Choice, Method, Reach, Rows, Way, is_eager};
use trunkline_proto::wire::ipc::{Outcome, Reference};
use trunkline_proto::wire::tagged::{Answer, Message};

use super::ahead::is_copied_ahead;
use super::endpoint::Endpoint;
use super::learned::Fate;
use super::peer::PeerId;
use super::request::{Done, Failed, Request, RequestId, Sending, Sent};
use super::ring::NeverThere;
use super::{PIECE, PIECES_PER_CALL};
use crate::ipc::{Buffer, Receipt, Referring, Send, SendError};

/// What became of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Begun {
    /// It is out; its memory may be written.
    Done,
    /// Its memory stays as it is until [`Endpoint::test`] says how it ended.
    Request(RequestId),
    /// Nothing was done, as there is no room: ask again, after [`Endpoint::progress`].
    Busy,
}

/// A message cannot be sent; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefused {
    /// There is no such peer, or it is gone.
    #[error("the peer is gone")]
    Gone,
    /// The bytes are not there.
    #[error("the bytes to be sent are not all in one piece of memory")]
    Outside,
}

impl<M: IpcMemory, S: OobStream> Endpoint<M, S> {
    /// Where a buffer is that others could reach.
    pub(super) fn address_of(&self, buffer: &Buffer) -> Option<usize> {
        if self.everything { buffer.host_address() } else { buffer.address() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`SendRefused`].
    #[inline]
    pub fn send(&mut self, to: PeerId, tag: u64, buffer: &Buffer) -> Result<Begun, SendRefused> {
        let len = buffer.len();
        if is_eager(len) {
            let node = &self.node;
            let fill = |offset, there: (&_, u64), len| {
                buffer.stage(node.memory(), offset, there, len).map_err(|_| SendRefused::Outside)
            };
            let peer =
                self.peers.get_mut(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
            let is_blocked = peer.eager_send.is_some();
            let Some(outbox) = peer.outbox.as_mut().filter(|_| !is_blocked) else { return Ok(Begun::Busy) };
            let message = Message::Eager { tag, len: len as u32 };
            let cells = message.cells();
            if cells <= outbox.eager_cells() {
                return match outbox.messages.has_room(cells) {
                    Ok(true) if is_copied_ahead(node.memory(), buffer, self.mutant) => {
                        self.send_eager_ahead(to, tag, buffer)
                    }
                    Ok(true) => {
                        outbox.messages.push_eager(&message.to_words(), (len, cells), fill)?;
                        self.counts.eager += 1;
                        Ok(Begun::Done)
                    }
                    Ok(false) => Ok(Begun::Busy),
                    Err(NeverThere) => {
                        self.broken(to);
                        Err(SendRefused::Gone)
                    }
                };
            }
        }
        self.send_long(to, tag, buffer, self.choice)
    }

    /// Sends a message that its receiver is to copy, if it is a long one of memory that is mapped: whatever is chosen, and nothing is learned of it.
    ///
    /// # Errors
    /// [`SendRefused`].
    pub fn send_to_be_read(&mut self, to: PeerId, tag: u64, buffer: &Buffer) -> Result<Begun, SendRefused> {
        if is_eager(buffer.len()) {
            return self.send(to, tag, buffer);
        }
        self.send_long(to, tag, buffer, Choice::Fixed(Method::Pull))
    }

    /// Whether peers could read a buffer: it is of memory that they map, and has a handle, which is made now if there is none. `None`: ask again, after
    /// [`Endpoint::progress`]. The peer, to whom what is made is announced, is any of them.
    ///
    /// # Errors
    /// [`SendRefused`].
    pub fn is_readable(&mut self, peer: PeerId, buffer: &Buffer) -> Result<Option<bool>, SendRefused> {
        let known = self.peers.get(peer.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let neighbour = known.neighbour;
        let span = buffer.rows().span(buffer.len()).filter(|_| self.maps && !buffer.is_empty());
        let Some((addr, span)) = self.address_of(buffer).zip(span) else { return Ok(Some(false)) };
        if !buffer.is_there(self.node.memory()) {
            return Err(SendRefused::Outside);
        }
        match self.node.refer(neighbour, &Send { addr, len: span as usize, passing: false }, self.now) {
            Ok(Referring::Refer(operation, _)) => {
                // Nobody is told of the operation, so it is over.
                self.node.finish(operation, Outcome::Ended, self.now);
                Ok(Some(true))
            }
            Ok(Referring::Busy) => Ok(None),
            Ok(Referring::Elsewhere(_)) => Ok(Some(false)),
            Err(SendError::Gone) => Err(SendRefused::Gone),
            Err(_) => Err(SendRefused::Outside),
        }
    }

    /// Sends a short message of bytes that are here now.
    ///
    /// # Errors
    /// [`SendRefused`]; `Outside` if they are more than [`EAGER_MAX`](trunkline_proto::wire::tagged::EAGER_MAX).
    #[inline]
    pub fn send_bytes(&mut self, to: PeerId, tag: u64, bytes: &[u8]) -> Result<Begun, SendRefused> {
        let len = bytes.len() as u64;
        if !is_eager(len) {
            return Err(SendRefused::Outside);
        }
        let peer = self.peers.get_mut(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let is_blocked = peer.eager_send.is_some();
        let Some(outbox) = peer.outbox.as_mut().filter(|_| !is_blocked) else { return Ok(Begun::Busy) };
        let message = Message::Eager { tag, len: len as u32 };
        let cells = message.cells();
        if cells > outbox.eager_cells() {
            return Err(SendRefused::Outside);
        }
        match outbox.messages.has_room(cells) {
            Ok(true) => {}
            Ok(false) => return Ok(Begun::Busy),
            Err(NeverThere) => {
                self.broken(to);
                return Err(SendRefused::Gone);
            }
        }
        let fill = |offset: u64, (memory, at): (&trunkline_mem::Memory, u64), len: u64| {
            let part = bytes.get(offset as usize..(offset + len) as usize).unwrap_or_default();
            memory.write(at, part).map_err(|_| SendRefused::Outside)
        };
        outbox.messages.push_eager(&message.to_words(), (len, cells), fill)?;
        self.counts.eager += 1;
        Ok(Begun::Done)
    }

    #[inline(never)]
    fn send_long(
        &mut self,
        to: PeerId,
        tag: u64,
        buffer: &Buffer,
        choice: Choice,
    ) -> Result<Begun, SendRefused> {
        let peer = self.peers.get_mut(to.0 as usize).filter(|peer| !peer.gone).ok_or(SendRefused::Gone)?;
        let neighbour = peer.neighbour;
        let overtakes = self.mutant.is("tagged-overtakes-short-copies");
        let is_blocked = peer.eager_send.is_some() && !overtakes;
        let Some(outbox) = peer.outbox.as_mut().filter(|_| !is_blocked) else { return Ok(Begun::Busy) };
        match outbox.messages.has_room(1) {
            Ok(true) if self.requests.len() < self.requests.capacity() => {}
            Ok(_) => return Ok(Begun::Busy),
            Err(NeverThere) => {
                self.broken(to);
                return Err(SendRefused::Gone);
            }
        }
        if !buffer.is_there(self.node.memory()) {
            return Err(SendRefused::Outside);
        }
        let len = buffer.len();
        let span = buffer.rows().span(len).filter(|_| len > 0);
        let reached = self.address_of(buffer).zip(span);
        let reach = if reached.is_some() { Reach::Mapped } else { Reach::Private };
        let plan = self.plan(to, len, reach, choice);
        let pieces = plan.way == Way::Ready { pieces: true };
        let mut sent = Sent::Ready { pieces, unshared: false };
        let mut reference = None;
        let mut failed = false;
        let before = self.node.exporter().counts().announced;
        if let (Way::Refer { offer }, Some((addr, span))) = (plan.way, reached) {
            let message = Send { addr, len: span as usize, passing: false };
            match self.node.refer(neighbour, &message, self.now) {
                Ok(Referring::Refer(operation, place)) => {
                    (sent, reference) = (Sent::Referred { operation, offer }, Some((place, offer)));
                }
                Ok(Referring::Busy) => return Ok(Begun::Busy),
                Ok(Referring::Elsewhere(_)) => {
                    (sent, failed) = (Sent::Ready { pieces, unshared: true }, true);
                }
                Err(SendError::Gone) => return Err(SendRefused::Gone),
                Err(_) => return Err(SendRefused::Outside),
            }
        }
        let sending = Sending { peer: to, tag, buffer: buffer.clone(), way: sent };
        let Ok(request) = self.requests.insert(Request::Send(sending)) else { return Ok(Begun::Busy) };
        let message = match reference {
            Some((reference, offer)) => {
                Message::Refer { tag, request, reference, rows: buffer.rows(), offer }
            }
            None => Message::Ready { tag, request, len, pieces },
        };
        let outbox = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.outbox.as_mut());
        outbox.into_iter().for_each(|outbox| outbox.messages.push(&message.to_words()));
        let new = failed || self.node.exporter().counts().announced != before;
        self.gone(to, (request, len), plan, new);
        if failed {
            self.learn(to, request, Fate::FellBack);
        }
        Ok(Begun::Request(RequestId(request)))
    }

    /// The receiver wants it in pieces.
    pub(super) fn on_clear(
        &mut self,
        from: PeerId,
        request: SlotId,
        receive: SlotId,
        (want, unmapped): (u64, bool),
    ) {
        let Some(Request::Send(sending)) = self.requests.get_mut(request) else { return };
        let (operation, unshared) = match sending.way {
            Sent::Ready { unshared, .. } => (None, unshared || unmapped),
            Sent::Referred { operation, .. } => (Some(operation), true),
            Sent::Eager | Sent::Placing { .. } | Sent::Pieces { .. } => return,
        };
        if sending.peer != from || want > sending.buffer.len() {
            return self.broken(from);
        }
        sending.way = Sent::Pieces { receive, want, done: 0 };
        if let Some(operation) = operation {
            let outcome = if unmapped { Outcome::NotMapped } else { Outcome::Ended };
            self.node.finish(operation, outcome, self.now);
            self.learn(from, request, Fate::FellBack);
        }
        self.counts.fallbacks += u64::from(unshared);
        self.counts.staged += 1;
        if let Some(peer) = self.peers.get_mut(from.0 as usize) {
            peer.pieces.push_back(request);
        }
    }

    /// The receiver wants it copied into its memory.
    pub(super) fn on_offer(
        &mut self,
        from: PeerId,
        request: SlotId,
        receive: SlotId,
        (to, rows): (&Reference, Rows),
    ) {
        let Some(neighbour) = self.peers.get(from.0 as usize).map(|peer| peer.neighbour) else { return };
        let Some(Request::Send(Sending { peer, way, buffer, .. })) = self.requests.get(request) else {
            return;
        };
        let operation = match way {
            Sent::Ready { pieces, .. } if !*pieces || self.mutant.is("tagged-forgets-its-wish") => None,
            Sent::Referred { operation, offer: true } => Some(*operation),
            // It wished for something else.
            Sent::Ready { .. } | Sent::Referred { offer: false, .. } => return self.broken(from),
            Sent::Eager | Sent::Placing { .. } | Sent::Pieces { .. } => return,
        };
        let want = rows.whole_in(to.part.len());
        let buffer = buffer.clone();
        if *peer != from || want > buffer.len() {
            return self.broken(from);
        }
        // Who offers has not touched what it was referred to.
        operation.into_iter().for_each(|operation| _ = self.node.finish(operation, Outcome::Ended, self.now));
        self.hear_of(neighbour, to.name);
        let begun = match self.node.arrive(neighbour, to) {
            Ok(Some(arrival)) => self.node.place(arrival, buffer, rows).is_ok().then_some(arrival),
            Ok(None) => None,
            Err(broken) => return self.node.break_off(neighbour, broken),
        };
        let Some(Request::Send(sending)) = self.requests.get_mut(request) else { return };
        match begun {
            Some(arrival) => {
                sending.way = Sent::Placing { receive, want };
                self.copies.push((arrival, request));
            }
            None => self.send_in_pieces(request, receive, want),
        }
    }

    /// What was to be copied in one go goes in pieces.
    fn send_in_pieces(&mut self, request: SlotId, receive: SlotId, want: u64) {
        let Some(Request::Send(sending)) = self.requests.get_mut(request) else { return };
        let to = sending.peer;
        sending.way = Sent::Pieces { receive, want, done: 0 };
        self.counts.fallbacks += 1;
        self.counts.staged += 1;
        if let Some(peer) = self.peers.get_mut(to.0 as usize) {
            peer.pieces.push_back(request);
        }
        self.learn(to, request, Fate::FellBack);
    }

    /// It was copied into the receiver's memory, or not.
    pub(super) fn placed(&mut self, request: SlotId, receipt: &Receipt) {
        let Some(Request::Send(Sending { peer, tag, way: Sent::Placing { receive, want }, buffer })) =
            self.requests.get(request)
        else {
            return;
        };
        let peer = *peer;
        let tag = *tag;
        let receive = *receive;
        let want = *want;
        let len = buffer.len();
        match receipt {
            Receipt::Copied => {
                (self.counts.mapped, self.counts.by_sender) =
                    (self.counts.mapped + 1, self.counts.by_sender + 1);
                self.learn(peer, request, Fate::Came);
                self.say(peer, Answer::Done { request: receive, outcome: Outcome::Copied });
                self.end(request, Ok(Done { peer, tag, len }));
            }
            Receipt::NotMapped | Receipt::NotCopied(_) => self.send_in_pieces(request, receive, want),
            Receipt::Lost => {
                self.learn(peer, request, Fate::Other);
                self.end(request, Err(Failed::Gone));
            }
        }
    }

    /// The receiver has it.
    pub(super) fn on_sent(&mut self, from: PeerId, request: SlotId, outcome: Outcome) {
        let Some(Request::Send(Sending { peer, tag, way, buffer })) = self.requests.get(request) else {
            return;
        };
        let done = Done { peer: *peer, tag: *tag, len: buffer.len() };
        let operation = match way {
            _ if *peer != from => return,
            Sent::Ready { .. } => None,
            Sent::Referred { operation, .. } => Some(*operation),
            Sent::Eager | Sent::Placing { .. } | Sent::Pieces { .. } => return,
        };
        let fate = if outcome == Outcome::Copied { Fate::Came } else { Fate::Other };
        self.learn(from, request, fate);
        operation.into_iter().for_each(|operation| _ = self.node.finish(operation, outcome, self.now));
        self.end(request, if outcome == Outcome::Copied { Ok(done) } else { Err(Failed::Gone) });
    }

    /// Stages some of what goes in pieces; whether there was anything.
    #[inline]
    pub(super) fn send_pieces(&mut self, to: PeerId) -> bool {
        let Some(first) = self.peers.get(to.0 as usize).and_then(|peer| peer.pieces.front()) else {
            return false;
        };
        let mut request = *first;
        let mut moved = false;
        let ahead = self.node.memory().batch_bytes().is_some();
        for _ in 0..PIECES_PER_CALL {
            let step = if ahead { self.stage_ahead(to, request) } else { self.send_piece(to, request) };
            match step {
                Piecewise::Full => break,
                Piecewise::Moved => moved = true,
                Piecewise::Over => {
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

    fn send_piece(&mut self, to: PeerId, request: SlotId) -> Piecewise {
        let Some(outbox) = self.peers.get_mut(to.0 as usize).and_then(|peer| peer.outbox.as_mut()) else {
            return Piecewise::Over;
        };
        let Some(Request::Send(sending)) = self.requests.get_mut(request) else { return Piecewise::Over };
        let Sent::Pieces { receive, want, done } = &mut sending.way else { return Piecewise::Over };
        let left = (*want - *done).min(PIECE.into()) as u32;
        let (piece, at) = match outbox.take(left) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Piecewise::Full,
            Err(NeverThere) => {
                self.broken(to);
                return Piecewise::Over;
            }
        };
        let len = u64::from(piece.len);
        if let Err(error) = sending.buffer.stage(self.node.memory(), *done, (outbox.memory(), at), len) {
            // The receiver waits for bytes that there are no more: it is told that there never were any.
            let answer = Answer::Done { request: *receive, outcome: Outcome::Ended };
            self.say(to, answer);
            self.learn(to, request, Fate::Other);
            self.end(request, Err(error.into()));
            return Piecewise::Over;
        }
        let answer = Answer::Piece { receive: *receive, position: piece.position, len: piece.len };
        *done += len;
        let over = done == want;
        let end = Done { peer: to, tag: sending.tag, len: sending.buffer.len() };
        // There is room, as was asked above.
        let _ = outbox.say(&answer);
        let position = outbox.staged();
        if over {
            if self.timed > 0 {
                self.learn_of_stage(to, request, position);
            }
            self.end(request, Ok(end));
            return Piecewise::Over;
        }
        Piecewise::Moved
    }
}

/// What became of a piece.
pub(super) enum Piecewise {
    /// There is no room.
    Full,
    /// It is staged.
    Moved,
    /// It was the last one.
    Over,
}
