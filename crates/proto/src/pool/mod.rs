//! Groups of shared queue pairs: N comms towards one process ride on a few of them.
//!
//! For the engine: to ask whenever a comm connects, is accepted, fails or closes, and to do what
//! the pool says; [`members`], [`ranges`] and [`credits`] are for the lanes of a group, for each message. Nothing here makes
//! or destroys a queue pair, sends a frame, or knows a clock: what is to be done comes back as a value.
//!
//! The sending end asks and decides ([`GroupPool::plan_connect`], [`GroupPool::on_answer`]), because it alone sees all its comms towards a
//! process; the receiving end checks and answers ([`GroupPool::on_request`], [`GroupPool::on_ready`]). Both say when their links are wired
//! ([`GroupPool::on_wired`]), when a group broke ([`GroupPool::on_broken`]), when a comm is gone ([`GroupPool::remove_member`]), and when the last
//! one's queue pairs are ([`GroupPool::on_destroyed`]). A comm that shares nothing is a group of one that nobody joins, so that
//! queue pairs are counted in one place.
//!
//! docs/wire.md, "Sharing", has the words that the ends exchange.

mod accept;
mod budget;
pub mod config;
mod connect;
pub mod credits;
mod epochs;
pub mod group;
pub mod key;
pub mod life;
pub mod members;
mod pool_member;
pub mod ranges;
#[cfg(test)]
mod tests;
mod usage;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub use accept::AcceptPlan;
pub use budget::NicBudget;
pub use connect::{AnswerFault, AnswerStep, ConnectPlan, PlacementError};
pub use pool_member::PoolMemberId;
pub use usage::{GroupUsage, PoolUsage};

use self::budget::NicBudgets;
use self::config::PoolConfig;
use self::epochs::EpochSource;
use self::group::{GroupId, GroupPhase, GroupTeardown, PoolGroup};
use self::key::{CommEnd, GroupKey};
use self::pool_member::{HandshakeStage, JoiningMember, PoolMember};
use crate::id::ProcessId;
use crate::limits::{GROUPS_MAX, MEMBERS_MAX, POOL_QUARANTINE};
use crate::slots::SlotTable;
use crate::wire::proof::{GroupEpoch, GroupProof};

/// All groups of a process, of both directions.
#[derive(Debug)]
pub struct GroupPool {
    config: PoolConfig,
    epochs: EpochSource,
    groups: SlotTable<PoolGroup>,
    seats: SlotTable<PoolMember>,
    /// The shared groups of each key, until they are destroyed.
    keys: BTreeMap<GroupKey, Vec<GroupId>>,
    /// The seats given to connections of other processes.
    conns: BTreeMap<(ProcessId, u64), PoolMemberId>,
    budgets: NicBudgets,
}

/// A place in a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupPlace {
    /// The group.
    pub group: GroupId,
    /// The seat in it.
    pub seat: PoolMemberId,
}

/// Something has run out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PoolLimit {
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
pub struct UnknownMember;

/// Who is left in a group after a member has left.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RemainingMembers {
    /// Others.
    Others,
    /// Nobody: destroy this, then say [`GroupPool::on_destroyed`].
    Last(GroupTeardown),
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

impl GroupPool {
    /// An empty pool. `base` is a random number, for the epochs.
    #[must_use]
    pub fn new(config: PoolConfig, base: u64) -> Self {
        Self {
            config,
            epochs: EpochSource::from(base),
            groups: SlotTable::with_quarantine(GROUPS_MAX, POOL_QUARANTINE),
            seats: SlotTable::with_quarantine(MEMBERS_MAX, POOL_QUARANTINE),
            keys: BTreeMap::new(),
            conns: BTreeMap::new(),
            budgets: NicBudgets::default(),
        }
    }

