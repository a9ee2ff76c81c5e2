//! The completion of an entry: 16 bytes, two words.

use super::layout::QueueShape;
use super::status::EntryStatus;
use super::{join_halves, split_halves};

/// A completion, as it is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EntryCompletion {
    /// How the entry ended.
    pub status: EntryStatus,
    /// The number of its operation, as it stood in the entry.
    pub op: u8,
    /// The value before, of an operation that brings one back.
    pub value: u64,
}

/// What the first word of a completion's place says about an index.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionOwner {
    /// The entry of this index has not completed, or its completion is being written.
    NotYet,
    /// It has; the value may be read now, and is good if the first word is still this one afterwards.
    Here {
        /// How it ended.
        status: EntryStatus,
        /// Its operation.
        op: u8,
    },
    /// A later entry's completion has taken the place.
    Gone,
}

impl EntryCompletion {
    /// What a place holds before its first completion.
    pub const NONE: u64 = 0xff << 56 | (EntryStatus::WRITING as u64) << 32;

    /// The first word, once the second is written.
    #[inline]
    #[must_use]
    pub fn head_word(&self, shape: &QueueShape, index: u64) -> u64 {
        first_word(shape, index, self.status.to_bits(), self.op)
    }

    /// The first word while the second is being written.
    #[inline]
    #[must_use]
    pub fn writing_word(shape: &QueueShape, index: u64) -> u64 {
        Self::writing_of(first_word(shape, index, 0, 0))
    }

    /// The same of the first word that it will be.
    #[inline]
    #[must_use]
    pub const fn writing_of(head: u64) -> u64 {
        head & !(0xff_ffff << 32) | (EntryStatus::WRITING as u64) << 32
    }

    /// Reads a first word, as far as it concerns an index.
    #[must_use]
    pub fn read_owner(shape: &QueueShape, index: u64, head: u64) -> CompletionOwner {
        let (low, rest) = split_halves(head);
        let status = rest as u16;
        let op = (rest >> 16) as u8;
        let owner = (rest >> 24) as u8;
        let ahead = low.wrapping_sub(index as u32) as i32;
        if owner > 1 || ahead < 0 {
            return CompletionOwner::NotYet;
        }
        if ahead > 0 || owner != shape.owner_bit(index) {
            return CompletionOwner::Gone;
        }
        match status {
            EntryStatus::WRITING => CompletionOwner::NotYet,
            status => CompletionOwner::Here { status: EntryStatus::from_bits(status), op },
        }
    }
}

#[inline]
fn first_word(shape: &QueueShape, index: u64, status: u16, op: u8) -> u64 {
    let rest = u32::from(status) | u32::from(op) << 16 | u32::from(shape.owner_bit(index)) << 24;
    join_halves(index as u32, rest)
}
