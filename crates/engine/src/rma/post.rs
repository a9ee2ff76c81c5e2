//! What a context begins: puts, gets, atomics and signals, each as one operation or message on one path. Nothing here waits; what
//! finds no room is not begun.

use trunkline_fabric::{Op, PostError, Purpose, Rail, Remote, RemoteKey, Source as From, Status};
use trunkline_proto::limits::LINE_BYTES;
use trunkline_proto::rma::Path;
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::rma::calls::Refused;
use trunkline_proto::rma::ledger::Quiet;
use trunkline_proto::rma::outgoing::{Batch, Busy, Tag};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::Message;
use trunkline_proto::wire::rma::signal::Update;
use trunkline_proto::wire::rma::word::{self, Width};

use crate::rma::context::{Context, Fetch, Local, MESSAGE, Near, Note, PROOF, Source, Told, Transfer};
use crate::rma::error::{Lost, RmaError};
use crate::rma::heap::Heap;
use crate::rma::job::Member;
use crate::rma::peer::{Asked, Found, Link};
use crate::rma::sending::signal_path;

/// Bytes of a piece, where a long transfer is spread over several paths.
const STRIPE: u64 = 512 << 10;
/// Long operations of one size that may be under way on a path: more make a network over sockets slower, and none faster.
const AHEAD: u64 = 32;
/// Bytes of those at least.
const LONG: u64 = 64 << 10;
/// Bytes of a piece at most.
const PIECE_MAX: u64 = 1 << 30;

// No piece cuts a line.
const _: () = assert!(STRIPE.is_multiple_of(LINE_BYTES) && PIECE_MAX.is_multiple_of(LINE_BYTES));

impl<R: Rail> Context<R> {
    /// Takes the place of a peer that carries, unless its fence waits.
    pub(super) fn ready(&mut self, member: Member) -> Option<u32> {
        let at = *self.known.get(&member)?;
        if self.peers[at as usize].fenced {
            let still = match self.mutant.is("job-fences-swallow-failures") {
                true => self.quiet_of(at) == Ok(Quiet::Done),
                false => self.is_still(at),
            };
            if !still {
                return None;
            }
            self.peers[at as usize].fenced = false;
        }
        Some(at)
    }

    /// Puts the first bytes of these: how many. `None` if there is no room now.
    pub(super) fn put(
        &mut self,
        member: Member,
        heap: u8,
        offset: u64,
        from: Source<'_>,
    ) -> Result<Option<u64>, RmaError> {
        self.source(from)?;
        let Some(at) = self.ready(member) else { return Ok(None) };
        self.put_piece(at, None, heap, offset, from)
    }

    /// The same, of a put with signal if there is a batch; what is put comes from where it was checked to.
    pub(super) fn put_piece(
        &mut self,
        at: u32,
        batch: Option<&Batch>,
        heap: u8,
        offset: u64,
        from: Source<'_>,
    ) -> Result<Option<u64>, RmaError> {
        let Some((path, len)) = self.route(at, from.byte_len()) else { return Ok(None) };
        let peer = &mut self.peers[at as usize];
        remote(&peer.links[path.index()], heap, offset, len)?;
        let epoch = peer.outgoing.next_number();
        let tag = match batch {
            Some(batch) => peer.outgoing.piece(batch, path),
            None => peer.outgoing.put(path),
        };
        let (told, imm) = match tag {
            Ok(Tag::Plain) => (Told::Plain, None),
            Ok(Tag::Counted(imm)) => (Told::Counted(epoch), Some(imm)),
            Err(busy) => {
                if busy == Busy::Plain {
                    self.prove(at);
                }
                return Ok(None);
            }
        };
        let (near, bytes) = match from {
            Source::Heap(local) => (Near::Heap(local.heap, local.offset), None),
            Source::Bytes(bytes) => (Near::Copied, Some(bytes)),
        };
        let note = Note::Put(Transfer { near, heap, offset, len: len as u32 }, told);
        // There is room.
        let id = self.ledger.begin(at, path, note).map_err(|_| RmaError::Unknown)?;
        self.note_begun(id);
        if let Some(bytes) = bytes
            && let Some(copy) = self.copy_of(id, bytes.len())
        {
            copy.copy_from_slice(bytes);
        }
        self.post(at, path, id, note, (imm, bytes));
        Ok(Some(len))
    }

