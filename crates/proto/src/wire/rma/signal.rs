//! Signals, acknowledgements, and requests for acknowledgements.

use crate::wire::cursor::FieldReader;
use crate::wire::rma::word::{self, SymmetricWord, WordWidth};
use crate::wire::rma::{RmaHeader, RmaMessageError, RmaStream, check_zero};

pub(super) const SIGNAL: u8 = 1;
pub(super) const ACK: u8 = 2;
pub(super) const ASK: u8 = 3;

/// Size of a signal in bytes.
pub const SIGNAL_BYTES: usize = 32;

/// Size in bytes of an acknowledgement, and of a request for one.
pub const ACK_BYTES: usize = 16;

/// Number of low bits of an epoch's number in an acknowledgement.
pub const NUMBER_BITS: u32 = 48;

const AT_ONCE: u8 = 1 << 7;

/// The operation of a signal on its word (bits 0-1 of byte 2).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum UpdateOp {
    /// 0: replaces the word.
    Set,
    /// 1: adds to the word, wrapping.
    Add,
    /// 2: replaces the word if the value is greater, both as unsigned numbers.
    Max,
}

/// The update of a signal: an operation, a word and a value.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SignalUpdate {
    op: UpdateOp,
    word: SymmetricWord,
    value: u64,
}

impl SignalUpdate {
    /// Creates an update; `None` if the value is wider than the word.
    #[must_use]
    pub const fn new(op: UpdateOp, word: SymmetricWord, value: u64) -> Option<Self> {
        if word.width().can_hold(value) { Some(Self { op, word, value }) } else { None }
    }

    /// Returns the operation.
    #[must_use]
    pub const fn op(self) -> UpdateOp {
        self.op
    }

    /// Returns the word.
    #[must_use]
    pub const fn word(self) -> SymmetricWord {
        self.word
    }

    /// Returns the value, which has no bits beyond the word's width.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.value
    }
}

/// An acknowledgement (16 bytes): all epochs of a stream below a number were applied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SignalAck {
    /// Offset 0, 1 byte: the stream, one of the receiver's.
    pub stream: RmaStream,
    /// Offset 8, 6 bytes: the lowest [`NUMBER_BITS`] bits of the number; higher bits are 0. Wide enough that a late acknowledgement is never valid as
    /// a later one.
    pub number: u64,
}

/// Requests an acknowledgement as soon as all epochs below a number are applied (16 bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AckRequest {
    /// Offset 0, 1 byte: the stream, one of the sender's.
    pub stream: RmaStream,
    /// Offset 8, 6 bytes: the lowest [`NUMBER_BITS`] bits of the number; higher bits are 0.
    pub number: u64,
}

/// A signal (32 bytes), which ends an epoch of its stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SignalMessage {
    /// Offset 0, 1 byte: the stream.
    pub stream: RmaStream,
    /// Offset 4, 2 bytes: the lowest 16 bits of the number of the epoch that it ends.
    pub epoch: u16,
    /// Offset 8, 4 bytes: how many counted writes carry that epoch.
    pub count: u32,
    /// The update: operation and width in byte 2 (bits 0-1 and 2-3), heap at offset 6 (1 byte), value at 16 (8), offset of the word at 24 (6).
    pub update: SignalUpdate,
    /// Byte 2, bit 7: whether the target acknowledges it as soon as it is applied.
    pub at_once: bool,
    /// An acknowledgement of signals of the other direction: its stream at offset 7 (1 byte), bits 0-31 of its number at 12 (4), bits 32-47 at 30
    /// (2). A number of 0 is not carried.
    pub ack: Option<SignalAck>,
}

