//! Groups: rails with their links, and the comms that ride on them, each a member. A group is what one thread at a time
//! uses; its table gives each a lane. Knows who is where, and nothing of messages.

mod audit;

use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use trunkline_fabric::{Completion, Rail, RegisterError};
use trunkline_proto::limits::MEMBER_MAILBOX_BYTES;
use trunkline_proto::pool::credits::Credits;
use trunkline_proto::pool::group::GroupId;
use trunkline_proto::pool::members::{Members, Others};
use trunkline_proto::pool::ranges::Ranges;
use trunkline_proto::reserve::{OutOfMemory, try_filled_with};
use trunkline_proto::wire::member::MemberId;

pub use audit::Riding;

use crate::comm::plan::Plan;
use crate::comm::recv::{self, RecvLane};
use crate::lane::Lane;
use crate::link::links::SharedLinks;
use crate::link::path::Paths;
use crate::link::rails::Rails;
use crate::memory::bounces::Bounces;
use crate::memory::slab::{Lot, Piece, Slab};
use crate::pool::member::{BATCH, Batch, Open, Side};
use crate::status::groups::Shown;
use crate::sync::Guard;
use crate::{CommFault, CommId, Error, Mutant};

/// Where a comm is: which lane, and which member of the group there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seat {
    pub(crate) lane: u32,
    /// As bits; 0 where there are no others.
    member: u32,
}

impl Seat {
    /// That of a comm that shares nothing.
    pub(crate) const fn alone(lane: u32) -> Self {
        Self { lane, member: 0 }
    }

    /// That of a member.
    pub(crate) const fn of(lane: u32, member: MemberId) -> Self {
        Self { lane, member: member.to_bits() }
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { lane: bits as u32, member: (bits >> 32) as u32 }
    }

    /// Which member.
    pub(crate) const fn member(self) -> Option<MemberId> {
        MemberId::from_bits(self.member)
    }

    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.lane as u64 | (self.member as u64) << 32
    }
}

/// One group.
pub(crate) struct Group<R: Rail> {
    rails: Rails<R>,
    seats: Seats,
    /// Where the rails put completions; here, because to make it anew for each poll costs more than most polls.
    batch: Batch,
}

/// Who rides on the links of a group.
#[expect(clippy::large_enum_variant, reason = "most groups are of one comm, which is reached on every call")]
enum Seats {
    /// One comm, and never another one.
    Alone(Open),
    /// Any number of them.
    Shared(Box<Shared>),
}

struct Shared {
    /// Each apart, because they are large and their places are used again late.
    members: Members<Box<Open>>,
    common: Common,
}

/// What the members of a group have in common besides its rails.
pub(crate) struct Common {
    /// What the pool calls the group.
    pub(crate) id: GroupId,
    /// The rail and NIC of each link of a member.
    pub(crate) slots: Vec<(usize, usize)>,
    /// What both ends agreed on when the group was made.
    pub(crate) plan: Plan,
    /// Where the mailboxes of members lie.
    slab: Slab,
    /// At the receiving end.
    pub(crate) receiving: Option<Receiving>,
    /// The pool knows that all links have ended.
    pub(crate) told: bool,
    /// Members have failed whose owners did not call since.
    pub(crate) untold: bool,
    /// Completions that were another member's than the one whose turn it was.
    pub(crate) routed: u64,
    /// Operations that had been posted when the pool last asked.
    weighed: u64,
    /// Completions and messages that were nobody's.
    pub(crate) dropped: u64,
    /// What others see of it.
    pub(crate) shown: Shown,
}

/// What only the receiving end of a group has.
pub(crate) struct Receiving {
    pub(crate) ranges: Ranges,
    pub(crate) bounces: Arc<Bounces>,
}

/// What a member works with: itself, and what it shares with the others.
pub(crate) struct Turn<'a, R: Rail> {
    pub(crate) open: &'a mut Open,
    pub(crate) rails: &'a mut Rails<R>,
    pub(crate) batch: &'a mut Batch,
    /// None where there can be no others.
    pub(crate) shared: Option<Neighbours<'a>>,
}

