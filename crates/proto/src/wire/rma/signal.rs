//! Signals, and what acknowledges them.

use crate::wire::cursor::FieldReader;
use crate::wire::rma::word::{self, SymmetricWord, WordWidth};
use crate::wire::rma::{RmaHeader, RmaMessageError, RmaStream, check_zero};

pub(super) const SIGNAL: u8 = 1;
pub(super) const ACK: u8 = 2;
pub(super) const ASK: u8 = 3;

/// Bytes of a signal.
pub const SIGNAL_BYTES: usize = 32;

/// Bytes of an acknowledgement, and of what asks for one.
pub const ACK_BYTES: usize = 16;

/// The lowest bits of the number of an epoch that a message carries.
pub const NUMBER_BITS: u32 = 48;

const AT_ONCE: u8 = 1 << 7;

/// What a signal does to its word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum UpdateOp {
    /// Replaces it.
    Set,
    /// Adds to it, wrapping.
    Add,
    /// Replaces it if the value is greater, both taken as unsigned.
    Max,
}

/// What a signal does, and to which word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SignalUpdate {
    op: UpdateOp,
    word: SymmetricWord,
    value: u64,
}

impl SignalUpdate {
    /// `None` if the value is wider than the word.
    #[must_use]
    pub const fn new(op: UpdateOp, word: SymmetricWord, value: u64) -> Option<Self> {
        if word.width().can_hold(value) { Some(Self { op, word, value }) } else { None }
    }

    /// What it does.
    #[must_use]
    pub const fn op(self) -> UpdateOp {
        self.op
    }

    /// To which word.
    #[must_use]
    pub const fn word(self) -> SymmetricWord {
        self.word
    }

    /// The value, with no bits beyond the word's width.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.value
    }
}

/// So many epochs of a stream were applied: all whose number is below.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SignalAck {
    /// Of which stream of whom this is sent to.
    pub stream: RmaStream,
    /// Its lowest [`NUMBER_BITS`]; higher ones are 0. Whole enough never to be taken for a later one, however late it is.
    pub number: u64,
}

/// Asks for an acknowledgement as soon as so many epochs were applied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AckRequest {
    /// Of which stream of whom sends this.
    pub stream: RmaStream,
    /// Its lowest [`NUMBER_BITS`]; higher ones are 0.
    pub number: u64,
}

/// A signal: ends an epoch of its stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SignalMessage {
    /// Of which stream.
    pub stream: RmaStream,
    /// Ends which epoch: the lowest bits of its number.
    pub epoch: u16,
    /// How many writes carry that epoch.
    pub count: u32,
    /// What it does.
    pub update: SignalUpdate,
    /// Whether it is to be acknowledged as soon as it was applied.
    pub at_once: bool,
    /// Acknowledges signals of the other direction. One whose number is 0 is not carried.
    pub ack: Option<SignalAck>,
}

impl SignalMessage {
    /// Whether both are the same signal, whatever acknowledgements ride on them.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Self { ack: None, ..*self } == Self { ack: None, ..*other }
    }

    /// The signal's bytes.
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
    /// The acknowledgement as a message by itself.
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
    /// The message's bytes.
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
