//! The groups of shared queue pairs of a process: their records in the head of a status page, and the group of a comm, in its row.

use super::{CommDirection, StatusError, join_halves, split_halves};
use crate::id::ProcessId;
use crate::limits::{LINKS_MAX, MEMBERS_OF_GROUP_MAX};
use crate::wire::member::MemberId;

/// Offset in bytes of the first record in the head.
pub const AT: usize = 2048;
/// Words of a record.
pub const WORDS: usize = 8;
/// Number of records of a page. A process with more groups shows that many of them.
pub const RECORDS: usize = 32;
/// The record number of a group that has no record.
const UNSHOWN: u16 = 0xffff;

/// Indexes of the words of a record.
pub mod word {
    /// Identity of the group: changes when the record gets another group.
    pub const WHO: usize = 0;
    /// The first of the words that change while the group is used.
    pub const NUMBERS: usize = 3;
}

/// The lowest bit of the sequence number in the first word: another one for each group that has the record; odd while the other words change.
const SEQUENCE_AT: u32 = 48;

/// The use of a resource that members share by count.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CreditUsage {
    /// Bits 0-31: number in use.
    pub used: u32,
    /// Bits 32-63: number that exist; 0 where this end has none.
    pub total: u32,
}

impl CreditUsage {
    const fn to_word(self) -> u64 {
        self.used as u64 | (self.total as u64) << 32
    }

    const fn from_word(word: u64) -> Self {
        Self { used: word as u32, total: (word >> 32) as u32 }
    }
}

/// The counters of a group, one word each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GroupCounters {
    /// Word 3: completions of a member that were found by polling another member.
    pub routed: u64,
    /// Word 4: completions and messages that belonged to no member, and were dropped.
    pub dropped: u64,
    /// Word 5: eager credits, at the sending end.
    pub eager: CreditUsage,
    /// Word 6: slices of long messages that may be in flight.
    pub slices: CreditUsage,
    /// Word 7: operations that may be pending on the first link.
    pub queue: CreditUsage,
}

/// Number of counters.
pub const NUMBERS: usize = 5;

impl GroupCounters {
    /// Returns the words of a record from [`word::NUMBERS`] on.
    #[must_use]
    pub const fn to_words(&self) -> [u64; NUMBERS] {
        let Self { routed, dropped, eager, slices, queue } = *self;
        [routed, dropped, eager.to_word(), slices.to_word(), queue.to_word()]
    }

    const fn from_words([routed, dropped, eager, slices, queue]: [u64; NUMBERS]) -> Self {
        let eager = CreditUsage::from_word(eager);
        let slices = CreditUsage::from_word(slices);
        let queue = CreditUsage::from_word(queue);
        Self { routed, dropped, eager, slices, queue }
    }
}

/// A group of queue pairs that several comms of one direction, between two processes, share (8 words).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueGroupRecord {
    /// Word 0, bits 0-7: direction of its comms.
    pub direction: CommDirection,
    /// Word 0, bits 8-15: number of links of a member, 1 to 4.
    pub links: u8,
    /// Word 0, bits 16-31: number of the NIC of the first link.
    pub nic: u16,
    /// Word 0, bits 32-47: number of members; closed comms with unfinished work count. At most [`MEMBERS_OF_GROUP_MAX`].
    pub members: u16,
    /// Words 1 and 2: the peer process.
    pub peer: ProcessId,
    /// Words 3 to 7: the counters.
    pub numbers: GroupCounters,
}

impl QueueGroupRecord {
    /// Returns the words of a record with that sequence number.
    #[must_use]
    pub fn to_words(&self, sequence: u16) -> [u64; WORDS] {
        let direction = match self.direction {
            CommDirection::Send => 1,
            CommDirection::Recv => 2,
        };
        let who = direction
            | u64::from(self.links) << 8
            | u64::from(self.nic) << 16
            | u64::from(self.members) << 32
            | u64::from(sequence) << SEQUENCE_AT;
        let [low, high] = split_halves(self.peer.0);
        let [routed, dropped, eager, slices, queue] = self.numbers.to_words();
        [who, low, high, routed, dropped, eager, slices, queue]
    }

    /// Parses a copy of a record; `None` if it has no group, or is changing to another one.
    ///
    /// # Errors
    /// [`StatusError::Group`].
    pub fn from_words(words: &[u64; WORDS]) -> Result<Option<Self>, StatusError> {
        let who = words[word::WHO];
        if record_sequence(who) % 2 == 1 {
            return Ok(None);
        }
        let wrong = StatusError::Group(who);
        let direction = match who & 0xff {
            0 if who << (64 - SEQUENCE_AT) == 0 => return Ok(None),
            1 => CommDirection::Send,
            2 => CommDirection::Recv,
            _ => return Err(wrong),
        };
        let links = (who >> 8) as u8;
        let members = (who >> 32) as u16;
        if !(1..=LINKS_MAX as u8).contains(&links) || usize::from(members) > MEMBERS_OF_GROUP_MAX {
            return Err(wrong);
        }
        Ok(Some(Self {
            direction,
            links,
            nic: (who >> 16) as u16,
            members,
            peer: ProcessId(join_halves([words[1], words[2]])),
            numbers: GroupCounters::from_words(core::array::from_fn(|at| words[word::NUMBERS + at])),
        }))
    }
}

/// Returns the sequence number in the first word of a record.
#[must_use]
pub const fn record_sequence(who: u64) -> u16 {
    (who >> SEQUENCE_AT) as u16
}

/// Returns the first word of a record without a group, with that sequence number.
#[must_use]
pub const fn free_word(sequence: u16) -> u64 {
    (sequence as u64) << SEQUENCE_AT
}

/// Returns the first word of a record with another number of members.
#[must_use]
pub const fn with_members(who: u64, members: u16) -> u64 {
    who & !(0xffff << 32) | (members as u64) << 32
}

/// The group of a comm, and its id there (words 6 and 7 of its row).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupMembership {
    /// The record of its group, from 0, below [`RECORDS`]; `None` if the group has no record.
    pub record: Option<u8>,
    /// The comm's id in the group.
    pub member: MemberId,
}

impl GroupMembership {
    /// Returns words 6 and 7 of the comm's row.
    #[must_use]
    pub fn to_words(ride: Option<Self>) -> [u64; 2] {
        let Some(Self { record, member }) = ride else { return [0; 2] };
        let record = record.map_or(UNSHOWN, |at| u16::from(at) + 1);
        [u64::from(record), u64::from(member.to_bits())]
    }

    /// Parses words 6 and 7; `None` for a comm that shares no links.
    ///
    /// # Errors
    /// [`StatusError::Ride`].
    pub fn from_words([group, member]: [u64; 2]) -> Result<Option<Self>, StatusError> {
        let wrong = StatusError::Ride(group, member);
        let record = match group {
            0 if member == 0 => return Ok(None),
            at if (1..=RECORDS as u64).contains(&at) => Some(at as u8 - 1),
            at if at == u64::from(UNSHOWN) => None,
            _ => return Err(wrong),
        };
        let member = u32::try_from(member).ok().and_then(MemberId::from_bits).ok_or(wrong)?;
        Ok(Some(Self { record, member }))
    }
}
