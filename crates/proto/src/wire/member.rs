//! The id of a member of a group, by which `wr_id`s and eager headers identify their member. Each end assigns ids to its own members; an id is valid
//! within one group only.

use core::num::NonZeroU32;

use crate::slots::SlotId;

/// A member of a group: slot in bits 0-9, generation from 1 in bits 10-23. Never 0, and never all ones.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MemberId(NonZeroU32);

impl MemberId {
    /// Width of a slot in bits.
    pub const SLOT_BITS: u32 = 10;
    /// Width of a generation in bits.
    pub const GENERATION_BITS: u32 = 14;
    /// Number of low bits of a `wr_id` that the member chooses.
    pub const LOW_BITS: u32 = 64 - Self::SLOT_BITS - Self::GENERATION_BITS;
    /// Number of slots. The last slot stays unused, so that the highest `wr_id`s do not identify a member.
    pub const SLOTS_MAX: usize = (1 << Self::SLOT_BITS) - 1;

    const GENERATIONS: u32 = (1 << Self::GENERATION_BITS) - 1;

    /// Returns the member in that slot of a table, whose generations count from 1. The generation repeats after 2^14 - 1 uses.
    #[inline]
    #[must_use]
    pub const fn from_slot(id: SlotId) -> Self {
        let generation = id.generation.wrapping_sub(1) % Self::GENERATIONS + 1;
        match NonZeroU32::new(generation << Self::SLOT_BITS | id.slot & Self::SLOTS_MAX as u32) {
            Some(bits) => Self(bits),
            // Unreachable, as no generation is 0.
            None => Self(NonZeroU32::MAX),
        }
    }

    /// Parses a member from 24 bits; `None` for generation 0, the last slot, or more bits.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        let slot = bits & Self::SLOTS_MAX as u32;
        let generation = bits >> Self::SLOT_BITS;
        if generation == 0 || generation > Self::GENERATIONS || slot == Self::SLOTS_MAX as u32 {
            return None;
        }
        match NonZeroU32::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// Returns the slot in bits 0-9 and the generation in bits 10-23.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0.get()
    }

    /// Returns the index of its slot.
    #[inline]
    #[must_use]
    pub const fn slot_index(self) -> usize {
        self.0.get() as usize & Self::SLOTS_MAX
    }

    /// Returns the `wr_id` of an operation of this member: the member in bits 40-63, the member's own number of the operation below. Bits of `low`
    /// beyond bit 39 are dropped.
    #[inline]
    #[must_use]
    pub const fn wr_id(self, low: u64) -> u64 {
        (self.0.get() as u64) << Self::LOW_BITS | low & ((1 << Self::LOW_BITS) - 1)
    }

    /// Splits a `wr_id` into the bits of a member, which may be invalid, and the member's own number of the operation.
    #[inline]
    #[must_use]
    pub const fn of_wr_id(wr_id: u64) -> (u32, u64) {
        ((wr_id >> Self::LOW_BITS) as u32, wr_id & ((1 << Self::LOW_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn layout_is_the_documented_one() {
        let member = MemberId::from_slot(SlotId { slot: 0x3fe, generation: 0x3fff });
        assert_eq!(member.to_bits(), 0xff_fffe);
        assert_eq!(member.wr_id(u64::MAX), 0xffff_feff_ffff_ffff);
        let first = MemberId::from_slot(SlotId { slot: 0, generation: 1 });
        assert_eq!(first.wr_id(7), 0x0004_0000_0000_0007);
        assert_eq!(MemberId::from_slot(SlotId { slot: 0, generation: 0x4000 }), first, "after 2^14 - 1 uses");
    }

    #[test]
    fn reserved_numbers_are_not_member_ids() {
        for wr_id in [0, 5, 1 << 34, u64::MAX, u64::MAX - 1, u64::MAX - 2] {
            assert_eq!(MemberId::from_bits(MemberId::of_wr_id(wr_id).0), None);
        }
    }

    proptest! {
        #[test]
        fn values_round_trip(slot in 0..MemberId::SLOTS_MAX as u32, generation in 1_u32.., low in 0..1_u64 << 40) {
            let member = MemberId::from_slot(SlotId { slot, generation });
            prop_assert_eq!(MemberId::from_bits(member.to_bits()), Some(member));
            prop_assert_eq!(MemberId::of_wr_id(member.wr_id(low)), (member.to_bits(), low));
            prop_assert_eq!(MemberId::from_bits(member.to_bits() | 1 << 24), None);
        }
    }
}
