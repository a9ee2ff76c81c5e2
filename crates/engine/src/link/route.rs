//! Completions of links, delivered to the members of a group that they name. Called when any member is polled, under the group's
//! lock. Each completion is processed at once and never queued. Those that name no member are dropped and counted. A comm that
//! shares nothing gets all of them.

use trunkline_fabric::{Completion, CompletionKind, OpStatus, Rail};
use trunkline_proto::pool::ranges;
use trunkline_proto::wire::fin::{self, FinRecord};
use trunkline_proto::wire::imm::BufferToken;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::share::{self, MemberEager};

use crate::CommFault;
use crate::comm::recv::MATCHED;
use crate::comm::request::RequestTable;
use crate::comm::{CommSlot, CommTable};
use crate::link::links::SharedLinks;
use crate::link::rails::GroupRails;
use crate::pool::groups::{GroupContext, GroupResources, LockedMember};
use crate::pool::member::{BATCH, CommSide, DRAIN_MAX, OpenComm};

/// Batches per call, bounded because the network may report without end, and one call cannot poll forever.
const BATCHES_MAX: usize = 4;

/// Bits of an immediate that are not its token.
const KIND: u32 = 0xff << (BufferToken::SLOT_BITS + BufferToken::GENERATION_BITS);

/// Bits of no member's name.
const NOBODY: u32 = 0;

/// The result of a poll.
#[derive(Clone, Copy, Default)]
struct PollTally {
    /// Something was for the member that is being polled.
    own: bool,
    /// There was something.
    any: bool,
}

