//! The sending lane of a comm: turns the sender's decisions into operations, and completions into finished requests. Called under
//! the group's lock; never waits.

use std::collections::VecDeque;

use trunkline_fabric::{Completion, CompletionKind, Op, OpSource, OpStatus, PostError, Rail, RemoteLocation};
use trunkline_proto::comm::sender::{MessageSender, SendDecision};
use trunkline_proto::limits::{SENDS_MAX, SMALL_MAX, STRIPES_MAX};
use trunkline_proto::wire::cts::CtsRecord;
use trunkline_proto::wire::eager::EagerHeader;
use trunkline_proto::wire::frame::RemoteRegion;
use trunkline_proto::wire::imm::WriteImmediate;

use crate::comm::outgoing::{FinDue, PendingSend, SendMessage};
use crate::comm::pieces::SLICE;
use crate::comm::plan::{INLINE_MAX, TransferPlan};
use crate::comm::request::{RequestTable, RequestTicket};
use crate::comm::send_tables::SendTables;
use crate::comm::stripe::MultiLink;
use crate::link::path::{CommPaths, LOW_MASK};
use crate::link::rails::GroupRails;
use crate::memory::mailbox::MailboxView;
use crate::memory::regions::{CommRegions, NO_MR};
use crate::memory::slab::MailboxPiece;
use crate::pool::member_ids::SendMemberIds;
use crate::{CommFault, MrId};

/// Number of eager messages with unread records from which on a test also reads records, because a sender without eager
/// credits has to wait for them.
const UNMATCHED_DUE: usize = 8;

/// `wr_id` of operations whose completion only counts.
pub(crate) const COUNTED: u64 = LOW_MASK;

/// The sending lane.
pub(crate) struct SendLane {
    pub(crate) paths: CommPaths,
    pub(crate) plan: TransferPlan,
    pub(crate) regions: CommRegions,
    pub(crate) sender: MessageSender,
    pub(crate) mailbox: MailboxPiece,
    pub(crate) fins: RemoteRegion,
    /// Its names in its group.
    pub(crate) part: SendMemberIds,
    cursor: u16,
    pub(crate) outgoing: Box<[PendingSend]>,
    /// Requests with bytes or a fin record to post, oldest first; not those whose fin record waits for placement.
    pub(crate) unposted: VecDeque<u16>,
    /// State of several links; `None` with one.
    pub(crate) many: Option<Box<MultiLink>>,
    /// Requests that are done once their one operation has been sent, oldest first.
    leaving: VecDeque<u16>,
    /// Signalled operations that have not completed.
    pub(crate) posted: u32,
    /// Messages started.
    pub(crate) sent: u64,
    /// By request: how many operations had been posted at its end, for requests that are done when they are posted or sent; else
    /// 0.
    marks: Box<[u64]>,
    /// By request: the region that its message was last copied from at sending.
    copied: Box<[MrId]>,
    /// The number of operations posted up to the last one that is copied from the caller's memory at sending.
    last_copied: u64,
    /// The final operation of the lane is still to be posted.
    pub(crate) last_due: bool,
}

impl SendLane {
    pub(crate) fn new(
        SendTables { many, outgoing, unposted, leaving, marks, copied }: SendTables,
        paths: CommPaths,
        plan: TransferPlan,
        sender: MessageSender,
        mailbox: MailboxPiece,
        regions_max: usize,
    ) -> Self {
        Self {
            paths,
            many,
            plan,
            regions: CommRegions::new(regions_max),
            sender,
            mailbox,
            fins: RemoteRegion { key: 0, addr: 0 },
            part: SendMemberIds::ALONE,
            cursor: 0,
            outgoing,
            unposted,
            leaving,
            posted: 0,
            sent: 0,
            marks,
            copied,
            last_copied: 0,
            last_due: false,
        }
    }

