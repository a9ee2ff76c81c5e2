//! What links have finished, for whomever of a group's members it is. Called when any member is polled, with the
//! group's lane: completions go straight to the member that they name, and wait for nobody. What names nobody is dropped
//! and counted. Of a comm that shares nothing all are its own.

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

/// Batches taken in one call, so that no call stays for long.
const BATCHES_MAX: usize = 4;

/// Bits of an immediate that are not its token.
const KIND: u32 = 0xff << (BufferToken::SLOT_BITS + BufferToken::GENERATION_BITS);

/// Bits of no member's name.
const NOBODY: u32 = 0;

/// What came of a poll.
#[derive(Clone, Copy, Default)]
struct PollTally {
    /// Something was for the member whose turn it is.
    own: bool,
    /// There was something.
    any: bool,
}

impl GroupResources {
    /// Whose a completion is, by the bits of the member's name; what is in it is given the member's names.
    #[inline(always)]
    fn identify_member(&mut self, completion: &mut Completion) -> u32 {
        if completion.status != OpStatus::Ok {
            return Self::identify_error(completion);
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        match completion.done {
            CompletionKind::Written => return self.identify_write(completion),
            CompletionKind::Received if bits == NOBODY => return self.identify_eager(low as u32),
            CompletionKind::Received | CompletionKind::Posted => completion.wr_id = low,
        }
        bits
    }

    /// Whose an error is. That a link has ended is news for all.
    #[cold]
    fn identify_error(completion: &mut Completion) -> u32 {
        if has_ended(completion) {
            return NOBODY;
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        completion.wr_id = low;
        bits
    }

    /// Whose a write is, by the range of its token.
    #[inline]
    fn identify_write(&mut self, completion: &mut Completion) -> u32 {
        let imm = completion.imm.unwrap_or(0);
        let token = BufferToken::from_bits(imm);
        let owner = self.receiving.as_mut().and_then(|receiving| receiving.ranges.resolve_owner(token));
        completion.imm = Some(imm & KIND | ranges::to_member(token).to_bits());
        owner.map_or(NOBODY, MemberId::to_bits)
    }

    /// Whose an eager message is, by its header.
    #[inline]
    fn identify_eager(&mut self, bounce: u32) -> u32 {
        let Some(receiving) = &self.receiving else { return NOBODY };
        let Some((memory, at)) = receiving.bounces.buffer_memory(bounce) else { return NOBODY };
        let mut head = [0; share::EAGER_BYTES];
        match memory.read(at, &mut head).map(|()| MemberEager::parse_member(&head)) {
            Ok(Ok(member)) => member.to_bits(),
            Ok(Err(_)) => self.identify_fin(bounce).map_or(NOBODY, MemberId::to_bits),
            Err(_) => NOBODY,
        }
    }

    /// Whose a fin record is that came as a message by itself, by its token.
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
    /// Takes what the links have finished, also for others, and posts what waited. Whether there was anything for this one,
    /// which had not failed.
    #[inline]
    pub(crate) fn progress_member(&mut self, comms: &CommTable, requests: &RequestTable) -> bool {
        let mut taken = self.take_from(0, comms, requests);
        if self.rails.are_many() {
            taken = self.poll_remaining_rails(1, taken, comms, requests);
        }
        if self.rails.has_ended {
            self.tell_ended();
        }
        if self.open.fault.is_some() {
            self.progress_after_failure(requests);
        } else {
            self.open.go_on(self.rails, requests);
        }
        self.open.idle = if taken.own { 0 } else { self.open.idle + 1 };
        taken.own
    }

    /// The same for a member that has failed.
    pub(crate) fn progress_failed(&mut self, comms: &CommTable, requests: &RequestTable) -> bool {
        let own = self.take_some(comms, requests).own;
        self.progress_after_failure(requests);
        self.open.idle = if own { 0 } else { self.open.idle + 1 };
        own
    }

    /// Lets the network end what a comm that shares nothing had posted before it failed. Nothing of it counts any more.
    #[cold]
    pub(crate) fn forget_finished(&mut self) {
        for rail in 0..self.rails.len() {
            for _ in 0..BATCHES_MAX {
                if self.rails.poll(rail, &mut *self.batch) < BATCH {
                    break;
                }
            }
        }
    }

    /// What has left reads its caller's memory no more, although its comm has failed.
    #[cold]
    fn progress_after_failure(&mut self, requests: &RequestTable) {
        if let CommSide::Send(lane) = &mut self.open.side
            && self.shared.is_some()
        {
            lane.after_poll(self.rails, requests);
        }
    }

    /// Whether others are to be told something after this turn, or links looked after.
    #[inline]
    pub(crate) fn check_follow_up(&mut self, slot: &CommSlot) -> bool {
        let Some(GroupContext { common, .. }) = &mut self.shared else { return self.open.many };
        common.show_now_and_then(self.rails);
        common.untold || self.open.many || self.open.life.is_stop_pending() || slot.news.has_some()
    }

    /// The peer of this member is gone: takes what was sent before, also for the others, then fails what can never be done.
    /// Returns how many failed.
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
            self.open.side.paths_mut().fail_links(self.rails);
        }
        for _ in 0..DRAIN_MAX {
            if !self.take_some(comms, requests).any || self.open.fault.is_some() {
                break;
            }
        }
        match self.open.fault {
            Some(_) => 0,
            None => self.open.fail_remaining(self.rails, requests, fault),
        }
    }

