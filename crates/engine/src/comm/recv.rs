//! The receiving lane of a comm: announces receives, places eager messages, and turns completions into finished requests. Called
//! under the group's lock; never waits.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_fabric::{Completion, CompletionKind, Op, OpStatus, PostError, Rail, RegionExtent};
use trunkline_proto::comm::MessageFault;
use trunkline_proto::comm::receiver::{ArrivalOutcome, MessageReceiver};
use trunkline_proto::comm::table::{self, BufferTable};
use trunkline_proto::limits::{EAGER_CREDITS_MAX, LINKS_MAX, RECV_BUFFERS_MAX, RECVS_MAX, TOKENS_MAX};
use trunkline_proto::pool::ranges;
use trunkline_proto::reserve::{OutOfMemory, try_deque};
use trunkline_proto::wire::eager::{self, EagerHeader};
use trunkline_proto::wire::fin::{self, FinRecord};
use trunkline_proto::wire::frame::RemoteRegion;
use trunkline_proto::wire::imm::{BufferToken, WriteImmediate};
use trunkline_proto::wire::share;

use crate::comm::plan::TransferPlan;
use crate::comm::request::{RequestTable, RequestTicket};
use crate::comm::striped_recv::{DueFlush, RecordBacklog};
use crate::link::path::{CommPaths, LinkPath};
use crate::link::rails::GroupRails;
use crate::memory::bounces::BounceBuffers;
use crate::memory::regions::{CommRegions, NO_MR};
use crate::memory::slab::MailboxPiece;
use crate::pool::member_ids::RecvMemberIds;
use crate::{CommFault, MrId, RecvBuf};

/// `wr_id`s: bounce buffers count from 0, matched receives carry their token, flushes their request.
pub(crate) const MATCHED: u64 = 1 << 32;
pub(crate) const FLUSH: u64 = 2 << 32;
pub(crate) const REPEATED: u64 = 4 << 32;
/// The final operation of a lane.
pub(crate) const LAST: u64 = 8 << 32;
/// A record of a member, on a NIC where only its own completion shows that it has landed.
pub(crate) const RECORD: u64 = 16 << 32;

/// The receiving lane.
pub(crate) struct RecvLane {
    pub(crate) paths: CommPaths,
    pub(crate) plan: TransferPlan,
    pub(crate) regions: CommRegions,
    /// Boxed, because it is large, and the comms that send would reserve the same space.
    pub(crate) receiver: Box<MessageReceiver>,
    /// The sender's mailbox, by path.
    pub(crate) mailboxes: [RemoteRegion; LINKS_MAX],
    pub(crate) bounces: Arc<BounceBuffers>,
    fins: MailboxPiece,
    /// Its names in its group.
    pub(crate) part: RecvMemberIds,
    pub(crate) cursor: u16,
    /// By the slot of a token.
    pub(crate) places: BufferTable<MrOffset>,
    /// Request slots by receive.
    requests: [u16; RECVS_MAX],
    /// The number of latest receives whose records are delayed; each of them has one buffer.
    pub(crate) unannounced: u32,
    /// Their tags, by number.
    pub(crate) waiting: [u32; EAGER_CREDITS_MAX],
    /// Polls since the first of them was delayed; saturated once they wait for credit alone.
    pub(crate) waited: u32,
    /// Flushes to post.
    pub(crate) flushes: VecDeque<DueFlush>,
    /// Flushes that have not completed.
    pub(crate) flushing: u32,
    /// The records that wait, and the flushes over several paths.
    pub(crate) records: RecordBacklog,
    /// Buffers of matched receives to post.
    pub(crate) matched_due: VecDeque<BufferToken>,
    /// Matched receives that the NIC has.
    pub(crate) matched_posted: u32,
    /// Immediates that matched no pending receive.
    pub(crate) dropped: u64,
    /// Messages that have arrived, in a buffer of a receive or not.
    pub(crate) arrived: u64,
    /// The peer has ended: only messages that it sent before can still be received.
    pub(crate) gone: bool,
    /// How far the end of the lane is proven.
    pub(crate) end: DrainProof,
    /// How often that proof was requested.
    pub(crate) ends: u16,
}