    /// The path, and how many of so many bytes go over it at once.
    pub(super) fn route(&mut self, at: u32, len: u64) -> Option<(Path, u64)> {
        if !self.ledger.has_room() && !self.mutant.is("job-begins-without-room") {
            // What completed and is not known to have arrived takes the room.
            (0..self.peers.len() as u32).for_each(|at| self.prove(at));
            return None;
        }
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let most = if peer.has_several() && len > 2 * STRIPE { STRIPE } else { PIECE_MAX };
        let len = len.min(most).min(self.message_max);
        let ahead = AHEAD * len.max(LONG);
        let has_room = |link: &Link| link.bytes < ahead && rails[link.rail].credits(link.link) > 0;
        if let Some((path, _)) = peer.path(has_room) {
            return Some((path, len));
        }
        // What has gone out and is not known to have arrived is under way.
        if !self.mutant.is("job-waits-for-no-proof") {
            self.prove(at);
        }
        None
    }

    /// Whether a member has these bytes.
    pub(super) fn check(&self, at: u32, heap: u8, offset: u64, len: u64) -> Result<(), RmaError> {
        let link = self.peers[at as usize].path(|_| true);
        link.map_or(Ok(()), |(_, link)| remote(link, heap, offset, len).map(drop))
    }

    /// Posts an operation that is in the ledger on a path that has room: bytes that were given by value are those, or their copy.
    pub(super) fn post(
        &mut self,
        at: u32,
        path: Path,
        id: SlotId,
        note: Note,
        (imm, bytes): (Option<u32>, Option<&[u8]>),
    ) {
        let (Note::Put(transfer, _) | Note::Get(transfer)) = note else { return };
        let link = &mut self.peers[at as usize].links[path.index()];
        let len = u64::from(transfer.len);
        let region = |heaps: &[Option<Heap>], heap: u8, offset| {
            let mr = heaps.get(usize::from(heap))?.as_ref()?.on(link.rail)?;
            Some(mr.extent(offset, len))
        };
        // Heaps are the same on every path: it was checked when it was put or got.
        let far = remote(link, transfer.heap, transfer.offset, len).ok();
        let is_put = matches!(note, Note::Put(..));
        // One that proves itself takes a round trip, one with a proof behind it two messages. It is the first of several, or the
        // only one that will be waited for.
        let alone = is_put && self.places && link.unproven.is_empty();
        let write = |from, to| match alone {
            true => Op::PlacedWrite { from, to, imm },
            false => Op::Write { from, to, imm },
        };
        let op = match (note, transfer.near) {
            (Note::Put(..), Near::Copied) => {
                let from = id.slot as usize * self.inline_max as usize;
                let copy = || self.copies.get(from..from + len as usize);
                bytes.or_else(copy).zip(far).map(|(bytes, to)| write(From::Inline(bytes), to))
            }
            (Note::Put(..), Near::Heap(heap, offset)) => {
                region(&self.heaps, heap, offset).zip(far).map(|(extent, to)| write(From::Region(extent), to))
            }
            (_, Near::Heap(heap, offset)) => {
                region(&self.heaps, heap, offset).zip(far).map(|(into, from)| Op::Read { into, from })
            }
            (_, Near::Copied) => None,
        };
        let Some(op) = op else { return self.lose(at, path, Lost::Protocol) };
        link.bytes += len;
        if !self.arrives && is_put {
            link.unproven.push_back(id);
        }
        if alone {
            link.proofs.push_back(1);
            link.proving += 1;
        }
        let rail_number = link.rail;
        let wr_id = if alone { PROOF } else { id.to_bits() };
        match self.rails[rail_number].post(link.link, wr_id, op, true) {
            Ok(()) => self.ring(rail_number),
            // There was a credit: the link has ended, which its completions tell, too.
            Err(PostError::Busy) => self.fail(at, path, Status::Flushed),
            Err(PostError::Refused(status)) => self.fail(at, path, status),
        }
    }

