//! The members of one group, and the routing of completions to them. The group's lane holds the table, so one thread uses it at a time. It is on the
//! path of each message.

use alloc::vec::Vec;
use core::mem;

use crate::limits::{MEMBER_QUARANTINE, MEMBERS_OF_GROUP_MAX};
use crate::slots::SlotTable;
use crate::wire::member::MemberId;

/// The members of a group, each with the lane's value for it.
#[derive(Debug)]
pub struct GroupMembers<T> {
    /// The value of the member that the lane used last, taken out of the table: usually the next message is for the same one.
    hand: Option<T>,
    /// The bits of that member's id; 0 if `hand` is empty.
    in_hand: u32,
    others: OtherMembers<T>,
    dropped: u64,
}

/// All members of a group except the one that is split off.
#[derive(Debug)]
pub struct OtherMembers<T> {
    /// The values; `None` for the member that is split off.
    table: SlotTable<Option<T>>,
    /// The member in each slot: routing reads only this.
    names: Vec<Option<MemberId>>,
}

impl<T> OtherMembers<T> {
    /// The value of the member in that slot, if it is one of the others.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.table.entry_at_mut(slot)?.as_mut()
    }

    /// The values of all other members.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.table.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    #[inline]
    fn find_member(&self, bits: u32) -> Option<MemberId> {
        let name = self.names.get(bits as usize & MemberId::SLOTS_MAX).copied().flatten()?;
        (name.to_bits() == bits).then_some(name)
    }
}

impl<T> Default for GroupMembers<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> GroupMembers<T> {
    /// Returns a table without members.
    #[must_use]
    pub fn new() -> Self {
        let table = SlotTable::with_quarantine(MEMBERS_OF_GROUP_MAX + MEMBER_QUARANTINE, MEMBER_QUARANTINE);
        let others = OtherMembers { table, names: Vec::new() };
        Self { hand: None, in_hand: 0, others, dropped: 0 }
    }

    /// Adds a member. Its slot was unused before, or at least [`MEMBER_QUARANTINE`] other slots were freed since its last use. Its id
    /// recurs only after 2^14 - 1 uses of that slot.
    ///
    /// # Errors
    /// The value, if there are [`MEMBERS_OF_GROUP_MAX`] members.
    pub fn add_member(&mut self, value: T) -> Result<MemberId, T> {
        let OtherMembers { table, names, .. } = &mut self.others;
        if table.len() >= MEMBERS_OF_GROUP_MAX {
            return Err(value);
        }
        let Ok(id) = table.insert(None) else { return Err(value) };
        if let Some(place) = table.get_mut(id) {
            *place = Some(value);
        }
        let member = MemberId::from_slot(id);
        if names.len() < table.used_places() {
            names.resize(table.used_places(), None);
        }
        names[member.slot_index()] = Some(member);
        Ok(member)
    }

    /// Removes a member; later completions and messages for it are dropped.
    pub fn remove_member(&mut self, member: MemberId) -> Option<T> {
        let name = self.others.find_member(member.to_bits())?;
        self.put_back();
        self.others.names[name.slot_index()] = None;
        let (id, _) = self.others.table.entry_at(name.slot_index() as u32)?;
        self.others.table.remove(id)?
    }

    /// Returns the member whose operation completed with this `wr_id`, and the member's own id of the operation. `None` if that member has
    /// left or never existed; that is counted.
    #[inline]
    pub fn route_completion(&mut self, wr_id: u64) -> Option<(MemberId, u64)> {
        let (bits, low) = MemberId::of_wr_id(wr_id);
        Some((self.resolve_member(bits)?, low))
    }

    /// Returns the member with the bits that a header or record of the other end contains. `None` if no member has them; that is
    /// counted.
    #[inline]
    pub fn resolve_member(&mut self, bits: u32) -> Option<MemberId> {
        let found = self.others.find_member(bits);
        self.dropped += u64::from(found.is_none());
        found
    }

    /// The lane's value for a member.
    #[must_use]
    pub fn get(&self, member: MemberId) -> Option<&T> {
        let name = self.others.find_member(member.to_bits())?;
        if self.in_hand == name.to_bits() {
            return self.hand.as_ref();
        }
        self.others.table.entry_at(name.slot_index() as u32)?.1.as_ref()
    }

    /// Returns the value of the member with these bits, which is split off until the next call, and all other members. Counts nothing.
    #[inline]
    pub fn split_member(&mut self, bits: u32) -> Option<(&mut T, &mut OtherMembers<T>)> {
        if self.in_hand != bits {
            self.take_in_hand(bits)?;
        }
        Some((self.hand.as_mut()?, &mut self.others))
    }

    #[inline(never)]
    fn take_in_hand(&mut self, bits: u32) -> Option<()> {
        let name = self.others.find_member(bits)?;
        self.put_back();
        // A swap drops no value, so that the compiler emits no drop check on this path.
        mem::swap(&mut self.hand, self.others.table.entry_at_mut(name.slot_index() as u32)?);
        self.in_hand = name.to_bits();
        Some(())
    }

