//! Groups of shared queue pairs: N comms towards one process ride on a few of them.
//!
//! For the engine: to ask whenever a comm connects, is accepted, fails or closes, and to do what
//! the pool says; [`members`], [`ranges`] and [`credits`] are for the lanes of a group, for each message. Nothing here makes
//! or destroys a queue pair, sends a frame, or knows a clock: what is to be done comes back as a value.
//!
//! The sending end asks and decides ([`Pool::ask`], [`Pool::answered`]), because it alone sees all its comms towards a
//! process; the receiving end checks and answers ([`Pool::asked`], [`Pool::ready`]). Both say when their links are wired
//! ([`Pool::wired`]), when a group broke ([`Pool::on_broken`]), when a comm is gone ([`Pool::leave`]), and when the last
//! one's queue pairs are ([`Pool::destroyed`]). A comm that shares nothing is a group of one that nobody joins, so that
//! queue pairs are counted in one place.
//!
//! docs/wire.md, "Sharing", has the words that the ends exchange.

mod answer;
mod ask;
mod budget;
pub mod config;
pub mod credits;
mod epochs;
pub mod group;
pub mod key;
pub mod members;
pub mod ranges;
mod seat;
#[cfg(test)]
mod tests;
mod usage;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub use answer::Verdict;
pub use ask::{AnswerFault, Ask, AskError, Next};
pub use budget::Budget;
pub use seat::SeatId;
pub use usage::{GroupUsage, Usage};

use self::budget::Budgets;
use self::config::Config;
use self::epochs::Epochs;
use self::group::{Group, GroupId, State, Teardown};
use self::key::{End, Key};
use self::seat::{Comer, How, Seat, Stage};
use crate::id::ProcessId;
use crate::limits::{GROUPS_MAX, MEMBERS_MAX, POOL_QUARANTINE};
use crate::mutant::Mutant;
use crate::slots::Slots;
use crate::wire::proof::{Epoch, Proof};

/// All groups of a process, of both directions.
#[derive(Debug)]
pub struct Pool {
    config: Config,
    epochs: Epochs,
    groups: Slots<Group>,
    seats: Slots<Seat>,
    /// The shared groups of each key, until they are destroyed.
    keys: BTreeMap<Key, Vec<GroupId>>,
    /// The seats given to connections of other processes.
    conns: BTreeMap<(ProcessId, u64), SeatId>,
    budgets: Budgets,
    mutant: Mutant,
}

/// A place in a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// The group.
    pub group: GroupId,
    /// The seat in it.
    pub seat: SeatId,
}

/// Something has run out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Limit {
    /// Queue pairs of a NIC.
    #[error("NIC {nic} has no queue pairs left of {limit}")]
    QueuePairs {
        /// Its number.
        nic: u16,
        /// How many it has.
        limit: u32,
    },
    /// Members of all groups of a key.
    #[error("each group has its {0} members")]
    MembersOfGroup(usize),
    /// Members of all groups.
    #[error("there are {0} comms")]
    Members(usize),
    /// Groups.
    #[error("there are {0} groups")]
    Groups(usize),
}

/// There is no such seat any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no seat of a group has that name")]
pub struct NoSeat;

/// Who is left in a group after a member has left.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Left {
    /// Others.
    Others,
    /// Nobody: destroy this, then say [`Pool::destroyed`].
    Last(Teardown),
}

/// A group cannot be wired now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WiredError {
    /// There is no such group any more, or it is past that.
    #[error("the group is not being created")]
    NotCreating,
    /// The other end has not answered.
    #[error("the other end has not answered")]
    Unanswered,
    /// The ends do not know the links by the same addresses.
    #[error("the two ends of the group are not wired to each other")]
    Proof,
}

impl Pool {
    /// An empty pool. `base` is a random number, for the epochs.
    #[must_use]
    pub fn new(config: Config, base: u64, mutant: Mutant) -> Self {
        let quarantine = if mutant.is("pool-reuses-ids") { 0 } else { POOL_QUARANTINE };
        Self {
            config,
            epochs: Epochs::from(base),
            groups: Slots::with_quarantine(GROUPS_MAX, quarantine),
            seats: Slots::with_quarantine(MEMBERS_MAX, quarantine),
            keys: BTreeMap::new(),
            conns: BTreeMap::new(),
            budgets: Budgets::default(),
            mutant,
        }
    }

    /// How this process shares.
    #[must_use]
    pub const fn config(&self) -> Config {
        self.config
    }

