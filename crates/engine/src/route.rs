//! What the link of a group has finished, for whomever of its members it is. Called when any member is polled, with the
//! group's lane: completions go straight to the member that they name, and wait for nobody. What names nobody is dropped
//! and counted.

use trunkline_fabric::{Completion, Done, Rail, Status};
use trunkline_proto::pool::ranges;
use trunkline_proto::wire::fin::{self, Fin};
use trunkline_proto::wire::imm::Token;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::share::{self, MemberEager};

use crate::comm::Comms;
use crate::groups::{Common, Neighbours, Turn};
use crate::links::SharedLinks;
use crate::member::{BATCH, DRAIN_MAX, Open, Side};
use crate::rails::Rails;
use crate::recv::MATCHED;
use crate::request::Requests;
use crate::{CommFault, Mutant};

/// Batches taken in one call, so that no call stays for long.
const BATCHES_MAX: usize = 4;

/// Bits of an immediate that are not its token.
const KIND: u32 = 0xff << (Token::SLOT_BITS + Token::GENERATION_BITS);

/// What a completion is to a member.
#[derive(Clone, Copy)]
enum Kind {
    /// Its own operation, or one of its peer's: the completion has the member's names for things.
    Own,
    /// An eager message in a bounce buffer of the group's.
    Eager(MemberEager),
}

/// A completion that nobody waits for.
enum Stray {
    /// Its link has ended.
    Ended,
    /// It named nobody.
    Nobody,
    /// Nor did the message in a bounce buffer, which is to be posted again.
    Bounce,
}

