//! Messages that come, and the receives that they are for.

use trunkline_fabric::OobStream;
use trunkline_mem::Memory;
use trunkline_mem::ipc::{CopyError, IpcMemory};
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::{Pattern, Reach, Reply, Rows, Way, answer};
use trunkline_proto::wire::ipc::{Name, Outcome, Reference};
use trunkline_proto::wire::tagged::{Answer, Message};

use super::ahead::is_copied_ahead;
use super::eager::EagerSource;
use super::endpoint::Endpoint;
use super::peer::PeerId;
use super::request::{Failed, Got, Matched, Receiving, Request, RequestId};
use super::{Done, FRAMES_PER_CALL, SPARE_MAX};
use crate::ipc::{ArrivalId, Buffer, Neighbour, Receipt, Referring, Send};

/// A message that came before its receive.
#[derive(Debug)]
pub(super) enum Kept {
    /// All of it.
    Eager(Vec<u8>),
    /// Its sender has it.
    Ready { request: SlotId, len: u64, pieces: bool },
    /// It is in memory that may be mapped.
    Refer { request: SlotId, arrival: ArrivalId, len: u64, rows: Rows, offer: bool },
}

/// A receive cannot be posted; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveRefused {
    /// There is no such peer, or it is gone and nothing that it sent is left.
    #[error("the peer is gone")]
    Gone,
    /// The memory is not there.
    #[error("the bytes to receive into are not all in one piece of memory")]
    Outside,
    /// There are as many receives, or requests, as there may be.
    #[error("too many messages at once")]
    TooMany,
}

impl<M: IpcMemory, S: OobStream> Endpoint<M, S> {
    /// Receives the earliest message that fits, of that peer or of any, whose tag agrees with `tag` in the bits of `mask`. The memory is the
    /// message's until [`Endpoint::test`] says how it ended.
    ///
    /// # Errors
    /// [`ReceiveRefused`].
    #[inline]
    pub fn receive(
        &mut self,
        from: Option<PeerId>,
        (tag, mask): (u64, u64),
        into: Buffer,
    ) -> Result<RequestId, ReceiveRefused> {
        if !into.is_there(self.node.memory()) && !into.is_empty() {
            return Err(ReceiveRefused::Outside);
        }
        let pattern = Pattern { source: from.map(|peer| peer.0), tag, mask };
        if self.requests.len() >= self.requests.capacity() {
            return Err(ReceiveRefused::TooMany);
        }
        if self.matcher.kept() > 0
            && let Some((source, tag, message)) = self.matcher.take_kept(&pattern)
        {
            return self.take_early(PeerId(source), tag, message, into);
        }
        // What it sent whole before it went is taken in.
        let gone = |peer: PeerId| self.peers.get(peer.0 as usize).is_none_or(|peer| peer.gone);
        if from.is_some_and(gone) {
            return Err(ReceiveRefused::Gone);
        }
        self.post(pattern, into)
    }

    fn post(&mut self, pattern: Pattern, buffer: Buffer) -> Result<RequestId, ReceiveRefused> {
        let receiving = Request::Receive(Receiving { buffer, way: Got::Posted(None) });
        let request = self.requests.insert(receiving).map_err(|_| ReceiveRefused::TooMany)?;
        let Ok(posted) = self.matcher.post(pattern, request) else {
            self.requests.remove(request);
            return Err(ReceiveRefused::TooMany);
        };
        if let Some(Request::Receive(Receiving { way, .. })) = self.requests.get_mut(request) {
            *way = Got::Posted(Some(posted));
        }
        Ok(RequestId(request))
    }

    /// Takes a short message that has come already, without a request.
    ///
    /// `None`: none has come that fits, or a long one, which [`Endpoint::probe`] tells.
    pub fn take_bytes(
        &mut self,
        from: Option<PeerId>,
        (tag, mask): (u64, u64),
        into: &mut [u8],
    ) -> Option<Result<Done, Failed>> {
        let pattern = Pattern { source: from.map(|peer| peer.0), tag, mask };
        self.fetch(&pattern);
        let (_, _, Kept::Eager(_)) = self.matcher.look(&pattern)? else { return None };
        let (source, tag, message) = self.matcher.take_kept(&pattern)?;
        let (peer, Kept::Eager(bytes)) = (PeerId(source), message) else { return None };
        let room = bytes.len().min(into.len());
        let to = into.get_mut(..room)?;
        let from = bytes.get(..room)?;
        to.copy_from_slice(from);
        let len = bytes.len() as u64;
        let room = room as u64;
        self.give_back(bytes);
        let end = Matched { peer, tag, len, want: room, request: SlotId::from_bits(0) }.end();
        Some(end)
    }