    /// How many queue pairs that NIC has to give; without a word it has as many as anybody wants.
    pub fn set_budget(&mut self, nic: u16, queue_pairs: u32) {
        self.budgets.set_limit(nic, queue_pairs);
    }

    /// How much a group has to do, in any unit that all groups of its key share (bytes in flight, say): compared where
    /// groups have equally many members.
    pub fn set_load(&mut self, group: GroupId, load: u64) {
        if let Some(group) = self.groups.get_mut(group.0) {
            group.load = load;
        }
    }

    /// The groups of a key, in whatever state.
    pub fn of_key(&self, key: &Key) -> impl Iterator<Item = GroupId> {
        self.keys.get(&key.listed(self.mutant)).map_or(&[][..], Vec::as_slice).iter().copied()
    }

    /// Where a group stands; `None` if it is gone.
    #[must_use]
    pub fn state(&self, group: GroupId) -> Option<State> {
        self.groups.get(group.0).map(|group| group.state)
    }

    /// Which of the pipelines of its first NIC a new group goes on, by what the other groups of that NIC count for and have to
    /// do; nothing where there is no choice. Further queue pairs go on the pipelines after it.
    pub fn place_on_pipeline(&mut self, id: GroupId, pipelines: u32) -> Option<u32> {
        let nic = self.groups.get(id.0)?.key.local.numbers().first().copied()?;
        if pipelines < 2 {
            return None;
        }
        let others = || self.groups.iter().filter(|&(other, _)| other != id.0).map(|(_, group)| group);
        let on = |pipeline| {
            let here = |group: &&Group| {
                group.pipeline == pipeline && group.key.local.numbers().first() == Some(&nic)
            };
            others().filter(here).fold((0_u32, 0_u64), |(weight, load), group| {
                (weight.saturating_add(group.weight), load.saturating_add(group.load))
            })
        };
        let pipeline = match self.mutant.is("pool-first-pipeline") {
            true => 0,
            false => (0..pipelines).min_by_key(|&pipeline| on(pipeline))?,
        };
        self.groups.get_mut(id.0)?.pipeline = pipeline;
        Some(pipeline)
    }

    /// The number of a group among those of its key that can be joined, below the number of groups there may be.
    #[must_use]
    pub fn index(&self, group: GroupId) -> Option<u8> {
        self.groups.get(group.0).map(|group| group.index)
    }

    /// The queue pairs of a group.
    #[must_use]
    pub fn slots(&self, group: GroupId) -> Option<u8> {
        self.groups.get(group.0).map(|group| group.slots)
    }

    /// The group of a seat.
    #[must_use]
    pub fn group_of(&self, seat: SeatId) -> Option<GroupId> {
        self.seats.get(seat.0).map(|seat| seat.group)
    }

    /// All links of a group that is being created are connected at this end. At the sending end, which wires after the
    /// answer, the group is up then, if the other end knows the links by the same addresses; at the receiving end it waits
    /// for [`Pool::ready`], or for a comm that joins and so shows that the other end is up.
    ///
    /// # Errors
    /// [`WiredError`]; the group stays as it is, and is of no use if the proofs differ.
    pub fn wired(&mut self, id: GroupId, proof: Proof) -> Result<State, WiredError> {
        let Some(group) = self.groups.get_mut(id.0).filter(|group| group.state == State::Creating) else {
            return Err(WiredError::NotCreating);
        };
        if group.key.end == End::Sending {
            let answered = group
                .seats
                .iter()
                .all(|&seat| self.seats.get(seat.0).is_some_and(|s| s.stage == Stage::Agreed));
            if !answered {
                return Err(WiredError::Unanswered);
            }
            let unlike = group.told.is_some_and(|told| told != proof);
            if unlike && !self.mutant.is("pool-believes-creator") {
                return Err(WiredError::Proof);
            }
            group.go(State::Up);
        }
        group.proof = Some(proof);
        Ok(group.state)
    }

    /// The queue pairs of a group are in error, at this end or as the other one says. Gives each member that there is,
    /// once, however often and from whomever the news comes.
    pub fn on_broken(&mut self, id: GroupId) -> Vec<SeatId> {
        let Some(group) = self.groups.get_mut(id.0) else { return Vec::new() };
        if group.go(State::Broken) || self.mutant.is("pool-tells-twice") {
            return group.seats.clone();
        }
        Vec::new()
    }

