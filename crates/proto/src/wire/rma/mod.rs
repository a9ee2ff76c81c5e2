//! Messages of one-sided communication: signals and their acknowledgements, and atomics that the owner of a word executes. Each begins with a word
//! that no eager message and no fin record begins with. The one-sided engine sends them; `rma` keeps the rules. Layout: "One-sided messages" of
//! docs/wire.md.

pub mod atomic;
pub mod signal;
pub mod word;

use crate::limits::RMA_STREAMS_MAX;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::rma::atomic::{AtomicReply, AtomicRequest};
use crate::wire::rma::signal::{AckRequest, SignalAck, SignalMessage};
use crate::wire::rma::word::WordError;

/// Longest message in bytes: the size that current NICs copy into a send.
pub const BYTES_MAX: usize = 32;

const VERSION: u8 = 1;

/// The kind in the first word (bits 4-7 of byte 3), where eager messages have 1 and 2 and fin records 3.
const KIND: u8 = 4;

/// A stream of an initiator towards a target (1 byte at offset 0): the number of the context, below [`RMA_STREAMS_MAX`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RmaStream(u8);

impl RmaStream {
    /// Returns the stream with that number; `None` if it is out of range.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < RMA_STREAMS_MAX { Some(Self(number)) } else { None }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns its index in a table of [`RMA_STREAMS_MAX`] entries.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize & (RMA_STREAMS_MAX - 1)
    }
}

/// A message: stream at offset 0 (1 byte), version at 1 (1 byte, 1), a byte that depends on the message at 2, and at 3 the kind (bits 4-7: 4) and the
/// message (bits 0-3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RmaMessage {
    /// 1 (32 bytes): a signal.
    Signal(SignalMessage),
    /// 2 (16 bytes): acknowledges applied signals.
    Ack(SignalAck),
    /// 3 (16 bytes): requests an acknowledgement.
    Ask(AckRequest),
    /// 4 (32 bytes): requests an atomic from the owner of a word.
    Request(AtomicRequest),
    /// 5 (16 bytes): the reply to an atomic's request.
    Reply(AtomicReply),
}

/// Why a message is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RmaMessageError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// Bytes follow its end.
    #[error("a one-sided message has an invalid length of {0} bytes")]
    Long(usize),
    /// The kind is unknown.
    #[error("a one-sided message has the unknown kind {0:#x}")]
    Kind(u8),
    /// The version is not that of this code.
    #[error("a one-sided message has the unknown version {0}")]
    Version(u8),
    /// The stream is out of range.
    #[error("stream {0} is out of range")]
    Stream(u8),
    /// Reserved bits are not zero.
    #[error("reserved bits are set")]
    Reserved,
    /// The word that it names is invalid.
    #[error(transparent)]
    Word(#[from] WordError),
    /// The operation is unknown, or undefined for the type.
    #[error("operation {op:#x} is unknown, or invalid for type {kind}")]
    Operation {
        /// Byte 2 of the message.
        op: u8,
        /// The type, or the size of a signal's word as a power of two.
        kind: u8,
    },
    /// An operand is wider than its type.
    #[error("operand {0:#x} has more bits than its type")]
    Operand(u64),
    /// The slot for the reply is out of range.
    #[error("slot {0} is out of range")]
    Slot(u8),
}

/// The fields of the first word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RmaHeader {
    pub(super) stream: RmaStream,
    /// Byte 2, whose meaning depends on the message.
    pub(super) how: u8,
    /// Bits 0-3 of byte 3: the message.
    what: u8,
}

impl RmaHeader {
    pub(super) const fn encode_header(stream: RmaStream, how: u8, what: u8) -> [u8; 4] {
        [stream.0, VERSION, how, KIND << 4 | what]
    }

    fn from_reader(reader: &mut FieldReader<'_>) -> Result<Self, RmaMessageError> {
        let [stream, version, how, kind] = reader.array()?;
        if kind >> 4 != KIND {
            return Err(RmaMessageError::Kind(kind));
        }
        if version != VERSION {
            return Err(RmaMessageError::Version(version));
        }
        let stream = RmaStream::new(stream).ok_or(RmaMessageError::Stream(stream))?;
        Ok(Self { stream, how, what: kind & 15 })
    }
}

impl RmaMessage {
    /// Parses a message, which occupies all of `bytes`.
    ///
    /// # Errors
    /// [`RmaMessageError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RmaMessageError> {
        let mut reader = FieldReader(bytes);
        let first = RmaHeader::from_reader(&mut reader)?;
        let message = match first.what {
            signal::SIGNAL => Self::Signal(SignalMessage::from_reader(first, &mut reader)?),
            signal::ACK => Self::Ack(SignalAck::from_reader(first, &mut reader)?),
            signal::ASK => Self::Ask(AckRequest::from_reader(first, &mut reader)?),
            atomic::REQUEST => Self::Request(AtomicRequest::from_reader(first, &mut reader)?),
            atomic::REPLY => Self::Reply(AtomicReply::from_reader(first, &mut reader)?),
            what => return Err(RmaMessageError::Kind(KIND << 4 | what)),
        };
        if reader.0.is_empty() { Ok(message) } else { Err(RmaMessageError::Long(bytes.len())) }
    }

    /// Returns the message's bytes, and its length.
    #[must_use]
    pub fn to_bytes(&self) -> ([u8; BYTES_MAX], usize) {
        fn pad_message<const N: usize>(short: [u8; N]) -> ([u8; BYTES_MAX], usize) {
            let mut bytes = [0; BYTES_MAX];
            bytes[..N].copy_from_slice(&short);
            (bytes, N)
        }
        match self {
            Self::Signal(signal) => pad_message(signal.to_bytes()),
            Self::Ack(ack) => pad_message(ack.to_bytes()),
            Self::Ask(ask) => pad_message(ask.to_bytes()),
            Self::Request(request) => pad_message(request.to_bytes()),
            Self::Reply(reply) => pad_message(reply.to_bytes()),
        }
    }
}

pub(super) const fn check_zero(bits: u64) -> Result<(), RmaMessageError> {
    if bits == 0 { Ok(()) } else { Err(RmaMessageError::Reserved) }
}

#[cfg(test)]
mod tests;
