//! The sending lane of a comm: turns the sender's decisions into operations, and completions into finished requests.
//! Called with the lane claimed; never waits.

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

/// Eager messages whose records were not read yet, from which on a test reads records when it has time.
const UNMATCHED_DUE: usize = 8;

/// `wr_id` of operations whose completion only counts.
pub(crate) const COUNTED: u64 = LOW_MASK;

/// The lane.
pub(crate) struct SendLane {
    pub(crate) paths: CommPaths,
    pub(crate) plan: TransferPlan,
    pub(crate) regions: CommRegions,
    pub(crate) sender: MessageSender,
    pub(crate) mailbox: MailboxPiece,
    pub(crate) fins: RemoteRegion,
    /// How it is known in its group.
    pub(crate) part: SendMemberIds,
    cursor: u16,
    pub(crate) outgoing: Box<[PendingSend]>,
    /// Requests with bytes or a fin record to post, oldest first; not those whose fin record waits for placement.
    pub(crate) unposted: VecDeque<u16>,
    /// Where there are several links.
    pub(crate) many: Option<Box<MultiLink>>,
    /// Requests that are done once their one operation has left, oldest first.
    leaving: VecDeque<u16>,
    /// Signalled operations that have not completed.
    pub(crate) posted: u32,
    /// Messages started.
    pub(crate) sent: u64,
    /// Of requests that are done when they are posted or have left: how many operations had been posted then; of others 0.
    marks: Box<[u64]>,
    /// Of requests: the region that their message was last copied from when it left.
    copied: Box<[MrId]>,
    /// How many had been posted after the last one that is copied from the caller's memory when it leaves.
    last_copied: u64,
    /// The operation that ends the lane is still to be posted.
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

    /// What only the peer's answer tells.
    pub(crate) fn apply_peer_answer(&mut self, sender: MessageSender, fins: RemoteRegion) {
        self.sender = sender;
        self.fins = fins;
        if let Some(many) = &mut self.many {
            many.fins[0] = fins;
        }
    }

    /// It is a member of a group from now on; nothing has come for it yet.
    pub(crate) fn join_group(&mut self, part: SendMemberIds) {
        let sender = std::mem::replace(&mut self.sender, MessageSender::new(0, 0));
        (self.sender, self.part) = (sender.in_group(), part);
    }

    /// Where clear-to-send records go over a path.
    pub(crate) fn mailbox_region(&self, path: usize) -> RemoteRegion {
        self.mailbox.rail_region(self.paths.get(path).rail)
    }

    /// Signalled operations under way, or bytes still to post.
    pub(crate) fn has_unfinished(&self) -> bool {
        let many = self.many.as_ref().is_some_and(|many| many.has_unfinished());
        self.posted > 0 || self.last_due || !self.unposted.is_empty() || many
    }

    /// Eager messages whose records were not read yet.
    #[inline]
    pub(crate) fn unmatched_eager(&self) -> usize {
        self.sender.unmatched_count()
    }

    /// Reads records that have come, off the path of any message.
    pub(crate) fn read_records(&mut self, rails: &mut GroupRails<impl Rail>) {
        // A fault here comes again with the next message.
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
        // A message takes at most its stripes and a fin record; nothing overtakes what waits for credit.
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
            self.sender.on_isend(&MailboxView(self.mailbox.memory_and_offset()), message.tag, message.len);
        self.settle_eager(rails);
        match decided? {
            SendDecision::NotYet => return Ok(false),
            SendDecision::Eager(header) => self.send_eager(rails, requests, slot, message, header)?,
            SendDecision::Direct(cts) => self.send_direct(rails, requests, slot, message, &cts)?,
        }
        // What follows a message before the next poll leaves with that poll, together.
        if !rails.burst {
            rails.flush();
            rails.burst = true;
        }
        self.finish_departed(rails, requests);
        Ok(true)
    }

    /// Tells how many eager messages the group has credit for: one more, if a message of `len` bytes may be one.
    #[inline]
    pub(crate) fn count_eager(&mut self, rails: &GroupRails<impl Rail>, len: u64) {
        if let Some(eager) = &rails.eager
            && len <= u64::from(self.plan.eager_max)
        {
            let held = self.part.eager;
            self.sender.set_credits((held + u32::from(eager.may_take(held))) as usize);
        }
    }