    /// A comm is gone from its group, or its attempt is: for whatever reason, in any order.
    ///
    /// # Errors
    /// [`NoSeat`] if it had left.
    pub fn leave(&mut self, id: SeatId) -> Result<Left, NoSeat> {
        let seat = self.seats.remove(id.0).ok_or(NoSeat)?;
        let Some(group) = self.groups.get_mut(seat.group.0) else { return Err(NoSeat) };
        if let Some(conn) = seat.conn {
            self.conns.remove(&(group.key.peer, conn));
        }
        let last = group.quit(id, seat.wish.links, seat.wish.weighs());
        let early = self.mutant.is("pool-destroys-early") && seat.how == How::Created;
        if !last && !early {
            return Ok(Left::Others);
        }
        group.go(State::Leaving);
        if self.mutant.is("pool-gives-back-early") {
            self.budgets.give(&group.key.local, group.slots);
        }
        Ok(Left::Last(Teardown { group: seat.group, slots: group.slots, rails: group.rails(), done: 0 }))
    }

    /// The queue pairs and completion queues of a group whose last member left are destroyed; only now they are not in use
    /// any more. Whether there was such a group.
    pub fn destroyed(&mut self, id: GroupId) -> bool {
        if self.state(id) != Some(State::Leaving) {
            return false;
        }
        let Some(group) = self.groups.remove(id.0) else { return false };
        self.budgets.give(&group.key.local, group.slots);
        self.unlist(&group.key, id);
        true
    }

    /// A group is none of its key any more.
    fn unlist(&mut self, key: &Key, id: GroupId) {
        let key = key.listed(self.mutant);
        if let Some(of_key) = self.keys.get_mut(&key) {
            of_key.retain(|&other| other != id);
            if of_key.is_empty() {
                self.keys.remove(&key);
            }
        }
    }

    /// The groups of a key that are joined, or will be.
    fn counting(&self, key: &Key) -> impl Iterator<Item = (GroupId, &Group)> {
        self.of_key(key)
            .filter_map(|id| Some((id, self.groups.get(id.0)?)))
            .filter(|(_, group)| group.counts())
    }

    /// Whether a group of a key may be made besides so many others.
    fn fits(&self, key: &Key, links: u8, others: usize) -> Result<(), Limit> {
        if self.mutant.is("pool-ignores-budget") {
            return Ok(());
        }
        let short = |short: budget::Short| Limit::QueuePairs { nic: short.nic, limit: short.limit };
        self.budgets.fits(&key.local, links, others).map_err(short)
    }

    /// Makes a group with its first member.
    fn make(&mut self, key: &Key, epoch: Option<Epoch>, comer: Comer) -> Result<Place, Limit> {
        let used =
            self.counting(key).fold(0_u64, |used, (_, group)| used | 1_u64.wrapping_shl(group.index.into()));
        let group = Group::new(*key, epoch, used.trailing_ones() as u8, comer.wish.links);
        let id = self.groups.insert(group).map(GroupId).map_err(|_| Limit::Groups(GROUPS_MAX))?;
        let Ok(place) = self.enter(id, comer) else {
            self.groups.remove(id.0);
            return Err(Limit::Members(MEMBERS_MAX));
        };
        self.budgets.take(&key.local, comer.wish.links);
        if epoch.is_some() {
            self.keys.entry(key.listed(self.mutant)).or_default().push(id);
        }
        Ok(place)
    }

    /// Puts a member into a group.
    fn enter(&mut self, id: GroupId, Comer { how, wish, conn }: Comer) -> Result<Place, Limit> {
        let Some(group) = self.groups.get_mut(id.0) else { return Err(Limit::Groups(GROUPS_MAX)) };
        let seat = Seat { group: id, how, stage: Stage::Asking, wish, conn };
        let seat = self.seats.insert(seat).map(SeatId).map_err(|_| Limit::Members(MEMBERS_MAX))?;
        group.enter(seat, wish.links, wish.weighs());
        if let Some(conn) = conn {
            self.conns.insert((group.key.peer, conn), seat);
        }
        Ok(Place { group: id, seat })
    }

    /// Whether what has run out comes back soon: a group that had some of it is being destroyed.
    fn comes_back(&self, limit: Limit) -> bool {
        let Limit::QueuePairs { nic, .. } = limit else { return false };
        let ends = |group: &Group| group.state == State::Leaving && group.key.local.numbers().contains(&nic);
        self.groups.iter().any(|(_, group)| ends(group))
    }
}
