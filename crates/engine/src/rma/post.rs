//! What a context begins: puts, gets, atomics and signals, each as one operation or message on one path. Nothing here waits; what
//! finds no room is not begun.

use trunkline_fabric::{
    Op, OpSource as From, OpStatus, PostError, Rail, RegionPurpose, RemoteKey, RemoteLocation,
};
use trunkline_proto::limits::LINE_BYTES;
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::atomic::TypedAtomic;
use trunkline_proto::rma::atomic_requests::RequestRefusal;
use trunkline_proto::rma::ledger::QuietProgress;
use trunkline_proto::rma::outgoing::{PutTag, SignalBatch, StreamBusy};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::RmaMessage;
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::{self, WordWidth};

use crate::rma::context::{
    FetchHandle, HeapRange, LocalBuffer, MESSAGE, OpRecord, PROOF, PutSource, RmaContext, TransferExtent,
    WriteNotice,
};
use crate::rma::error::{LossCause, RmaError};
use crate::rma::heap::RegisteredHeap;
use crate::rma::job::MemberRank;
use crate::rma::peer::{FetchResult, MemberAtomics, OutboundLink};
use crate::rma::put_signal::signal_path;

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

impl<R: Rail> RmaContext<R> {
    /// Takes the place of a peer that carries, unless its fence waits.
    pub(super) fn prepare_member(&mut self, member: MemberRank) -> Option<u32> {
        let at = *self.known.get(&member)?;
        if self.peers[at as usize].fenced {
            let still = match self.mutant.is_planted("job-fences-swallow-failures") {
                true => self.poll_quiet(at) == Ok(QuietProgress::Done),
                false => self.poll_peer_idle(at),
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
        member: MemberRank,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
    ) -> Result<Option<u64>, RmaError> {
        self.check_source(from)?;
        let Some(at) = self.prepare_member(member) else { return Ok(None) };
        self.put_piece(at, None, heap, offset, from)
    }

    /// The same, of a put with signal if there is a batch; what is put comes from where it was checked to.
    pub(super) fn put_piece(
        &mut self,
        at: u32,
        batch: Option<&SignalBatch>,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
    ) -> Result<Option<u64>, RmaError> {
        let Some((path, len)) = self.select_route(at, from.byte_len()) else { return Ok(None) };
        let peer = &mut self.peers[at as usize];
        remote_extent(&peer.links[path.index()], heap, offset, len)?;
        let epoch = peer.outgoing.next_number();
        let tag = match batch {
            Some(batch) => peer.outgoing.tag_piece(batch, path),
            None => peer.outgoing.tag_put(path),
        };
        let (told, imm) = match tag {
            Ok(PutTag::Plain) => (WriteNotice::Plain, None),
            Ok(PutTag::Counted(imm)) => (WriteNotice::Counted(epoch), Some(imm)),
            Err(busy) => {
                if busy == StreamBusy::Plain {
                    self.post_proofs(at);
                }
                return Ok(None);
            }
        };
        let (near, bytes) = match from {
            PutSource::Heap(local) => (LocalBuffer::Heap(local.heap, local.offset), None),
            PutSource::Bytes(bytes) => (LocalBuffer::Copied, Some(bytes)),
        };
        let note = OpRecord::Put(TransferExtent { near, heap, offset, len: len as u32 }, told);
        // There is room.
        let id = self.ledger.begin_operation(at, path, note).map_err(|_| RmaError::Unknown)?;
        self.note_begun(id);
        if let Some(bytes) = bytes
            && let Some(copy) = self.copy_of(id, bytes.len())
        {
            copy.copy_from_slice(bytes);
        }
        self.post_transfer(at, path, id, note, imm, bytes);
        Ok(Some(len))
    }

    /// The path, and how many of so many bytes go over it at once.
    pub(super) fn select_route(&mut self, at: u32, len: u64) -> Option<(PathId, u64)> {
        if !self.ledger.has_room() && !self.mutant.is_planted("job-begins-without-room") {
            // What completed and is not known to have arrived takes the room.
            (0..self.peers.len() as u32).for_each(|at| self.post_proofs(at));
            return None;
        }
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        let most = if peer.has_several() && len > 2 * STRIPE { STRIPE } else { PIECE_MAX };
        let len = len.min(most).min(self.message_max);
        let ahead = AHEAD * len.max(LONG);
        let has_room =
            |link: &OutboundLink| link.bytes < ahead && rails[link.rail].post_credits(link.link) > 0;
        if let Some((path, _)) = peer.select_path(has_room) {
            return Some((path, len));
        }
        // What has gone out and is not known to have arrived is under way.
        if !self.mutant.is_planted("job-waits-for-no-proof") {
            self.post_proofs(at);
        }
        None
    }

    /// Whether a member has these bytes.
    pub(super) fn check_target(&self, at: u32, heap: u8, offset: u64, len: u64) -> Result<(), RmaError> {
        let link = self.peers[at as usize].select_path(|_| true);
        link.map_or(Ok(()), |(_, link)| remote_extent(link, heap, offset, len).map(drop))
    }

    /// Posts an operation that is in the ledger on a path that has room: bytes that were given by value are those, or their copy.
    pub(super) fn post_transfer(
        &mut self,
        at: u32,
        path: PathId,
        id: SlotId,
        note: OpRecord,
        imm: Option<u32>,
        bytes: Option<&[u8]>,
    ) {
        let (OpRecord::Put(transfer, _) | OpRecord::Get(transfer)) = note else { return };
        let link = &mut self.peers[at as usize].links[path.index()];
        let len = u64::from(transfer.len);
        let region = |heaps: &[Option<RegisteredHeap>], heap: u8, offset| {
            let mr = heaps.get(usize::from(heap))?.as_ref()?.registration_on(link.rail)?;
            Some(mr.extent_at(offset, len))
        };
        // Heaps are the same on every path: it was checked when it was put or got.
        let far = remote_extent(link, transfer.heap, transfer.offset, len).ok();
        let is_put = matches!(note, OpRecord::Put(..));
        // One that proves itself takes a round trip, one with a proof behind it two messages. It is the first of several, or the
        // only one that will be waited for.
        let alone = is_put && self.places && link.unproven.is_empty();
        let write = |from, to| match alone {
            true => Op::PlacedWrite { from, to, imm },
            false => Op::Write { from, to, imm },
        };
        let op = match (note, transfer.near) {
            (OpRecord::Put(..), LocalBuffer::Copied) => {
                let from = id.slot as usize * self.inline_max as usize;
                let copy = || self.copies.get(from..from + len as usize);
                bytes.or_else(copy).zip(far).map(|(bytes, to)| write(From::Inline(bytes), to))
            }
            (OpRecord::Put(..), LocalBuffer::Heap(heap, offset)) => {
                region(&self.heaps, heap, offset).zip(far).map(|(extent, to)| write(From::Region(extent), to))
            }
            (_, LocalBuffer::Heap(heap, offset)) => {
                region(&self.heaps, heap, offset).zip(far).map(|(into, from)| Op::Read { into, from })
            }
            (_, LocalBuffer::Copied) => None,
        };
        let Some(op) = op else { return self.lose_member(at, path, LossCause::Protocol) };
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
            Ok(()) => self.ring_rail(rail_number),
            // There was a credit: the link has ended, which its completions tell, too.
            Err(PostError::Busy) => self.fail_path(at, path, OpStatus::Flushed),
            Err(PostError::Refused(status)) => self.fail_path(at, path, status),
        }
    }

    /// Gets the first bytes of these: how many. `None` if there is no room now.
    pub(super) fn get(
        &mut self,
        member: MemberRank,
        heap: u8,
        offset: u64,
        into: HeapRange,
    ) -> Result<Option<u64>, RmaError> {
        self.check_source(PutSource::Heap(into))?;
        let Some(at) = self.prepare_member(member) else { return Ok(None) };
        let Some((path, len)) = self.select_route(at, into.len) else { return Ok(None) };
        remote_extent(&self.peers[at as usize].links[path.index()], heap, offset, len)?;
        let near = LocalBuffer::Heap(into.heap, into.offset);
        let note = OpRecord::Get(TransferExtent { near, heap, offset, len: len as u32 });
        let Ok(id) = self.ledger.begin_operation(at, path, note) else { return Ok(None) };
        self.note_begun(id);
        self.post_transfer(at, path, id, note, None, None);
        Ok(Some(len))
    }

    /// Asks for an atomic. `None` if there is no room now.
    pub(super) fn post_atomic(
        &mut self,
        member: MemberRank,
        word: word::SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<Option<FetchHandle>, RmaError> {
        let Some(at) = self.prepare_member(member) else { return Ok(None) };
        if self.native.is_some() && word.width() == WordWidth::Eight {
            return self.ask_nic(at, word, atomic);
        }
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        // One of the receives is for what asks, and of those for answers one in four is for acknowledgements.
        let out = u64::from(peer.asked.calls.len()) + peer.outgoing.unacknowledged_signals();
        let most = u64::from(self.answers - self.answers / 4);
        let takes = |link: &OutboundLink| {
            out + 1 < u64::from(link.credit) && u64::from(peer.asked.calls.len()) < most
        };
        let has_room = |link: &OutboundLink| takes(link) && rails[link.rail].post_credits(link.link) > 0;
        let Some((path, _)) = peer.select_path(has_room).filter(|_| self.ledger.has_room()) else {
            self.request_room(at);
            return Ok(None);
        };
        let peer = &mut self.peers[at as usize];
        let request = match peer.asked.calls.begin_request(word, atomic) {
            Ok(request) => request,
            Err(RequestRefusal::Busy) => return Ok(None),
            Err(RequestRefusal::Width) => {
                return Err(RmaError::Argument("the word is not as wide as the type"));
            }
        };
        let slot = request.slot;
        let id = self.ledger.begin_operation(at, path, OpRecord::Call(slot)).ok();
        peer.asked.record_call(slot, id);
        if let Some(id) = id {
            self.note_begun(id);
        }
        self.send_message(at, path, &RmaMessage::Request(request));
        Ok(Some(FetchHandle { peer: at, slot, on_nic: false }))
    }

    /// The value that an atomic has found, whose place it gives up then; `None` if it is not known yet.
    pub(super) fn collect_fetch(&mut self, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        let (member, lost) = self
            .peers
            .get(fetch.peer as usize)
            .map(|peer| (peer.member, peer.lost))
            .ok_or_else(RmaError::unknown_request)?;
        let asked = self.calls_of(fetch).ok_or_else(RmaError::unknown_request)?;
        let (generation, _, found) = asked.found[fetch.slot.index()];
        match found {
            _ if generation != fetch.slot.generation() => Err(RmaError::Unknown),
            FetchResult::Value(value) => {
                asked.calls.release_value(fetch.slot);
                Ok(Some(value))
            }
            FetchResult::Nowhere => Err(RmaError::NoWord(member)),
            FetchResult::Pending => match lost {
                Some(lost) => Err(RmaError::Lost { member, lost }),
                None => Ok(None),
            },
        }
    }

    /// Nobody asks for that value any more.
    pub(super) fn give_up(&mut self, fetch: FetchHandle) {
        if let Some(asked) = self.calls_of(fetch) {
            asked.calls.release_value(fetch.slot);
        }
    }

    /// What was asked together with that.
    fn calls_of(&mut self, fetch: FetchHandle) -> Option<&mut MemberAtomics> {
        let peer = self.peers.get_mut(fetch.peer as usize)?;
        if fetch.on_nic { peer.on_nic.as_mut() } else { Some(&mut peer.asked) }
    }

    /// Signals. False if there is no room now.
    pub(super) fn send_signal(&mut self, member: MemberRank, update: SignalUpdate) -> Result<bool, RmaError> {
        let Some(at) = self.prepare_member(member) else { return Ok(false) };
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let Some(path) = signal_path(peer, |link| rails[link.rail].post_credits(link.link)) else {
            self.request_room(at);
            return Ok(false);
        };
        let number = peer.outgoing.next_number();
        let sealed = match peer.outgoing.begin_signal() {
            Ok(batch) => peer.outgoing.end_signal(batch, update, false).map_err(|(batch, busy)| {
                peer.outgoing.abandon_signal(batch);
                busy
            }),
            Err(busy) => Err(busy),
        };
        match sealed {
            Ok(signal) => {
                peer.outgoing.sent_over(number, path);
                // There is such a peer.
                let _ = self.ledger.begin_signal(at);
                self.send_message(at, path, &RmaMessage::Signal(signal));
                Ok(true)
            }
            Err(busy) => {
                if busy == StreamBusy::Plain {
                    self.post_proofs(at);
                }
                Ok(false)
            }
        }
    }

    /// Sends a message over a path that has room.
    pub(super) fn send_message(&mut self, at: u32, path: PathId, message: &RmaMessage) {
        let link = &self.peers[at as usize].links[path.index()];
        let number = link.rail;
        let (bytes, len) = message.to_bytes();
        let op = Op::Send { head: &bytes[..len], body: From::Inline(&[]), imm: None };
        // A link that takes none has ended, which its completions tell.
        let _ = self.rails[number].post(link.link, MESSAGE, op, false);
        self.ring_rail(number);
    }

    /// Gives the operations posted on a rail to the network, unless more of a batch follows.
    #[inline]
    fn ring_rail(&mut self, rail: usize) {
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
        if std::mem::take(&mut self.unrung) && !self.mutant.is_planted("job-forgets-batches") {
            self.rails.iter_mut().for_each(Rail::flush);
        }
    }

    /// Checks what bytes are given.
    pub(super) fn check_source(&self, from: PutSource<'_>) -> Result<(), RmaError> {
        match from {
            PutSource::Bytes(bytes) if bytes.len() as u64 > self.inline_max => {
                Err(RmaError::Argument("more bytes than are copied at once"))
            }
            PutSource::Bytes(_) => Ok(()),
            PutSource::Heap(local) => {
                let heap = self.heaps.get(usize::from(local.heap)).and_then(Option::as_ref);
                let memory = heap.and_then(RegisteredHeap::memory);
                let memory = memory.ok_or_else(|| RmaError::invalid_argument("there is no such heap"))?;
                let inside = memory.checked_address(local.offset, local.len);
                inside.map(drop).map_err(|_| RmaError::Argument("outside of the heap"))
            }
        }
    }
}

/// Where bytes of a member's heap are, over a link.
pub(super) fn remote_extent(
    link: &OutboundLink,
    heap: u8,
    offset: u64,
    len: u64,
) -> Result<RemoteLocation, RmaError> {
    let heap = link.heaps.get(usize::from(heap)).filter(|heap| **heap != RegisteredHeap::NONE);
    let heap = heap.ok_or_else(|| RmaError::invalid_argument("the member has no such heap"))?;
    let inside = offset.checked_add(len).is_some_and(|end| end <= heap.len);
    if !inside {
        return Err(RmaError::Argument("outside of the member's heap"));
    }
    let key = RemoteKey(heap.region.key);
    let addr = heap.region.addr.wrapping_add(offset);
    Ok(RemoteLocation { key, addr, purpose: RegionPurpose::Heap })
}