    /// Takes the group's credit for the eager message that was begun, and gives back what none needs any more.
    #[inline]
    pub(crate) fn settle_eager(&mut self, rails: &mut GroupRails<impl Rail>) {
        let needed = self.sender.unmatched_count() as u32;
        if let Some(eager) = &mut rails.eager
            && self.part.eager != needed
        {
            eager.update_held(self.part.eager, needed);
            self.part.eager = needed;
        }
    }

    /// Finishes requests whose operations have left.
    #[inline]
    fn finish_departed(&mut self, rails: &GroupRails<impl Rail>, requests: &RequestTable) {
        while let Some(&slot) = self.leaving.front() {
            if !self.has_left(rails, slot) {
                return;
            }
            self.leaving.pop_front();
            self.outgoing[slot as usize].left = 0;
            self.finish_if_done(requests, slot);
        }
    }

    /// Whether a test of a finished request has something to do all the same.
    #[inline(always)]
    pub(crate) fn is_due(&self, rails: &GroupRails<impl Rail>) -> bool {
        self.sender.unmatched_count() >= UNMATCHED_DUE || self.unsent_ops(rails) > 0
    }

    #[inline(always)]
    fn unsent_ops(&self, rails: &GroupRails<impl Rail>) -> u32 {
        // Over several links, what is done has arrived.
        if self.many.is_some() {
            return 0;
        }
        let path = self.paths.lead_path();
        rails.get(path.rail).unsent_ops(path.link)
    }

    /// Whether a finished request has left this process.
    pub(crate) fn has_left(&self, rails: &GroupRails<impl Rail>, slot: u16) -> bool {
        let left = rails.posts - u64::from(self.unsent_ops(rails));
        self.marks.get(usize::from(slot)).is_none_or(|&mark| mark <= left)
    }

    /// The rail was polled, and carries.
    #[inline]
    pub(crate) fn after_poll(&mut self, rails: &mut GroupRails<impl Rail>, requests: &RequestTable) {
        rails.burst = false;
        self.finish_departed(rails, requests);
    }