impl SignalMessage {
    /// Returns whether both are the same signal, apart from piggybacked acknowledgements.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Self { ack: None, ..*self } == Self { ack: None, ..*other }
    }

    /// Returns the signal's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SIGNAL_BYTES] {
        let op = match self.update.op {
            UpdateOp::Set => 0,
            UpdateOp::Add => 1,
            UpdateOp::Max => 2,
        };
        let word = self.update.word;
        let width = match word.width() {
            WordWidth::Four => 2,
            WordWidth::Eight => 3,
        };
        let at_once = if self.at_once { AT_ONCE } else { 0 };
        let ack = self.ack.filter(|ack| ack.number != 0);
        let (ack_stream, ack) = ack.map_or((0, 0), |ack| (ack.stream.number(), ack.number));
        let ack = word::six_bytes(ack);
        let mut bytes = [0; SIGNAL_BYTES];
        bytes[0..4].copy_from_slice(&RmaHeader::encode_header(
            self.stream,
            op | width << 2 | at_once,
            SIGNAL,
        ));
        bytes[4..6].copy_from_slice(&self.epoch.to_le_bytes());
        (bytes[6], bytes[7]) = (word.heap(), ack_stream);
        bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..16].copy_from_slice(&ack[..4]);
        bytes[16..24].copy_from_slice(&self.update.value.to_le_bytes());
        bytes[24..30].copy_from_slice(&word::six_bytes(word.offset()));
        bytes[30..32].copy_from_slice(&ack[4..]);
        bytes
    }

    pub(super) fn from_reader(
        first: RmaHeader,
        reader: &mut FieldReader<'_>,
    ) -> Result<Self, RmaMessageError> {
        let epoch = reader.u16()?;
        let heap = reader.u8()?;
        let ack_stream = reader.u8()?;
        let count = reader.u32()?;
        let ack_low = reader.u32()?;
        let value = reader.u64()?;
        let offset = word::read_six_bytes(reader)?;
        let ack = u64::from(reader.u16()?) << 32 | u64::from(ack_low);
        let op = first.how & 3;
        let kind = first.how >> 2 & 3;
        let unknown = RmaMessageError::Operation { op: first.how, kind };
        check_zero(u64::from(first.how & 0x70))?;
        let op = match op {
            0 => UpdateOp::Set,
            1 => UpdateOp::Add,
            2 => UpdateOp::Max,
            _ => return Err(unknown),
        };
        let width = match kind {
            2 => WordWidth::Four,
            3 => WordWidth::Eight,
            _ => return Err(unknown),
        };
        let ack = match ack {
            0 => check_zero(ack_stream.into()).map(|()| None)?,
            number => {
                let stream = RmaStream::new(ack_stream).ok_or(RmaMessageError::Stream(ack_stream))?;
                Some(SignalAck { stream, number })
            }
        };
        let word = SymmetricWord::new(heap, offset, width)?;
        let update = SignalUpdate::new(op, word, value).ok_or(RmaMessageError::Operand(value))?;
        Ok(Self { stream: first.stream, epoch, count, update, at_once: first.how & AT_ONCE != 0, ack })
    }
}

impl SignalAck {
    /// Returns the acknowledgement as a message of its own.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ACK_BYTES] {
        encode_number(RmaHeader::encode_header(self.stream, 0, ACK), self.number)
    }

    pub(super) fn from_reader(
        first: RmaHeader,
        reader: &mut FieldReader<'_>,
    ) -> Result<Self, RmaMessageError> {
        Ok(Self { stream: first.stream, number: read_number(first, reader)? })
    }
}

impl AckRequest {
    /// Returns the message's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ACK_BYTES] {
        encode_number(RmaHeader::encode_header(self.stream, 0, ASK), self.number)
    }

    pub(super) fn from_reader(
        first: RmaHeader,
        reader: &mut FieldReader<'_>,
    ) -> Result<Self, RmaMessageError> {
        Ok(Self { stream: first.stream, number: read_number(first, reader)? })
    }
}

fn encode_number(first: [u8; 4], number: u64) -> [u8; ACK_BYTES] {
    let mut bytes = [0; ACK_BYTES];
    bytes[0..4].copy_from_slice(&first);
    bytes[8..14].copy_from_slice(&word::six_bytes(number));
    bytes
}

fn read_number(first: RmaHeader, reader: &mut FieldReader<'_>) -> Result<u64, RmaMessageError> {
    let reserved = reader.u32()?;
    let number = word::read_six_bytes(reader)?;
    let last = reader.u16()?;
    check_zero(u64::from(first.how) | u64::from(reserved) | u64::from(last))?;
    Ok(number)
}
