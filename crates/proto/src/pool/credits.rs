//! What the members of a group share by count: operations outstanding on a link, receives posted at the peer. Held by the
//! group's lane; on the path of each message.
//!
//! The rule: what all hold together is never more than the total, and what one holds never more than the bound. Who holds
//! nothing always gets one if any is free. Who holds some gets more only if one stays for each other member that holds
//! nothing. So while there are no more members than credits, nobody waits for another's to come back before its first;
//! only who comes in later may.

use alloc::vec::Vec;

use crate::mutant::Mutant;
use crate::wire::member::MemberId;

/// A count that members take from and give back to.
#[derive(Debug)]
pub struct Credits {
    total: u32,
    free: u32,
    bound: u32,
    /// By slot of the member.
    accounts: Vec<Account>,
    /// Members that hold nothing.
    hungry: u32,
    /// Held by members that have left.
    late: u32,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    member: Option<MemberId>,
    held: u32,
}

/// More was given back than was taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("credits were given back that nobody held")]
pub struct NotHeld;

impl Credits {
    /// So many of which a member may hold up to `bound`, at least one.
    #[must_use]
    pub const fn new(total: u32, bound: u32, mutant: Mutant) -> Self {
        let bound = if bound == 0 { 1 } else { bound };
        Self { total, free: total, bound, accounts: Vec::new(), hungry: 0, late: 0, mutant }
    }

    /// There are so many more.
    pub(super) const fn widen(&mut self, by: u32) {
        self.total += by;
        self.free += by;
    }

    /// A member comes. It is the only one that allocates.
    pub fn enter(&mut self, member: MemberId) {
        if member.slot() >= self.accounts.len() {
            self.accounts.resize(member.slot() + 1, Account::default());
        }
        if let Some(old) = self.accounts[member.slot()].member {
            self.leave(old);
        }
        self.accounts[member.slot()] = Account { member: Some(member), held: 0 };
        self.hungry += 1;
    }

    /// A member goes. What it holds stays taken until it is given back in its name.
    pub fn leave(&mut self, member: MemberId) {
        let Some(account) = self.account(member) else { return };
        let held = account.held;
        *account = Account::default();
        self.late += held;
        self.hungry -= u32::from(held == 0);
    }

    #[inline]
    fn account(&mut self, member: MemberId) -> Option<&mut Account> {
        self.accounts.get_mut(member.slot()).filter(|account| account.member == Some(member))
    }

    /// Takes `count`, at least one, for a member, or nothing at all: then it is to try again after something came back.
    #[inline]
    pub fn take(&mut self, member: MemberId, count: u32) -> bool {
        let (free, bound, hungry, mutant) = (self.free, self.bound, self.hungry, self.mutant);
        let Some(account) = self.account(member) else { return false };
        let first = account.held == 0;
        let others = hungry - u32::from(first);
        let within = count <= bound - account.held || mutant.is("credits-ignore-bound");
        let spares = free
            .checked_sub(count)
            .is_some_and(|rest| rest >= others || first && count == 1 || mutant.is("credits-ignore-hungry"));
        if count == 0 || !within || !spares {
            return false;
        }
        account.held += count;
        self.free = free - count;
        self.hungry = others;
        true
    }

    /// Gives back `count` that a member took, also after it has left.
    ///
    /// # Errors
    /// [`NotHeld`]; nothing has changed then.
    #[inline]
    pub fn give(&mut self, member: MemberId, count: u32) -> Result<(), NotHeld> {
        match self.account(member) {
            Some(account) => {
                let held = account.held.checked_sub(count).ok_or(NotHeld)?;
                let emptied = held == 0 && account.held > 0;
                account.held = held;
                self.hungry += u32::from(emptied);
            }
            None => self.late = self.late.checked_sub(count).ok_or(NotHeld)?,
        }
        self.free += count;
        Ok(())
    }

    /// Whether that member is in.
    #[must_use]
    pub(super) fn knows(&self, member: MemberId) -> bool {
        self.accounts.get(member.slot()).is_some_and(|account| account.member == Some(member))
    }

    /// What a member holds.
    #[must_use]
    pub fn held(&self, member: MemberId) -> u32 {
        let account = self.accounts.get(member.slot()).filter(|account| account.member == Some(member));
        account.map_or(0, |account| account.held)
    }

    /// What nobody holds.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// All there are.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// What members that have left still hold.
    #[must_use]
    pub const fn late(&self) -> u32 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pool::tests::{cases, member, planted};