    /// Gets the first bytes of these: how many. `None` if there is no room now.
    pub(super) fn get(
        &mut self,
        member: Member,
        heap: u8,
        offset: u64,
        into: Local,
    ) -> Result<Option<u64>, RmaError> {
        self.source(Source::Heap(into))?;
        let Some(at) = self.ready(member) else { return Ok(None) };
        let Some((path, len)) = self.route(at, into.len) else { return Ok(None) };
        remote(&self.peers[at as usize].links[path.index()], heap, offset, len)?;
        let near = Near::Heap(into.heap, into.offset);
        let note = Note::Get(Transfer { near, heap, offset, len: len as u32 });
        let Ok(id) = self.ledger.begin(at, path, note) else { return Ok(None) };
        self.note_begun(id);
        self.post(at, path, id, note, (None, None));
        Ok(Some(len))
    }

    /// Asks for an atomic. `None` if there is no room now.
    pub(super) fn atomic(
        &mut self,
        member: Member,
        word: word::Word,
        atomic: Atomic,
    ) -> Result<Option<Fetch>, RmaError> {
        let Some(at) = self.ready(member) else { return Ok(None) };
        if self.native.is_some() && word.width() == Width::Eight {
            return self.ask_nic(at, word, atomic);
        }
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        // One of the receives is for what asks, and of those for answers one in four is for acknowledgements.
        let out = u64::from(peer.asked.calls.len()) + peer.outgoing.unacknowledged();
        let most = u64::from(self.answers - self.answers / 4);
        let takes =
            |link: &Link| out + 1 < u64::from(link.credit) && u64::from(peer.asked.calls.len()) < most;
        let has_room = |link: &Link| takes(link) && rails[link.rail].credits(link.link) > 0;
        let Some((path, _)) = peer.path(has_room).filter(|_| self.ledger.has_room()) else {
            self.ask_for_room(at);
            return Ok(None);
        };
        let peer = &mut self.peers[at as usize];
        let request = match peer.asked.calls.begin(word, atomic) {
            Ok(request) => request,
            Err(Refused::Busy) => return Ok(None),
            Err(Refused::Width) => return Err(RmaError::Argument("the word is not as wide as the type")),
        };
        let slot = request.slot;
        let id = self.ledger.begin(at, path, Note::Call(slot)).ok();
        peer.asked.begun(slot, id);
        if let Some(id) = id {
            self.note_begun(id);
        }
        self.send(at, path, &Message::Request(request));
        Ok(Some(Fetch { peer: at, slot, on_nic: false }))
    }

    /// The value that an atomic has found, whose place it gives up then; `None` if it is not known yet.
    pub(super) fn fetched(&mut self, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        let (member, lost) = self
            .peers
            .get(fetch.peer as usize)
            .map(|peer| (peer.member, peer.lost))
            .ok_or_else(RmaError::unknown)?;
        let asked = self.asked(fetch).ok_or_else(RmaError::unknown)?;
        let (generation, _, found) = asked.found[fetch.slot.index()];
        match found {
            _ if generation != fetch.slot.generation() => Err(RmaError::Unknown),
            Found::Value(value) => {
                asked.calls.collected(fetch.slot);
                Ok(Some(value))
            }
            Found::Nowhere => Err(RmaError::NoWord(member)),
            Found::Pending => match lost {
                Some(lost) => Err(RmaError::Lost { member, lost }),
                None => Ok(None),
            },
        }
    }

    /// Nobody asks for that value any more.
    pub(super) fn give_up(&mut self, fetch: Fetch) {
        if let Some(asked) = self.asked(fetch) {
            asked.calls.collected(fetch.slot);
        }
    }

