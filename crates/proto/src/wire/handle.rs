//! The 128 bytes that `listen` makes and the application carries to the connecting process.

use alloc::vec::Vec;

use crate::id::ProcessId;
use crate::limits::RAILS_MAX;
use crate::wire::cursor::{Reader, Short, Writer};

/// Bytes of a handle (`NCCL_NET_HANDLE_MAXSIZE`).
pub const BYTES: usize = 128;

/// Most bytes of a control address.
pub const ADDRESS_MAX: usize = 48;

const MAGIC: [u8; 4] = *b"TRKL";
const VERSION: u16 = 1;
const STATE: core::ops::Range<usize> = 56..64;

/// A listener, as the connecting process needs it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Handle {
    /// The listening process.
    pub process: ProcessId,
    /// Proves that a connecting process was given this handle.
    pub nonce: [u8; 16],
    /// NICs the listening process takes for the comm, 1 to 4.
    pub rails: u8,
    /// Which listener.
    pub listen: u64,
    /// Where its control streams are accepted, at most [`ADDRESS_MAX`] bytes.
    pub address: Vec<u8>,
    /// The attempt under way, 0 if none.
    pub attempt: u64,
}

/// A handle could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HandleError {
    /// It was not made by Trunkline.
    #[error("not a handle of this plugin")]
    Foreign,
    /// It was made by another version of Trunkline.
    #[error("made by version {0} of the handle format, this is version {VERSION}")]
    Version(u16),
    /// Its parts contradict each other.
    #[error("malformed")]
    Malformed,
}

impl From<Short> for HandleError {
    fn from(_: Short) -> Self {
        Self::Malformed
    }
}

impl Handle {
    /// The handle's bytes. An address that is too long is cut, which no reader accepts.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut out = Writer::default();
        out.bytes(&MAGIC).u16(VERSION).u16(u16::try_from(self.address.len()).unwrap_or(u16::MAX));
        out.bytes(&self.process.0).bytes(&self.nonce).u32(0).u8(self.rails).bytes(&[0; 3]);
        out.u64(self.listen).u64(self.attempt);
        out.bytes(&self.address[..self.address.len().min(ADDRESS_MAX)]);
        let mut bytes = [0; BYTES];
        bytes[..out.0.len()].copy_from_slice(&out.0);
        bytes
    }

    /// Reads a handle. Bytes 40 to 43 are not looked at.
    ///
    /// # Errors
    /// [`HandleError`] says what is wrong.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<Self, HandleError> {
        let mut reader = Reader(bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(HandleError::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(HandleError::Version(version));
        }
        let used = usize::from(reader.u16()?);
        if used == 0 || used > ADDRESS_MAX {
            return Err(HandleError::Malformed);
        }
        let (process, nonce) = (ProcessId(reader.array()?), reader.array()?);
        reader.array::<4>()?;
        let [rails, ..] = reader.array::<4>()?;
        if rails == 0 || usize::from(rails) > RAILS_MAX {
            return Err(HandleError::Malformed);
        }
        let (listen, attempt) = (reader.u64()?, reader.u64()?);
        Ok(Self { process, nonce, rails, listen, address: reader.bytes(used)?.to_vec(), attempt })
    }

    /// Writes the attempt under way into a handle's bytes.
    pub fn set_attempt(bytes: &mut [u8; BYTES], attempt: u64) {
        bytes[STATE].copy_from_slice(&attempt.to_le_bytes());
    }
}
