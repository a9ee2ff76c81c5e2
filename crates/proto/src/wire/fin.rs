//! The fin record: the length of a message, and the number of announced writes that carried it. The sender writes it into the receiver's fin mailbox,
//! or sends it as a message of its own. Layout: "Fin record" of docs/wire.md.

use crate::limits::STRIPES_MAX;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::imm::BufferToken;

/// Size of a record in bytes.
pub const BYTES: usize = 32;

/// Size in bytes of a record that is a message of its own.
pub const MESSAGE_BYTES: usize = 16 + BYTES;

/// The first word of such a message: kind 3 in bits 28-31, where eager headers have 1 or 2.
const KIND: u32 = 3 << 28;

/// A fin record (32 bytes, of which the last 16 are reserved).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FinRecord {
    /// Offset 0, 8 bytes: length of the message in bytes.
    pub len: u64,
    /// Offset 8, 4 bytes: stripes announced by immediates, at most [`STRIPES_MAX`]; 0 when all bytes are placed.
    pub stripes: u8,
    /// Offset 12, 4 bytes: token of the buffer.
    pub token: BufferToken,
}

/// Why a record is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FinError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// It announces more stripes than [`STRIPES_MAX`].
    #[error("{0} stripes in one message exceed the limit")]
    Stripes(u32),
    /// The message is not a fin record, or its two tokens differ.
    #[error("{0:#x} does not begin a fin record")]
    Kind(u32),
    /// A reserved word is not zero.
    #[error("a reserved word of a fin record is {0:#x}")]
    Reserved(u64),
}

impl FinRecord {
    /// Returns the record's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.stripes).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.token.to_bits().to_le_bytes());
        bytes
    }

    /// Returns the record as a message of its own.
    #[must_use]
    pub fn to_message(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0..4].copy_from_slice(&KIND.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.token.to_bits().to_le_bytes());
        bytes[16..].copy_from_slice(&self.to_bytes());
        bytes
    }

    /// Parses a message that carries a record.
    ///
    /// # Errors
    /// [`FinError`] names the invalid field.
    pub fn from_message(bytes: &[u8]) -> Result<Self, FinError> {
        let mut reader = FieldReader(bytes);
        let kind = reader.u32()?;
        let token = reader.u32()?;
        let reserved = reader.u64()?;
        if kind != KIND {
            return Err(FinError::Kind(kind));
        }
        let record = Self::from_bytes(reader.0)?;
        match reserved {
            0 if token == record.token.to_bits() => Ok(record),
            0 => Err(FinError::Kind(token)),
            _ => Err(FinError::Reserved(reserved)),
        }
    }

    /// Parses a record.
    ///
    /// # Errors
    /// [`FinError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FinError> {
        let mut reader = FieldReader(bytes);
        let len = reader.u64()?;
        let stripes = reader.u32()?;
        let token = reader.u32()?;
        match u8::try_from(stripes) {
            Ok(stripes) if usize::from(stripes) <= STRIPES_MAX => {
                Ok(Self { len, stripes, token: BufferToken::from_bits(token) })
            }
            _ => Err(FinError::Stripes(stripes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_record_is_rejected_as_a_message() {
        let record = FinRecord { len: 1 << 40, stripes: 0, token: BufferToken::new(5, 7) };
        let message = record.to_message();
        assert_eq!(FinRecord::from_message(&message), Ok(record));
        assert!(matches!(FinRecord::from_message(&message[..MESSAGE_BYTES - 20]), Err(FinError::Short(_))));
        let with = |at: usize, byte: u8| {
            let mut bytes = message;
            bytes[at] = byte;
            FinRecord::from_message(&bytes)
        };
        assert_eq!(
            with(3, 0x10),
            Err(FinError::Kind(0x1000_0000)),
            "an eager message was read as a fin record"
        );
        assert_eq!(with(0, 1), Err(FinError::Kind(0x3000_0001)));
        assert!(matches!(with(4, 6), Err(FinError::Kind(_))), "a fin record of another buffer was accepted");
        assert_eq!(with(8, 9), Err(FinError::Reserved(9)));
        assert_eq!(with(24, 17), Err(FinError::Stripes(17)));
    }
}
