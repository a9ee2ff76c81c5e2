//! A group: queue pairs and completion queues that several comms use, at one end. Owned by the pool; holds no queue pair
//! itself, only how many there are, who uses them and where the group stands.
//!
//! ```text
//! Creating --both ends wired--> Up --other end has no such group--> Draining
//!    |                           |                                     |
//!    +--------- broke -----------+------- broke --> Broken <-- broke --+
//!    |                           |                    |                |
//!    +---------------------------+-- last one left ---+----------------+--> Leaving --destroyed--> Gone
//! ```
//! From Creating a group may also go to Draining: its making was refused. Nobody joins a group that is not Up. There is no
//! way back, and Gone is no state: the name of a group that is gone names nothing.

use alloc::vec::Vec;

use super::key::GroupKey;
use super::pool_member::PoolMemberId;
use crate::limits::{LINKS_MAX, RAILS_MAX};
use crate::slots::SlotId;
use crate::wire::proof::{GroupEpoch, GroupProof};

/// The name of a group at one end.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct GroupId(pub SlotId);

/// Where a group stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GroupPhase {
    /// The ends are being wired; only the comm that asked for the group is in it.
    Creating,
    /// Both ends are wired to each other.
    Up,
    /// Its members go on; nobody joins.
    Draining,
    /// Its queue pairs are in error; its members have been told.
    Broken,
    /// Its last member has left, and its queue pairs are being destroyed.
    Leaving,
}

impl GroupPhase {
    /// The transitions there are, besides the one out of `Leaving`.
    #[must_use]
    pub const fn leads_to(self, next: Self) -> bool {
        match next {
            Self::Creating => false,
            Self::Up => matches!(self, Self::Creating),
            Self::Draining => matches!(self, Self::Creating | Self::Up),
            Self::Broken => matches!(self, Self::Creating | Self::Up | Self::Draining),
            Self::Leaving => !matches!(self, Self::Leaving),
        }
    }
}

/// One group.
#[derive(Debug)]
pub(super) struct PoolGroup {
    pub(super) key: GroupKey,
    /// None of the comms with links of their own.
    pub(super) epoch: Option<GroupEpoch>,
    /// Its number among those of its key.
    pub(super) index: u8,
    pub(super) state: GroupPhase,
    /// Queue pairs.
    pub(super) slots: u8,
    /// What this end knows its links by.
    pub(super) proof: Option<GroupProof>,
    /// What the other end says it knows them by.
    pub(super) told: Option<GroupProof>,
    /// What the caller says of its load.
    pub(super) load: u64,
    /// Sum of its members' weights.
    pub(super) weight: u32,
    /// Which pipeline of its first NIC its first queue pair is to be on.
    pub(super) pipeline: u32,
    pub(super) seats: Vec<PoolMemberId>,
    queue_pair_users: [u32; LINKS_MAX],
    completion_queue_users: [u32; RAILS_MAX],
}

impl PoolGroup {
    pub(super) const fn new(key: GroupKey, epoch: Option<GroupEpoch>, index: u8, slots: u8) -> Self {
        Self {
            key,
            epoch,
            index,
            state: GroupPhase::Creating,
            slots,
            proof: None,
            told: None,
            load: 0,
            weight: 0,
            pipeline: 0,
            seats: Vec::new(),
            queue_pair_users: [0; LINKS_MAX],
            completion_queue_users: [0; RAILS_MAX],
        }
    }

    /// Goes on to that state, if a way leads there; whether it did.
    pub(super) fn advance_to(&mut self, next: GroupPhase) -> bool {
        let leads = self.state.leads_to(next);
        if leads {
            self.state = next;
        }
        leads
    }

    /// Whether others may be in it, now or once it is up.
    pub(super) const fn is_shared(&self) -> bool {
        self.epoch.is_some()
    }

    /// Whether it counts among the groups of its key: it can be joined, or will be.
    pub(super) const fn is_joinable(&self) -> bool {
        self.is_shared() && matches!(self.state, GroupPhase::Creating | GroupPhase::Up)
    }

    /// A member with that many links comes: each uses a queue pair and the completion queue of its rail.
    pub(super) fn add_member(&mut self, seat: PoolMemberId, links: u8, weight: u32) {
        self.seats.push(seat);
        self.weight += weight;
        for link in 0..links {
            let (slot, rail) = self.slot_and_rail(link);
            self.queue_pair_users[slot] += 1;
            self.completion_queue_users[rail] += 1;
        }
    }

