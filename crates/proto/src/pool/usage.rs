//! The pool's resources in use. The engine's leak checks and tests read them: after all comms have left, the usage is as before.

use alloc::vec::Vec;

use super::GroupPool;
use super::budget::NicBudget;
use super::group::{GroupId, GroupPhase};
use super::key::CommEnd;
use crate::id::ProcessId;

/// The resources in use by all groups.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PoolUsage {
    /// Groups that comms share, whatever their state.
    pub groups: usize,
    /// Comms with links of their own.
    pub alone: usize,
    /// Members of all groups, including comms with links of their own.
    pub members: usize,
    /// Queue pairs that are not destroyed.
    pub queue_pairs: u64,
    /// Completion queues that are not destroyed.
    pub completion_queues: u64,
    /// Keys that have shared groups.
    pub keys: usize,
    /// Connections of other processes that have a member.
    pub conns: usize,
    /// The budget of each NIC that was named.
    pub budgets: Vec<NicBudget>,
}

/// The resources in use by one group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupUsage {
    /// Its id at this end.
    pub id: GroupId,
    /// The process at the other end.
    pub peer: ProcessId,
    /// Which end this is.
    pub end: CommEnd,
    /// Its phase.
    pub state: GroupPhase,
    /// Whether comms share it.
    pub shared: bool,
    /// Its number among those of its key.
    pub index: u8,
    /// Its members.
    pub members: usize,
    /// Links that use each of its queue pairs.
    pub queue_pair_users: Vec<u32>,
    /// Links that use each of its completion queues.
    pub completion_queue_users: Vec<u32>,
}

impl GroupPool {
    /// Returns the resources in use.
    #[must_use]
    pub fn pool_usage(&self) -> PoolUsage {
        let start = PoolUsage {
            members: self.seats.len(),
            keys: self.keys.len(),
            conns: self.conns.len(),
            budgets: self.budgets.as_slice().to_vec(),
            ..PoolUsage::default()
        };
        self.groups.iter().fold(start, |mut sum, (_, group)| {
            sum.groups += usize::from(group.is_shared());
            sum.alone += usize::from(!group.is_shared());
            sum.queue_pairs += u64::from(group.slots);
            sum.completion_queues += u64::from(group.rail_count());
            sum
        })
    }

    /// Returns the usage of each group.
    pub fn group_usages(&self) -> impl Iterator<Item = GroupUsage> {
        self.groups.iter().map(|(id, group)| {
            let (queue_pairs, completion_queues) = group.user_counts();
            GroupUsage {
                id: GroupId(id),
                peer: group.key.peer,
                end: group.key.end,
                state: group.state,
                shared: group.is_shared(),
                index: group.index,
                members: group.seats.len(),
                queue_pair_users: queue_pairs.to_vec(),
                completion_queue_users: completion_queues.to_vec(),
            }
        })
    }

    /// Slots of groups and of members that were ever used: the size of the tables.
    #[must_use]
    pub fn used_places(&self) -> (usize, usize) {
        (self.groups.used_places(), self.seats.used_places())
    }
}
