//! The puts, gets and signals of a context, each as one operation or message on one path. Nothing here waits; an operation for
//! which there is no room is not begun. One call begins a put with signal of any size, which continues by itself with several
//! writes over several paths. All of them, and other puts meanwhile, belong to the epoch that its signal ends.

use trunkline_fabric::{Op, OpSource as From, OpStatus, PostError, Rail};
use trunkline_proto::limits::LINE_BYTES;
use trunkline_proto::rma::PathId;
use trunkline_proto::rma::outgoing::{PutTag, SignalBatch, StreamBusy};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::RmaMessage;
use trunkline_proto::wire::rma::signal::SignalUpdate;

use crate::rma::context::{HeapRange, PutSource, RmaContext};
use crate::rma::error::{LossCause, RmaError};
use crate::rma::heap::RegisteredHeap;
use crate::rma::job::MemberRank;
use crate::rma::operations::{LocalBuffer, OpRecord, TransferExtent, WriteNotice};
use crate::rma::peer::{OutboundLink, PROOF, PendingPutSignal};

/// Bytes of a piece of a long transfer that is spread over several paths.
const STRIPE: u64 = 512 << 10;
/// Long operations of one size in flight per path, at most: more of them make a network over sockets slower, and none faster.
const AHEAD: u64 = 32;
/// Bytes from which on an operation is long.
const LONG: u64 = 64 << 10;
/// Maximum number of bytes of a piece.
const PIECE_MAX: u64 = 1 << 30;

// No piece splits a cache line.
const _: () = assert!(STRIPE.is_multiple_of(LINE_BYTES) && PIECE_MAX.is_multiple_of(LINE_BYTES));

impl<R: Rail> RmaContext<R> {
    /// Returns the index of a peer with a link, unless its fence is pending.
    pub(super) fn prepare_member(&mut self, member: MemberRank) -> Option<u32> {
        let at = *self.known.get(&member)?;
        // A fence delays only later operations, so it is checked when the next one begins.
        if self.peers[at as usize].fenced {
            if !self.poll_peer_idle(at) {
                return None;
            }
            self.peers[at as usize].fenced = false;
        }
        Some(at)
    }

    /// Puts the first of these bytes. Returns their number; `None` if there is no room now.
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

