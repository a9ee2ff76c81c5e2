//! Atomics that the owner of a word executes: requests and replies.

use crate::limits::RMA_CALLS_MAX;
use crate::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use crate::wire::cursor::FieldReader;
use crate::wire::rma::word::{self, SymmetricWord};
use crate::wire::rma::{RmaHeader, RmaMessageError, RmaStream, check_zero};

pub(super) const REQUEST: u8 = 4;
pub(super) const REPLY: u8 = 5;

/// Size of a request in bytes.
pub const REQUEST_BYTES: usize = 32;

/// Size of a reply in bytes.
pub const REPLY_BYTES: usize = 16;

const FETCHES: u8 = 1 << 7;

/// The slot in which the initiator waits for a reply: number at offset 4 (1 byte) and generation at offset 6 (2 bytes). The target executes each use
/// of a slot once.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ReplySlot {
    number: u8,
    generation: u16,
}

impl ReplySlot {
    /// Creates a slot; `None` if the number is not below [`RMA_CALLS_MAX`].
    #[must_use]
    pub const fn new(number: u8, generation: u16) -> Option<Self> {
        if (number as usize) < RMA_CALLS_MAX { Some(Self { number, generation }) } else { None }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.number
    }

    /// Returns its index in a table of [`RMA_CALLS_MAX`] entries.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.number as usize & (RMA_CALLS_MAX - 1)
    }

    /// Returns its generation: which use of the slot; wraps.
    #[must_use]
    pub const fn generation(self) -> u16 {
        self.generation
    }
}

/// Requests an atomic from the owner of a word (32 bytes). Operation at byte 2 (bit 7: fetching), type at offset 5 (1 byte), heap at 8 (1), offset at
/// 10 (6), operand at 16 (8), expected value at 24 (8).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicRequest {
    /// The sender's stream. Atomics are unordered, also with respect to the signals of their stream.
    pub stream: RmaStream,
    /// The slot that waits for the reply.
    pub slot: ReplySlot,
    word: SymmetricWord,
    atomic: TypedAtomic,
}

/// The outcome of an atomic (byte 2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOutcome {
    /// 0: it was executed. The old value if it fetches, otherwise 0 (8 bytes at offset 8).
    Done(u64),
    /// 1: the owner has no such word.
    Refused,
}

/// The reply to a request (16 bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicReply {
    /// The stream of the request.
    pub stream: RmaStream,
    /// The slot that waits for the reply.
    pub slot: ReplySlot,
    /// The outcome.
    pub outcome: AtomicOutcome,
}

impl AtomicRequest {
    /// Creates a request; `None` if the word does not have the width of the type.
    #[must_use]
    pub fn new(stream: RmaStream, slot: ReplySlot, word: SymmetricWord, atomic: TypedAtomic) -> Option<Self> {
        (word.width() == atomic.atomic_type().word_width()).then_some(Self { stream, slot, word, atomic })
    }

    /// Returns the word, which is as wide as the atomic's type.
    #[must_use]
    pub const fn word(&self) -> SymmetricWord {
        self.word
    }

    /// Returns the atomic.
    #[must_use]
    pub const fn atomic(&self) -> TypedAtomic {
        self.atomic
    }