    /// Applies the fields that only the peer's reply contains.
    pub(crate) fn apply_peer_answer(&mut self, sender: MessageSender, fins: RemoteRegion) {
        self.sender = sender;
        self.fins = fins;
        // Path 0 is described in the reply; the other paths get theirs when their links are made.
        if let Some(many) = &mut self.many {
            many.fins[0] = fins;
        }
    }

    /// Makes the lane a member of a group. No record has arrived for it yet.
    pub(crate) fn join_group(&mut self, part: SendMemberIds) {
        let sender = std::mem::replace(&mut self.sender, MessageSender::new(0, 0));
        (self.sender, self.part) = (sender.in_group(), part);
    }

    /// Returns the region into which the peer writes clear-to-send records over a path.
    pub(crate) fn mailbox_region(&self, path: usize) -> RemoteRegion {
        self.mailbox.rail_region(self.paths.get(path).rail)
    }

    /// Returns whether signalled operations are in flight, or bytes are still to be posted.
    pub(crate) fn has_unfinished(&self) -> bool {
        let many = self.many.as_ref().is_some_and(|many| many.has_unfinished());
        self.posted > 0 || self.last_due || !self.unposted.is_empty() || many
    }

    /// Returns the number of eager messages whose records were not read yet.
    #[inline]
    pub(crate) fn unmatched_eager(&self) -> usize {
        self.sender.unmatched_count()
    }

    /// Reads the records that have arrived, outside the path of any message.
    pub(crate) fn read_records(&mut self, rails: &mut GroupRails<impl Rail>) {
        // A fault here recurs with the next message, which reports it.
        let _ = self.sender.on_records(&MailboxView(self.mailbox.memory_and_offset()));
        self.settle_eager(rails);
    }

    /// Starts a message; `None` means not yet.
    #[inline]
    pub(crate) fn start_send(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        message: SendMessage,
    ) -> Result<Option<RequestTicket>, CommFault> {
        // A message takes at most its stripes and a fin record. It starts only if nothing earlier waits for credit, so that
        // messages stay in order.
        let room = match &self.many {
            None => self.paths.lead_credits(rails) > STRIPES_MAX as u32,
            Some(many) => !many.has_waiting(),
        };
        if !self.unposted.is_empty() || !room {
            return Ok(None);
        }
        let Some(ticket) = requests.reserve_slot(&mut self.cursor) else { return Ok(None) };
        let slot = ticket.slot_index();
        let started = if self.plan.matched && !self.has_matched_part() {
            // A full share: further sends of this member would keep the other members' out of the
            // NIC.
            Ok(false)
        } else if self.plan.matched {
            self.send_matched(rails, slot, message).map(|()| true)
        } else if self.many.is_some() {
            self.start_spread(rails, slot, message)
        } else {
            self.start_on_one_link(rails, requests, slot, message)
        };
        match started {
            Ok(true) => {
                // Counted only once started, because CLOSE reports this number to the peer.
                self.sent += 1;
                requests.row.count_begun(1);
                Ok(Some(ticket))
            }
            Ok(false) => {
                requests.cancel_request(slot);
                Ok(None)
            }
            Err(fault) => {
                requests.cancel_request(slot);
                Err(fault)
            }
        }
    }

    fn start_on_one_link(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        message: SendMessage,
    ) -> Result<bool, CommFault> {
        self.count_eager(rails, message.len);
        let decided =
            // Reads the mailbox, so a record that has just arrived is used by this message.
            self.sender.on_isend(&MailboxView(self.mailbox.memory_and_offset()), message.tag, message.len);
        self.settle_eager(rails);
        match decided? {
            SendDecision::NotYet => return Ok(false),
            SendDecision::Eager(header) => self.send_eager(rails, requests, slot, message, header)?,
            SendDecision::Direct(cts) => self.send_direct(rails, requests, slot, message, &cts)?,
        }
        // The first message after a poll is flushed at once; those that follow before the next poll share that poll's flush, and
        // so one doorbell.
        if !rails.burst {
            rails.flush();
            rails.burst = true;
        }
        self.finish_departed(rails, requests);
        Ok(true)
    }