    /// As [`Self::put`], also for a put with signal, whose batch is `batch`. The caller has checked the source.
    fn put_piece(
        &mut self,
        at: u32,
        batch: Option<&SignalBatch>,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
    ) -> Result<Option<u64>, RmaError> {
        let Some((path, len)) = self.select_route(at, from.byte_len()) else { return Ok(None) };
        let peer = &mut self.peers[at as usize];
        // Checked before anything is recorded, so that an error needs no cleanup.
        peer.links[path.index()].heap_extent(heap, offset, len)?;
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
                    // The stream waits for plain puts, and only proofs complete them.
                    peer.post_proofs(&mut self.rails);
                }
                return Ok(None);
            }
        };
        let (near, bytes) = match from {
            PutSource::Heap(local) => (LocalBuffer::Heap(local.heap, local.offset), None),
            PutSource::Bytes(bytes) => (LocalBuffer::Copied, Some(bytes)),
        };
        let note = OpRecord::Put(TransferExtent { near, heap, offset, len: len as u32 }, told);
        // `select_route` has checked that there is room.
        let id = self.operations.begin_operation(at, path, note).map_err(|_| RmaError::Unknown)?;
        if let Some(bytes) = bytes
            && let Some(copy) = self.copy_of(id, bytes.len())
        {
            // A lost path requires the bytes again, after the caller has changed its memory.
            copy.copy_from_slice(bytes);
        }
        self.post_transfer(at, path, id, note, imm, bytes);
        Ok(Some(len))
    }

    /// Selects a path, and how many of `len` bytes are posted on it at once.
    fn select_route(&mut self, at: u32, len: u64) -> Option<(PathId, u64)> {
        if !self.operations.has_room() {
            // Writes that have completed here, but are not known to have arrived, occupy the ledger until a proof completes them.
            self.peers.iter_mut().for_each(|peer| peer.post_proofs(&mut self.rails));
            return None;
        }
        let peer = &self.peers[at as usize];
        let rails = &self.rails;
        // Pieces are smaller only if they run in parallel; otherwise each piece is pure overhead.
        let most = if peer.has_several() && len > 2 * STRIPE { STRIPE } else { PIECE_MAX };
        let len = len.min(most).min(self.message_max);
        // Proportional to the length, so that short operations are not limited by bytes.
        let ahead = AHEAD * len.max(LONG);
        let has_room = |link: &OutboundLink| link.bytes < ahead && rails.post_credits(link) > 0;
        if let Some((path, _)) = peer.select_path(has_room) {
            return Some((path, len));
        }
        // Writes without a proof of arrival count against the limit of the paths, so the proofs are posted now.
        self.peers[at as usize].post_proofs(&mut self.rails);
        None
    }

    /// Checks that a member has these bytes.
    fn check_target(&self, at: u32, heap: u8, offset: u64, len: u64) -> Result<(), RmaError> {
        // Any path will do, because all of them describe the same heap.
        let link = self.peers[at as usize].select_path(|_| true);
        link.map_or(Ok(()), |(_, link)| link.heap_extent(heap, offset, len).map(drop))
    }

    /// Posts an operation of the ledger on a path that has room. Bytes passed by value are `bytes`, or their copy.
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
        // Heaps are the same on every path, and the range was checked when the operation began.
        let far = link.heap_extent(transfer.heap, transfer.offset, len).ok();
        let is_put = matches!(note, OpRecord::Put(..));
        // A placed write takes one round trip; a write with a proof after it takes two messages. This write is the first of
        // several, or the only one that a caller will wait for.
        let alone = is_put && self.rails.can_place_writes() && link.unproven.is_empty();
        let write = |from, to| match alone {
            true => Op::PlacedWrite { from, to, imm },
            false => Op::Write { from, to, imm },
        };
        let op = match (note, transfer.near) {
            (OpRecord::Put(..), LocalBuffer::Copied) => {
                // Copies are indexed by the operation's slot.
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
        // The heap was removed while the operation was pending, which its owner must not do.
        let Some(op) = op else { return self.lose_member(at, path, LossCause::Protocol) };
        link.bytes += len;
        // Where completion means arrival, no proof is needed.
        if !self.rails.completes_on_arrival() && is_put {
            link.unproven.push_back(id);
        }
        if alone {
            link.proofs.push_back(1);
            link.proving += 1;
        }
        let rail_number = link.rail;
        // A write that proves itself completes as its own proof.
        let wr_id = if alone { PROOF } else { id.to_bits() };
        match self.rails.post_op(link, wr_id, op) {
            Ok(()) => self.rails.ring_rail(rail_number),
            // There was a credit, so the link has ended, which its completions report too.
            Err(PostError::Busy) => self.fail_path(at, path, OpStatus::Flushed),
            Err(PostError::Refused(status)) => self.fail_path(at, path, status),
        }
    }

    /// Gets the first of these bytes. Returns their number; `None` if there is no room now.
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
        // Checked before the operation is recorded.
        self.peers[at as usize].links[path.index()].heap_extent(heap, offset, len)?;
        let near = LocalBuffer::Heap(into.heap, into.offset);
        let note = OpRecord::Get(TransferExtent { near, heap, offset, len: len as u32 });
        let Ok(id) = self.operations.begin_operation(at, path, note) else { return Ok(None) };
        self.post_transfer(at, path, id, note, None, None);
        Ok(Some(len))
    }

    /// Sends a signal. False if there is no room now.
    pub(super) fn send_signal(&mut self, member: MemberRank, update: SignalUpdate) -> Result<bool, RmaError> {
        let Some(at) = self.prepare_member(member) else { return Ok(false) };
        let peer = &mut self.peers[at as usize];
        let Some(path) = peer.select_signal_path(&self.rails) else {
            // The member's receives are in use, so their acknowledgement is requested.
            peer.request_room(&mut self.rails);
            return Ok(false);
        };
        let number = peer.outgoing.next_number();
        let sealed = match peer.outgoing.begin_signal() {
            Ok(batch) => peer.outgoing.end_signal(batch, update, false).map_err(|(batch, busy)| {
                // The stream's epoch must stay open for a later attempt.
                peer.outgoing.abandon_signal(batch);
                busy
            }),
            Err(busy) => Err(busy),
        };
        match sealed {
            Ok(signal) => {
                peer.outgoing.sent_over(number, path);
                // Cannot fail, because the peer exists.
                let _ = self.operations.begin_signal(at);
                self.rails.send_message(&peer.links[path.index()], &RmaMessage::Signal(signal));
                Ok(true)
            }
            Err(busy) => {
                if busy == StreamBusy::Plain {
                    peer.post_proofs(&mut self.rails);
                }
                Ok(false)
            }
        }
    }

    /// Puts bytes, and signals after them. False if there is no room now.
    pub(super) fn put_signal(
        &mut self,
        member: MemberRank,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
        update: SignalUpdate,
    ) -> Result<bool, RmaError> {
        self.check_source(from)?;
        let len = from.byte_len();
        let Some(at) = self.prepare_member(member) else { return Ok(false) };
        // Checked for the whole length, so that no part is written if the rest is out of range.
        self.check_target(at, heap, offset, len)?;
        // One per member, because the pieces of two would share an epoch.
        if self.peers[at as usize].sending.is_some() {
            return Ok(false);
        }
        let has_room = self.select_route(at, len).is_some();
        let batch = match self.peers[at as usize].outgoing.begin_signal() {
            Ok(batch) if has_room => batch,
            Ok(batch) => {
                // Nothing was counted for this batch yet, so it can be dropped.
                self.peers[at as usize].outgoing.abandon_signal(batch);
                return Ok(false);
            }
            Err(_) => return Ok(false),
        };
        let mut sending =
            PendingPutSignal { batch, heap, offset, rest: HeapRange { heap: 0, offset: 0, len: 0 }, update };
        match from {
            PutSource::Heap(local) => sending.rest = local,
            // Bytes by value are copied before the call returns, because the caller may change them then.
            PutSource::Bytes(_) if len > 0 => {
                let put = self.put_piece(at, Some(&sending.batch), heap, offset, from);
                if !matches!(put, Ok(Some(_))) {
                    // The bytes could not be posted, so the caller repeats the whole call.
                    self.peers[at as usize].outgoing.abandon_signal(sending.batch);
                    return put.map(|_| false);
                }
            }
            PutSource::Bytes(_) => {}
        }
        // Cannot fail, because the peer exists. From now on, a quiet waits until the signal is applied.
        let _ = self.operations.begin_signal(at);
        self.peers[at as usize].sending = Some(sending);
        self.mark_busy(at);
        self.progress_put_signal(at);
        Ok(true)
    }

    /// Makes progress on the pending put with signal towards a peer. Returns whether anything moved.
    pub(super) fn progress_put_signal(&mut self, at: u32) -> bool {
        let mut moved = false;
        while let Some(mut sending) = self.peers[at as usize].sending.take() {
            if sending.rest.len > 0 {
                let from = PutSource::Heap(sending.rest);
                let taken = self.put_piece(at, Some(&sending.batch), sending.heap, sending.offset, from);
                let taken = taken.ok().flatten();
                let is_lost = self.peers[at as usize].lost.is_some();
                // The member was lost by this piece; its operations have been reported.
                if is_lost {
                    return true;
                }
                let bytes = taken.unwrap_or(0);
                sending.offset += bytes;
                sending.rest.offset += bytes;
                sending.rest.len -= bytes;
                self.peers[at as usize].sending = Some(sending);
                // No room: the rest follows by later progress calls.
                if taken.is_none() {
                    return moved;
                }
                moved = true;
            } else {
                self.send_batch_signal(at, sending);
                return moved | self.peers[at as usize].sending.is_none();
            }
        }
        moved
    }

    /// Sends the signal of a batch, if there is room and the batch permits it.
    fn send_batch_signal(&mut self, at: u32, sending: PendingPutSignal) {
        let peer = &mut self.peers[at as usize];
        let Some(path) = peer.select_signal_path(&self.rails) else {
            peer.sending = Some(sending);
            peer.request_room(&mut self.rails);
            return;
        };
        let number = peer.outgoing.next_number();
        match peer.outgoing.end_signal(sending.batch, sending.update, false) {
            Ok(signal) => {
                peer.outgoing.sent_over(number, path);
                self.rails.send_message(&peer.links[path.index()], &RmaMessage::Signal(signal));
            }
            Err((batch, busy)) => {
                // The batch stays open until the signal may be sent.
                peer.sending = Some(PendingPutSignal { batch, ..sending });
                if busy == StreamBusy::Plain {
                    peer.post_proofs(&mut self.rails);
                }
            }
        }
    }

    /// Checks the source of a put.
    fn check_source(&self, from: PutSource<'_>) -> Result<(), RmaError> {
        match from {
            PutSource::Bytes(bytes) if bytes.len() as u64 > self.inline_max => {
                Err(RmaError::Argument("the bytes exceed the limit of one copied put"))
            }
            PutSource::Bytes(_) => Ok(()),
            PutSource::Heap(local) => {
                let heap = self.heaps.get(usize::from(local.heap)).and_then(Option::as_ref);
                let memory = heap.and_then(RegisteredHeap::memory);
                let memory = memory
                    .ok_or_else(|| RmaError::invalid_argument("this process has no heap of this number"))?;
                let inside = memory.checked_address(local.offset, local.len);
                inside.map(drop).map_err(|_| RmaError::Argument("the bytes exceed the heap of this process"))
            }
        }
    }
}
