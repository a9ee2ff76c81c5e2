//! Credits that the members of a group share by count: eager messages that the peer has room for, and slices of long messages on a
//! link. The group's lane holds them. They are on the path of each message.
//!
//! The rule: the members together hold at most the total. A member that holds less than its part, or nothing, gets a credit while
//! any is free. Any other member gets one only while less than half of the total are in use. So one of several members can have half of
//! the total, and the other half is left for members below their part. A member without credits never waits twice for the same
//! other member.

/// A number of credits that members take and return. Each member counts its own credits.
#[derive(Debug)]
pub struct GroupCredits {
    total: u32,
    used: u32,
    members: u32,
    /// The part of each member, at least one.
    part: u32,
}

impl GroupCredits {
    /// Returns `total` free credits, without members.
    #[must_use]
    pub const fn new(total: u32) -> Self {
        Self { total, used: 0, members: 0, part: total }
    }

    /// Adds a member.
    pub fn add_member(&mut self) {
        self.members += 1;
        self.share_out();
    }

    /// Removes a member. Its credits stay in use until they are returned.
    pub fn remove_member(&mut self) {
        self.members = self.members.saturating_sub(1);
        self.share_out();
    }

    fn share_out(&mut self) {
        self.part = (self.total / self.members.max(1)).max(1);
    }

    /// Takes a credit for a member that holds `held`. Returns whether it was taken: then the member counts it, else it tries again later.
    #[inline]
    pub fn try_take(&mut self, held: u32) -> bool {
        let may = self.may_take(held);
        self.used += u32::from(may);
        may
    }

    /// Whether a member that holds `held` may take a further credit.
    #[inline]
    #[must_use]
    pub fn may_take(&self, held: u32) -> bool {
        let free = self.used < self.total;
        let fair = held < self.part || self.used < self.total / 2;
        free && fair
    }

    /// Records that a member that held `held` credits holds `now`: at most one more, for which [`GroupCredits::may_take`] was true.
    #[inline]
    pub fn update_held(&mut self, held: u32, now: u32) {
        debug_assert!(held <= self.used && now <= held + 1, "{held}, then {now}, of {}", self.used);
        self.used = self.used.wrapping_add(now).wrapping_sub(held);
    }

    /// Returns `count` credits.
    #[inline]
    pub fn return_credits(&mut self, count: u32) {
        debug_assert!(count <= self.used, "{count} of {}", self.used);
        self.used = self.used.saturating_sub(count);
    }

    /// Number of credits that members hold.
    #[must_use]
    pub const fn used_credits(&self) -> u32 {
        self.used
    }

    /// Number of all credits.
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
    fn half_of_the_credits_serve_small_holders() {
        let mut credits = GroupCredits::new(8);
        (0..4).for_each(|_| credits.add_member());
        let greedy = (0..8).take_while(|&held| credits.try_take(held)).count();
        assert_eq!(greedy, 4, "a member gets half, because its share is only two");
        assert!(
            credits.try_take(0) && credits.try_take(1) && !credits.try_take(2),
            "members without credits get their share"
        );
        assert!(credits.try_take(0) && credits.try_take(0), "each further member gets its first credit");
        assert!(!credits.try_take(0), "a credit was given beyond the total");
        credits.return_credits(3);
        assert!(!credits.try_take(4), "more than half of the credits are in use");
        credits.return_credits(2);
        assert!(credits.try_take(4));
        assert_eq!((credits.used_credits(), credits.total_credits()), (4, 8));
    }

    #[test]
    fn single_member_gets_all_credits() {
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

        /// Never more than the total are in use; a member without credits gets one while any is free.
        #[test]
        fn no_member_starves_and_the_total_holds(
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
                    prop_assert!(took || *mine > 0 || !free, "a member without credits was refused a free one");
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