    /// Takes what the links have finished, also for others.
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

    /// Takes what the rails from that one on have finished.
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
            if self.is_over() {
                break;
            }
            let taken = self.take_from(rail, comms, requests);
            all = PollTally { own: all.own | taken.own, any: all.any | taken.any };
        }
        all
    }

    /// Whether nothing is taken in any more: a comm that shares nothing has failed.
    #[inline]
    fn is_over(&self) -> bool {
        self.shared.is_none() && self.open.fault.is_some()
    }

    /// Takes what one rail has finished, a bounded number.
    #[inline(always)]
    fn take_from(&mut self, rail: usize, comms: &CommTable, requests: &RequestTable) -> PollTally {
        let mut all = PollTally::default();
        for _ in 0..BATCHES_MAX {
            let taken = self.rails.poll(rail, &mut *self.batch);
            if taken > 0 {
                all = PollTally { own: all.own | self.give_out(taken, rail, comms, requests), any: true };
            }
            if taken < BATCH || self.is_over() {
                break;
            }
        }
        all
    }

    /// Gives out so many completions of a rail; whether any was for the member whose turn it is.
    #[inline(always)]
    fn give_out(&mut self, taken: usize, rail: usize, comms: &CommTable, requests: &RequestTable) -> bool {
        let Self { open, rails, batch, shared } = self;
        let mut own = false;
        for completion in &mut batch[..taken] {
            if let Some(neighbours) = shared {
                let bits = neighbours.common.identify_member(completion);
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
                if shared.is_none() {
                    break;
                }
            }
        }
        own
    }

    /// Each member that uses a link which has ended hears of it, once.
    #[cold]
    fn tell_ended(&mut self) {
        let Self { open, rails, shared, .. } = self;
        rails.has_ended = false;
        let Some(GroupContext { others, common }) = shared else { return };
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

/// Where a completion is delivered to: the comms of the engine, and the requests of the member whose turn it is.
#[derive(Clone, Copy)]
struct DeliveryTables<'a> {
    comms: &'a CommTable,
    requests: &'a RequestTable,
}

impl GroupContext<'_> {
    /// Gives a completion to whom these bits name: another member than `open`, whose turn it is, or that one if it takes
    /// nothing in any more, or nobody.
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
        let slot = bits & MemberId::SLOTS_MAX as u32;
        let named = |other: &&mut Box<OpenComm>| other.member == bits;
        let Some(other) = others.at_mut(slot).filter(named) else {
            return common.drop_stray(rails, open, rail, completion);
        };
        common.routed += 1;
        other.set_time_of(open);
        other.take_for(rails, comms, rail, completion);
        common.untold |= other.life.is_report_due();
    }
}

/// Whether a link gives back what was posted.
fn has_ended(completion: &Completion) -> bool {
    completion.status.is_of_link()
}

impl GroupResources {
    /// Takes note of what was nobody's. `any` is some member.
    #[cold]
    fn drop_stray(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        any: &mut OpenComm,
        rail: usize,
        completion: &Completion,
    ) {
        if has_ended(completion) {
            return rails.mark_ended(rail, completion.link);
        }
        self.dropped += 1;
        if let CommSide::Recv(lane) = &mut any.side
            && completion.done == CompletionKind::Received
            && completion.wr_id < MATCHED
        {
            // It lies in a bounce buffer. A link that takes none has ended, which it says by itself.
            let _ = lane.post_bounce(rails, completion.wr_id as u32);
        }
    }
}

impl OpenComm {
    /// It is as late for this member as for the one whose turn it is.
    #[inline]
    fn set_time_of(&mut self, whose: &Self) {
        if let (CommSide::Send(lane), CommSide::Send(theirs)) = (&mut self.side, &whose.side)
            && let Some(many) = &theirs.many
        {
            lane.set_time(many.now);
        }
    }

    /// Takes what came in another member's turn.
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
                self.take_finished(rails, &comm.requests, rail, completion);
                if self.fault.is_some() && !before {
                    self.life.fail_unreported();
                }
            }
        }
    }

    /// Takes one thing that a link has finished. Of who has failed or is closed only what it posted itself counts.
    fn take_finished(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        rail: usize,
        completion: &Completion,
    ) {
        // Whoever drives it may have its requests in hand.
        let over = self.life.is_intake_stopped() || self.fault.is_some();
        let taken = match &mut self.side {
            CommSide::Recv(lane) if over && completion.done != CompletionKind::Posted => {
                match completion.done {
                    // A message or a fin record in a bounce buffer.
                    CompletionKind::Received if completion.wr_id < MATCHED => {
                        lane.post_bounce(rails, completion.wr_id as u32)
                    }
                    CompletionKind::Received => {
                        lane.matched_one();
                        Ok(())
                    }
                    CompletionKind::Written | CompletionKind::Posted => Ok(()),
                }
            }
            _ => self.on_completion(rails, requests, rail, completion),
        };
        if let Err(fault) = taken
            && !over
        {
            self.fail_requests(rails, requests, fault);
        }
    }
}