    /// The message that a receive would get now, if one has come: who sent it, its tag, and its bytes.
    #[must_use]
    pub fn probe(&mut self, from: Option<PeerId>, (tag, mask): (u64, u64)) -> Option<Done> {
        let pattern = Pattern { source: from.map(|peer| peer.0), tag, mask };
        self.fetch(&pattern);
        let (source, tag, message) = self.matcher.look(&pattern)?;
        let len = match message {
            Kept::Eager(bytes) => bytes.len() as u64,
            Kept::Ready { len, .. } | Kept::Refer { len, .. } => *len,
        };
        Some(Done { peer: PeerId(source), tag, len })
    }

    /// Reads messages that no receive is posted for, until one fits.
    fn fetch(&mut self, pattern: &Pattern) {
        let sources = pattern.source.map_or(0..self.peers.len() as u32, |source| source..source + 1);
        for source in sources {
            while self.matcher.look(pattern).is_none() && self.read_message(PeerId(source)) {}
        }
    }

    /// Takes a receive back that no message has come for; whether it was. [`Endpoint::test`] then says [`Failed::Cancelled`].
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let Some(Request::Receive(Receiving { way: Got::Posted(Some(posted)), .. })) =
            self.requests.get(request.0)
        else {
            return false;
        };
        let cancelled = self.matcher.cancel(*posted).is_some();
        if cancelled {
            self.end(request.0, Err(Failed::Cancelled));
        }
        cancelled
    }

    /// A receive finds a message that came before it.
    fn take_early(
        &mut self,
        peer: PeerId,
        tag: u64,
        message: Kept,
        into: Buffer,
    ) -> Result<RequestId, ReceiveRefused> {
        let room = into.len();
        let of = |len: u64, request| Matched { peer, tag, len, want: len.min(room), request };
        let ended = Request::Ended(Err(Failed::Gone));
        let id = self.requests.insert(ended).map_err(|_| ReceiveRefused::TooMany)?;
        match message {
            Kept::Eager(bytes) => {
                let matched = of(bytes.len() as u64, SlotId::from_bits(0));
                let part = bytes.get(..matched.want as usize).unwrap_or_default();
                if !part.is_empty() && is_copied_ahead(self.node.memory(), &into, self.mutant) {
                    let kept = Memory::try_heap(part.len()).inspect(|kept| {
                        // It has as many bytes.
                        let _ = kept.write(0, part);
                    });
                    self.give_back(bytes);
                    match kept {
                        Ok(kept) => {
                            self.set(id, Receiving { buffer: into, way: Got::Eager(matched) });
                            self.take_eager_ahead(id, matched, EagerSource::Kept(kept));
                        }
                        Err(error) => self.end(id, Err(Failed::from(CopyError::from(error)))),
                    }
                    return Ok(RequestId(id));
                }
                let written = if part.is_empty() { Ok(()) } else { into.write(self.node.memory(), 0, part) };
                self.give_back(bytes);
                self.end(id, written.map_err(Failed::from).and_then(|()| matched.end()));
            }
            Kept::Ready { request, len, pieces } => self.begin_ready(id, of(len, request), into, pieces),
            Kept::Refer { request, arrival, len, rows, offer } => {
                self.begin_refer(id, of(len, request), (arrival, rows, offer), into);
            }
        }
        Ok(RequestId(id))
    }

    fn give_back(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Reads some of a peer's messages, as long as there are receives that they could be for; whether there was any.
    #[inline]
    pub(super) fn read_messages(&mut self, from: PeerId) -> bool {
        let mut moved = false;
        for _ in 0..FRAMES_PER_CALL {
            if !self.matcher.wants(from.0) || !self.read_message(from) {
                break;
            }
            moved = true;
        }
        moved
    }

    /// Reads the next message of a peer, if there is one and room for it.
    #[inline]
    pub(super) fn read_message(&mut self, from: PeerId) -> bool {
        let Some(peer) = self.peers.get(from.0 as usize) else { return false };
        let Some(words) = peer.inbox.messages.next() else { return false };
        let cells = match Message::from_words(&words) {
            Ok(message) if message.cells() < peer.inbox.messages.cells() => {
                if !self.take_message(from, message) {
                    return false;
                }
                message.cells()
            }
            Ok(_) | Err(_) => {
                self.broken(from);
                return false;
            }
        };
        if let Some(peer) = self.peers.get_mut(from.0 as usize) {
            peer.inbox.messages.consume(cells);
        }
        true
    }

    /// Whether the message could be taken in.
    #[inline]
    fn take_message(&mut self, from: PeerId, message: Message) -> bool {
        let (Message::Eager { tag, .. } | Message::Ready { tag, .. } | Message::Refer { tag, .. }) = message;
        match self.matcher.take_posted(from.0, tag) {
            Some(request) => {
                self.begin(request, from, message);
                true
            }
            None => self.keep(from, message),
        }
    }

    /// A message comes whose receive is posted.
    #[inline]
    fn begin(&mut self, id: SlotId, peer: PeerId, message: Message) {
        let Some(Request::Receive(receiving)) = self.requests.get_mut(id) else { return };
        let room = receiving.buffer.len();
        match message {
            Message::Eager { tag, len } => {
                let len = u64::from(len);
                let want = len.min(room);
                let matched = Matched { peer, tag, len, want, request: SlotId::from_bits(0) };
                let node = &self.node;
                let buffer = &receiving.buffer;
                if want > 0 && is_copied_ahead(node.memory(), buffer, self.mutant) {
                    let position = self.peers.get(peer.0 as usize).map(|of| of.inbox.messages.position());
                    let source = EagerSource::Ring(position.unwrap_or(0));
                    return self.take_eager_ahead(id, matched, source);
                }
                let Some(from) = self.peers.get(peer.0 as usize) else { return };
                let take =
                    |offset, from: (&Memory, u64), part| buffer.unstage(node.memory(), offset, from, part);
                let taken: Result<(), CopyError> = from.inbox.messages.bytes(want, take);
                self.end(id, taken.map_err(Failed::from).and_then(|()| matched.end()));
            }
            Message::Ready { tag, request, len, pieces } => {
                let buffer = receiving.buffer.clone();
                self.begin_ready(
                    id,
                    Matched { peer, tag, len, want: len.min(room), request },
                    buffer,
                    pieces,
                );
            }
            Message::Refer { tag, request, reference, rows, offer } => {
                let buffer = receiving.buffer.clone();
                let len = rows.whole_in(reference.part.len());
                let matched = Matched { peer, tag, len, want: len.min(room), request };
                match self.admit(peer, &reference) {
                    Some(arrival) => self.begin_refer(id, matched, (arrival, rows, offer), buffer),
                    None => self.end(id, Err(Failed::Gone)),
                }
            }
        }
    }

    /// Takes note of a reference; `None`: its sender is gone, or broken.
    pub(super) fn admit(&mut self, peer: PeerId, reference: &Reference) -> Option<ArrivalId> {
        let neighbour = self.peers.get(peer.0 as usize).filter(|peer| !peer.gone)?.neighbour;
        self.hear_of(neighbour, reference.name);
        match self.node.arrive(neighbour, reference) {
            Ok(arrival) => arrival,
            Err(broken) => {
                self.node.break_off(neighbour, broken);
                None
            }
        }
    }

    /// What a message names was said on the stream before.
    #[inline]
    pub(super) fn hear_of(&mut self, neighbour: Neighbour, name: Name) {
        if !self.node.knows(neighbour, name) {
            self.node.hear_from(neighbour, self.now);
        }
    }

    /// A message comes that no receive fits yet; whether there is room for it.
    fn keep(&mut self, from: PeerId, message: Message) -> bool {
        if !self.matcher.has_room(from.0) {
            return false;
        }
        let (tag, kept) = match message {
            Message::Eager { tag, len } => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.resize(len as usize, 0);
                let Some(peer) = self.peers.get(from.0 as usize) else { return true };
                let take = |offset: u64, (memory, at): (&Memory, u64), part: u64| {
                    let into = bytes.get_mut(offset as usize..(offset + part) as usize).unwrap_or_default();
                    memory.read(at, into)
                };
                // All of it is inside.
                let _ = peer.inbox.messages.bytes(len.into(), take);
                (tag, Kept::Eager(bytes))
            }
            Message::Ready { tag, request, len, pieces } => (tag, Kept::Ready { request, len, pieces }),
            Message::Refer { tag, request, reference, rows, offer } => match self.admit(from, &reference) {
                Some(arrival) => {
                    let len = rows.whole_in(reference.part.len());
                    (tag, Kept::Refer { request, arrival, len, rows, offer })
                }
                None => return true,
            },
        };
        self.counts.early += 1;
        // There is room.
        let _ = self.matcher.keep(from.0, tag, kept);
        true
    }

    /// The sender has it: says how it is to come.
    fn begin_ready(&mut self, id: SlotId, matched: Matched, buffer: Buffer, pieces: bool) {
        let Matched { peer, request, want, .. } = matched;
        if self.peers.get(peer.0 as usize).is_none_or(|peer| peer.gone) {
            return self.end(id, Err(Failed::Gone));
        }
        if want == 0 {
            self.say(peer, Answer::Done { request, outcome: Outcome::Copied });
            return self.end(id, matched.end());
        }
        let pieces = pieces && !self.mutant.is("tagged-grants-no-wish");
        let mut unshared = false;
        if self.reply(&buffer, Way::Ready { pieces }) == Reply::Offer {
            match self.offer(id, matched, &buffer) {
                Some(true) => return,
                Some(false) => unshared = !self.mutant.is("tagged-hides-what-it-did-not-share"),
                None => {}
            }
        }
        self.clear(id, matched, buffer, unshared);
    }

    /// It comes in pieces; `unshared`: as memory of this process was not exported.
    fn clear(&mut self, id: SlotId, matched: Matched, buffer: Buffer, unshared: bool) {
        let Matched { peer, request, want, .. } = matched;
        self.set(id, Receiving { buffer, way: Got::Pieces(matched, 0) });
        self.say(peer, Answer::Clear { request, receive: id, len: want, unmapped: unshared });
    }

    fn reply(&self, buffer: &Buffer, way: Way) -> Reply {
        let reach = if self.address_of(buffer).is_some() { Reach::Mapped } else { Reach::Private };
        answer(reach, way)
    }

    /// Has the sender copy it into memory of this process. `None`: nobody could say where its bytes end; `Some(false)`: it was not exported.
    fn offer(&mut self, id: SlotId, matched: Matched, buffer: &Buffer) -> Option<bool> {
        let Matched { peer, request, want, .. } = matched;
        let neighbour = self.peers.get(peer.0 as usize)?.neighbour;
        let rows = buffer.rows();
        let addr = self.address_of(buffer)?;
        // The last row is whole, or it is not said where they end.
        let span = rows.span(want).filter(|span| rows.packed(*span).is_some())?;
        let message = Send { addr, len: span as usize, passing: false };
        let Ok(Referring::Refer(operation, reference)) = self.node.refer(neighbour, &message, self.now)
        else {
            return Some(false);
        };
        self.set(id, Receiving { buffer: buffer.clone(), way: Got::Offered(matched, operation) });
        self.say(peer, Answer::Offer { request, receive: id, reference, rows });
        Some(true)
    }

    /// It is in memory of the sender: begins to copy it, or has the sender do that.
    fn begin_refer(
        &mut self,
        id: SlotId,
        matched: Matched,
        (arrival, rows, offer): (ArrivalId, Rows, bool),
        buffer: Buffer,
    ) {
        let Matched { peer, request, want, .. } = matched;
        if want == 0 {
            let _ = self.node.refuse(arrival);
            self.say(peer, Answer::Done { request, outcome: Outcome::Copied });
            return self.end(id, matched.end());
        }
        let offer = offer && !self.mutant.is("tagged-grants-no-wish");
        if self.reply(&buffer, Way::Refer { offer }) == Reply::Offer {
            if self.offer(id, matched, &buffer) == Some(true) {
                let _ = self.node.refuse(arrival);
                return;
            }
            if self.mutant.is("tagged-grants-what-it-cannot") {
                let _ = self.node.refuse(arrival);
                return self.clear(id, matched, buffer, false);
            }
        }
        if self.node.receive_part(arrival, buffer.clone(), (want, rows)).is_err() {
            return self.end(id, Err(Failed::Gone));
        }
        self.set(id, Receiving { buffer, way: Got::Copying(matched) });
        self.copies.push((arrival, id));
        if self.mutant.is("tagged-answers-early") {
            self.say(peer, Answer::Done { request, outcome: Outcome::Copied });
        }
    }

    #[inline]
    fn set(&mut self, id: SlotId, receiving: Receiving) {
        if let Some(request) = self.requests.get_mut(id) {
            *request = Request::Receive(receiving);
        }
    }

    /// It was copied from the sender's memory, or not.
    pub(super) fn fetched(&mut self, id: SlotId, receipt: &Receipt) {
        let Some(Request::Receive(Receiving { way: Got::Copying(matched), .. })) = self.requests.get(id)
        else {
            return;
        };
        let (matched, &Matched { peer, request, want, .. }) = (*matched, matched);
        match receipt {
            Receipt::Copied => {
                (self.counts.mapped, self.counts.by_receiver) =
                    (self.counts.mapped + 1, self.counts.by_receiver + 1);
                self.say(peer, Answer::Done { request, outcome: Outcome::Copied });
                self.end(id, matched.end());
            }
            Receipt::NotMapped | Receipt::NotCopied(_) if self.mutant.is("tagged-fails-with-the-driver") => {
                self.end(id, Err(Failed::Unsent));
            }
            Receipt::NotMapped | Receipt::NotCopied(_) => {
                if let Some(Request::Receive(receiving)) = self.requests.get_mut(id) {
                    receiving.way = Got::Pieces(matched, 0);
                }
                self.say(peer, Answer::Clear { request, receive: id, len: want, unmapped: true });
            }
            Receipt::Lost => self.end(id, Err(Failed::Gone)),
        }
    }

    /// Reads some of a peer's answers; whether there was any.
    #[inline]
    pub(super) fn read_answers(&mut self, from: PeerId) -> bool {
        let mut moved = false;
        for _ in 0..FRAMES_PER_CALL {
            let Some(peer) = self.peers.get_mut(from.0 as usize) else { break };
            let Some(words) = peer.inbox.answers.next() else { break };
            // The next word may announce one piece more.
            if self.unstaging > 0 && self.is_unstaging(from) {
                break;
            }
            let Some(peer) = self.peers.get_mut(from.0 as usize) else { break };
            peer.inbox.answers.consume(1);
            moved = true;
            match Answer::from_words(&words) {
                Ok(answer) => self.take_answer(from, &answer),
                Err(_) => {
                    self.broken(from);
                    break;
                }
            }
        }
        moved
    }

    fn take_answer(&mut self, from: PeerId, answer: &Answer) {
        match *answer {
            Answer::Clear { request, receive, len, unmapped } => {
                self.on_clear(from, request, receive, (len, unmapped));
            }
            Answer::Offer { request, receive, reference, rows } => {
                self.on_offer(from, request, receive, (&reference, rows));
            }
            Answer::Piece { receive, position, len } => self.on_piece(from, receive, position, len),
            Answer::Done { request, outcome } => match self.requests.get(request) {
                Some(Request::Receive(_)) => self.on_placed(from, request, outcome),
                Some(Request::Send(_)) => self.on_sent(from, request, outcome),
                Some(Request::Ended(_)) | None => {}
            },
        }
    }

    /// Bytes are in the stage.
    fn on_piece(&mut self, from: PeerId, id: SlotId, position: u64, len: u32) {
        let Some(peer) = self.peers.get(from.0 as usize) else { return };
        let Some(staged) = peer.inbox.staged(position, len) else {
            if !self.mutant.is("tagged-believes-pieces") {
                self.broken(from);
            }
            return;
        };
        if self.node.memory().batch_bytes().is_some() {
            return self.unstage_ahead(from, id, trunkline_proto::tagged::Piece { position, len });
        }
        let ended = match self.requests.get_mut(id) {
            Some(Request::Receive(Receiving { buffer, way })) if way.peer() == Some(from) => {
                if let Got::Offered(matched, operation) = way {
                    let operation = *operation;
                    *way = Got::Pieces(*matched, 0);
                    self.node.finish(operation, Outcome::NotMapped, self.now);
                }
                match way {
                    Got::Pieces(matched, got) if matched.want - *got >= u64::from(len) => {
                        let written = buffer.unstage(self.node.memory(), *got, staged, len.into());
                        *got += u64::from(len);
                        match written {
                            Ok(()) => (*got == matched.want).then(|| matched.end()),
                            Err(error) => Some(Err(error.into())),
                        }
                    }
                    _ => return self.broken(from),
                }
            }
            _ => None,
        };
        peer.inbox.unstaged(position, len);
        ended.into_iter().for_each(|end| self.end(id, end));
    }

    /// The sender has copied it, or cannot send it.
    fn on_placed(&mut self, from: PeerId, id: SlotId, outcome: Outcome) {
        let Some(Request::Receive(Receiving { way, .. })) = self.requests.get(id) else { return };
        let (matched, operation) = match way {
            Got::Offered(matched, operation) if matched.peer == from => (*matched, Some(*operation)),
            Got::Pieces(matched, _) if matched.peer == from && outcome != Outcome::Copied => (*matched, None),
            _ => return,
        };
        operation.into_iter().for_each(|operation| _ = self.node.finish(operation, outcome, self.now));
        if self.unstaging > 0 && self.fail_behind_copies(from, id, Failed::Unsent) {
            return;
        }
        self.end(id, if outcome == Outcome::Copied { matched.end() } else { Err(Failed::Unsent) });
    }
}
