//! The token slots of a group's receiving end. Each member has a range of them, so that the upper bits of an immediate identify its
//! member, and no table is searched or locked for a message. The group's lane holds the ranges.
//!
//! A range is reassigned only after the peer has reported that nothing more arrives for the former member (GONE in
//! docs/wire.md), and after all ranges that have been free for longer. The generations of its tokens then start half a cycle later.
//! So even an immediate that breaks this rule matches no token.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::comm::table;
use crate::limits::{GROUP_TOKENS_MAX, MEMBERS_OF_GROUP_MAX, RANGE_RECVS, RECV_BUFFERS_MAX};
use crate::wire::imm::BufferToken;
use crate::wire::member::MemberId;

/// Slots of a range: a power of two, so that each range begins at a multiple of it.
pub const SLOTS: usize = RANGE_RECVS * RECV_BUFFERS_MAX;

const _: () = assert!(SLOTS.is_power_of_two());
const _: () = assert!(SLOTS * MEMBERS_OF_GROUP_MAX <= GROUP_TOKENS_MAX);

/// By how many generations the tokens of a range are ahead of those of its former member.
const AHEAD: u16 = 1 << (BufferToken::GENERATION_BITS - 1);

/// The range of one member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TokenRange {
    number: u16,
    /// The first generation of each of its tokens.
    pub generation: u16,
}

/// The ranges of a group.
#[derive(Debug)]
pub struct TokenRanges {
    entries: Vec<RangeEntry>,
    /// Unassigned ranges, in the order of their release.
    free: VecDeque<u16>,
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct RangeEntry {
    member: Option<MemberId>,
    generation: u16,
}

impl TokenRange {
    /// Returns the token in the peer's numbering for a member's own token.
    #[inline]
    #[must_use]
    pub const fn to_wire(self, token: BufferToken) -> BufferToken {
        let slot = self.number as usize * SLOTS + token_place(token);
        BufferToken::new(slot as u16, token.generation())
    }
}

/// Returns the place of a member's token in its range, and of its fin record in the member's fin mailbox.
#[inline]
#[must_use]
pub const fn token_place(token: BufferToken) -> usize {
    table::index(token.slot()) * RANGE_RECVS + table::receive_of_slot(token.slot()) % RANGE_RECVS
}

/// Returns the member's own token for a token in the peer's numbering.
#[inline]
#[must_use]
pub const fn to_member(token: BufferToken) -> BufferToken {
    let place = token.slot() % SLOTS;
    let slot = table::slot_of_buffer(place % RANGE_RECVS, place / RANGE_RECVS);
    BufferToken::new(slot as u16, token.generation())
}

impl Default for TokenRanges {
    fn default() -> Self {
        Self::new()
    }
}

impl TokenRanges {
    /// Returns a table without assigned ranges.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new(), free: VecDeque::new(), dropped: 0 }
    }

    /// Assigns a range to a new member; `None` if all ranges are in use.
    pub fn assign_range(&mut self, member: MemberId) -> Option<TokenRange> {
        let number = if self.entries.len() < MEMBERS_OF_GROUP_MAX {
            self.entries.push(RangeEntry { member: None, generation: 0 });
            self.entries.len() as u16 - 1
        } else {
            self.free.pop_front()?
        };
        let entry = &mut self.entries[usize::from(number)];
        entry.member = Some(member);
        Some(TokenRange { number, generation: entry.generation })
    }

    /// Releases the range of a member that has left and for which nothing more can arrive.
    pub fn release_range(&mut self, range: TokenRange) {
        let Some(entry) = self.entries.get_mut(usize::from(range.number)) else { return };
        entry.member = None;
        entry.generation = entry.generation.wrapping_add(AHEAD) % (1 << BufferToken::GENERATION_BITS);
        self.free.push_back(range.number);
    }

    /// Returns the member to which the peer's token belongs. `None` if its range is unassigned; that is counted.
    #[inline]
    pub fn resolve_owner(&mut self, token: BufferToken) -> Option<MemberId> {
        let found = self.entries.get(token.slot() / SLOTS).and_then(|entry| entry.member);
        self.dropped += u64::from(found.is_none());
        found
    }

    /// Number of assigned ranges.
    #[must_use]
    pub fn used_ranges(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Number of tokens that belonged to no member.
    #[must_use]
    pub const fn dropped_tokens(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tests::member;

    #[test]
    fn member_tokens_differ_and_round_trip() {
        let mut ranges = TokenRanges::new();
        let mut seen = std::collections::BTreeSet::new();
        for slot in 0..MEMBERS_OF_GROUP_MAX as u32 {
            let range = ranges.assign_range(member(slot)).unwrap();
            for (receive, index) in (0..RANGE_RECVS).flat_map(|r| (0..RECV_BUFFERS_MAX).map(move |i| (r, i)))
            {
                let own = BufferToken::new(table::slot_of_buffer(receive, index) as u16, 7);
                let wire = range.to_wire(own);
                assert!(seen.insert(wire.to_bits()));
                assert_eq!((ranges.resolve_owner(wire), to_member(wire)), (Some(member(slot)), own));
                assert_eq!(wire.slot() % SLOTS, token_place(own));
            }
        }
        assert_eq!(ranges.assign_range(member(900)), None);
        assert_eq!((seen.len(), ranges.dropped_tokens()), (GROUP_TOKENS_MAX, 0));
    }

    #[test]
    fn range_is_reused_last_and_with_other_tokens() {
        let mut ranges = TokenRanges::new();
        let first = ranges.assign_range(member(0)).unwrap();
        let own = |range: TokenRange| range.to_wire(BufferToken::new(3, range.generation));
        ranges.release_range(first);
        assert_eq!(ranges.resolve_owner(own(first)), None);
        assert_eq!(ranges.dropped_tokens(), 1);
        for slot in 1..MEMBERS_OF_GROUP_MAX as u32 {
            let other = ranges.assign_range(member(slot)).unwrap();
            assert_ne!(own(other).slot(), own(first).slot());
            ranges.release_range(other);
        }
        let again = ranges.assign_range(member(1)).unwrap();
        assert_eq!(own(again).slot(), own(first).slot());
        assert_ne!(own(again), own(first));
    }
}
