//! Messages of one-sided communication: signals and what acknowledges them, and atomics that the owner of a word executes.
//! All begin with one word that no eager message and no fin record begins with (docs/wire.md, "One-sided messages").

pub mod atomic;
pub mod signal;
pub mod word;

use crate::limits::RMA_STREAMS_MAX;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::rma::atomic::{AtomicReply, AtomicRequest};
use crate::wire::rma::signal::{AckRequest, SignalAck, SignalMessage};
use crate::wire::rma::word::WordError;

/// Bytes of the longest message: what NICs of today copy into a send.
pub const BYTES_MAX: usize = 32;

const VERSION: u8 = 1;

/// The kind of the first word, where eager messages have 1 and 2 and fin records 3.
const KIND: u8 = 4;

/// Which of the streams of an initiator towards a target: its number is the context's, below
/// [`RMA_STREAMS_MAX`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RmaStream(u8);

impl RmaStream {
    /// The stream of that number.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < RMA_STREAMS_MAX { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its place in a table of [`RMA_STREAMS_MAX`].
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize & (RMA_STREAMS_MAX - 1)
    }
}

/// Any of the messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RmaMessage {
    /// A signal.
    Signal(SignalMessage),
    /// How many signals were applied.
    Ack(SignalAck),
    /// Asks for an acknowledgement at once.
    Ask(AckRequest),
    /// Asks the owner of a word for an atomic.
    Request(AtomicRequest),
    /// What became of one.
    Reply(AtomicReply),
}

/// A message could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RmaMessageError {
    /// It ends too early.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// It goes on after its end.
    #[error("a one-sided message of {0} bytes")]
    Long(usize),
    /// It is none of these messages.
    #[error("a message of kind {0:#x}")]
    Kind(u8),
    /// It was made by another version.
    #[error("a one-sided message of version {0}")]
    Version(u8),
    /// There is no such stream.
    #[error("there is no stream {0}")]
    Stream(u8),
    /// What is reserved in it is not zero.
    #[error("reserved bits are set")]
    Reserved,
    /// The word it names cannot be.
    #[error(transparent)]
    Word(#[from] WordError),
    /// An operation that does not exist, or not for that type.
    #[error("operation {op:#x} on type {kind}")]
    Operation {
        /// Byte 2 of the message.
        op: u8,
        /// The type, or the size of a signal as a power of two.
        kind: u8,
    },
    /// An operand is wider than its type.
    #[error("operand {0:#x} is too wide")]
    Operand(u64),
    /// There is no such slot for a reply.
    #[error("there is no slot {0}")]
    Slot(u8),
}

/// What the first word says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RmaHeader {
    pub(super) stream: RmaStream,
    /// Means something else in each message.
    pub(super) how: u8,
    /// Which message.
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
    /// Reads a message of exactly these bytes.
    ///
    /// # Errors
    /// [`RmaMessageError`] says what is wrong.
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

    /// The message's bytes, and how many of them it has.
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
