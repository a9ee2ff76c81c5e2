//! What links have finished, for whomever of a group's members it is. Called when any member is polled, with the
//! group's lane: completions go straight to the member that they name, and wait for nobody. What names nobody is dropped
//! and counted. Of a comm that shares nothing all are its own.

use trunkline_fabric::{Completion, Done, Rail, Status};
use trunkline_proto::pool::ranges;
use trunkline_proto::wire::fin::{self, Fin};
use trunkline_proto::wire::imm::Token;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::share::{self, MemberEager};

use crate::CommFault;
use crate::comm::recv::MATCHED;
use crate::comm::request::Requests;
use crate::comm::{Comm, Comms};
use crate::link::links::SharedLinks;
use crate::link::rails::Rails;
use crate::pool::groups::{Common, Neighbours, Turn};
use crate::pool::member::{BATCH, DRAIN_MAX, Open, Side};

/// Batches taken in one call, so that no call stays for long.
const BATCHES_MAX: usize = 4;

/// Bits of an immediate that are not its token.
const KIND: u32 = 0xff << (Token::SLOT_BITS + Token::GENERATION_BITS);

/// Bits of no member's name.
const NOBODY: u32 = 0;

/// What came of a poll.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// Something was for the member whose turn it is.
    own: bool,
    /// There was something.
    any: bool,
}