/// The others of a group, and what they have in common.
pub(crate) struct Neighbours<'a> {
    pub(crate) others: &'a mut Others<Box<Open>>,
    pub(crate) common: &'a mut Common,
}

impl<R: Rail> Group<R> {
    /// Of one comm that shares nothing.
    pub(crate) fn alone(rails: Rails<R>, open: Open) -> Self {
        Self { rails, seats: Seats::Alone(open), batch: no_batch() }
    }

    /// A group that sends, and has no members yet.
    pub(crate) fn sending(id: GroupId, mut rails: Rails<R>, paths: &Paths, plan: Plan) -> Self {
        rails.eager = Some(Credits::new(plan.eager_credits, plan.mutant));
        Self::shared(rails, paths, Common::new(id, slots_of(paths), plan, MEMBER_MAILBOX_BYTES, None))
    }

    /// A group that receives, and has no members yet.
    pub(crate) fn receiving(
        id: GroupId,
        rails: Rails<R>,
        paths: &Paths,
        plan: Plan,
        bounces: Arc<Bounces>,
    ) -> Self {
        let receiving = Receiving { ranges: Ranges::new(plan.mutant), bounces };
        let slots = slots_of(paths);
        Self::shared(rails, paths, Common::new(id, slots, plan, recv::RANGE_FINS_BYTES, Some(receiving)))
    }

    fn shared(mut rails: Rails<R>, paths: &Paths, common: Common) -> Self {
        let mut shared = SharedLinks::default();
        let first = paths.get(0);
        shared.made(0, first.rail, first.link);
        rails.shared = Some(shared);
        let members = Members::new(common.plan.mutant);
        Self { rails, seats: Seats::Shared(Box::new(Shared { members, common })), batch: no_batch() }
    }

    /// What members have in common, and the rails; `None` where there is one comm alone.
    pub(crate) fn common(&mut self) -> Option<(&mut Common, &mut Rails<R>)> {
        match &mut self.seats {
            Seats::Alone(_) => None,
            Seats::Shared(shared) => Some((&mut shared.common, &mut self.rails)),
        }
    }

    /// A comm comes; its lane is given its part in the group by `part`.
    pub(crate) fn enter(
        &mut self,
        open: Open,
        part: impl FnOnce(&mut Open, &mut Common, MemberId) -> bool,
    ) -> Option<MemberId> {
        let Seats::Shared(shared) = &mut self.seats else { return None };
        let Shared { members, common } = &mut **shared;
        let member = match members.enter(Box::new(open)) {
            Ok(member) => member,
            Err(open) => {
                self.turn_away(*open);
                return None;
            }
        };
        let fits = members.split(member.to_bits()).is_some_and(|(open, _)| {
            open.member = member.to_bits();
            part(open, common, member)
        });
        if !fits {
            if let Some(open) = members.leave(member) {
                self.turn_away(*open);
            }
            return None;
        }
        self.rails.slices.enter();
        if let Some(eager) = &mut self.rails.eager {
            eager.enter();
        }
        common.show_members(members.len(), &self.rails);
        Some(member)
    }

    /// Operations posted since the last call; nothing of a comm alone.
    pub(crate) fn take_load(&mut self) -> Option<u64> {
        let posts = self.rails.posts;
        let (common, _) = self.common()?;
        Some(posts - std::mem::replace(&mut common.weighed, posts))
    }

    /// What was to be a member finds no seat; nothing was posted for it.
    pub(crate) fn turn_away(&mut self, mut open: Open) {
        let Seats::Shared(shared) = &mut self.seats else { return };
        if self.rails.mutant.is("ride-forgets-who-is-turned-away") {
            return;
        }
        if let Some(lot) = open.lot {
            shared.common.slab.give(lot);
        }
        open.side.paths().destroy(&mut self.rails);
    }

