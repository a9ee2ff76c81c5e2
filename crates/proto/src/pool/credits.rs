//! What the members of a group share by count: eager messages that the peer has room for, slices of long messages on a
//! link. Held by the group's lane; on the path of each message.
//!
//! The rule: all hold no more than the total. Who holds less than its part of it, or nothing, gets one as long as any is
//! free; who holds more gets one only while less than half are out. So one member alone can have half of all, and half
//! are left for those who have less than their part. Nobody who holds nothing waits for the same member twice.

/// A count that members take from and give back to. What each holds it counts by itself.
#[derive(Debug)]
pub struct GroupCredits {
    total: u32,
    used: u32,
    members: u32,
    /// Each member's part, at least one.
    part: u32,
}

impl GroupCredits {
    /// So many, and no members.
    #[must_use]
    pub const fn new(total: u32) -> Self {
        Self { total, used: 0, members: 0, part: total }
    }

    /// A member comes.
    pub fn add_member(&mut self) {
        self.members += 1;
        self.share_out();
    }

    /// A member goes. What it holds stays taken until it is given back.
    pub fn remove_member(&mut self) {
        self.members = self.members.saturating_sub(1);
        self.share_out();
    }

    fn share_out(&mut self) {
        self.part = (self.total / self.members.max(1)).max(1);
    }

    /// Takes one for a member that holds `held`, which it counts up then; or none: it is to try again later.
    #[inline]
    pub fn try_take(&mut self, held: u32) -> bool {
        let may = self.may_take(held);
        self.used += u32::from(may);
        may
    }

    /// Whether a member that holds `held` may have one more.
    #[inline]
    #[must_use]
    pub fn may_take(&self, held: u32) -> bool {
        let free = self.used < self.total;
        let fair = held < self.part || self.used < self.total / 2;
        free && fair
    }

    /// A member that held `held` holds `now`: at most one more, which it might take.
    #[inline]
    pub fn update_held(&mut self, held: u32, now: u32) {
        debug_assert!(held <= self.used && now <= held + 1, "{held}, then {now}, of {}", self.used);
        self.used = self.used.wrapping_add(now).wrapping_sub(held);
    }

    /// So many come back.
    #[inline]
    pub fn return_credits(&mut self, count: u32) {
        debug_assert!(count <= self.used, "{count} of {}", self.used);
        self.used = self.used.saturating_sub(count);
    }

    /// What members hold.
    #[must_use]
    pub const fn used_credits(&self) -> u32 {
        self.used
    }

    /// All there are.
    #[must_use]
    pub const fn total_credits(&self) -> u32 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::pool::tests::cases;

    #[test]
    fn half_are_for_anybody_and_half_for_those_who_have_little() {
        let mut credits = GroupCredits::new(8);
        (0..4).for_each(|_| credits.add_member());
        let greedy = (0..8).take_while(|&held| credits.try_take(held)).count();
        assert_eq!(greedy, 4, "half, for its part is two");
        assert!(credits.try_take(0) && credits.try_take(1) && !credits.try_take(2), "a part");
        assert!(credits.try_take(0) && credits.try_take(0), "the others' first ones");
        assert!(!credits.try_take(0), "there are none");
        credits.return_credits(3);
        assert!(!credits.try_take(4), "more than half are out");
        credits.return_credits(2);
        assert!(credits.try_take(4));
        assert_eq!((credits.used_credits(), credits.total_credits()), (4, 8));
    }

    #[test]
    fn alone_a_member_has_all() {
        let mut credits = GroupCredits::new(5);
        credits.add_member();
        assert_eq!((0..9).take_while(|&held| credits.try_take(held)).count(), 5);
        credits.add_member();
        credits.remove_member();
        credits.return_credits(5);
        assert_eq!((0..9).take_while(|&held| credits.try_take(held)).count(), 5);
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Never more than there are; never none for who has none while some are free.
        #[test]
        fn nobody_starves_and_nothing_is_overrun(
            total in 1..40_u32,
            members in 1..50_usize,
            steps in prop::collection::vec((0..50_usize, any::<bool>()), 1..400),
        ) {
            let mut credits = GroupCredits::new(total);
            let mut held: Vec<u32> = vec![0; members];
            (0..members).for_each(|_| credits.add_member());
            for (who, takes) in steps {
                let mine = &mut held[who % members];
                if takes {
                    let free = credits.used_credits() < total;
                    let took = credits.try_take(*mine);
                    *mine += u32::from(took);
                    prop_assert!(took || *mine > 0 || !free, "the first one was refused");
                    let most = (total / members as u32).max(total.div_ceil(2)).max(1);
                    prop_assert!(*mine <= most.max(1), "{} of {total}", *mine);
                } else if *mine > 0 {
                    *mine -= 1;
                    credits.return_credits(1);
                }
                prop_assert!(credits.used_credits() <= total);
                prop_assert_eq!(credits.used_credits(), held.iter().sum::<u32>());
            }
        }
    }
}