    /// What was asked together with that.
    fn asked(&mut self, fetch: Fetch) -> Option<&mut Asked> {
        let peer = self.peers.get_mut(fetch.peer as usize)?;
        if fetch.on_nic { peer.on_nic.as_mut() } else { Some(&mut peer.asked) }
    }

    /// Signals. False if there is no room now.
    pub(super) fn signal(&mut self, member: Member, update: Update) -> Result<bool, RmaError> {
        let Some(at) = self.ready(member) else { return Ok(false) };
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let Some(path) = signal_path(peer, |link| rails[link.rail].credits(link.link)) else {
            self.ask_for_room(at);
            return Ok(false);
        };
        let number = peer.outgoing.next_number();
        let sealed = match peer.outgoing.begin() {
            Ok(batch) => peer.outgoing.end(batch, update, false).map_err(|(batch, busy)| {
                peer.outgoing.abandon(batch);
                busy
            }),
            Err(busy) => Err(busy),
        };
        match sealed {
            Ok(signal) => {
                peer.outgoing.sent_over(number, path);
                // There is such a peer.
                let _ = self.ledger.signalled(at);
                self.send(at, path, &Message::Signal(signal));
                Ok(true)
            }
            Err(busy) => {
                if busy == Busy::Plain {
                    self.prove(at);
                }
                Ok(false)
            }
        }
    }

    /// Sends a message over a path that has room.
    pub(super) fn send(&mut self, at: u32, path: Path, message: &Message) {
        let link = &self.peers[at as usize].links[path.index()];
        let number = link.rail;
        let (bytes, len) = message.to_bytes();
        let op = Op::Send { head: &bytes[..len], body: From::Inline(&[]), imm: None };
        // A link that takes none has ended, which its completions tell.
        let _ = self.rails[number].post(link.link, MESSAGE, op, false);
        self.ring(number);
    }

    /// Gives the operations posted on a rail to the network, unless more of a batch follows.
    #[inline]
    fn ring(&mut self, rail: usize) {
        if self.batches {
            self.unrung = true;
        } else if self.unrung {
            self.ring_all();
        } else {
            self.rails[rail].flush();
        }
    }

    /// Gives the operations that wait for the end of a batch to the network, on all rails.
    #[inline]
    pub(super) fn ring_all(&mut self) {
        if std::mem::take(&mut self.unrung) && !self.mutant.is("job-forgets-batches") {
            self.rails.iter_mut().for_each(Rail::flush);
        }
    }

    /// Checks what bytes are given.
    pub(super) fn source(&self, from: Source<'_>) -> Result<(), RmaError> {
        match from {
            Source::Bytes(bytes) if bytes.len() as u64 > self.inline_max => {
                Err(RmaError::Argument("more bytes than are copied at once"))
            }
            Source::Bytes(_) => Ok(()),
            Source::Heap(local) => {
                let heap = self.heaps.get(usize::from(local.heap)).and_then(Option::as_ref);
                let memory = heap.and_then(Heap::memory);
                let memory = memory.ok_or_else(|| RmaError::argument("there is no such heap"))?;
                let inside = memory.checked(local.offset, local.len);
                inside.map(drop).map_err(|_| RmaError::Argument("outside of the heap"))
            }
        }
    }
}

/// Where bytes of a member's heap are, over a link.
pub(super) fn remote(link: &Link, heap: u8, offset: u64, len: u64) -> Result<Remote, RmaError> {
    let heap = link.heaps.get(usize::from(heap)).filter(|heap| **heap != Heap::NONE);
    let heap = heap.ok_or_else(|| RmaError::argument("the member has no such heap"))?;
    let inside = offset.checked_add(len).is_some_and(|end| end <= heap.len);
    if !inside {
        return Err(RmaError::Argument("outside of the member's heap"));
    }
    let key = RemoteKey(heap.region.key);
    let addr = heap.region.addr.wrapping_add(offset);
    Ok(Remote { key, addr, purpose: Purpose::Heap })
}
