//! The fin record: how long a message was, and in how many announced writes it came. It lies in a mailbox, or is a message by
//! itself.

use crate::limits::STRIPES_MAX;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::imm::BufferToken;

/// Bytes of a record.
pub const BYTES: usize = 32;

/// Bytes of a record that is a message by itself.
pub const MESSAGE_BYTES: usize = 16 + BYTES;

/// The first word of such a message: its kind, where an eager message has another one.
const KIND: u32 = 3 << 28;

/// A fin record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FinRecord {
    /// The message's length in bytes.
    pub len: u64,
    /// Stripes announced by immediates; 0 when all bytes are placed.
    pub stripes: u8,
    /// Whose buffer.
    pub token: BufferToken,
}

/// A record could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FinError {
    /// It ends too early.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// It announces more stripes than there can be.
    #[error("{0} stripes in one message")]
    Stripes(u32),
    /// It is no message of this kind.
    #[error("no fin record, but {0:#x}")]
    Kind(u32),
    /// What is reserved in it is not zero.
    #[error("a reserved word of a fin record is {0:#x}")]
    Reserved(u64),
}

impl FinRecord {
    /// The record's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.stripes).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.token.to_bits().to_le_bytes());
        bytes
    }

    /// The record as a message by itself.
    #[must_use]
    pub fn to_message(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0..4].copy_from_slice(&KIND.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.token.to_bits().to_le_bytes());
        bytes[16..].copy_from_slice(&self.to_bytes());
        bytes
    }

    /// Reads a record that is a message by itself.
    ///
    /// # Errors
    /// [`FinError`] says what is wrong.
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

    /// Reads a record.
    ///
    /// # Errors
    /// [`FinError`] says what is wrong.
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
    fn a_record_is_a_message_only_as_it_was_made() {
        let record = FinRecord { len: 1 << 40, stripes: 0, token: BufferToken::new(5, 7) };
        let message = record.to_message();
        assert_eq!(FinRecord::from_message(&message), Ok(record));
        assert!(matches!(FinRecord::from_message(&message[..MESSAGE_BYTES - 20]), Err(FinError::Short(_))));
        let with = |at: usize, byte: u8| {
            let mut bytes = message;
            bytes[at] = byte;
            FinRecord::from_message(&bytes)
        };
        assert_eq!(with(3, 0x10), Err(FinError::Kind(0x1000_0000)), "that is an eager message");
        assert_eq!(with(0, 1), Err(FinError::Kind(0x3000_0001)));
        assert!(matches!(with(4, 6), Err(FinError::Kind(_))), "it is for another buffer");
        assert_eq!(with(8, 9), Err(FinError::Reserved(9)));
        assert_eq!(with(24, 17), Err(FinError::Stripes(17)));
    }
}
