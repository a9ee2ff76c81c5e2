//! The groups of shared queue pairs of a process: records in the head of a status page, and where a comm rides, in its row.

use super::{CommDirection, StatusError, join_halves, split_halves};
use crate::id::ProcessId;
use crate::limits::{LINKS_MAX, MEMBERS_OF_GROUP_MAX};
use crate::wire::member::MemberId;

/// Byte offset of the first record in the head.
pub const AT: usize = 2048;
/// Words of a record.
pub const WORDS: usize = 8;
/// Records of a page. A process with more groups shows so many of them.
pub const RECORDS: usize = 32;
/// Stands for the record of a group that has none.
const UNSHOWN: u16 = 0xffff;

/// Words of a record.
pub mod word {
    /// Which group it is: changes when the group does.
    pub const WHO: usize = 0;
    /// The first of the words that change while the group is used.
    pub const NUMBERS: usize = 3;
}

/// Bits of the first word that count the groups which had the record; odd while the others change.
const SEQUENCE_AT: u32 = 48;

/// How many of what members share by count are taken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CreditUsage {
    /// So many are.
    pub used: u32,
    /// Of so many; 0 where this end has none.
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

/// What of a group changes while it is used. Each is one word.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GroupCounters {
    /// Completions that were another member's than the one whose turn it was.
    pub routed: u64,
    /// Completions and messages that were nobody's.
    pub dropped: u64,
    /// Eager messages for which the peer has room, at the sending end.
    pub eager: CreditUsage,
    /// Slices of long messages that may be under way.
    pub slices: CreditUsage,
    /// Operations that may be under way on the first link.
    pub queue: CreditUsage,
}

/// Words of the numbers.
pub const NUMBERS: usize = 5;

impl GroupCounters {
    /// Their words, from [`word::NUMBERS`] on.
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

/// A group of queue pairs that several comms of one direction, between two processes, ride on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueGroupRecord {
    /// Which way its comms carry messages.
    pub direction: CommDirection,
    /// Queue pairs of a member, 1 to 4.
    pub links: u8,
    /// Number of the NIC that the first of them is on.
    pub nic: u16,
    /// Comms on it, those that are closed and still have something to end included; at most
    /// [`MEMBERS_OF_GROUP_MAX`].
    pub members: u16,
    /// The process at its other end.
    pub peer: ProcessId,
    /// What changes.
    pub numbers: GroupCounters,
}

impl QueueGroupRecord {
    /// The words of a record, with that sequence number.
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

    /// Reads a copy of a record; `None` if no group has it, or if another one gets it right now.
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

/// The sequence number in the first word of a record.
#[must_use]
pub const fn record_sequence(who: u64) -> u16 {
    (who >> SEQUENCE_AT) as u16
}

/// The first word of a record that no group has, with that sequence number.
#[must_use]
pub const fn free_word(sequence: u16) -> u64 {
    (sequence as u64) << SEQUENCE_AT
}

/// The first word of a record, with another number of members.
#[must_use]
pub const fn with_members(who: u64, members: u16) -> u64 {
    who & !(0xffff << 32) | (members as u64) << 32
}

/// Where a comm rides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupMembership {
    /// The record of its group, from 0, below [`RECORDS`]; `None` if that is not shown.
    pub record: Option<u8>,
    /// Which member of the group it is.
    pub member: MemberId,
}

impl GroupMembership {
    /// Words 6 and 7 of the comm's row.
    #[must_use]
    pub fn to_words(ride: Option<Self>) -> [u64; 2] {
        let Some(Self { record, member }) = ride else { return [0; 2] };
        let record = record.map_or(UNSHOWN, |at| u16::from(at) + 1);
        [u64::from(record), u64::from(member.to_bits())]
    }

    /// Reads them; `None` for a comm that shares nothing.
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