    /// Sets the number of eager messages for which the group has credit: one more, if a message of `len` bytes may be eager.
    #[inline]
    pub(crate) fn count_eager(&mut self, rails: &GroupRails<impl Rail>, len: u64) {
        // Only members of a group share credits; a single comm has its own in the sender.
        if let Some(eager) = &rails.eager
            && len <= u64::from(self.plan.eager_max)
        {
            let held = self.part.eager;
            self.sender.set_credits((held + u32::from(eager.may_take(held))) as usize);
        }
    }

    /// Acquires the group's credit for the eager message that was begun, and returns credits that are not needed any more.
    #[inline]
    pub(crate) fn settle_eager(&mut self, rails: &mut GroupRails<impl Rail>) {
        let needed = self.sender.unmatched_count() as u32;
        // Unchanged in the common case, and then the group's counter is not touched.
        if let Some(eager) = &mut rails.eager
            && self.part.eager != needed
        {
            eager.update_held(self.part.eager, needed);
            self.part.eager = needed;
        }
    }

    /// Finishes requests whose operations have been sent.
    #[inline]
    fn finish_departed(&mut self, rails: &GroupRails<impl Rail>, requests: &RequestTable) {
        while let Some(&slot) = self.leaving.front() {
            if !self.has_left(rails, slot) {
                // Operations leave in order, so the first one that has not left stops the search.
                return;
            }
            self.leaving.pop_front();
            self.outgoing[slot as usize].left = 0;
            self.finish_if_done(requests, slot);
        }
    }

    /// Returns whether a test of a finished request still has work to do.
    #[inline(always)]
    pub(crate) fn is_due(&self, rails: &GroupRails<impl Rail>) -> bool {
        self.sender.unmatched_count() >= UNMATCHED_DUE || self.unsent_ops(rails) > 0
    }

    #[inline(always)]
    fn unsent_ops(&self, rails: &GroupRails<impl Rail>) -> u32 {
        // Over several links, a finished request has arrived.
        if self.many.is_some() {
            return 0;
        }
        let path = self.paths.lead_path();
        rails.get(path.rail).unsent_ops(path.link)
    }

    /// Returns whether a finished request has been sent by this process.
    pub(crate) fn has_left(&self, rails: &GroupRails<impl Rail>, slot: u16) -> bool {
        // `posts` counts operations of the whole group, and they leave in posting order.
        let left = rails.posts - u64::from(self.unsent_ops(rails));
        self.marks.get(usize::from(slot)).is_none_or(|&mark| mark <= left)
    }

    /// Handles a poll of the rail, which is up.
    #[inline]
    pub(crate) fn after_poll(&mut self, rails: &mut GroupRails<impl Rail>, requests: &RequestTable) {
        rails.burst = false;
        self.finish_departed(rails, requests);
    }