impl Common {
    /// Whose a completion is, by the bits of the member's name; what is in it is given the member's names.
    #[inline(always)]
    fn whose(&mut self, completion: &mut Completion) -> Result<(u32, Kind), Stray> {
        if completion.status != Status::Ok {
            return Self::whose_error(completion);
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        match completion.done {
            Done::Written => {
                let Some(receiving) = &mut self.receiving else { return Err(Stray::Nobody) };
                let imm = completion.imm.unwrap_or(0);
                let token = Token::from_bits(imm);
                let Some(member) = receiving.ranges.owner(token) else { return Err(Stray::Nobody) };
                completion.imm = Some(imm & KIND | ranges::to_member(token).to_bits());
                Ok((member.to_bits(), Kind::Own))
            }
            Done::Received if bits == 0 => self.whose_eager(low as u32),
            Done::Received | Done::Posted => {
                completion.wr_id = low;
                Ok((bits, Kind::Own))
            }
        }
    }

    #[cold]
    fn whose_error(completion: &mut Completion) -> Result<(u32, Kind), Stray> {
        if matches!(completion.status, Status::Flushed | Status::PeerDead) {
            return Err(Stray::Ended);
        }
        let (bits, low) = MemberId::of_wr_id(completion.wr_id);
        completion.wr_id = low;
        Ok((bits, Kind::Own))
    }

    /// Whose an eager message is, by its header.
    #[inline]
    fn whose_eager(&mut self, bounce: u32) -> Result<(u32, Kind), Stray> {
        let receiving = self.receiving.as_ref().ok_or(Stray::Nobody)?;
        let (memory, at) = receiving.bounces.memory(bounce).ok_or(Stray::Nobody)?;
        let mut head = [0; share::EAGER_BYTES];
        memory.read(at, &mut head).map_err(|_| Stray::Bounce)?;
        match MemberEager::from_bytes(&head) {
            Ok(header) => Ok((header.member.to_bits(), Kind::Eager(header))),
            Err(_) => self.whose_fin(bounce),
        }
    }

    /// Whose a fin record is that came as a message by itself, by its token.
    #[cold]
    fn whose_fin(&mut self, bounce: u32) -> Result<(u32, Kind), Stray> {
        let receiving = self.receiving.as_mut().filter(|_| !self.plan.write_data).ok_or(Stray::Bounce)?;
        let (memory, at) = receiving.bounces.memory(bounce).ok_or(Stray::Nobody)?;
        let mut bytes = [0; fin::MESSAGE_BYTES];
        memory.read(at, &mut bytes).map_err(|_| Stray::Bounce)?;
        let record = Fin::from_message(&bytes).map_err(|_| Stray::Bounce)?;
        let member = receiving.ranges.owner(record.token).ok_or(Stray::Bounce)?;
        Ok((member.to_bits(), Kind::Own))
    }
}

impl<R: Rail> Turn<'_, R> {
    /// Goes on with a member of a group: takes what the links have finished, also for the others. Returns whether there was
    /// anything for this one.
    #[inline(always)]
    pub(crate) fn progress_shared(&mut self, comms: &Comms, requests: &Requests) -> bool {
        if let Side::Recv(lane) = &mut self.open.side
            && lane.announces()
            && self.open.fault.is_none()
            && let Err(fault) = lane.announce_rest(self.rails)
        {
            self.open.fail(self.rails, requests, fault);
        }
        let some = self.take_shared(comms, requests);
        if self.open.fault.is_none() {
            self.open.go_on(self.rails, requests);
        } else if let Side::Send(lane) = &mut self.open.side
            && !lane.plan.mutant.is("ride-forgets-what-left")
        {
            // What has left reads its caller's memory no more, although its comm has failed.
            lane.polled(self.rails, requests);
        }
        self.open.idle = if some { 0 } else { self.open.idle + 1 };
        some
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
            if !self.take_some(comms, requests).1 || self.open.fault.is_some() {
                break;
            }
        }
        match self.open.fault {
            Some(_) => 0,
            None => self.open.fail_rest(self.rails, requests, fault),
        }
    }

    /// Takes what the links have finished. Whether there was anything for the member whose turn it is.
    #[inline]
    pub(crate) fn take_shared(&mut self, comms: &Comms, requests: &Requests) -> bool {
        self.take_some(comms, requests).0
    }

    /// The same, and whether there was anything at all.
    #[inline(always)]
    fn take_some(&mut self, comms: &Comms, requests: &Requests) -> (bool, bool) {
        let (mut own, mut any) = (false, false);
        for rail in 0..self.rails.len() {
            for _ in 0..BATCHES_MAX {
                let taken = self.rails.poll(rail, &mut *self.batch);
                if taken > 0 {
                    any = true;
                    own |= self.take_batch(taken, rail, comms, requests);
                }
                if taken < BATCH {
                    break;
                }
            }
        }
        if self.rails.has_ended {
            self.tell_ended();
        }
        (own, any)
    }

    /// Gives out so many completions of a rail.
    #[inline(always)]
    fn take_batch(&mut self, taken: usize, rail: usize, comms: &Comms, requests: &Requests) -> bool {
        let Self { open, rails, batch, shared } = self;
        let Some(Neighbours { others, common }) = shared else { return false };
        let mut own = false;
        for completion in &mut batch[..taken] {
            let (bits, kind) = match common.whose(completion) {
                Ok(found) => found,
                Err(stray) => {
                    common.stray(rails, open, rail, completion, stray);
                    continue;
                }
            };
            let bits = if rails.mutant.is("ride-routes-to-whoever-polls") { open.member } else { bits };
            if bits == open.member {
                own = true;
                if open.closed.is_none() {
                    open.take_finished(rails, requests, rail, completion, kind);
                } else {
                    open.take_for(rails, comms, rail, completion, kind);
                }
            } else if let Some(other) = other_of(others, bits, rails.mutant) {
                common.routed += 1;
                if rails.mutant.is("ride-allocates-to-route") {
                    drop(std::hint::black_box(Box::new(bits)));
                }
                other.set_time_of(open);
                other.take_for(rails, comms, rail, completion, kind);
                common.untold |= other.untold;
            } else {
                let bounced = completion.done == Done::Received && completion.wr_id < MATCHED;
                let stray = if bounced { Stray::Bounce } else { Stray::Nobody };
                common.stray(rails, open, rail, completion, stray);
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

/// The member of these bits, if it is one of the others.
#[inline]
fn other_of<'a>(
    others: &'a mut trunkline_proto::slots::Others<'_, Box<Open>>,
    bits: u32,
    mutant: Mutant,
) -> Option<&'a mut Box<Open>> {
    let slot = bits & MemberId::SLOTS_MAX as u32;
    others.at_mut(slot).filter(|other| other.member == bits || mutant.is("ride-ignores-generations"))
}

impl Common {
    /// Takes note of what was nobody's. `any` is some member.
    #[cold]
    fn stray(
        &mut self,
        rails: &mut Rails<impl Rail>,
        any: &mut Open,
        rail: usize,
        completion: &Completion,
        stray: Stray,
    ) {
        match stray {
            Stray::Ended => rails.ended(rail, completion.link),
            Stray::Nobody => self.dropped += 1,
            Stray::Bounce => {
                self.dropped += 1;
                if let Side::Recv(lane) = &mut any.side {
                    // A link that takes none has ended, which it says by itself.
                    let _ = lane.post_bounce(rails, completion.wr_id as u32);
                }
            }
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
        kind: Kind,
    ) {
        match self.closed.take() {
            Some(closed) => {
                self.take_finished(rails, &closed, rail, completion, kind);
                self.closed = Some(closed);
            }
            None => {
                let Some(comm) = comms.get(self.id) else { return };
                let before = self.fault.is_some();
                self.take_finished(rails, &comm.requests, rail, completion, kind);
                self.untold |= self.fault.is_some() && !before;
            }
        }
    }

    /// Takes one thing that a link has finished. Of who has failed or is closed only what it posted itself counts.
    #[inline(always)]
    fn take_finished(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
        rail: usize,
        completion: &Completion,
        kind: Kind,
    ) {
        // Whoever drives it may have its requests in hand.
        let kept = self.side.mutant().is("ride-closed-members-take-messages") && self.fault.is_none();
        let over = (self.withdrawn || self.fault.is_some()) && !kept;
        let taken = match (kind, &mut self.side) {
            (Kind::Own, Side::Recv(lane)) if over && completion.done != Done::Posted => {
                match completion.done {
                    // A fin record in a bounce buffer.
                    Done::Received if completion.wr_id < MATCHED => {
                        lane.post_bounce(rails, completion.wr_id as u32)
                    }
                    Done::Received => {
                        lane.matched_one();
                        Ok(())
                    }
                    Done::Written | Done::Posted => Ok(()),
                }
            }
            (Kind::Own, _) => self.on_completion(rails, requests, rail, completion),
            (Kind::Eager(_), Side::Recv(lane)) if over => lane.post_bounce(rails, completion.wr_id as u32),
            (Kind::Eager(header), Side::Recv(lane)) => {
                lane.on_eager(rails, requests, header.eager, completion.wr_id as u32)
            }
            (Kind::Eager(_), Side::Send(_)) => Ok(()),
        };
        if let Err(fault) = taken
            && !over
        {
            self.fail(rails, requests, fault);
        }
    }
}