    #[inline]
    fn put_back(&mut self) {
        let slot = self.in_hand & MemberId::SLOTS_MAX as u32;
        if self.hand.is_some()
            && let Some(place) = self.others.table.entry_at_mut(slot)
        {
            mem::swap(&mut self.hand, place);
        }
        self.in_hand = 0;
    }

    /// The values of all members.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.others.table.iter().filter_map(|(_, value)| value.as_ref()).chain(&self.hand)
    }

    /// Number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.others.table.len()
    }

    /// Whether the group has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.others.table.is_empty()
    }

    /// Number of completions and messages that belonged to no member.
    #[must_use]
    pub const fn dropped_count(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    #[test]
    fn completions_of_former_members_are_dropped_and_counted() {
        let mut members = GroupMembers::new();
        let a = members.add_member('a').unwrap();
        let b = members.add_member('b').unwrap();
        assert_eq!(
            (members.route_completion(a.wr_id(9)), members.route_completion(b.wr_id(8))),
            (Some((a, 9)), Some((b, 8)))
        );
        assert_eq!(members.remove_member(a), Some('a'));
        assert_eq!((members.remove_member(a), members.get(a)), (None, None));
        assert_eq!(members.split_member(a.to_bits()).map(|(a, _)| *a), None);
        let mut later = Vec::new();
        // Members join and leave until a slot is reused.
        while later.last().is_none_or(|last: &MemberId| last.slot_index() != a.slot_index()) {
            later.push(members.add_member('c').unwrap());
            members.remove_member(*later.last().unwrap()).unwrap();
        }
        let late = members.add_member('d').unwrap();
        assert_eq!(members.dropped_count(), 0);
        for wr_id in [a.wr_id(9), 0, u64::MAX, u64::MAX - 2, late.wr_id(0) ^ 1 << 63, 900 << 40 | 1 << 50] {
            assert_eq!(members.route_completion(wr_id), None, "{wr_id:#x}");
        }
        assert_eq!((members.resolve_member(a.to_bits()), members.resolve_member(0)), (None, None));
        assert_eq!(members.dropped_count(), 8);
        assert_eq!(
            (members.resolve_member(b.to_bits()), members.get(b), members.dropped_count()),
            (Some(b), Some(&'b'), 8)
        );
    }

    #[test]
    fn member_id_is_reused_after_64_others() {
        let mut members = GroupMembers::new();
        let mut left = Vec::new();
        for _ in 0..10_000 {
            let member = members.add_member(()).unwrap();
            let recent = &left[left.len().saturating_sub(MEMBER_QUARANTINE)..];
            assert!(recent.iter().all(|old: &MemberId| old.slot_index() != member.slot_index()));
            members.remove_member(member).unwrap();
            left.push(member);
        }
        assert_eq!(
            members.others.table.used_places(),
            MEMBER_QUARANTINE + 1,
            "more slots are used than the quarantine needs"
        );
    }

    #[test]
    fn member_limit_is_lifted_by_a_leaving_member() {
        let mut members = GroupMembers::new();
        let mut all: VecDeque<_> =
            (0..MEMBERS_OF_GROUP_MAX).map(|n| members.add_member(n).unwrap()).collect();
        assert_eq!((members.add_member(0), members.len()), (Err(0), MEMBERS_OF_GROUP_MAX));
        for round in 0..3 {
            (0..MEMBERS_OF_GROUP_MAX).for_each(|_| {
                members.remove_member(all.pop_front().unwrap()).unwrap();
                all.push_back(members.add_member(usize::MAX - round).unwrap());
                assert_eq!(members.add_member(0), Err(0));
            });
        }
    }

    #[test]
    fn taken_member_does_not_move_the_others() {
        let mut members = GroupMembers::new();
        let all = ['a', 'b', 'c'].map(|value| (members.add_member(value).unwrap(), value));
        let slot = |member: MemberId| member.slot_index() as u32;
        for (member, value) in all.iter().chain(&all).chain(all.iter().rev()).copied() {
            for _ in 0..2 {
                let (own, others) = members.split_member(member.to_bits()).unwrap();
                assert_eq!(*own, value);
                for (other, value) in all {
                    let there = others.at_mut(slot(other)).copied();
                    assert_eq!(there, (other != member).then_some(value));
                }
                assert_eq!(others.iter_mut().count(), 2);
            }
            assert!(all.iter().all(|&(member, value)| members.get(member) == Some(&value)));
            assert_eq!((members.iter().count(), members.len()), (3, 3));
        }
        let [(a, _), (b, _), (c, _)] = all;
        assert_eq!(
            (members.remove_member(a), members.split_member(a.to_bits()).is_none()),
            (Some('a'), true),
            "the member was in use by the caller"
        );
        assert_eq!((members.remove_member(b), members.remove_member(b), members.len()), (Some('b'), None, 1));
        let (own, others) = members.split_member(c.to_bits()).unwrap();
        assert_eq!((*own, others.iter_mut().count(), others.at_mut(slot(a))), ('c', 0, None));
    }
}
