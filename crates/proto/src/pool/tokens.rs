//! The tokens of a group's receiving end: which buffer of which member an immediate means. Held by the group's lane; on the
//! path of each message.
//!
//! A token names a slot and its use. Given back, a slot goes behind all others that are free, and at least
//! [`TOKEN_QUARANTINE`] of them come before it; its next use has the next generation. So an immediate that is late meets its
//! namesake only after 1024 uses of its slot, with as many of at least 64 other slots between any two of them. Whoever
//! gives a token back although something for it may still be on its way has to see to it that this arrives, or can no more,
//! before that.

use alloc::vec::Vec;

use super::credits::Credits;
use crate::limits::{GROUP_TOKENS_MAX, TOKEN_QUARANTINE};
use crate::mutant::Mutant;
use crate::wire::imm::Token;
use crate::wire::member::MemberId;

/// Slots by which a table grows.
pub const STEP: usize = 256;

/// No slot.
const NONE: u16 = u16::MAX;

/// The tokens of a group.
#[derive(Debug)]
pub struct Tokens {
    entries: Vec<Entry>,
    /// The free slot to use next, and the one used last of all.
    first: u16,
    last: u16,
    /// Counts slots, less those that stay free.
    credits: Credits,
    members: usize,
    bound: usize,
    dropped: u64,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Of which member; free without.
    member: Option<MemberId>,
    /// What the member calls it.
    local: u16,
    token: Token,
    /// The free slot to use after this one.
    next: u16,
}

impl Tokens {
    /// No tokens yet. A member may have up to `bound` at a time.
    #[must_use]
    pub const fn new(bound: u16, mutant: Mutant) -> Self {
        let credits = Credits::new(0, bound as u32, mutant);
        let bound = bound as usize;
        Self { entries: Vec::new(), first: NONE, last: NONE, credits, members: 0, bound, dropped: 0, mutant }
    }

    /// A member comes. The table grows, in steps, until each member can have as many as it may, or to
    /// [`GROUP_TOKENS_MAX`] slots; it never grows otherwise, and does not shrink.
    pub fn enter(&mut self, member: MemberId) {
        self.members += 1;
        self.credits.enter(member);
        let wanted = (self.members * self.bound + TOKEN_QUARANTINE).next_multiple_of(STEP);
        let wanted = wanted.min(GROUP_TOKENS_MAX);
        while self.entries.len() < wanted {
            let slot = self.entries.len() as u16;
            self.entries.push(Entry { member: None, local: 0, token: Token::new(slot, 0), next: NONE });
            self.put_last(slot);
            self.credits.widen(u32::from(self.entries.len() > TOKEN_QUARANTINE));
        }
    }

    /// A member goes, and all its tokens with it.
    pub fn leave(&mut self, member: MemberId) {
        if !self.is_in(member) {
            return;
        }
        self.free_all(member);
        self.credits.leave(member);
        self.members -= 1;
    }

    /// A token for what the member calls `local`. `None`: not now, for the member has as many as it may, or the rest is
    /// for others.
    #[inline]
    pub fn allocate(&mut self, member: MemberId, local: u16) -> Option<Token> {
        if !self.credits.take(member, 1) && !self.mutant.is("tokens-forget-bound") {
            return None;
        }
        let entry = self.entries.get_mut(usize::from(self.first))?;
        self.first = entry.next;
        (entry.member, entry.local) = (Some(member), local);
        Some(entry.token)
    }

    /// Whose token it is, and what the member calls it. One that was given back, or never out: nothing, and it is counted.
    #[inline]
    pub fn resolve(&mut self, token: Token) -> Option<(MemberId, u16)> {
        let found = self.find(token);
        self.dropped += u64::from(found.is_none());
        found
    }

    #[inline]
    fn find(&self, token: Token) -> Option<(MemberId, u16)> {
        let entry = self.entries.get(token.slot())?;
        let member = entry.member.filter(|_| entry.token == token)?;
        Some((member, entry.local))
    }

    /// Gives a token back. Whether it was out.
    #[inline]
    pub fn free(&mut self, token: Token) -> bool {
        let Some((member, _)) = self.find(token) else { return false };
        self.release(token.slot(), member);
        true
    }

    /// Gives back all tokens of a member; it can go on with others.
    pub fn free_all(&mut self, member: MemberId) {
        for slot in 0..self.entries.len() {
            if self.entries[slot].member == Some(member) {
                self.release(slot, member);
            }
        }
    }

    #[inline]
    fn release(&mut self, slot: usize, member: MemberId) {
        let entry = &mut self.entries[slot];
        entry.member = None;
        if !self.mutant.is("tokens-keep-generation") {
            entry.token = entry.token.next();
        }
        if self.mutant.is("tokens-reuse-at-once") {
            entry.next = self.first;
            self.first = slot as u16;
        } else {
            self.put_last(slot as u16);
        }
        let given = self.credits.give(member, 1);
        debug_assert_eq!(given, Ok(()));
    }

    #[inline]
    fn put_last(&mut self, slot: u16) {
        self.entries[usize::from(slot)].next = NONE;
        match self.entries.get_mut(usize::from(self.last)) {
            Some(last) if self.first != NONE => last.next = slot,
            _ => self.first = slot,
        }
        self.last = slot;
    }

    fn is_in(&self, member: MemberId) -> bool {
        self.credits.knows(member)
    }

    /// Tokens that are out.
    #[must_use]
    pub fn out(&self) -> usize {
        (self.credits.total() - self.credits.free()) as usize
    }

    /// Slots there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Tokens that named nothing.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;
    use crate::limits::{MEMBERS_OF_GROUP_MAX, TOKENS_MAX};
    use crate::pool::tests::{cases, member, planted};