#[derive(Clone, Copy)]
pub(crate) struct MrOffset {
    pub(crate) mr: MrId,
    pub(crate) offset: u64,
}

impl MrOffset {
    fn none_for_slot(_slot: usize) -> Self {
        Self { mr: NO_MR, offset: 0 }
    }
}

/// Whether all operations that a lane has posted are known to have completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DrainProof {
    /// Not requested.
    Not,
    /// The proof is posted, on this many links.
    Posted(u8),
    /// Proven.
    Proven,
}

/// Returns the bytes of a bounce buffer.
pub(crate) fn bounce_bytes(plan: &TransferPlan) -> usize {
    (plan.eager_max as usize + share::EAGER_BYTES).next_multiple_of(64)
}

/// Bytes of the fin mailbox of a comm by itself.
pub(crate) const FINS_BYTES: usize = TOKENS_MAX * fin::BYTES;

/// Bytes of the fin mailbox of a member of a group.
pub(crate) const RANGE_FINS_BYTES: usize = ranges::SLOTS * fin::BYTES;

/// The tables of a receiving lane, allocated before it acquires any other resource.
pub(crate) struct RecvTables {
    records: RecordBacklog,
    flushes: VecDeque<DueFlush>,
    matched_due: VecDeque<BufferToken>,
}

/// The memory of this process in which the eager messages and the fin records of a peer arrive.
pub(crate) struct ReceiveMemory {
    pub(crate) bounces: Arc<BounceBuffers>,
    pub(crate) fins: MailboxPiece,
}

impl RecvTables {
    /// Allocates the tables of a lane with one path, or with several.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(are_many: bool) -> Result<Self, OutOfMemory> {
        let records = RecordBacklog::new(are_many)?;
        Ok(Self { records, flushes: try_deque(RECVS_MAX)?, matched_due: try_deque(TOKENS_MAX)? })
    }
}

impl RecvLane {
    pub(crate) fn new(
        RecvTables { records, flushes, matched_due }: RecvTables,
        paths: CommPaths,
        plan: TransferPlan,
        receiver: MessageReceiver,
        mailbox: RemoteRegion,
        ReceiveMemory { bounces, fins }: ReceiveMemory,
        regions_max: usize,
    ) -> Self {
        Self {
            paths,
            plan,
            regions: CommRegions::new(regions_max),
            receiver: Box::new(receiver),
            mailboxes: [mailbox; LINKS_MAX],
            bounces,
            fins,
            part: RecvMemberIds::ALONE,
            cursor: 0,
            places: BufferTable::new(MrOffset::none_for_slot),
            requests: [0; RECVS_MAX],
            unannounced: 0,
            waiting: [0; EAGER_CREDITS_MAX],
            waited: 0,
            flushes,
            flushing: 0,
            records,
            matched_due,
            matched_posted: 0,
            dropped: 0,
            arrived: 0,
            gone: false,
            end: DrainProof::Not,
            ends: 0,
        }
    }

    /// Returns the region for fin records over a path.
    pub(crate) fn fin_region(&self, path: usize) -> RemoteRegion {
        self.fins.rail_region(self.paths.get(path).rail)
    }

    /// Posts the bounce buffers of a path, once for each of its links.
    pub(crate) fn post_bounces(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
    ) -> Result<(), CommFault> {
        if self.plan.matched {
            // Where the NIC pairs messages, it writes them to their receives directly.
            return Ok(());
        }
        let bounces = Arc::clone(&self.bounces);
        for bounce in bounces.free_of_link(path) {
            self.post_bounce(rails, bounce)?;
        }
        Ok(())
    }

