//! What the pool has in use, for people who look and for tests that compare: after everything has left, all is as it was.

use alloc::vec::Vec;

use super::GroupPool;
use super::budget::NicBudget;
use super::group::{GroupId, GroupPhase};
use super::key::CommEnd;
use crate::id::ProcessId;

/// All of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PoolUsage {
    /// Groups that comms share, whatever their state.
    pub groups: usize,
    /// Comms with links of their own.
    pub alone: usize,
    /// Members of all groups, those alone included.
    pub members: usize,
    /// Queue pairs that are not destroyed.
    pub queue_pairs: u64,
    /// Completion queues that are not destroyed.
    pub completion_queues: u64,
    /// Keys that have shared groups.
    pub keys: usize,
    /// Connections of other processes that have a seat.
    pub conns: usize,
    /// Of each NIC that was named.
    pub budgets: Vec<NicBudget>,
}

/// One group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupUsage {
    /// Its name at this end.
    pub id: GroupId,
    /// The process at the other end.
    pub peer: ProcessId,
    /// Which end this is.
    pub end: CommEnd,
    /// Where it stands.
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
    /// What is in use.
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

    /// Each group.
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

    /// Places of groups and of seats that were ever used: what the tables take of memory.
    #[must_use]
    pub fn used_places(&self) -> (usize, usize) {
        (self.groups.used_places(), self.seats.used_places())
    }
}