    #[test]
    fn a_token_that_was_given_back_names_nothing() {
        let mut tokens = Tokens::new(8, planted());
        tokens.enter(member(0));
        let token = tokens.allocate(member(0), 77).unwrap();
        assert_eq!((tokens.resolve(token), tokens.out()), (Some((member(0), 77)), 1));
        assert!(tokens.free(token) && !tokens.free(token));
        assert_eq!(
            (tokens.resolve(token), tokens.resolve(Token::new(9999, 0)), tokens.dropped()),
            (None, None, 2)
        );
        assert_eq!(tokens.out(), 0);
        // Nor does it while its slot is in use again.
        for _ in 0..=STEP {
            let other = tokens.allocate(member(0), 1).unwrap();
            assert_eq!((tokens.resolve(token), tokens.free(token)), (None, false));
            tokens.free(other);
        }
    }

    #[test]
    fn a_slot_waits_for_64_others() {
        let mut tokens = Tokens::new(STEP as u16, planted());
        tokens.enter(member(0));
        // All that may be out is, so that only what must stay free is free.
        let out: VecDeque<_> = (0..STEP).map(|n| tokens.allocate(member(0), n as u16).unwrap()).collect();
        let mut recent: VecDeque<usize> = VecDeque::new();
        for token in out.iter().copied() {
            tokens.free(token);
            recent.push_back(token.slot());
            let next = tokens.allocate(member(0), 0).unwrap();
            assert!(!recent.contains(&next.slot()));
            if recent.len() == TOKEN_QUARANTINE {
                recent.pop_front();
            }
        }
    }

    #[test]
    fn generations_go_round_after_all_of_them() {
        let mut tokens = Tokens::new(1, planted());
        tokens.enter(member(0));
        let first = tokens.allocate(member(0), 0).unwrap();
        let mut last = first;
        let mut uses = 0_u64;
        loop {
            assert!(tokens.free(last));
            last = tokens.allocate(member(0), 0).unwrap();
            uses += 1;
            if last == first {
                break;
            }
        }
        assert_eq!(uses, 1024 * STEP as u64);
    }

    #[test]
    fn a_group_of_one_is_small_and_one_of_many_has_a_limit() {
        let mut tokens = Tokens::new(TOKENS_MAX as u16, planted());
        assert_eq!((tokens.slots(), tokens.allocate(member(0), 0)), (0, None));
        tokens.enter(member(0));
        assert_eq!(tokens.slots(), 768);
        (1..MEMBERS_OF_GROUP_MAX as u32).for_each(|slot| tokens.enter(member(slot)));
        assert_eq!(tokens.slots(), GROUP_TOKENS_MAX);
        // However much the first ones want, each gets one.
        let greedy = |tokens: &mut Tokens, slot| {
            (0..).take_while(|_| tokens.allocate(member(slot), 0).is_some()).count()
        };
        let counts: Vec<_> = (0..MEMBERS_OF_GROUP_MAX as u32).map(|slot| greedy(&mut tokens, slot)).collect();
        assert_eq!(counts[..30], [TOKENS_MAX; 30]);
        assert!(counts.iter().all(|&count| (1..=TOKENS_MAX).contains(&count)));
        assert_eq!(
            (counts.iter().sum::<usize>(), tokens.out()),
            (GROUP_TOKENS_MAX - TOKEN_QUARANTINE, tokens.out())
        );
        (0..MEMBERS_OF_GROUP_MAX as u32).for_each(|slot| tokens.leave(member(slot)));
        assert_eq!((tokens.out(), tokens.slots()), (0, GROUP_TOKENS_MAX));
    }

    #[test]
    fn who_leaves_takes_its_tokens_along_and_nobody_elses() {
        let mut tokens = Tokens::new(300, planted());
        tokens.enter(member(0));
        tokens.enter(member(1));
        let mine: Vec<_> = (0..300).map(|n| tokens.allocate(member(0), n).unwrap()).collect();
        let theirs = tokens.allocate(member(1), 5).unwrap();
        tokens.leave(member(0));
        tokens.leave(member(0));
        assert!(mine.iter().all(|&token| tokens.resolve(token).is_none() && !tokens.free(token)));
        assert_eq!((tokens.resolve(theirs), tokens.out()), (Some((member(1), 5)), 1));
        assert_eq!(tokens.allocate(member(0), 0), None);
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Every token that is out names what it was given for, none other does, whatever comes back when.
        #[test]
        fn tokens_name_what_they_were_given_for(steps in prop::collection::vec((0..4_u32, 0..3_u8, 0..64_usize), 1..600)) {
            let mut tokens = Tokens::new(200, planted());
            (0..4).for_each(|slot| tokens.enter(member(slot)));
            let mut out: BTreeMap<u32, (MemberId, u16)> = BTreeMap::new();
            let mut gone: Vec<Token> = Vec::new();
            for (at, (who, what, which)) in steps.into_iter().enumerate() {
                match what {
                    0 | 1 => if let Some(token) = tokens.allocate(member(who), at as u16) {
                        prop_assert_eq!(out.insert(token.to_bits(), (member(who), at as u16)), None);
                    },
                    _ => if let Some((&bits, _)) = out.iter().nth(which) {
                        out.remove(&bits);
                        gone.push(Token::from_bits(bits));
                        prop_assert!(tokens.free(Token::from_bits(bits)));
                    },
                }
                prop_assert_eq!(tokens.out(), out.len());
            }
            for (bits, meaning) in &out {
                prop_assert_eq!(tokens.resolve(Token::from_bits(*bits)), Some(*meaning));
            }
            for token in gone {
                prop_assert_eq!(tokens.resolve(token), None);
            }
        }
    }
}