    /// How this process shares.
    #[must_use]
    pub const fn config(&self) -> PoolConfig {
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
    pub fn of_key(&self, key: &GroupKey) -> impl Iterator<Item = GroupId> {
        self.keys.get(key).map_or(&[][..], Vec::as_slice).iter().copied()
    }

    /// Where a group stands; `None` if it is gone.
    #[must_use]
    pub fn group_phase(&self, group: GroupId) -> Option<GroupPhase> {
        self.groups.get(group.0).map(|group| group.state)
    }

    /// Which of the pipelines of its first NIC a new group goes on, by what the other groups of that NIC count for and have to
    /// do; nothing where there is no choice. Further queue pairs go on the pipelines after it.
    pub fn place_on_pipeline(&mut self, id: GroupId, pipelines: u32) -> Option<u32> {
        let nic = self.groups.get(id.0)?.key.local.nic_numbers().first().copied()?;
        if pipelines < 2 {
            return None;
        }
        let others = || self.groups.iter().filter(|&(other, _)| other != id.0).map(|(_, group)| group);
        let on = |pipeline| {
            let here = |group: &&PoolGroup| {
                group.pipeline == pipeline && group.key.local.nic_numbers().first() == Some(&nic)
            };
            others().filter(here).fold((0_u32, 0_u64), |(weight, load), group| {
                (weight.saturating_add(group.weight), load.saturating_add(group.load))
            })
        };
        let pipeline = (0..pipelines).min_by_key(|&pipeline| on(pipeline))?;
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
    pub fn queue_pair_count(&self, group: GroupId) -> Option<u8> {
        self.groups.get(group.0).map(|group| group.slots)
    }

    /// The group of a seat.
    #[must_use]
    pub fn group_of(&self, seat: PoolMemberId) -> Option<GroupId> {
        self.seats.get(seat.0).map(|seat| seat.group)
    }

    /// All links of a group that is being created are connected at this end. At the sending end, which wires after the
    /// answer, the group is up then, if the other end knows the links by the same addresses; at the receiving end it waits
    /// for [`GroupPool::on_ready`], or for a comm that joins and so shows that the other end is up.
    ///
    /// # Errors
    /// [`WiredError`]; the group stays as it is, and is of no use if the proofs differ.
    pub fn on_wired(&mut self, id: GroupId, proof: GroupProof) -> Result<GroupPhase, WiredError> {
        let Some(group) = self.groups.get_mut(id.0).filter(|group| group.state == GroupPhase::Creating)
        else {
            return Err(WiredError::NotCreating);
        };
        if group.key.end == CommEnd::Sending {
            let answered = group
                .seats
                .iter()
                .all(|&seat| self.seats.get(seat.0).is_some_and(|s| s.stage == HandshakeStage::Agreed));
            if !answered {
                return Err(WiredError::Unanswered);
            }
            if group.told.is_some_and(|told| told != proof) {
                return Err(WiredError::Proof);
            }
            group.advance_to(GroupPhase::Up);
        }
        group.proof = Some(proof);
        Ok(group.state)
    }

    /// The queue pairs of a group are in error, at this end or as the other one says. Gives each member that there is,
    /// once, however often and from whomever the news comes.
    pub fn on_broken(&mut self, id: GroupId) -> Vec<PoolMemberId> {
        let Some(group) = self.groups.get_mut(id.0) else { return Vec::new() };
        if group.advance_to(GroupPhase::Broken) {
            return group.seats.clone();
        }
        Vec::new()
    }

    /// A comm is gone from its group, or its attempt is: for whatever reason, in any order.
    ///
    /// # Errors
    /// [`UnknownMember`] if it had left.
    pub fn remove_member(&mut self, id: PoolMemberId) -> Result<RemainingMembers, UnknownMember> {
        let seat = self.seats.remove(id.0).ok_or(UnknownMember)?;
        let Some(group) = self.groups.get_mut(seat.group.0) else { return Err(UnknownMember) };
        if let Some(conn) = seat.conn {
            self.conns.remove(&(group.key.peer, conn));
        }
        let last = group.remove_member(id, seat.wish.links, seat.wish.effective_weight());
        if !last {
            return Ok(RemainingMembers::Others);
        }
        group.advance_to(GroupPhase::Leaving);
        Ok(RemainingMembers::Last(GroupTeardown {
            group: seat.group,
            slots: group.slots,
            rails: group.rail_count(),
            done: 0,
        }))
    }

    /// The queue pairs and completion queues of a group whose last member left are destroyed; only now they are not in use
    /// any more. Whether there was such a group.
    pub fn on_destroyed(&mut self, id: GroupId) -> bool {
        if self.group_phase(id) != Some(GroupPhase::Leaving) {
            return false;
        }
        let Some(group) = self.groups.remove(id.0) else { return false };
        self.budgets.return_queue_pairs(&group.key.local, group.slots);
        self.unlist_group(&group.key, id);
        true
    }

    /// A group is none of its key any more.
    fn unlist_group(&mut self, key: &GroupKey, id: GroupId) {
        if let Some(of_key) = self.keys.get_mut(key) {
            of_key.retain(|&other| other != id);
            if of_key.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    /// The groups of a key that are joined, or will be.
    fn joinable_groups(&self, key: &GroupKey) -> impl Iterator<Item = (GroupId, &PoolGroup)> {
        self.of_key(key)
            .filter_map(|id| Some((id, self.groups.get(id.0)?)))
            .filter(|(_, group)| group.is_joinable())
    }

    /// Whether a group of a key may be made besides so many others.
    fn check_budget(&self, key: &GroupKey, links: u8, others: usize) -> Result<(), PoolLimit> {
        let short = |short: budget::NicShortage| PoolLimit::QueuePairs { nic: short.nic, limit: short.limit };
        self.budgets.check_fit(&key.local, links, others).map_err(short)
    }

    /// Makes a group with its first member.
    fn make_group(
        &mut self,
        key: &GroupKey,
        epoch: Option<GroupEpoch>,
        comer: JoiningMember,
    ) -> Result<GroupPlace, PoolLimit> {
        let used = self
            .joinable_groups(key)
            .fold(0_u64, |used, (_, group)| used | 1_u64.wrapping_shl(group.index.into()));
        let group = PoolGroup::new(*key, epoch, used.trailing_ones() as u8, comer.wish.links);
        let id = self.groups.insert(group).map(GroupId).map_err(|_| PoolLimit::Groups(GROUPS_MAX))?;
        let Ok(place) = self.add_member(id, comer) else {
            self.groups.remove(id.0);
            return Err(PoolLimit::Members(MEMBERS_MAX));
        };
        self.budgets.take_queue_pairs(&key.local, comer.wish.links);
        if epoch.is_some() {
            self.keys.entry(*key).or_default().push(id);
        }
        Ok(place)
    }

    /// Puts a member into a group.
    fn add_member(
        &mut self,
        id: GroupId,
        JoiningMember { how, wish, conn }: JoiningMember,
    ) -> Result<GroupPlace, PoolLimit> {
        let Some(group) = self.groups.get_mut(id.0) else { return Err(PoolLimit::Groups(GROUPS_MAX)) };
        let seat = PoolMember { group: id, how, stage: HandshakeStage::Asking, wish, conn };
        let seat = self.seats.insert(seat).map(PoolMemberId).map_err(|_| PoolLimit::Members(MEMBERS_MAX))?;
        group.add_member(seat, wish.links, wish.effective_weight());
        if let Some(conn) = conn {
            self.conns.insert((group.key.peer, conn), seat);
        }
        Ok(GroupPlace { group: id, seat })
    }

    /// Whether what has run out comes back soon: a group that had some of it is being destroyed.
    fn comes_back(&self, limit: PoolLimit) -> bool {
        let PoolLimit::QueuePairs { nic, .. } = limit else { return false };
        let ends = |group: &PoolGroup| {
            group.state == GroupPhase::Leaving && group.key.local.nic_numbers().contains(&nic)
        };
        self.groups.iter().any(|(_, group)| ends(group))
    }
}
