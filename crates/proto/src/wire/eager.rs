//! The header of an eager message: what the receiver needs to find the buffer by itself.

use crate::wire::cursor::{FieldReader, ShortInput};

/// Bytes of the header.
pub const BYTES: usize = 16;

/// Most payload bytes a header can tell.
pub const LEN_MAX: u32 = (1 << 28) - 1;

/// An eager message's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EagerHeader {
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
    Short(#[from] ShortInput),
    /// It is of an unknown kind.
    #[error("unknown kind of eager message {0}")]
    Kind(u8),
}

impl EagerHeader {
    /// The header's bytes; a length beyond [`LEN_MAX`] is cut, which no sender asks for.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..4].copy_from_slice(&(1 << 28 | self.len & LEN_MAX).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.base.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`EagerError`] says what is wrong.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EagerError> {
        Self::of_kind(1, bytes)
    }

    /// Reads a header of that kind.
    #[inline]
    pub(crate) fn of_kind(wanted: u32, bytes: &[u8]) -> Result<Self, EagerError> {
        let mut reader = FieldReader(bytes);
        let first = reader.u32()?;
        let number = reader.u32()?;
        let base = reader.u32()?;
        let tag = reader.u32()?;
        match first >> 28 {
            kind if kind == wanted => Ok(Self { number, base, tag, len: first & LEN_MAX }),
            kind => Err(EagerError::Kind(kind as u8)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn reads_back(number: u32, base: u32, tag: u32, len in 0..=LEN_MAX) {
            let header = EagerHeader { number, base, tag, len };
            prop_assert_eq!(EagerHeader::from_bytes(&header.to_bytes()), Ok(header));
            prop_assert_eq!(EagerHeader::from_bytes(&header.to_bytes()[..15]), Err(EagerError::Short(ShortInput)));
        }
    }
}