    /// Discards the contents of the bounce buffers, whose pages are allocated again on use.
    pub(crate) fn empty_bounces(&mut self) {
        self.bounces.release_pages();
    }

    #[inline]
    pub(crate) fn post_bounce(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        bounce: u32,
    ) -> Result<(), CommFault> {
        if self.gone && self.part.range.is_none() {
            // The link of a single comm has ended with its peer; a group's link also serves other
            // members.
            return Ok(());
        }
        let Some((path, into)) = self.bounces.buffer_extent(bounce) else { return Ok(()) };
        self.bounces.set_held(bounce, false);
        // Before the post, because the NIC may fill the buffer at once. The group owns the buffer, whichever
        // member posts it.
        self.post_as(rails, path, u64::from(bounce), Op::Recv { into }, true)
    }

    /// Starts a receive; `None` means not yet.
    #[inline]
    pub(crate) fn start_recv(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestTicket>, CommFault> {
        // A receive begins only with credit for its own records and the delayed ones: then a later write cannot fail for lack of
        // credit.
        let announced = !self.gone && !self.plan.matched;
        let many = self.paths.are_many();
        let records = self.unannounced + buffers.len() as u32;
        if announced && !many && self.paths.lead_credits(rails) < records {
            return Ok(None);
        }
        let Some(ticket) = requests.reserve_slot(&mut self.cursor) else { return Ok(None) };
        let slot = ticket.slot_index();
        let Some(id) = self.receiver.on_irecv(buffers.iter().map(|b| (b.tag, b.len))) else {
            requests.cancel_request(slot);
            return Ok(None);
        };
        requests.row.count_begun(buffers.len());
        self.requests[id.0] = slot;
        self.places.make_room(buffers.len(), MrOffset::none_for_slot);
        let mut place = table::slot_of_buffer(id.0, 0);
        for buffer in buffers {
            let RecvBuf { mr, offset, .. } = *buffer;
            self.places[place] = MrOffset { mr, offset };
            place += table::STEP;
            // Held until the buffer is done, so that a deregistration meanwhile is detected.
            self.regions.hold_region(mr);
        }
        // A small message may be sent without a record, so the record can be delayed. Operations that the caller posts meanwhile
        // are sent first; often the receive is for a reply to such a message.
        let eager = u64::from(self.plan.eager_max);
        let urgent = self.plan.matched || buffers.iter().any(|buffer| buffer.len > eager);
        if self.plan.matched {
            self.post_matched(rails, id, buffers.len())?;
        } else if many {
            self.announce_later(id, buffers);
            self.announce_due(rails)?;
            self.deliver_eager(rails, requests)?;
        } else {
            self.unannounced += 1;
            let number = self.receiver.next_number().wrapping_sub(1);
            self.waiting[number as usize % EAGER_CREDITS_MAX] = buffers[0].tag;
            if urgent || buffers.len() > 1 || self.receiver.holds_eager() || self.withholds_enough() {
                // Eager messages in bounce buffers may be paired with this receive already. A
                // record of several buffers cannot be delayed, because `waiting` stores one tag per
                // receive.
                self.write_pending_records(rails)?;
                self.deliver_eager(rails, requests)?;
            }
        }
        if urgent {
            rails.flush();
        }
        Ok(Some(ticket))
    }

    pub(crate) fn buffer_extent(&self, mr: MrId, offset: u64, len: u64) -> Result<RegionExtent, CommFault> {
        self.regions.find_extent(mr, 0, offset, len).map(|(_, extent)| extent).ok_or(CommFault::Revoked)
    }

    /// Posts an operation. Inlined, because callers pass a known operation, which removes its dispatch.
    #[inline(always)]
    pub(crate) fn post_op(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        wr_id: u64,
        op: Op<'_>,
        signalled: bool,
    ) -> Result<(), CommFault> {
        self.post_as(rails, path, self.part.tag | wr_id, op, signalled)
    }

    #[inline(always)]
    fn post_as(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        wr_id: u64,
        op: Op<'_>,
        signalled: bool,
    ) -> Result<(), CommFault> {
        let &LinkPath { rail, link, .. } = self.paths.get(path);
        match rails.get_mut(rail).post(link, wr_id, op, signalled) {
            Ok(()) => Ok(()),
            Err(error) => self.not_posted(rails, path, error),
        }
    }

    #[cold]
    fn not_posted(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        path: usize,
        error: PostError,
    ) -> Result<(), CommFault> {
        match error {
            PostError::Busy | PostError::Refused(OpStatus::Flushed) if self.paths.are_many() => {
                self.drain_path(rails, path);
                // Other links carry on, so the loss of one is no fault of the comm.
                Ok(())
            }
            // The link has ended; messages that arrived before it must still be delivered.
            PostError::Refused(OpStatus::Flushed) => {
                self.gone = true;
                Ok(())
            }
            // Credit was checked before, so a link without credit is broken.
            PostError::Busy => Err(CommFault::Link(OpStatus::Flushed)),
            PostError::Refused(status) => Err(CommFault::Link(status)),
        }
    }

    /// Returns the location of a buffer on the rail of a path.
    #[inline]
    pub(crate) fn place_on(&self, path: usize, mr: MrId, offset: u64) -> Option<RemoteRegion> {
        let keys = self.regions.rail_mr(mr, self.paths.iter().nth(path)?.rail)?.region_keys();
        Some(RemoteRegion { key: keys.remote.0, addr: keys.remote_base.wrapping_add(offset) })
    }

    /// Copies eager messages whose buffers are known.
    #[inline]
    fn deliver_eager(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
    ) -> Result<(), CommFault> {
        while let Some(delivery) = self.receiver.next_delivery()? {
            let MrOffset { mr, offset } = self.places[delivery.token.slot()];
            let to = self.regions.rail_mr(mr, 0);
            let copied =
                self.bounces.buffer_memory(delivery.bounce).zip(to).is_some_and(|((bounce, at), mr)| {
                    let at = at + self.part.head as u64;
                    let len = u64::from(delivery.len);
                    mr.memory().copy_from(offset, bounce, at, len).is_ok()
                });
            if !copied {
                // The region was deregistered, or is device memory, so the message cannot be
                // delivered.
                return Err(CommFault::Revoked);
            }
            self.post_bounce(rails, delivery.bounce)?;
            // Copied: the buffer can receive the next message.
            let arrival = self.receiver.complete_delivery(&delivery);
            self.on_arrival(requests, arrival);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn on_arrival(&mut self, requests: &RequestTable, arrival: ArrivalOutcome) {
        match arrival {
            ArrivalOutcome::Partial | ArrivalOutcome::Filled => {}
            ArrivalOutcome::Stale => self.dropped += 1,
            ArrivalOutcome::Done(id) => {
                if let Some(len) = self.receiver.finish_one(id) {
                    self.release_buffer(table::slot_of_buffer(id.0, 0));
                    // The common case of one buffer avoids the table of sizes.
                    return requests.complete_recv(self.requests[id.0], &[len]);
                }
                let mut sizes = [0; RECV_BUFFERS_MAX];
                let mut count = 0;
                let places = &mut self.places;
                self.receiver.finish_receive(id, |index, len| {
                    sizes[index] = len;
                    count = index + 1;
                    let place = &mut places[table::slot_of_buffer(id.0, index)];
                    self.regions.release_region(std::mem::replace(&mut place.mr, NO_MR));
                });
                requests.complete_recv(self.requests[id.0], &sizes[..count]);
            }
        }
    }

    /// Releases the region of a buffer that is no longer needed.
    #[inline]
    fn release_buffer(&mut self, slot: usize) {
        self.regions.release_region(std::mem::replace(&mut self.places[slot].mr, NO_MR));
    }

    /// Posts operations that waited for credit.
    #[inline]
    pub(crate) fn post_due(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
    ) -> Result<(), CommFault> {
        // Called for each poll, so the common case of no work returns before anything else.
        if self.flushes.is_empty() && self.matched_due.is_empty() && !self.records.has_unannounced() {
            return Ok(());
        }
        self.post_matched_due(rails)?;
        self.announce_due(rails)?;
        while let Some(mut flush) = self.flushes.pop_front() {
            if !self.post_flush(rails, requests, &mut flush)? {
                self.flushes.push_front(flush);
                // Flushes are posted in order, so a blocked one blocks those after it.
                break;
            }
        }
        rails.flush();
        Ok(())
    }

    /// Processes one completion.
    #[inline]
    pub(crate) fn on_completion(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        path: usize,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        if completion.status != OpStatus::Ok {
            return Err(self.on_failed(completion));
        }
        match completion.done {
            CompletionKind::Written => self.on_written(requests, completion),
            CompletionKind::Received if completion.wr_id & MATCHED != 0 => {
                self.matched_one();
                let token = BufferToken::from_bits(completion.wr_id as u32);
                // A matched message carries no record: the completion's length is the message's.
                let arrival = self.receiver.on_imm(WriteImmediate::Whole(token), completion.len)?;
                self.arrived += 1;
                self.on_arrival(requests, arrival);
                Ok(())
            }
            CompletionKind::Received => self.on_bounced(rails, requests, completion),
            CompletionKind::Posted => {
                self.on_posted(requests, path, completion.wr_id);
                Ok(())
            }
        }
    }

    #[inline]
    fn on_written(&mut self, requests: &RequestTable, completion: &Completion) -> Result<(), CommFault> {
        let bits = completion.imm.unwrap_or(0);
        let Some(imm) = WriteImmediate::from_bits(bits) else {
            return Err(MessageFault::Immediate(bits).into());
        };
        let arrival = if let WriteImmediate::Fin(token) = imm {
            let mut record = [0; fin::BYTES];
            let (fins, start) = self.fins.memory_and_offset();
            match fins.read(start + self.part.fin_at(token), &mut record) {
                Ok(()) => {
                    let mut record = FinRecord::from_bytes(&record).map_err(MessageFault::Fin)?;
                    // The slot may contain the record of a newer token that shares it; a record of
                    // another token is stale.
                    if self.part.to_wire_token(token) == record.token {
                        record.token = token;
                    }
                    self.receiver.on_fin(token, record)?
                }
                Err(_) => ArrivalOutcome::Stale,
            }
        } else {
            self.receiver.on_imm(imm, completion.len)?
        };
        self.arrived += u64::from(matches!(arrival, ArrivalOutcome::Done(_) | ArrivalOutcome::Filled));
        self.on_arrival(requests, arrival);
        Ok(())
    }

    fn on_bounced(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        let bounce = completion.wr_id as u32;
        let mut head = [0; eager::BYTES];
        let read = self.bounces.buffer_memory(bounce).map(|(memory, at)| memory.read(at, &mut head));
        if !matches!(read, Some(Ok(()))) {
            self.dropped += 1;
            return Ok(());
        }
        match self.part.parse_eager(&head) {
            Ok(header) => self.on_eager(rails, requests, header, bounce),
            Err(_) if !self.plan.write_data => self.on_fin_message(rails, requests, bounce),
            Err(error) => Err(MessageFault::Eager(error).into()),
        }
    }

    /// Processes an eager message in this bounce buffer.
    fn on_eager(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        header: EagerHeader,
        bounce: u32,
    ) -> Result<(), CommFault> {
        // The header is the peer's claim, so its length is checked before any copy.
        if header.len > self.plan.eager_max {
            return Err(
                MessageFault::TooLong { len: header.len.into(), room: self.plan.eager_max.into() }.into()
            );
        }
        self.bounces.set_held(bounce, true);
        self.receiver.on_eager(header, bounce)?;
        self.arrived += 1;
        self.deliver_eager(rails, requests)
    }
}