    /// A member goes, and nothing that it or its peer has posted for it can land any more. What it had is for others.
    pub(crate) fn leave(&mut self, seat: Seat) {
        let Seats::Shared(shared) = &mut self.seats else { return };
        let Shared { members, common } = &mut **shared;
        let Some(open) = MemberId::from_bits(seat.member).and_then(|member| members.leave(member)) else {
            return;
        };
        self.rails.slices.leave();
        if let Some(eager) = &mut self.rails.eager {
            eager.leave();
        }
        if let Some(lot) = open.lot {
            common.slab.give(lot);
        }
        let mut open = open;
        open.side.paths().destroy(&mut self.rails);
        match open.side {
            Side::Send(lane) => {
                self.rails.slices.give(lane.part.slices);
                if let Some(eager) = &mut self.rails.eager
                    && !self.rails.mutant.is("ride-keeps-eager-credits")
                {
                    eager.give(lane.part.eager);
                }
            }
            Side::Recv(lane) => {
                if !self.rails.mutant.is("ride-forgets-what-members-dropped") {
                    common.dropped += lane.dropped;
                }
                if let (Some(receiving), Some(range)) = (&mut common.receiving, lane.part.range) {
                    receiving.ranges.leave(range);
                }
            }
        }
        common.show_members(members.len(), &self.rails);
    }

    /// A mailbox for one more member.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(crate) fn mailbox(&mut self) -> Result<(Lot, Piece), RegisterError> {
        match &mut self.seats {
            Seats::Shared(shared) => shared.common.mailbox(&self.rails),
            Seats::Alone(_) => Err(RegisterError::Exhausted(0)),
        }
    }

    /// Posts the bounce buffers of a group that is new, by its first member's lane.
    pub(crate) fn post_bounces(&mut self, lane: &mut RecvLane) -> Result<(), CommFault> {
        lane.post_bounces(&mut self.rails, 0)
    }

    /// Ends the links that members ride on.
    pub(crate) fn destroy(&mut self) {
        self.rails.destroy_all();
    }

    /// The turn of the comm of that name, if it has that seat: another one may have come before the lane was claimed.
    #[inline]
    pub(crate) fn turn_of(&mut self, seat: Seat, id: CommId) -> Option<Turn<'_, R>> {
        let Self { rails, seats, batch } = self;
        match seats {
            Seats::Alone(open) if open.id == id => Some(Turn { open, rails, batch, shared: None }),
            Seats::Alone(_) => None,
            Seats::Shared(shared) => {
                let Shared { members, common } = &mut **shared;
                let (open, others) = members.split(seat.member)?;
                let shared = Some(Neighbours { others, common });
                if open.id == id { Some(Turn { open, rails, batch, shared }) } else { None }
            }
        }
    }

    /// The turn of who has that seat.
    #[inline]
    pub(crate) fn turn(&mut self, seat: Seat) -> Option<Turn<'_, R>> {
        let Self { rails, seats, batch } = self;
        match seats {
            Seats::Alone(open) => Some(Turn { open, rails, batch, shared: None }),
            Seats::Shared(shared) => {
                let Shared { members, common } = &mut **shared;
                let (open, others) = members.split(seat.member)?;
                Some(Turn { open, rails, batch, shared: Some(Neighbours { others, common }) })
            }
        }
    }
}

impl Common {
    fn new(
        id: GroupId,
        slots: Vec<(usize, usize)>,
        plan: Plan,
        bytes: usize,
        receiving: Option<Receiving>,
    ) -> Self {
        Self {
            id,
            slots,
            plan,
            slab: Slab::new(bytes),
            receiving,
            told: false,
            untold: false,
            routed: 0,
            weighed: 0,
            dropped: 0,
            shown: Shown::default(),
        }
    }

    /// A mailbox for one more member.
    pub(crate) fn mailbox(&mut self, rails: &Rails<impl Rail>) -> Result<(Lot, Piece), RegisterError> {
        self.slab.take(rails)
    }

