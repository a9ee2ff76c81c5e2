//! Atomics that the owner of a word executes: what is asked, and what became of it.

use crate::limits::RMA_CALLS_MAX;
use crate::rma::atomic::{Action, Atomic, Type};
use crate::wire::cursor::Reader;
use crate::wire::rma::word::{self, Word};
use crate::wire::rma::{First, MessageError, Stream, zero};

pub(super) const REQUEST: u8 = 4;
pub(super) const REPLY: u8 = 5;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 32;

/// Bytes of a reply.
pub const REPLY_BYTES: usize = 16;

const FETCHES: u8 = 1 << 7;

/// Where the initiator waits for a reply: a slot, and which use of it. The target executes each use of a slot once.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Slot {
    number: u8,
    generation: u16,
}

impl Slot {
    /// `None` if there is no slot of that number, which is one below [`RMA_CALLS_MAX`].
    #[must_use]
    pub const fn new(number: u8, generation: u16) -> Option<Self> {
        if (number as usize) < RMA_CALLS_MAX { Some(Self { number, generation }) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.number
    }

    /// Its place in a table of [`RMA_CALLS_MAX`].
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.number as usize & (RMA_CALLS_MAX - 1)
    }

    /// Which use of it; wraps.
    #[must_use]
    pub const fn generation(self) -> u16 {
        self.generation
    }
}

/// Asks the owner of a word for an atomic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// For which stream of the sender; atomics keep no order, not even with their own stream's signals.
    pub stream: Stream,
    /// Where the reply goes.
    pub slot: Slot,
    word: Word,
    atomic: Atomic,
}

/// What became of an atomic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It was executed. The value before, if it fetches; otherwise 0.
    Done(u64),
    /// The owner has no such word.
    Refused,
}

/// Answers a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reply {
    /// Of which stream the request was.
    pub stream: Stream,
    /// Where it goes.
    pub slot: Slot,
    /// What became of it.
    pub outcome: Outcome,
}

impl Request {
    /// `None` if the word has another width than the type.
    #[must_use]
    pub fn new(stream: Stream, slot: Slot, word: Word, atomic: Atomic) -> Option<Self> {
        (word.width() == atomic.kind().width()).then_some(Self { stream, slot, word, atomic })
    }

    /// Which word; as wide as the atomic's type.
    #[must_use]
    pub const fn word(&self) -> Word {
        self.word
    }

    /// What to do.
    #[must_use]
    pub const fn atomic(&self) -> Atomic {
        self.atomic
    }

    /// The request's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let (op, operand, expect) = match self.atomic.action() {
            Action::Fetch => (1, 0, 0),
            Action::Set(value) => (2, value, 0),
            Action::Add(value) => (3, value, 0),
            Action::And(value) => (4, value, 0),
            Action::Or(value) => (5, value, 0),
            Action::Xor(value) => (6, value, 0),
            Action::CompareSwap { expect, swap } => (7, swap, expect),
        };
        let kind = match self.atomic.kind() {
            Type::I32 => 1,
            Type::I64 => 2,
            Type::U32 => 3,
            Type::U64 => 4,
            Type::F32 => 5,
            Type::F64 => 6,
        };
        let fetches = if self.atomic.fetches() { FETCHES } else { 0 };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&First::bytes(self.stream, op | fetches, REQUEST));
        (bytes[4], bytes[5]) = (self.slot.number, kind);
        bytes[6..8].copy_from_slice(&self.slot.generation.to_le_bytes());
        bytes[8] = self.word.heap();
        bytes[10..16].copy_from_slice(&word::six_bytes(self.word.offset()));
        bytes[16..24].copy_from_slice(&operand.to_le_bytes());
        bytes[24..32].copy_from_slice(&expect.to_le_bytes());
        bytes
    }

    pub(super) fn read(first: First, reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let number = reader.u8()?;
        let kind = reader.u8()?;
        let generation = reader.u16()?;
        let heap = reader.u8()?;
        let reserved = reader.u8()?;
        let offset = word::six(reader)?;
        let operand = reader.u64()?;
        let expect = reader.u64()?;
        zero(reserved.into())?;
        let unknown = MessageError::Operation { op: first.how, kind };
        let slot = Slot::new(number, generation).ok_or(MessageError::Slot(number))?;
        let kind = match kind {
            1 => Type::I32,
            2 => Type::I64,
            3 => Type::U32,
            4 => Type::U64,
            5 => Type::F32,
            6 => Type::F64,
            _ => return Err(unknown),
        };
        let op = first.how & !FETCHES;
        let action = match op {
            1 => zero(operand).map(|()| Action::Fetch)?,
            2 => Action::Set(operand),
            3 => Action::Add(operand),
            4 => Action::And(operand),
            5 => Action::Or(operand),
            6 => Action::Xor(operand),
            7 => Action::CompareSwap { expect, swap: operand },
            _ => return Err(unknown),
        };
        if op != 7 {
            zero(expect)?;
        }
        for value in [operand, expect] {
            if !kind.width().holds(value) {
                return Err(MessageError::Operand(value));
            }
        }
        let atomic = Atomic::new(kind, action, first.how & FETCHES != 0).ok_or(unknown)?;
        let word = Word::new(heap, offset, kind.width())?;
        Ok(Self { stream: first.stream, slot, word, atomic })
    }
}

impl Reply {
    /// The reply's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REPLY_BYTES] {
        let (status, value) = match self.outcome {
            Outcome::Done(value) => (0, value),
            Outcome::Refused => (1, 0),
        };
        let mut bytes = [0; REPLY_BYTES];
        bytes[0..4].copy_from_slice(&First::bytes(self.stream, status, REPLY));
        bytes[4] = self.slot.number;
        bytes[6..8].copy_from_slice(&self.slot.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    pub(super) fn read(first: First, reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let number = reader.u8()?;
        let reserved = reader.u8()?;
        let generation = reader.u16()?;
        let value = reader.u64()?;
        zero(reserved.into())?;
        let slot = Slot::new(number, generation).ok_or(MessageError::Slot(number))?;
        let outcome = match first.how {
            0 => Outcome::Done(value),
            1 => zero(value).map(|()| Outcome::Refused)?,
            how => return Err(MessageError::Operation { op: how, kind: 0 }),
        };
        Ok(Self { stream: first.stream, slot, outcome })
    }
}