impl GroupResources {
    /// Returns the member of a completion, as the bits of its name; replaces the group's names in the completion by the member's.
    #[inline(always)]
    fn identify_member(&mut self, completion: &mut Completion) -> u32 {
        // Errors first, because the other fields of a failed completion may be undefined.
        if completion.status != OpStatus::Ok {
            return Self::identify_error(completion);
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        match completion.done {
            // Writes name their member in the immediate, because the receiver posted no operation
            // for them.
            CompletionKind::Written => return self.identify_write(completion),
            // Bounce buffers are posted without a member, because any member may get the message.
            CompletionKind::Received if bits == NOBODY => return self.identify_eager(low as u32),
            CompletionKind::Received | CompletionKind::Posted => completion.wr_id = low,
        }
        bits
    }

    /// Returns the member of an error. The end of a link concerns all members, and so names none.
    #[cold]
    fn identify_error(completion: &mut Completion) -> u32 {
        // Only the link is known; the error concerns all of its members.
        if has_ended(completion) {
            return NOBODY;
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        completion.wr_id = low;
        bits
    }

    /// Returns the member of a write, by the range of its token.
    #[inline]
    fn identify_write(&mut self, completion: &mut Completion) -> u32 {
        let imm = completion.imm.unwrap_or(0);
        let token = BufferToken::from_bits(imm);
        let owner = self.receiving.as_mut().and_then(|receiving| receiving.ranges.resolve_owner(token));
        // The member sees its own token numbers, as if it had the link alone.
        completion.imm = Some(imm & KIND | ranges::to_member(token).to_bits());
        owner.map_or(NOBODY, MemberId::to_bits)
    }

    /// Returns the member of an eager message, by its header.
    #[inline]
    fn identify_eager(&mut self, bounce: u32) -> u32 {
        let Some(receiving) = &self.receiving else { return NOBODY };
        let Some((memory, at)) = receiving.bounces.buffer_memory(bounce) else { return NOBODY };
        let mut head = [0; share::EAGER_BYTES];
        match memory.read(at, &mut head).map(|()| MemberEager::parse_member(&head)) {
            Ok(Ok(member)) => member.to_bits(),
            // A fin record that is a message has another format, on networks without immediates.
            Ok(Err(_)) => self.identify_fin(bounce).map_or(NOBODY, MemberId::to_bits),
            Err(_) => NOBODY,
        }
    }

    /// Returns the member of a fin record that is a message of its own, by its token.
    #[cold]
    fn identify_fin(&mut self, bounce: u32) -> Option<MemberId> {
        let receiving = self.receiving.as_mut().filter(|_| !self.plan.write_data)?;
        let (memory, at) = receiving.bounces.buffer_memory(bounce)?;
        let mut bytes = [0; fin::MESSAGE_BYTES];
        memory.read(at, &mut bytes).ok()?;
        receiving.ranges.resolve_owner(FinRecord::from_message(&bytes).ok()?.token)
    }
}

impl<R: Rail> LockedMember<'_, R> {
    /// Processes completions of the links, also for other members, and posts operations that waited. Returns whether any was for
    /// this member, which has not failed.
    #[inline]
    pub(crate) fn progress_member(&mut self, comms: &CommTable, requests: &RequestTable) -> bool {
        let mut taken = self.take_from(0, comms, requests);
        // The first rail is polled separately, because most groups have only one.
        if self.rails.are_many() {
            taken = self.poll_remaining_rails(1, taken, comms, requests);
        }
        // After the polls, so that the ends of links that they reported are delivered together.
        if self.rails.has_ended {
            self.tell_ended();
        }
        if self.open.fault.is_some() {
            self.progress_after_failure(requests);
        } else {
            self.open.go_on(self.rails, requests);
        }
        // Only completions of this member count as progress, because it decides when to check its own peer.
        self.open.idle = if taken.own { 0 } else { self.open.idle + 1 };
        taken.own
    }

    /// As [`Self::progress_member`], for a member that has failed.
    pub(crate) fn progress_failed(&mut self, comms: &CommTable, requests: &RequestTable) -> bool {
        let own = self.take_some(comms, requests).own;
        // A failed member of a group still has posted operations, and their buffers belong to the
        // caller until they have left.
        self.progress_after_failure(requests);
        self.open.idle = if own { 0 } else { self.open.idle + 1 };
        own
    }

    /// Drops the completions of a failed comm that shares nothing, so that the network can finish its operations.
    #[cold]
    pub(crate) fn forget_finished(&mut self) {
        for rail in 0..self.rails.len() {
            // Bounded, because the network may report completions without end.
            for _ in 0..BATCHES_MAX {
                if self.rails.poll(rail, &mut *self.batch) < BATCH {
                    break;
                }
            }
        }
    }

    /// Releases caller memory of operations that have been sent, although their comm has failed.
    #[cold]
    fn progress_after_failure(&mut self, requests: &RequestTable) {
        if let CommSide::Send(lane) = &mut self.open.side
            && self.shared.is_some()
        {
            lane.after_poll(self.rails, requests);
        }
    }

    /// Returns whether other members have to be notified after this poll, or links driven.
    #[inline]
    pub(crate) fn check_follow_up(&mut self, slot: &CommSlot) -> bool {
        let Some(GroupContext { common, .. }) = &mut self.shared else { return self.open.many };
        // Counters are written rarely, since the status page is a store for each of them.
        common.show_now_and_then(self.rails);
        common.untold || self.open.many || self.open.life.is_stop_pending() || slot.news.has_some()
    }

    /// Handles the end of this member's peer: processes messages sent before, also for other members, then fails requests that
    /// can never complete. Returns how many failed.
    pub(crate) fn on_peer_gone(
        &mut self,
        comms: &CommTable,
        requests: &RequestTable,
        fault: CommFault,
    ) -> usize {
        if self.open.fault.is_some() {
            return 0;
        }
        if matches!(fault, CommFault::PeerDead(_)) {
            // A dead peer's link completes nothing, so its operations are flushed by the NIC.
            self.open.side.paths_mut().fail_links(self.rails);
        }
        // Bounded, because a peer may have sent more than can be polled at once.
        for _ in 0..DRAIN_MAX {
            if !self.take_some(comms, requests).any || self.open.fault.is_some() {
                break;
            }
        }
        // A fault of a message that was processed above has failed the requests already.
        match self.open.fault {
            Some(_) => 0,
            None => self.open.fail_remaining(self.rails, requests, fault),
        }
    }

    /// Processes completions of the links, also for other members.
    pub(crate) fn take_shared(&mut self, comms: &CommTable, requests: &RequestTable) {
        self.take_some(comms, requests);
    }

    fn take_some(&mut self, comms: &CommTable, requests: &RequestTable) -> PollTally {
        let taken = self.poll_remaining_rails(0, PollTally::default(), comms, requests);
        if self.rails.has_ended {
            self.tell_ended();
        }
        taken
    }

    /// Processes completions of the rails from `first` on.
    #[inline(never)]
    fn poll_remaining_rails(
        &mut self,
        first: usize,
        before: PollTally,
        comms: &CommTable,
        requests: &RequestTable,
    ) -> PollTally {
        let mut all = before;
        for rail in first..self.rails.len() {
            // A failed single comm ignores the rest of its completions.
            if self.is_over() {
                break;
            }
            let taken = self.take_from(rail, comms, requests);
            all = PollTally { own: all.own | taken.own, any: all.any | taken.any };
        }
        all
    }

    /// Returns whether completions are not processed any more: a comm that shares nothing has failed.
    #[inline]
    fn is_over(&self) -> bool {
        self.shared.is_none() && self.open.fault.is_some()
    }

    /// Processes completions of one rail, a bounded number.
    #[inline(always)]
    fn take_from(&mut self, rail: usize, comms: &CommTable, requests: &RequestTable) -> PollTally {
        let mut all = PollTally::default();
        for _ in 0..BATCHES_MAX {
            let taken = self.rails.poll(rail, &mut *self.batch);
            if taken > 0 {
                all = PollTally { own: all.own | self.give_out(taken, rail, comms, requests), any: true };
            }
            // A partial batch means that the rail has no more completions now.
            if taken < BATCH || self.is_over() {
                break;
            }
        }
        all
    }

    /// Delivers the first `taken` completions of the batch. Returns whether any was for the member that is being polled.
    #[inline(always)]
    fn give_out(&mut self, taken: usize, rail: usize, comms: &CommTable, requests: &RequestTable) -> bool {
        let Self { open, rails, batch, shared } = self;
        let mut own = false;
        for completion in &mut batch[..taken] {
            if let Some(neighbours) = shared {
                let bits = neighbours.common.identify_member(completion);
                // Also this member's own completions, if it takes no messages any more, because they
                // only release resources.
                if bits != open.member || open.life.is_intake_stopped() {
                    own |= bits == open.member;
                    let tables = DeliveryTables { comms, requests };
                    neighbours.deliver_completion(open, rails, tables, rail, completion, bits);
                    continue;
                }
            }
            own = true;
            if let Err(fault) = open.on_completion(rails, requests, rail, completion) {
                open.fail_requests(rails, requests, fault);
                // A single comm has failed with this completion, and the rest of the batch is its
                // own.
                if shared.is_none() {
                    break;
                }
            }
        }
        own
    }

    /// Notifies each member of its links that have ended, once per link.
    #[cold]
    fn tell_ended(&mut self) {
        let Self { open, rails, shared, .. } = self;
        rails.has_ended = false;
        let Some(GroupContext { others, common }) = shared else { return };
        // Reported after this poll, when the group's lock allows it.
        common.untold = true;
        while let Some((rail, link)) = rails.shared.as_mut().and_then(SharedLinks::next_ended) {
            let others = others.iter_mut().map(|other| &mut **other);
            for member in std::iter::once(&mut **open).chain(others) {
                if let Some(path) = member.side.paths_mut().of_link(rail, link) {
                    member.on_link_lost(rails, path);
                }
            }
        }
    }
}

/// The tables for the delivery of completions: the comms of the engine, and the requests of the member that is being polled.
#[derive(Clone, Copy)]
struct DeliveryTables<'a> {
    comms: &'a CommTable,
    requests: &'a RequestTable,
}