    /// Copies a small message of host memory out, behind the `head` bytes that the buffer begins with; `None` if it is
    /// not both.
    #[inline]
    pub(crate) fn copy_inline<'b>(
        &self,
        message: SendMessage,
        head: usize,
        buffer: &'b mut [u8; INLINE_MAX],
    ) -> Option<&'b [u8]> {
        let all = head as u64 + message.len;
        if all > self.plan.inline_max {
            return None;
        }
        // Of memory of a device nothing is read.
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
            return self.send_sliced(rails, requests, slot, message, cts, whole);
        }
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
            outgoing.given = message.len;
            return self.post_piece(rails, slot, 0, message.len, Some(imm));
        }
        outgoing.fin = self.plan.fin_due(pieces);
        self.unposted.push_back(slot);
        self.post_more(rails, requests)
    }

    pub(crate) fn track_message(&mut self, slot: u16, message: SendMessage) {
        self.regions.hold_region(message.mr);
        self.marks[slot as usize] = 0;
        let outgoing = &mut self.outgoing[slot as usize];
        (outgoing.mr, outgoing.offset, outgoing.len) = (message.mr, message.offset, message.len);
        (outgoing.given, outgoing.left, outgoing.fin) = (0, 0, FinDue::No);
        (outgoing.last, outgoing.sliced) = (None, false);
    }

    /// Posts an operation that needs its source no longer: the request is done at once.
    #[inline(always)]
    fn post_inline(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        len: u64,
        op: Op<'_>,
    ) -> Result<(), CommFault> {
        self.post_op(rails, COUNTED, op, self.plan.signal_all)?;
        self.marks[slot as usize] = rails.posts;
        requests.complete_send(slot, len);
        Ok(())
    }

    /// Posts an operation whose source is free once it has left: the request of a small message is done at once, that of
    /// a longer one when it has left.
    fn post_copied(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        slot: u16,
        message: SendMessage,
        op: Op<'_>,
    ) -> Result<(), CommFault> {
        // More must not be lost unnoticed with the link.
        if message.len <= u64::from(self.plan.eager_max) {
            self.post_inline(rails, requests, slot, message.len, op)?;
            self.last_copied = rails.posts;
            self.copied[slot as usize] = message.mr;
            return Ok(());
        }
        self.track_message(slot, message);
        self.post_op(rails, COUNTED, op, self.plan.signal_all)?;
        self.outgoing[slot as usize].left = 1;
        self.marks[slot as usize] = rails.posts;
        self.leaving.push_back(slot);
        Ok(())
    }

    /// Posts an operation. Inlined, because callers know which it is.
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
                self.posted += u32::from(signalled);
                rails.posts += 1;
                Ok(())
            }
            Err(error) => Err(not_posted(error)),
        }
    }

    /// Posts what waited for credit, which may come back without a completion.
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
        if self.unposted.is_empty() {
            return Ok(());
        }
        self.post_more(rails, requests)?;
        rails.flush();
        Ok(())
    }

    pub(crate) fn finish_if_done(&mut self, requests: &RequestTable, slot: u16) {
        let outgoing = &mut self.outgoing[slot as usize];
        if outgoing.left == 0 && outgoing.fin == FinDue::No && outgoing.mr != NO_MR {
            let mr = outgoing.mr;
            let len = outgoing.len;
            outgoing.mr = NO_MR;
            self.regions.release_region(mr);
            requests.complete_send(slot, len);
        }
    }

    /// The peer says that everything arrived: what has not completed never will, and need not.
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

    /// Takes one completion.
    pub(crate) fn on_completion(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        if completion.status != OpStatus::Ok {
            return Err(self.on_failed(completion));
        }
        if completion.done != CompletionKind::Posted {
            return Ok(());
        }
        if self.many.is_some() {
            return self.on_op_completed(rails, requests, completion.wr_id);
        }
        self.posted = self.posted.saturating_sub(1);
        if completion.wr_id == COUNTED {
            return Ok(());
        }
        if completion.wr_id & SLICE != 0 {
            self.part.slices = self.part.slices.saturating_sub(1);
            rails.slices.return_credits(1);
        }
        let slot = completion.wr_id as u16;
        let Some(outgoing) = self.outgoing.get_mut(usize::from(slot)) else { return Ok(()) };
        outgoing.left = outgoing.left.saturating_sub(1);
        self.end_wait(slot);
        self.post_due(rails, requests)?;
        if !self.unposted.contains(&slot) {
            self.finish_if_done(requests, slot);
        }
        Ok(())
    }

    /// Puts a request back among the unposted ones if its fin record has waited for placement, and all is placed.
    pub(crate) fn end_wait(&mut self, slot: u16) {
        if self.outgoing[usize::from(slot)].is_fin_due() && !self.unposted.contains(&slot) {
            self.unposted.push_back(slot);
        }
    }

    /// Whether requests have bytes or a fin record to post, now or when their bytes are placed.
    fn has_unposted(&self) -> bool {
        !self.unposted.is_empty() || self.outgoing.iter().any(|outgoing| outgoing.fin != FinDue::No)
    }

    /// Whether operations under way read memory of the caller's.
    pub(crate) fn reads_user_memory(&self, rails: &GroupRails<impl Rail>) -> bool {
        self.regions.any_in_use() || self.last_copied > rails.posts - u64::from(self.unsent_ops(rails))
    }

    /// Whether the NIC has still to copy a small message out of that region, which does not count as in use for it.
    pub(crate) fn copies_wait(&self, rails: &GroupRails<impl Rail>, mr: MrId) -> bool {
        let left = rails.posts - u64::from(self.unsent_ops(rails));
        self.last_copied > left
            && self.copied.iter().zip(&self.marks).any(|(&from, &mark)| from == mr && mark > left)
    }

    /// Nothing more will be sent: an operation is posted whose completion proves that all before it arrived.
    pub(crate) fn end_sending(&mut self, rails: &mut GroupRails<impl Rail>) {
        // Over several links each operation is under way until it has arrived, so nothing is left to prove; or is proven.
        self.last_due = self.many.is_none();
        if let Some(many) = &mut self.many {
            many.proofs.ends = true;
        }
        self.post_last(rails);
    }

    /// Posts the last operation when there is credit for it.
    pub(crate) fn post_last(&mut self, rails: &mut GroupRails<impl Rail>) {
        if self.many.is_some() && !self.plan.arrives {
            self.post_proofs(rails);
            return rails.flush();
        }
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
        // Credit was checked before; a link that has none all the same is broken.
        PostError::Busy => CommFault::Link(OpStatus::Flushed),
        PostError::Refused(status) => CommFault::Link(status),
    }
}
