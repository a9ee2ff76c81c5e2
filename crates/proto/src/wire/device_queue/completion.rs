//! The completion of an entry: 16 bytes, two words.

use super::layout::Shape;
use super::status::Status;
use super::{halves, word};

/// A completion, as it is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// How the entry ended.
    pub status: Status,
    /// The number of its operation, as it stood in the entry.
    pub op: u8,
    /// The value before, of an operation that brings one back.
    pub value: u64,
}

/// What the first word of a completion's place says about an index.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Owner {
    /// The entry of this index has not completed, or its completion is being written.
    NotYet,
    /// It has; the value may be read now, and is good if the first word is still this one afterwards.
    Here {
        /// How it ended.
        status: Status,
        /// Its operation.
        op: u8,
    },
    /// A later entry's completion has taken the place.
    Gone,
}

impl Completion {
    /// What a place holds before its first completion.
    pub const NONE: u64 = 0xff << 56 | (Status::WRITING as u64) << 32;

    /// The first word, once the second is written.
    #[inline]
    #[must_use]
    pub fn head(&self, shape: &Shape, index: u64) -> u64 {
        first(shape, index, self.status.to_bits(), self.op)
    }

    /// The first word while the second is being written.
    #[inline]
    #[must_use]
    pub fn writing(shape: &Shape, index: u64) -> u64 {
        Self::writing_of(first(shape, index, 0, 0))
    }

    /// The same of the first word that it will be.
    #[inline]
    #[must_use]
    pub const fn writing_of(head: u64) -> u64 {
        head & !(0xff_ffff << 32) | (Status::WRITING as u64) << 32
    }

    /// Reads a first word, as far as it concerns an index.
    #[must_use]
    pub fn owner(shape: &Shape, index: u64, head: u64) -> Owner {
        let (low, rest) = halves(head);
        let status = rest as u16;
        let op = (rest >> 16) as u8;
        let owner = (rest >> 24) as u8;
        let ahead = low.wrapping_sub(index as u32) as i32;
        if owner > 1 || ahead < 0 {
            return Owner::NotYet;
        }
        if ahead > 0 || owner != shape.owner(index) {
            return Owner::Gone;
        }
        match status {
            Status::WRITING => Owner::NotYet,
            status => Owner::Here { status: Status::from_bits(status), op },
        }
    }
}

#[inline]
fn first(shape: &Shape, index: u64, status: u16, op: u8) -> u64 {
    let rest = u32::from(status) | u32::from(op) << 16 | u32::from(shape.owner(index)) << 24;
    word(index as u32, rest)
}