impl GroupContext<'_> {
    /// Delivers a completion to the member that these bits name: another member than `open`, or `open` if it is closed. Without
    /// such a member it is dropped.
    #[inline(never)]
    fn deliver_completion(
        &mut self,
        open: &mut OpenComm,
        rails: &mut GroupRails<impl Rail>,
        tables: DeliveryTables<'_>,
        rail: usize,
        completion: &Completion,
        bits: u32,
    ) {
        let Self { others, common } = self;
        let DeliveryTables { comms, requests } = tables;
        if bits == open.member {
            if open.closed.is_none() {
                return open.take_finished(rails, requests, rail, completion);
            }
            return open.take_for(rails, comms, rail, completion);
        }
        // The slot in the bits indexes the members directly; the full bits are compared, because
        // the slot may be reused.
        let slot = bits & MemberId::SLOTS_MAX as u32;
        let named = |other: &&mut Box<OpenComm>| other.member == bits;
        let Some(other) = others.at_mut(slot).filter(named) else {
            return common.drop_stray(rails, open, rail, completion);
        };
        common.routed += 1;
        other.set_time_of(open);
        other.take_for(rails, comms, rail, completion);
        // The other member's owner has to be notified, since it did not poll.
        common.untold |= other.life.is_report_due();
    }
}

