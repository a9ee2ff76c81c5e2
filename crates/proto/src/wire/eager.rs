//! The header of an eager message, from which the receiver finds the buffer by itself. The comm code encodes and parses it for each eager message.
//! Layout: "Eager header" of docs/wire.md.

use crate::wire::cursor::{FieldReader, ShortInput};

/// Size of the header in bytes.
pub const BYTES: usize = 16;

/// Longest payload of a header, in bytes (28 bits).
pub const LEN_MAX: u32 = (1 << 28) - 1;

/// The header of an eager message: kind in bits 28-31 of the first word, then the fields below.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EagerHeader {
    /// Offset 4, 4 bytes: number of the eager message in its comm, from 0, wrapping.
    pub number: u32,
    /// Offset 8, 4 bytes: the first receive number that the sender had not read when it sent.
    pub base: u32,
    /// Offset 12, 4 bytes: the tag of the message.
    pub tag: u32,
    /// Offset 0, bits 0-27: payload in bytes.
    pub len: u32,
}

/// Why a header is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EagerError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// The kind is not the expected one.
    #[error("unknown kind of eager message {0}")]
    Kind(u8),
}

impl EagerHeader {
    /// Returns the header's bytes. A length beyond [`LEN_MAX`] loses its upper bits; no sender passes one.
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

    /// Parses a header.
    ///
    /// # Errors
    /// [`EagerError`] names the invalid field.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EagerError> {
        Self::of_kind(1, bytes)
    }

    /// Parses a header of that kind.
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
        fn values_round_trip(number: u32, base: u32, tag: u32, len in 0..=LEN_MAX) {
            let header = EagerHeader { number, base, tag, len };
            prop_assert_eq!(EagerHeader::from_bytes(&header.to_bytes()), Ok(header));
            prop_assert_eq!(EagerHeader::from_bytes(&header.to_bytes()[..15]), Err(EagerError::Short(ShortInput)));
        }
    }
}
