//! A group at one end: queue pairs and completion queues that several comms use. The pool owns it. It contains no queue pair
//! itself, only their number, their users and the phase of the group.
//!
//! ```text
//! Creating --both ends wired--> Up --other end has no such group--> Draining
//!    |                           |                                     |
//!    +--------- broke -----------+------- broke --> Broken <-- broke --+
//!    |                           |                    |                |
//!    +---------------------------+-- last one left ---+----------------+--> Leaving --destroyed--> Gone
//! ```
//! A group in Creating may also become Draining, when the other end refuses it. Comms join only a group that is Up. No transition
//! leads back. Gone is not a state: the id of a destroyed group is unknown.

use alloc::vec::Vec;

use super::key::GroupKey;
use super::pool_member::PoolMemberId;
use crate::limits::{LINKS_MAX, RAILS_MAX};
use crate::slots::SlotId;
use crate::wire::proof::{GroupEpoch, GroupProof};

/// The id of a group at one end.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct GroupId(pub SlotId);

/// The phase of a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GroupPhase {
    /// The ends are being wired; the only member is the comm that requested the group.
    Creating,
    /// Both ends are wired to each other.
    Up,
    /// Its members continue; no comm joins.
    Draining,
    /// Its queue pairs are in error; its members were notified.
    Broken,
    /// Its last member has left, and its queue pairs are being destroyed.
    Leaving,
}

impl GroupPhase {
    /// Whether a transition leads from this phase to `next`. The end of `Leaving` is no transition: the group does not exist after it.
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
    /// `None` for a comm with links of its own.
    pub(super) epoch: Option<GroupEpoch>,
    /// Its number among those of its key.
    pub(super) index: u8,
    pub(super) state: GroupPhase,
    /// Number of queue pairs.
    pub(super) slots: u8,
    /// The proof of its links at this end.
    pub(super) proof: Option<GroupProof>,
    /// The proof in the other end's reply.
    pub(super) told: Option<GroupProof>,
    /// The load that the caller has set.
    pub(super) load: u64,
    /// Sum of its members' weights.
    pub(super) weight: u32,
    /// The pipeline of its first NIC for its first queue pair.
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

    /// Enters that phase if a transition leads there. Returns whether it did.
    pub(super) fn advance_to(&mut self, next: GroupPhase) -> bool {
        let leads = self.state.leads_to(next);
        if leads {
            self.state = next;
        }
        leads
    }

    /// Whether other comms may be members, now or once it is up.
    pub(super) const fn is_shared(&self) -> bool {
        self.epoch.is_some()
    }

    /// Whether it counts among the groups of its key: comms can join it, now or once it is up.
    pub(super) const fn is_joinable(&self) -> bool {
        self.is_shared() && matches!(self.state, GroupPhase::Creating | GroupPhase::Up)
    }

    /// Adds a member with that many links: each uses a queue pair and the completion queue of its rail.
    pub(super) fn add_member(&mut self, seat: PoolMemberId, links: u8, weight: u32) {
        self.seats.push(seat);
        self.weight += weight;
        for link in 0..links {
            let (slot, rail) = self.slot_and_rail(link);
            self.queue_pair_users[slot] += 1;
            self.completion_queue_users[rail] += 1;
        }
    }

    /// Removes a member with that many links. Returns whether no member remains.
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

    /// Number of completion queues: one for each rail that has a queue pair.
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

/// Returns which queue pair of a group with `slots` of them carries a member's link. Both ends number the links alike, so the
/// result is the same at both.
#[must_use]
pub const fn link_slot(link: u8, slots: u8) -> u8 {
    link % slots
}

/// An object to destroy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TeardownStep {
    /// The queue pair in that slot.
    QueuePair(u8),
    /// The completion queue of the rail with this index among the group's NICs.
    CompletionQueue(u8),
}

/// The objects to destroy after the last member has left, in this order: a completion queue must outlive its queue pairs. It is an
/// iterator, so that the caller can pause; afterwards the caller calls [`GroupPool::on_destroyed`](super::GroupPool::on_destroyed).
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
    fn group_phases_have_only_the_listed_transitions() {
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
    fn links_beyond_a_group_reuse_its_links() {
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
        assert_eq!(group.user_counts(), (&[3, 1, 1][..], &[4, 1][..]), "links without other users stay");
        assert!(!group.remove_member(seat(2), 1, 1));
        assert!(group.remove_member(seat(1), 4, 1));
        assert_eq!((group.weight, group.seats.len()), (0, 0));
    }

    #[test]
    fn completion_queues_are_destroyed_after_their_queue_pairs() {
        let group = GroupId(SlotId { slot: 0, generation: 1 });
        let steps: Vec<_> = GroupTeardown { group, slots: 3, rails: 2, done: 0 }.collect();
        use TeardownStep::{CompletionQueue, QueuePair};
        let expected = [QueuePair(0), QueuePair(1), QueuePair(2), CompletionQueue(0), CompletionQueue(1)];
        assert_eq!(steps, expected);
    }
}
