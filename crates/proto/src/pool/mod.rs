//! Groups of shared queue pairs: N comms towards one process share a few of them.
//!
//! The engine calls the pool when a comm connects, is accepted, fails or closes, and carries out the returned plan. For each message,
//! the lanes of a group use [`members`], [`ranges`] and [`credits`]. Nothing here makes or destroys a queue pair, sends a frame or
//! reads a clock.
//!
//! The sending end requests and decides ([`GroupPool::plan_connect`], [`GroupPool::on_answer`]), because it alone knows all its comms
//! towards a process. The receiving end checks and replies ([`GroupPool::on_request`], [`GroupPool::on_ready`]). Both ends report:
//! - that their links are wired: [`GroupPool::on_wired`];
//! - that a group broke: [`GroupPool::on_broken`];
//! - that a comm has ended: [`GroupPool::remove_member`];
//! - that the queue pairs of the last comm are destroyed: [`GroupPool::on_destroyed`].
//!
//! A comm that shares nothing is a group of one that no other comm joins, so that queue pairs are counted in one place.
//!
//! docs/wire.md, "Sharing", defines the frames.

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

/// All groups of a process, of sending and of receiving comms.
#[derive(Debug)]
pub struct GroupPool {
    config: PoolConfig,
    epochs: EpochSource,
    groups: SlotTable<PoolGroup>,
    seats: SlotTable<PoolMember>,
    /// The shared groups of each key, until they are destroyed.
    keys: BTreeMap<GroupKey, Vec<GroupId>>,
    /// The members for connections of other processes.
    conns: BTreeMap<(ProcessId, u64), PoolMemberId>,
    budgets: NicBudgets,
}

/// A member and its group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupPlace {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub seat: PoolMemberId,
}

/// A resource of the pool is exhausted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PoolLimit {
    /// Queue pairs of a NIC.
    #[error("all {limit} queue pairs of NIC {nic} are in use")]
    QueuePairs {
        /// Number of the NIC.
        nic: u16,
        /// Queue pairs that it may have.
        limit: u32,
    },
    /// Members: all groups of a key are full.
    #[error("every group has {0} members, which is the limit")]
    MembersOfGroup(usize),
    /// Members of all groups.
    #[error("all {0} places for comms in groups are in use")]
    Members(usize),
    /// Groups.
    #[error("all {0} groups are in use")]
    Groups(usize),
}

/// The member does not exist any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no group member has that id")]
pub struct UnknownMember;

/// The members of a group after one has left.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RemainingMembers {
    /// Other members remain.
    Others,
    /// None remains: destroy these objects, then call [`GroupPool::on_destroyed`].
    Last(GroupTeardown),
}

/// A group cannot become wired now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WiredError {
    /// The group does not exist any more, or is not in the phase `Creating`.
    #[error("the group does not exist, or is not being created")]
    NotCreating,
    /// The other end has not replied.
    #[error("the other end has not replied yet")]
    Unanswered,
    /// The proofs of the two ends differ: their links are not connected to each other.
    #[error("the links of the two ends of the group are not connected to each other")]
    Proof,
}

impl GroupPool {
    /// Returns an empty pool. `base` is a random number from which the epochs start.
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

    /// The sharing parameters of this process.
    #[must_use]
    pub const fn config(&self) -> PoolConfig {
        self.config
    }

    /// Sets how many queue pairs a NIC may have in use; without this call the number is unlimited.
    pub fn set_budget(&mut self, nic: u16, queue_pairs: u32) {
        self.budgets.set_limit(nic, queue_pairs);
    }

    /// Sets the load of a group, in any unit that all groups of its key share (bytes in flight, for example). The pool compares
    /// loads where groups have equal weight.
    pub fn set_load(&mut self, group: GroupId, load: u64) {
        if let Some(group) = self.groups.get_mut(group.0) {
            group.load = load;
        }
    }

