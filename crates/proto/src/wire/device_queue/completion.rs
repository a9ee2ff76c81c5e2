//! The completion of an entry: 16 bytes, two words ("Completion" of docs/wire.md).

use super::layout::QueueShape;
use super::status::EntryStatus;
use super::{join_halves, split_halves};

/// A completion, as parsed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EntryCompletion {
    /// Word 0, bits 32-47: how the entry ended.
    pub status: EntryStatus,
    /// Word 0, bits 48-55: the number of its operation, copied from the entry.
    pub op: u8,
    /// Word 1: the old value, for an operation that fetches; otherwise 0.
    pub value: u64,
}

/// The state of a completion's place with respect to an index, by its first word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionOwner {
    /// The entry of this index has not completed, or its completion is being written.
    NotYet,
    /// It has completed. The caller reads the value now; the value is valid if the first word is unchanged afterwards.
    Here {
        /// How it ended.
        status: EntryStatus,
        /// Its operation.
        op: u8,
    },
    /// The place contains the completion of a later entry.
    Gone,
}

impl EntryCompletion {
    /// The first word of a place before its first completion.
    pub const NONE: u64 = 0xff << 56 | (EntryStatus::WRITING as u64) << 32;

    /// Returns the first word, to be stored after the second one.
    #[inline]
    #[must_use]
    pub fn head_word(&self, shape: &QueueShape, index: u64) -> u64 {
        first_word(shape, index, self.status.to_bits(), self.op)
    }

    /// Returns the first word while the second one is being written.
    #[inline]
    #[must_use]
    pub fn writing_word(shape: &QueueShape, index: u64) -> u64 {
        Self::writing_of(first_word(shape, index, 0, 0))
    }

    /// Returns the first word while the second one is being written, from the final first word.
    #[inline]
    #[must_use]
    pub const fn writing_of(head: u64) -> u64 {
        head & !(0xff_ffff << 32) | (EntryStatus::WRITING as u64) << 32
    }

    /// Parses a first word with respect to an index.
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