    /// A member with that many links goes; whether it was the last one.
    pub(super) fn remove_member(&mut self, seat: PoolMemberId, links: u8, weight: u32) -> bool {
        self.seats.retain(|&other| other != seat);
        self.weight -= weight;
        for link in 0..links {
            let (slot, rail) = self.slot_and_rail(link);
            self.queue_pair_users[slot] -= 1;
            self.completion_queue_users[rail] -= 1;
        }
        self.queue_pair_users.iter().chain(&self.completion_queue_users).all(|&users| users == 0)
    }

    /// The slot of a member's link, and the number of the slot's rail.
    fn slot_and_rail(&self, link: u8) -> (usize, usize) {
        let slot = link_slot(link, self.slots);
        (slot.into(), (slot % self.key.local.len()).into())
    }

    /// Completion queues: one for each rail that has a queue pair.
    pub(super) fn rail_count(&self) -> u8 {
        self.slots.min(self.key.local.len())
    }

    /// Users of each queue pair and of each completion queue.
    pub(super) fn user_counts(&self) -> (&[u32], &[u32]) {
        let slots = self.slots.into();
        let rails = self.rail_count().into();
        (&self.queue_pair_users[..slots], &self.completion_queue_users[..rails])
    }
}

/// Which queue pair of a group with `slots` of them carries a member's link: the same at both ends, as both number the
/// links alike.
#[must_use]
pub const fn link_slot(link: u8, slots: u8) -> u8 {
    link % slots
}

/// Something to destroy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TeardownStep {
    /// The queue pair in that slot.
    QueuePair(u8),
    /// The completion queue of that rail of the group: the how-manieth of its NICs.
    CompletionQueue(u8),
}

/// What to destroy when the last member has left, in this order: a completion queue must outlive its queue pairs. An
/// iterator, so that whoever does it can pause; when all is done the pool is told by `destroyed`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupTeardown {
    /// The group.
    pub group: GroupId,
    pub(super) slots: u8,
    pub(super) rails: u8,
    pub(super) done: u8,
}

impl Iterator for GroupTeardown {
    type Item = TeardownStep;

    fn next(&mut self) -> Option<TeardownStep> {
        let at = self.done;
        let step = if at < self.slots {
            TeardownStep::QueuePair(at)
        } else if at < self.slots + self.rails {
            TeardownStep::CompletionQueue(at - self.slots)
        } else {
            return None;
        };
        self.done += 1;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ProcessId;
    use crate::nics::NicList;
    use crate::pool::key::CommEnd;

    const STATES: [GroupPhase; 5] =
        [GroupPhase::Creating, GroupPhase::Up, GroupPhase::Draining, GroupPhase::Broken, GroupPhase::Leaving];

    #[test]
    fn there_are_these_ways_and_no_others() {
        let ways: Vec<_> = STATES
            .iter()
            .flat_map(|&from| STATES.map(|to| (from, to)))
            .filter(|(from, to)| from.leads_to(*to))
            .collect();
        use GroupPhase::{Broken, Creating, Draining, Leaving, Up};
        let expected = [
            (Creating, Up),
            (Creating, Draining),
            (Creating, Broken),
            (Creating, Leaving),
            (Up, Draining),
            (Up, Broken),
            (Up, Leaving),
            (Draining, Broken),
            (Draining, Leaving),
            (Broken, Leaving),
        ];
        assert_eq!(ways, expected);
    }

    #[test]
    fn links_beyond_a_groups_own_go_round() {
        let peer = ProcessId([1; 16]);
        let local = NicList::new(&[4, 7]).unwrap();
        let key = GroupKey { peer, end: CommEnd::Sending, local, remote: NicList::NONE };
        let mut group = PoolGroup::new(key, None, 0, 3);
        let seat = |slot| PoolMemberId(SlotId { slot, generation: 1 });
        group.add_member(seat(0), 3, 1);
        group.add_member(seat(1), 4, 1);
        group.add_member(seat(2), 1, 1);
        assert_eq!(group.user_counts(), (&[4, 2, 2][..], &[6, 2][..]));
        assert!(!group.remove_member(seat(0), 3, 1));
        assert_eq!(group.user_counts(), (&[3, 1, 1][..], &[4, 1][..]), "also what nobody else uses stays");
        assert!(!group.remove_member(seat(2), 1, 1));
        assert!(group.remove_member(seat(1), 4, 1));
        assert_eq!((group.weight, group.seats.len()), (0, 0));
    }

    #[test]
    fn completion_queues_go_after_their_queue_pairs() {
        let group = GroupId(SlotId { slot: 0, generation: 1 });
        let steps: Vec<_> = GroupTeardown { group, slots: 3, rails: 2, done: 0 }.collect();
        use TeardownStep::{CompletionQueue, QueuePair};
        let expected = [QueuePair(0), QueuePair(1), QueuePair(2), CompletionQueue(0), CompletionQueue(1)];
        assert_eq!(steps, expected);
    }
}