    #[test]
    fn a_bound_is_kept_and_the_last_ones_are_for_those_who_have_none() {
        let mut credits = Credits::new(8, 6, planted());
        let [a, b, c] = [member(0), member(1), member(2)];
        assert!(!credits.take(a, 1), "not a member");
        [a, b, c].iter().for_each(|&each| credits.enter(each));
        assert!(!credits.take(a, 0) && !credits.take(a, 7), "nothing, and more than the bound");
        assert!(credits.take(a, 6));
        assert!(!credits.take(a, 1), "the bound");
        assert!(credits.take(b, 1));
        assert!(!credits.take(b, 1), "the last one is for c");
        assert!(credits.take(c, 1));
        assert!(!credits.take(c, 1), "there are none");
        assert_eq!((credits.free(), credits.held(a), credits.held(c)), (0, 6, 1));
        assert_eq!((credits.give(c, 2), credits.give(b, 1)), (Err(NotHeld), Ok(())));
        assert!(!credits.take(a, 1) && !credits.take(c, 1), "b may want it again");
        assert!(credits.take(b, 1));
    }

    #[test]
    fn what_a_member_held_when_it_left_comes_back_in_its_name() {
        let mut credits = Credits::new(4, 4, planted());
        let (old, new) = (member(3), MemberId::from_bits(2 << 10 | 3).unwrap());
        credits.enter(old);
        assert!(credits.take(old, 3));
        credits.leave(old);
        credits.leave(old);
        assert_eq!((credits.late(), credits.free(), credits.held(old)), (3, 1, 0));
        credits.enter(new);
        assert!(credits.take(new, 1));
        assert_eq!((credits.give(new, 3), credits.give(old, 4)), (Err(NotHeld), Err(NotHeld)));
        assert_eq!(
            (credits.give(old, 2), credits.give(new, 1), credits.give(old, 1)),
            (Ok(()), Ok(()), Ok(()))
        );
        assert_eq!((credits.free(), credits.late(), credits.total()), (4, 0, 4));
        assert_eq!(credits.give(old, 1), Err(NotHeld), "no more than there were");
    }

    #[derive(Clone, Debug)]
    enum Move {
        Enter(usize),
        Leave(usize),
        Take(usize, u32),
        Give(usize, u32),
    }

    const WHO: usize = 6;

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let who = 0..WHO;
        let one = prop_oneof![
            1 => who.clone().prop_map(Move::Enter),
            1 => who.clone().prop_map(Move::Leave),
            8 => (who.clone(), 0..5_u32).prop_map(|(who, count)| Move::Take(who, count)),
            4 => (who, 0..5_u32).prop_map(|(who, count)| Move::Give(who, count)),
        ];
        prop::collection::vec(one, 1..300)
    }

    /// What the credits are compared with.
    struct Model {
        total: u32,
        bound: u32,
        held: [Option<u32>; WHO],
        late: [u32; WHO],
    }

    impl Model {
        fn free(&self) -> u32 {
            self.total - self.held.iter().flatten().sum::<u32>() - self.late.iter().sum::<u32>()
        }

        fn hungry(&self) -> u32 {
            self.held.iter().filter(|held| **held == Some(0)).count() as u32
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// The rule at the head of this file, whatever is done in whatever order.
        #[test]
        fn nobody_starves_and_nothing_is_lost(total in 1..20_u32, bound in 1..12_u32, moves in moves()) {
            let mut credits = Credits::new(total, bound, planted());
            let mut model = Model { total, bound, held: [None; WHO], late: [0; WHO] };
            for one in moves {
                let fed = model.free() >= model.hungry();
                match one {
                    Move::Enter(who) if model.held[who].is_none() && model.late[who] == 0 => {
                        credits.enter(member(who as u32));
                        model.held[who] = Some(0);
                    }
                    Move::Enter(_) => {}
                    Move::Leave(who) => {
                        credits.leave(member(who as u32));
                        model.late[who] += model.held[who].take().unwrap_or(0);
                    }
                    Move::Take(who, count) => {
                        let (free, hungry) = (model.free(), model.hungry());
                        let took = credits.take(member(who as u32), count);
                        if took {
                            prop_assert!(count <= free);
                            *model.held[who].as_mut().unwrap() += count;
                            prop_assert!(model.held[who].unwrap() <= model.bound);
                        }
                        if count == 1 && model.held[who] == Some(0) {
                            prop_assert_eq!(free, 0, "the first one was refused");
                        }
                        // Plenty is never refused within the bound.
                        let within = model.held[who].is_some_and(|held| !took && held + count <= model.bound);
                        prop_assert!(!(within && count > 0 && free >= count + hungry));
                        prop_assert!(!fed || model.free() >= model.hungry(), "what others need was taken");
                    }
                    Move::Give(who, count) => {
                        let held = model.held[who].unwrap_or(model.late.iter().sum());
                        let given = credits.give(member(who as u32), count).is_ok();
                        prop_assert_eq!(given, count <= held);
                        if given {
                            match model.held[who].as_mut() {
                                Some(held) => *held -= count,
                                None => (0..count).for_each(|_| {
                                    let owes = model.late.iter().position(|&late| late > 0).unwrap();
                                    model.late[owes] -= 1;
                                }),
                            }
                        }
                    }
                }
                prop_assert_eq!(credits.free(), model.free());
                prop_assert_eq!(credits.late(), model.late.iter().sum::<u32>());
            }
        }
    }
}