    /// Returns the request's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let (op, operand, expect) = match self.atomic.action() {
            AtomicAction::Fetch => (1, 0, 0),
            AtomicAction::Set(value) => (2, value, 0),
            AtomicAction::Add(value) => (3, value, 0),
            AtomicAction::And(value) => (4, value, 0),
            AtomicAction::Or(value) => (5, value, 0),
            AtomicAction::Xor(value) => (6, value, 0),
            AtomicAction::CompareSwap { expect, swap } => (7, swap, expect),
        };
        let kind = match self.atomic.atomic_type() {
            AtomicType::I32 => 1,
            AtomicType::I64 => 2,
            AtomicType::U32 => 3,
            AtomicType::U64 => 4,
            AtomicType::F32 => 5,
            AtomicType::F64 => 6,
        };
        let fetches = if self.atomic.is_fetching() { FETCHES } else { 0 };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&RmaHeader::encode_header(self.stream, op | fetches, REQUEST));
        (bytes[4], bytes[5]) = (self.slot.number, kind);
        bytes[6..8].copy_from_slice(&self.slot.generation.to_le_bytes());
        bytes[8] = self.word.heap();
        bytes[10..16].copy_from_slice(&word::six_bytes(self.word.offset()));
        bytes[16..24].copy_from_slice(&operand.to_le_bytes());
        bytes[24..32].copy_from_slice(&expect.to_le_bytes());
        bytes
    }

    pub(super) fn from_reader(
        first: RmaHeader,
        reader: &mut FieldReader<'_>,
    ) -> Result<Self, RmaMessageError> {
        let number = reader.u8()?;
        let kind = reader.u8()?;
        let generation = reader.u16()?;
        let heap = reader.u8()?;
        let reserved = reader.u8()?;
        let offset = word::read_six_bytes(reader)?;
        let operand = reader.u64()?;
        let expect = reader.u64()?;
        check_zero(reserved.into())?;
        let unknown = RmaMessageError::Operation { op: first.how, kind };
        let slot = ReplySlot::new(number, generation).ok_or(RmaMessageError::Slot(number))?;
        let kind = match kind {
            1 => AtomicType::I32,
            2 => AtomicType::I64,
            3 => AtomicType::U32,
            4 => AtomicType::U64,
            5 => AtomicType::F32,
            6 => AtomicType::F64,
            _ => return Err(unknown),
        };
        let op = first.how & !FETCHES;
        let action = match op {
            1 => check_zero(operand).map(|()| AtomicAction::Fetch)?,
            2 => AtomicAction::Set(operand),
            3 => AtomicAction::Add(operand),
            4 => AtomicAction::And(operand),
            5 => AtomicAction::Or(operand),
            6 => AtomicAction::Xor(operand),
            7 => AtomicAction::CompareSwap { expect, swap: operand },
            _ => return Err(unknown),
        };
        if op != 7 {
            check_zero(expect)?;
        }
        for value in [operand, expect] {
            if !kind.word_width().can_hold(value) {
                return Err(RmaMessageError::Operand(value));
            }
        }
        let atomic = TypedAtomic::new(kind, action, first.how & FETCHES != 0).ok_or(unknown)?;
        let word = SymmetricWord::new(heap, offset, kind.word_width())?;
        Ok(Self { stream: first.stream, slot, word, atomic })
    }
}

impl AtomicReply {
    /// Returns the reply's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REPLY_BYTES] {
        let (status, value) = match self.outcome {
            AtomicOutcome::Done(value) => (0, value),
            AtomicOutcome::Refused => (1, 0),
        };
        let mut bytes = [0; REPLY_BYTES];
        bytes[0..4].copy_from_slice(&RmaHeader::encode_header(self.stream, status, REPLY));
        bytes[4] = self.slot.number;
        bytes[6..8].copy_from_slice(&self.slot.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    pub(super) fn from_reader(
        first: RmaHeader,
        reader: &mut FieldReader<'_>,
    ) -> Result<Self, RmaMessageError> {
        let number = reader.u8()?;
        let reserved = reader.u8()?;
        let generation = reader.u16()?;
        let value = reader.u64()?;
        check_zero(reserved.into())?;
        let slot = ReplySlot::new(number, generation).ok_or(RmaMessageError::Slot(number))?;
        let outcome = match first.how {
            0 => AtomicOutcome::Done(value),
            1 => check_zero(value).map(|()| AtomicOutcome::Refused)?,
            how => return Err(RmaMessageError::Operation { op: how, kind: 0 }),
        };
        Ok(Self { stream: first.stream, slot, outcome })
    }
}