    /// The groups of a key, in any phase.
    pub fn of_key(&self, key: &GroupKey) -> impl Iterator<Item = GroupId> {
        self.keys.get(key).map_or(&[][..], Vec::as_slice).iter().copied()
    }

    /// The phase of a group; `None` if it does not exist any more.
    #[must_use]
    pub fn group_phase(&self, group: GroupId) -> Option<GroupPhase> {
        self.groups.get(group.0).map(|group| group.state)
    }

    /// Chooses which pipeline of its first NIC a new group uses, by the weight and then the load of the other groups of that NIC. `None` if
    /// there is no choice. Further queue pairs use the pipelines after it.
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

    /// The number of a group among the joinable groups of its key. It is below the limit of groups.
    #[must_use]
    pub fn index(&self, group: GroupId) -> Option<u8> {
        self.groups.get(group.0).map(|group| group.index)
    }

    /// The number of queue pairs of a group.
    #[must_use]
    pub fn queue_pair_count(&self, group: GroupId) -> Option<u8> {
        self.groups.get(group.0).map(|group| group.slots)
    }

    /// The group of a member.
    #[must_use]
    pub fn group_of(&self, seat: PoolMemberId) -> Option<GroupId> {
        self.seats.get(seat.0).map(|seat| seat.group)
    }

    /// Records that all links of a group in the phase `Creating` are connected at this end. The sending end connects them after the reply, so
    /// its group is up then if both ends have the same proof. The receiving end's group waits for [`GroupPool::on_ready`], or for a
    /// comm that joins and thereby shows that the other end is up.
    ///
    /// # Errors
    /// [`WiredError`]; the group keeps its phase. It is unusable if the proofs differ.
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

    /// Records that the queue pairs of a group are in error, at this end or by a report of the other one. Returns all members once; a
    /// repeated report returns none.
    pub fn on_broken(&mut self, id: GroupId) -> Vec<PoolMemberId> {
        let Some(group) = self.groups.get_mut(id.0) else { return Vec::new() };
        if group.advance_to(GroupPhase::Broken) {
            return group.seats.clone();
        }
        Vec::new()
    }

    /// Removes a member whose comm or connection attempt has ended, for any reason and in any order.
    ///
    /// # Errors
    /// [`UnknownMember`] if it was removed before.
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

    /// Records that the queue pairs and completion queues of a group without members are destroyed, so that they count as free.
    /// Returns whether such a group existed.
    pub fn on_destroyed(&mut self, id: GroupId) -> bool {
        if self.group_phase(id) != Some(GroupPhase::Leaving) {
            return false;
        }
        let Some(group) = self.groups.remove(id.0) else { return false };
        self.budgets.return_queue_pairs(&group.key.local, group.slots);
        self.unlist_group(&group.key, id);
        true
    }

    /// Removes a group from the groups of its key.
    fn unlist_group(&mut self, key: &GroupKey, id: GroupId) {
        if let Some(of_key) = self.keys.get_mut(key) {
            of_key.retain(|&other| other != id);
            if of_key.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    /// The groups of a key that can be joined, now or once they are up.
    fn joinable_groups(&self, key: &GroupKey) -> impl Iterator<Item = (GroupId, &PoolGroup)> {
        self.of_key(key)
            .filter_map(|id| Some((id, self.groups.get(id.0)?)))
            .filter(|(_, group)| group.is_joinable())
    }

    /// Checks whether the NICs have queue pairs for a further group of a key that has `others` groups.
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

    /// Adds a member to a group.
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

    /// Whether the exhausted resource becomes free soon: a group that holds some of it is being destroyed.
    fn comes_back(&self, limit: PoolLimit) -> bool {
        let PoolLimit::QueuePairs { nic, .. } = limit else { return false };
        let ends = |group: &PoolGroup| {
            group.state == GroupPhase::Leaving && group.key.local.nic_numbers().contains(&nic)
        };
        self.groups.iter().any(|(_, group)| ends(group))
    }
}