    /// A mailbox that was of no use.
    pub(crate) fn give(&mut self, lot: Lot) {
        self.slab.give(lot);
    }
}

fn slots_of(paths: &Paths) -> Vec<(usize, usize)> {
    paths.iter().map(|path| (path.rail, path.nic)).collect()
}

fn no_batch() -> Batch {
    [Completion::BLANK; BATCH]
}

/// What a lane holds.
type GroupLane<R> = Lane<Option<Group<R>>>;

/// A lane that was claimed.
pub(crate) type Held<'a, R> = Guard<'a, Option<Group<R>>>;

/// All groups of an engine.
pub(crate) struct Groups<R: Rail> {
    /// Made as they are needed, some at a time: most processes have few.
    chunks: Box<[OnceLock<Chunk<R>>]>,
    free: SpinMutex<Free>,
    /// Of seats that nobody ever had; holds no group.
    nowhere: GroupLane<R>,
    mutant: Mutant,
}

/// Lanes that are made at a time.
const CHUNK: usize = 8;

/// So many of them.
type Chunk<R> = Box<[GroupLane<R>]>;

/// Lanes without a group.
struct Free {
    fresh: u32,
    used: Vec<u32>,
}

impl<R: Rail> Groups<R> {
    pub(crate) fn new(limit: usize, mutant: Mutant) -> Result<Self, OutOfMemory> {
        let chunks = try_filled_with(limit.div_ceil(CHUNK), OnceLock::new)?;
        let free = SpinMutex::new(Free { fresh: 0, used: Vec::new() });
        Ok(Self { chunks, free, nowhere: Lane::new(None, mutant), mutant })
    }

    /// The group of a seat, unless somebody has it or waits for it.
    #[inline]
    pub(crate) fn try_claim(&self, seat: Seat) -> Option<Held<'_, R>> {
        self.lane(seat).try_claim()
    }

    /// The group of a seat, when it is free.
    pub(crate) fn claim(&self, seat: Seat) -> Held<'_, R> {
        self.lane(seat).claim()
    }

    /// The lane of a seat. There is one for each that a comm ever had.
    #[inline]
    fn lane(&self, seat: Seat) -> &GroupLane<R> {
        let chunk = seat.lane as usize / CHUNK;
        let at = seat.lane as usize % CHUNK;
        self.chunks.get(chunk).and_then(OnceLock::get).map_or(&self.nowhere, |chunk| &chunk[at])
    }

    /// The group in that lane, when it is free.
    pub(crate) fn claim_lane(&self, lane: u32) -> Held<'_, R> {
        self.claim(Seat::alone(lane))
    }

    /// A lane for a group, not one that exists.
    pub(crate) fn insert(&self, group: Group<R>) -> Result<u32, Error> {
        let index = {
            let mut free = self.free.lock();
            match free.used.pop() {
                Some(index) => index,
                None if (free.fresh as usize) < self.chunks.len() * CHUNK => {
                    free.fresh += 1;
                    free.fresh - 1
                }
                None => {
                    return Err(Error::Exhausted {
                        what: "groups of connections",
                        limit: self.chunks.len() * CHUNK,
                    });
                }
            }
        };
        let chunk = &self.chunks[index as usize / CHUNK];
        if chunk.get().is_none() {
            let lanes = try_filled_with(CHUNK, || Lane::new(None, self.mutant));
            let lanes = lanes.inspect_err(|_| self.free.lock().used.push(index))?;
            // Another thread may have made them meanwhile, and another one's are as good.
            let _ = chunk.set(lanes);
        }
        *self.claim_lane(index) = Some(group);
        Ok(index)
    }

    /// A lane's group is gone.
    pub(crate) fn remove(&self, lane: u32, mut held: Held<'_, R>) -> Option<Group<R>> {
        let group = held.take();
        drop(held);
        if group.is_some() {
            self.free.lock().used.push(lane);
        }
        group
    }
}