    /// Copies a small message in host memory into `buffer`, after its `head` bytes; `None` if it is not small or not in host
    /// memory.
    #[inline]
    pub(crate) fn copy_inline<'b>(
        &self,
        message: SendMessage,
        head: usize,
        buffer: &'b mut [u8; INLINE_MAX],
    ) -> Option<&'b [u8]> {
        let all = head as u64 + message.len;
        // A message that fits the operation needs no registration lookup by the NIC, and its memory
        // is free at once.
        if all > self.plan.inline_max {
            return None;
        }
        // The CPU reads no device memory.
        let memory = self.regions.rail_mr(message.mr, 0)?.memory();
        memory.read(message.offset, &mut buffer[head..all as usize]).ok()?;
        Some(&buffer[..all as usize])
    }

    fn send_eager(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        message: SendMessage,
        header: EagerHeader,
    ) -> Result<(), CommFault> {
        let head = self.part.eager_head(header);
        let head = &head[..self.part.header_len()];
        // One stack buffer, because head and body of an inline operation are contiguous.
        let mut buffer = [0; INLINE_MAX];
        buffer[..head.len()].copy_from_slice(head);
        if let Some(bytes) = self.copy_inline(message, head.len(), &mut buffer) {
            let op = Op::Send { head: bytes, body: OpSource::Inline(&[]), imm: None };
            return self.post_inline(rails, requests, slot, message.len, op);
        }
        let Some((_, extent)) = self.regions.find_extent(message.mr, 0, message.offset, message.len) else {
            return Err(CommFault::Revoked);
        };
        let op = Op::Send { head, body: OpSource::Region(extent), imm: None };
        if self.plan.is_copied_on_post(message.len) {
            return self.post_copied(rails, requests, slot, message, op);
        }
        self.track_message(slot, message);
        self.outgoing[slot as usize].left = 1;
        self.post_op(rails, u64::from(slot), op, true)
    }

    #[inline]
    fn send_direct(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        message: SendMessage,
        cts: &CtsRecord,
    ) -> Result<(), CommFault> {
        let to = RemoteLocation::for_data(cts.key, cts.addr);
        // An immediate can announce a message only if the receiver learns its length: a full
        // buffer's is known, and some NICs report the length of each write. Otherwise a fin record
        // carries it.
        let whole = if !self.plan.write_data {
            None
        } else if message.len == cts.len {
            Some(WriteImmediate::Full(cts.token))
        } else if self.plan.remote_len {
            Some(WriteImmediate::Whole(cts.token))
        } else {
            None
        };
        let mut buffer = [0; INLINE_MAX];
        if let Some(imm) = whole
            && let Some(bytes) = self.copy_inline(message, 0, &mut buffer)
        {
            let op = Op::Write { from: OpSource::Inline(bytes), to, imm: Some(imm.to_bits()) };
            return self.post_inline(rails, requests, slot, message.len, op);
        }
        if self.part.remote.is_some() && message.len > SMALL_MAX {
            // A member's long message would block the shared link for all other members.
            return self.send_sliced(rails, requests, slot, message, cts, whole);
        }
        // Copied writes need no completion, but they need an immediate to be announced without a
        // fin record.
        if let Some(imm) = whole
            && self.plan.is_copied_on_post(message.len)
        {
            let Some((_, extent)) = self.regions.find_extent(message.mr, 0, message.offset, message.len)
            else {
                return Err(CommFault::Revoked);
            };
            let op = Op::Write { from: OpSource::Region(extent), to, imm: Some(imm.to_bits()) };
            return self.post_copied(rails, requests, slot, message, op);
        }
        let pieces = message.len.div_ceil(self.plan.message_max).max(1);
        self.track_message(slot, message);
        let outgoing = &mut self.outgoing[slot as usize];
        (outgoing.to, outgoing.token) = (to, cts.token);
        if let (1, Some(imm)) = (pieces, whole) {
            // One operation that announces itself: no fin record, and no place in the queue of
            // unposted requests.
            outgoing.given = message.len;
            return self.post_piece(rails, slot, 0, message.len, Some(imm));
        }
        outgoing.fin = self.plan.fin_due(pieces);
        self.unposted.push_back(slot);
        self.post_more(rails, requests)
    }

    pub(crate) fn track_message(&mut self, slot: u16, message: SendMessage) {
        self.regions.hold_region(message.mr);
        // No mark yet, because the request is not done before its operations complete.
        self.marks[slot as usize] = 0;
        let outgoing = &mut self.outgoing[slot as usize];
        (outgoing.mr, outgoing.offset, outgoing.len) = (message.mr, message.offset, message.len);
        (outgoing.given, outgoing.left, outgoing.fin) = (0, 0, FinDue::No);
        (outgoing.last, outgoing.sliced) = (None, false);
    }

    /// Posts an operation that no longer needs its source: the request is done at once.
    #[inline(always)]
    fn post_inline(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        len: u64,
        op: Op<'_>,
    ) -> Result<(), CommFault> {
        // The operation has its own copy of the bytes, so the caller may change its memory at once.
        self.post_op(rails, COUNTED, op, self.plan.signal_all)?;
        self.marks[slot as usize] = rails.posts;
        requests.complete_send(slot, len);
        Ok(())
    }

    /// Posts an operation whose source is free once it has been sent: the request of a small message is done at once, that of a
    /// longer one when it has been sent.
    fn post_copied(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        message: SendMessage,
        op: Op<'_>,
    ) -> Result<(), CommFault> {
        // A longer message must not be lost with the link after its request is done.
        if message.len <= u64::from(self.plan.eager_max) {
            self.post_inline(rails, requests, slot, message.len, op)?;
            self.last_copied = rails.posts;
            // The NIC copies from the caller's memory later, so a deregistration has to wait for
            // that.
            self.copied[slot as usize] = message.mr;
            return Ok(());
        }
        self.track_message(slot, message);
        self.post_op(rails, COUNTED, op, self.plan.signal_all)?;
        self.outgoing[slot as usize].left = 1;
        self.marks[slot as usize] = rails.posts;
        // In posting order, which is also the order in which requests leave.
        self.leaving.push_back(slot);
        Ok(())
    }

    /// Posts an operation. Inlined, because callers pass a known operation, which removes its dispatch.
    #[inline(always)]
    pub(crate) fn post_op(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        wr_id: u64,
        op: Op<'_>,
        signalled: bool,
    ) -> Result<(), CommFault> {
        let path = self.paths.lead_path();
        match rails.get_mut(path.rail).post(path.link, self.part.tag | wr_id, op, signalled) {
            Ok(()) => {
                // Unsignalled operations have no completion, so they must not be counted here.
                self.posted += u32::from(signalled);
                rails.posts += 1;
                Ok(())
            }
            Err(error) => Err(not_posted(error)),
        }
    }

    /// Posts operations that waited for credit, which may become free without a completion.
    #[inline]
    pub(crate) fn post_due(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
    ) -> Result<(), CommFault> {
        if let Some(many) = &self.many {
            let proves = !self.plan.arrives && many.proofs.any_due();
            if self.unposted.is_empty() && !many.has_waiting() && !proves {
                return Ok(());
            }
            self.post_spread(rails)?;
            rails.flush();
            return Ok(());
        }
        // Nothing to post in the common case, and then no flush either.
        if self.unposted.is_empty() {
            return Ok(());
        }
        self.post_more(rails, requests)?;
        rails.flush();
        Ok(())
    }

    pub(crate) fn finish_if_done(&mut self, requests: &RequestTable, slot: u16) {
        let outgoing = &mut self.outgoing[slot as usize];
        // A request with a pending fin record is not done, although all its bytes have arrived.
        if outgoing.left == 0 && outgoing.fin == FinDue::No && outgoing.mr != NO_MR {
            let mr = outgoing.mr;
            let len = outgoing.len;
            outgoing.mr = NO_MR;
            self.regions.release_region(mr);
            requests.complete_send(slot, len);
        }
    }

    /// The peer reports that everything has arrived. The rest is ended here because operations without a completion
    /// will never complete, and need not.
    pub(crate) fn complete_all(&mut self, requests: &RequestTable) {
        self.unposted.clear();
        self.leaving.clear();
        self.posted = 0;
        if let Some(many) = &mut self.many {
            many.clear_in_flight();
        }
        for slot in 0..SENDS_MAX as u16 {
            let outgoing = &mut self.outgoing[slot as usize];
            (outgoing.left, outgoing.fin) = (0, FinDue::No);
            self.finish_if_done(requests, slot);
        }
    }

    /// Processes one completion.
    pub(crate) fn on_completion(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        if completion.status != OpStatus::Ok {
            return Err(self.on_failed(completion));
        }
        // A sender receives nothing; such a completion would be the fabric's fault.
        if completion.done != CompletionKind::Posted {
            return Ok(());
        }
        if self.many.is_some() {
            return self.on_op_completed(rails, requests, completion.wr_id);
        }
        self.posted = self.posted.saturating_sub(1);
        // Its request was done when it was posted.
        if completion.wr_id == COUNTED {
            return Ok(());
        }
        if completion.wr_id & SLICE != 0 {
            // A slice returns its credit before `post_due`, which may use it for the next slice.
            self.part.slices = self.part.slices.saturating_sub(1);
            rails.slices.return_credits(1);
        }
        let slot = completion.wr_id as u16;
        let Some(outgoing) = self.outgoing.get_mut(usize::from(slot)) else { return Ok(()) };
        outgoing.left = outgoing.left.saturating_sub(1);
        self.end_wait(slot);
        self.post_due(rails, requests)?;
        // A request that is queued again has a fin record to post.
        if !self.unposted.contains(&slot) {
            self.finish_if_done(requests, slot);
        }
        Ok(())
    }

    /// Queues a request among the unposted ones if its fin record waited for placement, and all bytes are placed.
    pub(crate) fn end_wait(&mut self, slot: u16) {
        if self.outgoing[usize::from(slot)].is_fin_due() && !self.unposted.contains(&slot) {
            self.unposted.push_back(slot);
        }
    }

    /// Returns whether requests have bytes or a fin record to post, now or after placement.
    fn has_unposted(&self) -> bool {
        !self.unposted.is_empty() || self.outgoing.iter().any(|outgoing| outgoing.fin != FinDue::No)
    }

    /// Returns whether operations in flight read the caller's memory.
    pub(crate) fn reads_user_memory(&self, rails: &GroupRails<impl Rail>) -> bool {
        self.regions.any_in_use() || self.last_copied > rails.posts - u64::from(self.unsent_ops(rails))
    }

    /// Returns whether the NIC still has to copy a small message from this region. Such a copy does not count as a use of the
    /// region.
    pub(crate) fn copies_wait(&self, rails: &GroupRails<impl Rail>, mr: MrId) -> bool {
        let left = rails.posts - u64::from(self.unsent_ops(rails));
        self.last_copied > left
            && self.copied.iter().zip(&self.marks).any(|(&from, &mark)| from == mr && mark > left)
    }

    /// Ends sending: posts an operation whose completion proves that all before it arrived.
    pub(crate) fn end_sending(&mut self, rails: &mut GroupRails<impl Rail>) {
        // Over several links, an operation is in flight until it has arrived, or until a proof covers it, so no final operation
        // is needed.
        self.last_due = self.many.is_none();
        if let Some(many) = &mut self.many {
            many.proofs.ends = true;
        }
        self.post_last(rails);
    }

    /// Posts the final operation when there is credit for it.
    pub(crate) fn post_last(&mut self, rails: &mut GroupRails<impl Rail>) {
        if self.many.is_some() && !self.plan.arrives {
            self.post_proofs(rails);
            return rails.flush();
        }
        // The final operation must be posted after all others, because its completion proves that
        // they arrived.
        if !self.last_due || self.has_unposted() || self.paths.lead_credits(rails) == 0 {
            return;
        }
        // A link that refuses it carries nothing any more.
        self.last_due = false;
        if self.post_op(rails, COUNTED, Op::Nop, true).is_err() && self.part.remote.is_none() {
            self.posted = 0;
        }
        rails.flush();
    }
}

#[cold]
fn not_posted(error: PostError) -> CommFault {
    match error {
        // Credit was checked before, so a link without credit is broken.
        PostError::Busy => CommFault::Link(OpStatus::Flushed),
        PostError::Refused(status) => CommFault::Link(status),
    }
}
