//! The header of an eager message: what the receiver needs to find the buffer by itself.

use crate::wire::cursor::{Reader, Short};

/// Bytes of the header.
pub const BYTES: usize = 32;

/// An eager message's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Eager {
    /// Counts eager messages of the comm, wrapping.
    pub number: u32,
    /// First receive number the sender had not seen.
    pub base: u32,
    /// The message's tag.
    pub tag: u32,
    /// Payload bytes.
    pub len: u32,
}

/// A header could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EagerError {
    /// It ends too early.
    #[error(transparent)]
    Short(#[from] Short),
    /// It is of an unknown kind.
    #[error("unknown kind of eager message {0}")]
    Kind(u8),
}

impl Eager {
    /// The header's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = 1;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.base.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`EagerError`] says what is wrong.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EagerError> {
        let mut reader = Reader(bytes);
        let [kind, ..] = reader.array::<4>()?;
        if kind != 1 {
            return Err(EagerError::Kind(kind));
        }
        let (number, base, tag, len) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        reader.array::<12>()?;
        Ok(Self { number, base, tag, len })
    }
}
