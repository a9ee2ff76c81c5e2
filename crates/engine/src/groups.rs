//! Groups: rails with their links, and the comms that ride on them, each a member. A group is what one thread at a time
//! uses; its table gives each a lane. Knows who is where, and nothing of messages.

use std::sync::OnceLock;

use spin::mutex::SpinMutex;
use trunkline_fabric::{Completion, Done, LinkId, Rail, Status};

use crate::lane::Lane;
use crate::member::{BATCH, Batch, Open};
use crate::rails::Rails;
use crate::sync::Guard;
use crate::{CommId, Error, Mutant};

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

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { lane: bits as u32, member: (bits >> 32) as u32 }
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
enum Seats {
    /// One comm, and never another one.
    Alone(Open),
}

/// What a member works with: itself, and what it shares with the others.
pub(crate) struct Turn<'a, R: Rail> {
    pub(crate) open: &'a mut Open,
    pub(crate) rails: &'a mut Rails<R>,
    pub(crate) batch: &'a mut Batch,
}

impl<R: Rail> Group<R> {
    /// Of one comm that shares nothing.
    pub(crate) fn alone(rails: Rails<R>, open: Open) -> Self {
        let idle = Completion {
            wr_id: 0,
            link: LinkId(0),
            done: Done::Posted,
            status: Status::Ok,
            imm: None,
            len: 0,
        };
        Self { rails, seats: Seats::Alone(open), batch: [idle; BATCH] }
    }

    /// The turn of the comm of that name, if it has that seat: another one may have come before the lane was claimed.
    #[inline]
    pub(crate) fn turn_of(&mut self, seat: Seat, id: CommId) -> Option<Turn<'_, R>> {
        self.turn(seat).filter(|turn| turn.open.id == id)
    }

    /// The turn of who has that seat.
    #[inline]
    pub(crate) fn turn(&mut self, _seat: Seat) -> Option<Turn<'_, R>> {
        let Self { rails, seats, batch } = self;
        match seats {
            Seats::Alone(open) => Some(Turn { open, rails, batch }),
        }
    }
}

/// What a lane holds.
type GroupLane<R> = Lane<Option<Group<R>>>;

/// A lane that was claimed.
pub(crate) type Held<'a, R> = Guard<'a, Option<Group<R>>>;

/// All groups of an engine.
pub(crate) struct Groups<R: Rail> {
    lanes: Box<[OnceLock<Box<GroupLane<R>>>]>,
    free: SpinMutex<Free>,
    /// Of seats that nobody ever had; holds no group.
    nowhere: GroupLane<R>,
    mutant: Mutant,
}

/// Lanes without a group.
struct Free {
    fresh: u32,
    used: Vec<u32>,
}

impl<R: Rail> Groups<R> {
    pub(crate) fn new(limit: usize, mutant: Mutant) -> Self {
        let lanes = (0..limit).map(|_| OnceLock::new()).collect();
        let free = SpinMutex::new(Free { fresh: 0, used: Vec::new() });
        Self { lanes, free, nowhere: Lane::new(None, mutant), mutant }
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
        self.lanes.get(seat.lane as usize).and_then(OnceLock::get).map_or(&self.nowhere, |lane| &**lane)
    }

    /// A lane for a group, not one that exists.
    pub(crate) fn insert(&self, group: Group<R>) -> Result<u32, Error> {
        let index = {
            let mut free = self.free.lock();
            match free.used.pop() {
                Some(index) => index,
                None if (free.fresh as usize) < self.lanes.len() => {
                    free.fresh += 1;
                    free.fresh - 1
                }
                None => {
                    return Err(Error::Exhausted { what: "groups of connections", limit: self.lanes.len() });
                }
            }
        };
        let lane = self.lanes[index as usize].get_or_init(|| Box::new(Lane::new(None, self.mutant)));
        *lane.claim() = Some(group);
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
