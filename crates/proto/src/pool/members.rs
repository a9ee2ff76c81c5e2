//! The members of one group, and whose a completion is. Held by the group's lane, where one thread at a time works; on the
//! path of each message.

use alloc::vec::Vec;

use crate::limits::{MEMBER_QUARANTINE, MEMBERS_OF_GROUP_MAX};
use crate::mutant::Mutant;
use crate::slots::{Others, SlotId, Slots};
use crate::wire::member::MemberId;

/// The members of a group, with what the lane keeps for each.
#[derive(Debug)]
pub struct Members<T> {
    table: Slots<T>,
    /// The member in each slot: all that routing looks at.
    names: Vec<Option<MemberId>>,
    dropped: u64,
    mutant: Mutant,
}

impl<T> Members<T> {
    /// No members.
    #[must_use]
    pub fn new(mutant: Mutant) -> Self {
        let quarantine = if mutant.is("members-reuse-ids") { 0 } else { MEMBER_QUARANTINE };
        let table = Slots::with_quarantine(MEMBERS_OF_GROUP_MAX + quarantine, quarantine);
        Self { table, names: Vec::new(), dropped: 0, mutant }
    }

    /// A member comes. Its slot was used by nobody before, or at least [`MEMBER_QUARANTINE`] others have come to be free
    /// since; its name returns after 2^14 - 1 uses of that slot.
    ///
    /// # Errors
    /// The value, when there are [`MEMBERS_OF_GROUP_MAX`] members.
    pub fn enter(&mut self, value: T) -> Result<MemberId, T> {
        if self.table.len() >= MEMBERS_OF_GROUP_MAX {
            return Err(value);
        }
        let id = self.table.insert(value)?;
        let member = MemberId::of(id);
        if self.names.len() < self.table.places() {
            self.names.resize(self.table.places(), None);
        }
        self.names[member.slot()] = Some(member);
        Ok(member)
    }

    /// A member goes; what comes for it afterwards is dropped.
    pub fn leave(&mut self, member: MemberId) -> Option<T> {
        let id = self.find(member)?;
        self.names[member.slot()] = None;
        self.table.remove(id)
    }

    /// Whose operation it was that completed with this `wr_id`, and what the member calls it. Of a member that has left, of
    /// none, or of nobody's: nothing, and it is counted.
    #[inline]
    pub fn route(&mut self, wr_id: u64) -> Option<(MemberId, u64)> {
        let (bits, low) = MemberId::of_wr_id(wr_id);
        Some((self.named(bits)?, low))
    }

    /// The member that a header or record of the other end names by these bits; nothing, and it is counted, if there is
    /// none.
    #[inline]
    pub fn named(&mut self, bits: u32) -> Option<MemberId> {
        let found = self.lookup(bits);
        self.dropped += u64::from(found.is_none());
        found
    }

    #[inline]
    fn lookup(&self, bits: u32) -> Option<MemberId> {
        let name = self.names.get(bits as usize & MemberId::SLOTS_MAX).copied().flatten()?;
        (name.to_bits() == bits || self.mutant.is("members-ignore-generations")).then_some(name)
    }

    #[inline]
    fn find(&self, member: MemberId) -> Option<SlotId> {
        self.lookup(member.to_bits())?;
        self.table.at(member.slot() as u32).map(|(id, _)| id)
    }

    /// What the lane keeps for a member.
    #[inline]
    #[must_use]
    pub fn get(&self, member: MemberId) -> Option<&T> {
        self.table.get(self.find(member)?)
    }

    /// What the lane keeps for a member.
    #[inline]
    pub fn get_mut(&mut self, member: MemberId) -> Option<&mut T> {
        let id = self.find(member)?;
        self.table.get_mut(id)
    }

    /// What the lane keeps for the member of these bits, and for all others besides. Nothing is counted.
    #[inline]
    pub fn split(&mut self, bits: u32) -> Option<(&mut T, Others<'_, T>)> {
        let slot = self.lookup(bits)?.slot() as u32;
        self.table.split_at_mut(slot)
    }

    /// What the lane keeps for whoever is in that place, which tells by itself who that is, and for all others besides.
    #[inline]
    pub fn split_place(&mut self, slot: u32) -> Option<(&mut T, Others<'_, T>)> {
        self.table.split_at_mut(slot)
    }

    /// All members.
    pub fn iter(&self) -> impl Iterator<Item = (MemberId, &T)> {
        self.table.iter().map(|(id, value)| (MemberId::of(id), value))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Completions and messages that were nobody's.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tests::planted;

    #[test]
    fn completions_of_those_who_left_are_dropped_and_counted() {
        let mut members = Members::new(planted());
        let (a, b) = (members.enter('a').unwrap(), members.enter('b').unwrap());
        assert_eq!((members.route(a.wr_id(9)), members.route(b.wr_id(8))), (Some((a, 9)), Some((b, 8))));
        assert_eq!(members.leave(a), Some('a'));
        assert_eq!((members.leave(a), members.get(a)), (None, None));
        assert_eq!(members.get_mut(a), None);
        let mut later = Vec::new();
        // As many come and go as it takes to use the same place again.
        while later.last().is_none_or(|last: &MemberId| last.slot() != a.slot()) {
            later.push(members.enter('c').unwrap());
            members.leave(*later.last().unwrap()).unwrap();
        }
        let late = members.enter('d').unwrap();
        assert_eq!(members.dropped(), 0);
        for wr_id in [a.wr_id(9), 0, u64::MAX, u64::MAX - 2, late.wr_id(0) ^ 1 << 63, 900 << 40 | 1 << 50] {
            assert_eq!(members.route(wr_id), None, "{wr_id:#x}");
        }
        assert_eq!((members.named(a.to_bits()), members.named(0)), (None, None));
        assert_eq!(members.dropped(), 8);
        assert_eq!((members.named(b.to_bits()), members.get(b), members.dropped()), (Some(b), Some(&'b'), 8));
    }

    #[test]
    fn a_name_is_given_again_after_64_others_at_the_earliest() {
        let mut members = Members::new(planted());
        let mut left = Vec::new();
        for _ in 0..10_000 {
            let member = members.enter(()).unwrap();
            let recent = &left[left.len().saturating_sub(MEMBER_QUARANTINE)..];
            assert!(recent.iter().all(|old: &MemberId| old.slot() != member.slot()));
            members.leave(member).unwrap();
            left.push(member);
        }
        assert_eq!(
            members.table.places(),
            MEMBER_QUARANTINE + 1,
            "and no more places are used than that takes"
        );
    }

    #[test]
    fn there_is_a_limit_that_leaving_lifts() {
        let mut members = Members::new(planted());
        let all: Vec<_> = (0..MEMBERS_OF_GROUP_MAX).map(|n| members.enter(n).unwrap()).collect();
        assert_eq!((members.enter(0), members.len()), (Err(0), MEMBERS_OF_GROUP_MAX));
        for round in 0..3 {
            all.iter().for_each(|_| {
                let (oldest, _) = members.iter().min_by_key(|(_, value)| **value).unwrap();
                members.leave(oldest).unwrap();
                members.enter(usize::MAX - round).unwrap();
                assert_eq!(members.enter(0), Err(0));
            });
        }
    }
}