impl Common {
    /// Whose a completion is, by the bits of the member's name; what is in it is given the member's names.
    #[inline(always)]
    fn whose(&mut self, completion: &mut Completion) -> u32 {
        if completion.status != Status::Ok {
            return Self::whose_error(completion);
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        match completion.done {
            Done::Written => return self.whose_written(completion),
            Done::Received if bits == NOBODY => return self.whose_eager(low as u32),
            Done::Received | Done::Posted => completion.wr_id = low,
        }
        bits
    }

    /// Whose an error is. That a link has ended is news for all.
    #[cold]
    fn whose_error(completion: &mut Completion) -> u32 {
        if has_ended(completion) {
            return NOBODY;
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        completion.wr_id = low;
        bits
    }

    /// Whose a write is, by the range of its token.
    #[inline]
    fn whose_written(&mut self, completion: &mut Completion) -> u32 {
        let imm = completion.imm.unwrap_or(0);
        let token = Token::from_bits(imm);
        let owner = self.receiving.as_mut().and_then(|receiving| receiving.ranges.owner(token));
        completion.imm = Some(imm & KIND | ranges::to_member(token).to_bits());
        owner.map_or(NOBODY, MemberId::to_bits)
    }

    /// Whose an eager message is, by its header.
    #[inline]
    fn whose_eager(&mut self, bounce: u32) -> u32 {
        let Some(receiving) = &self.receiving else { return NOBODY };
        let Some((memory, at)) = receiving.bounces.memory(bounce) else { return NOBODY };
        let mut head = [0; share::EAGER_BYTES];
        match memory.read(at, &mut head).map(|()| MemberEager::member(&head)) {
            Ok(Ok(member)) => member.to_bits(),
            Ok(Err(_)) => self.whose_fin(bounce).map_or(NOBODY, MemberId::to_bits),
            Err(_) => NOBODY,
        }
    }

    /// Whose a fin record is that came as a message by itself, by its token.
    #[cold]
    fn whose_fin(&mut self, bounce: u32) -> Option<MemberId> {
        let receiving = self.receiving.as_mut().filter(|_| !self.plan.write_data)?;
        let (memory, at) = receiving.bounces.memory(bounce)?;
        let mut bytes = [0; fin::MESSAGE_BYTES];
        memory.read(at, &mut bytes).ok()?;
        receiving.ranges.owner(Fin::from_message(&bytes).ok()?.token)
    }
}

impl<R: Rail> Turn<'_, R> {
    /// Takes what the links have finished, also for others, and posts what waited. Whether there was anything for this one,
    /// which had not failed.
    #[inline]
    pub(crate) fn progress(&mut self, comms: &Comms, requests: &Requests) -> bool {
        let mut taken = self.take_from(0, comms, requests);
        if self.rails.are_many() {
            taken = self.take_from_rest(1, taken, comms, requests);
        }
        if self.rails.has_ended {
            self.tell_ended();
        }
        if self.open.fault.is_some() {
            self.go_on_failed(requests);
        } else {
            self.open.go_on(self.rails, requests);
        }
        self.open.idle = if taken.own { 0 } else { self.open.idle + 1 };
        taken.own
    }

    /// The same for a member that has failed.
    pub(crate) fn progress_failed(&mut self, comms: &Comms, requests: &Requests) -> bool {
        let own = self.take_some(comms, requests).own;
        self.go_on_failed(requests);
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
    fn go_on_failed(&mut self, requests: &Requests) {
        if let Side::Send(lane) = &mut self.open.side
            && self.shared.is_some()
            && !lane.plan.mutant.is("ride-forgets-what-left")
        {
            lane.polled(self.rails, requests);
        }
    }

    /// Whether others are to be told something after this turn, or links looked after.
    #[inline]
    pub(crate) fn is_tended(&mut self, slot: &Comm) -> bool {
        let Some(Neighbours { common, .. }) = &mut self.shared else { return self.open.many };
        common.show_now_and_then(self.rails);
        common.untold || self.open.many || self.open.stopped || slot.news.has_some()
    }

    /// The peer of this member is gone: takes what was sent before, also for the others, then fails what can never be done.
    /// Returns how many failed.
    pub(crate) fn on_peer_gone(&mut self, comms: &Comms, requests: &Requests, fault: CommFault) -> usize {
        if self.open.fault.is_some() {
            return 0;
        }
        if matches!(fault, CommFault::PeerDead(_)) {
            self.open.side.paths().fail(self.rails);
        }
        for _ in 0..DRAIN_MAX {
            if !self.take_some(comms, requests).any || self.open.fault.is_some() {
                break;
            }
        }
        match self.open.fault {
            Some(_) => 0,
            None => self.open.fail_rest(self.rails, requests, fault),
        }
    }

    /// Takes what the links have finished, also for others.
    pub(crate) fn take_shared(&mut self, comms: &Comms, requests: &Requests) {
        self.take_some(comms, requests);
    }

    fn take_some(&mut self, comms: &Comms, requests: &Requests) -> Taken {
        let taken = self.take_from_rest(0, Taken::default(), comms, requests);
        if self.rails.has_ended {
            self.tell_ended();
        }
        taken
    }

    /// Takes what the rails from that one on have finished.
    #[inline(never)]
    fn take_from_rest(&mut self, first: usize, before: Taken, comms: &Comms, requests: &Requests) -> Taken {
        let mut all = before;
        for rail in first..self.rails.len() {
            if self.is_over() {
                break;
            }
            let taken = self.take_from(rail, comms, requests);
            all = Taken { own: all.own | taken.own, any: all.any | taken.any };
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
    fn take_from(&mut self, rail: usize, comms: &Comms, requests: &Requests) -> Taken {
        let mut all = Taken::default();
        for _ in 0..BATCHES_MAX {
            let taken = self.rails.poll(rail, &mut *self.batch);
            if taken > 0 {
                all = Taken { own: all.own | self.give_out(taken, rail, comms, requests), any: true };
            }
            if taken < BATCH || self.is_over() {
                break;
            }
        }
        all
    }

    /// Gives out so many completions of a rail; whether any was for the member whose turn it is.
    #[inline(always)]
    fn give_out(&mut self, taken: usize, rail: usize, comms: &Comms, requests: &Requests) -> bool {
        let Self { open, rails, batch, shared } = self;
        let mut own = false;
        for completion in &mut batch[..taken] {
            if let Some(neighbours) = shared {
                let bits = neighbours.common.whose(completion);
                let astray = bits != NOBODY && rails.mutant.is("ride-routes-to-whoever-polls");
                if (bits != open.member || open.withdrawn) && !astray {
                    own |= bits == open.member;
                    neighbours.give(open, rails, (comms, requests), rail, completion, bits);
                    continue;
                }
            }
            own = true;
            if let Err(fault) = open.on_completion(rails, requests, rail, completion) {
                open.fail(rails, requests, fault);
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
        let Some(Neighbours { others, common }) = shared else { return };
        common.untold = true;
        while let Some((rail, link)) = rails.shared.as_mut().and_then(SharedLinks::next_ended) {
            let one = rails.mutant.is("ride-tells-one-of-the-end");
            let others = others.iter_mut().filter(|_| !one).map(|other| &mut **other);
            for member in std::iter::once(&mut **open).chain(others) {
                if let Some(path) = member.side.paths().of_link(rail, link) {
                    member.lost(rails, path);
                }
            }
        }
    }
}

impl Neighbours<'_> {
    /// Gives a completion to whom these bits name: another member than `open`, whose turn it is, or that one if it takes
    /// nothing in any more, or nobody.
    #[inline(never)]
    fn give(
        &mut self,
        open: &mut Open,
        rails: &mut Rails<impl Rail>,
        (comms, requests): (&Comms, &Requests),
        rail: usize,
        completion: &Completion,
        bits: u32,
    ) {
        let Self { others, common } = self;
        if bits == open.member {
            if open.closed.is_none() {
                return open.take_finished(rails, requests, rail, completion);
            }
            return open.take_for(rails, comms, rail, completion);
        }
        let slot = bits & MemberId::SLOTS_MAX as u32;
        let named =
            |other: &&mut Box<Open>| other.member == bits || rails.mutant.is("ride-ignores-generations");
        let Some(other) = others.at_mut(slot).filter(named) else {
            return common.stray(rails, open, rail, completion);
        };
        common.routed += 1;
        if rails.mutant.is("ride-allocates-to-route") {
            drop(std::hint::black_box(Box::new(bits)));
        }
        other.set_time_of(open);
        other.take_for(rails, comms, rail, completion);
        common.untold |= other.untold;
    }
}

/// Whether a link gives back what was posted.
fn has_ended(completion: &Completion) -> bool {
    completion.status.is_of_link()
}

impl Common {
    /// Takes note of what was nobody's. `any` is some member.
    #[cold]
    fn stray(&mut self, rails: &mut Rails<impl Rail>, any: &mut Open, rail: usize, completion: &Completion) {
        if has_ended(completion) {
            return rails.ended(rail, completion.link);
        }
        self.dropped += 1;
        if let Side::Recv(lane) = &mut any.side
            && completion.done == Done::Received
            && completion.wr_id < MATCHED
        {
            // It lies in a bounce buffer. A link that takes none has ended, which it says by itself.
            let _ = lane.post_bounce(rails, completion.wr_id as u32);
        }
    }
}

impl Open {
    /// It is as late for this member as for the one whose turn it is.
    #[inline]
    fn set_time_of(&mut self, whose: &Self) {
        if let (Side::Send(lane), Side::Send(theirs)) = (&mut self.side, &whose.side)
            && let Some(many) = &theirs.many
        {
            lane.set_time(many.now);
        }
    }

    /// Takes what came in another member's turn.
    fn take_for(
        &mut self,
        rails: &mut Rails<impl Rail>,
        comms: &Comms,
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
                self.untold |= self.fault.is_some() && !before;
            }
        }
    }

    /// Takes one thing that a link has finished. Of who has failed or is closed only what it posted itself counts.
    fn take_finished(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
        rail: usize,
        completion: &Completion,
    ) {
        // Whoever drives it may have its requests in hand.
        let kept = self.side.mutant().is("ride-closed-members-take-messages") && self.fault.is_none();
        let over = (self.withdrawn || self.fault.is_some()) && !kept;
        let taken = match &mut self.side {
            Side::Recv(lane) if over && completion.done != Done::Posted => match completion.done {
                // A message or a fin record in a bounce buffer.
                Done::Received if completion.wr_id < MATCHED => {
                    lane.post_bounce(rails, completion.wr_id as u32)
                }
                Done::Received => {
                    lane.matched_one();
                    Ok(())
                }
                Done::Written | Done::Posted => Ok(()),
            },
            _ => self.on_completion(rails, requests, rail, completion),
        };
        if let Err(fault) = taken
            && !over
        {
            self.fail(rails, requests, fault);
        }
    }
}