/// Returns whether a link flushes its posted operations.
fn has_ended(completion: &Completion) -> bool {
    completion.status.is_of_link()
}

impl GroupResources {
    /// Drops a completion without a member, and counts it. `any` is any member.
    #[cold]
    fn drop_stray(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        any: &mut OpenComm,
        rail: usize,
        completion: &Completion,
    ) {
        // An error of the link without a member: the link has ended for all.
        if has_ended(completion) {
            return rails.mark_ended(rail, completion.link);
        }
        self.dropped += 1;
        if let CommSide::Recv(lane) = &mut any.side
            && completion.done == CompletionKind::Received
            && completion.wr_id < MATCHED
        {
            // The message is in a bounce buffer, which is posted again. A link that refuses it has ended, which its completions
            // report.
            let _ = lane.post_bounce(rails, completion.wr_id as u32);
        }
    }
}

impl OpenComm {
    /// Copies the time from the polled member, because this one has not read the clock.
    #[inline]
    fn set_time_of(&mut self, whose: &Self) {
        if let (CommSide::Send(lane), CommSide::Send(theirs)) = (&mut self.side, &whose.side)
            && let Some(many) = &theirs.many
        {
            lane.set_time(many.now);
        }
    }

    /// Processes a completion that arrived while another member was polled.
    fn take_for(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        comms: &CommTable,
        rail: usize,
        completion: &Completion,
    ) {
        match self.closed.take() {
            Some(closed) => {
                self.take_finished(rails, &closed, rail, completion);
                self.closed = Some(closed);
            }
            None => {
                let Some(comm) = comms.get(self.id) else { return };
                let before = self.fault.is_some();
                // Its requests are updated as if it were polled itself, because the group's lock covers all members.
                self.take_finished(rails, &comm.requests, rail, completion);
                if self.fault.is_some() && !before {
                    self.life.fail_unreported();
                }
            }
        }
    }

    /// Processes one completion. For a failed or closed member, only completions of its own posted operations count.
    fn take_finished(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        rail: usize,
        completion: &Completion,
    ) {
        // The thread that drives the member may use its requests right now.
        let over = self.life.is_intake_stopped() || self.fault.is_some();
        let taken = match &mut self.side {
            CommSide::Recv(lane) if over && completion.done != CompletionKind::Posted => {
                match completion.done {
                    // A message or a fin record in a bounce buffer.
                    CompletionKind::Received if completion.wr_id < MATCHED => {
                        lane.post_bounce(rails, completion.wr_id as u32)
                    }
                    CompletionKind::Received => {
                        // The NIC has returned the receive, so its share is free again.
                        lane.matched_one();
                        Ok(())
                    }
                    CompletionKind::Written | CompletionKind::Posted => Ok(()),
                }
            }
            _ => self.on_completion(rails, requests, rail, completion),
        };
        // A member that has failed or is closed cannot fail again.
        if let Err(fault) = taken
            && !over
        {
            self.fail_requests(rails, requests, fault);
        }
    }
}
