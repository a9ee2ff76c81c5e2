//! The record by which a process with symmetric memory describes that memory to the other processes of its job. It contains the host, and the memory
//! files that processes of the same host map; it does not contain network addresses. `shmem` encodes and parses it when a job starts. Layout:
//! "Processes with symmetric memory" of docs/wire.md.

use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};

/// Size of a record in bytes.
pub const PE_BYTES: usize = 128;
/// Number of ranges of symmetric memory: the heap, the static variables of the program, and the library's internal memory.
pub const SEGMENTS: usize = 3;

const MAGIC: [u8; 4] = *b"TRPE";
const VERSION: u16 = 2;

/// One range of a process's symmetric memory (24 bytes, of which the last 4 are zero).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SymmetricSegment {
    /// Offset 0, 8 bytes: length in bytes.
    pub len: u64,
    /// Offset 8, 8 bytes: inode of its memory file; 0 if other processes cannot map it.
    pub inode: u64,
    /// Offset 16, 4 bytes: descriptor of that file in its process.
    pub fd: u32,
}

/// The record of a process (128 bytes): `TRPE`, version at offset 4 (2 bytes), then the fields in this order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeRecord {
    /// Offset 8, 24 bytes: the host. Equal for processes that can map each other's memory, and for no others.
    pub node: [u8; 24],
    /// Offset 32, 4 bytes: process number.
    pub pid: u32,
    /// Offset 40, 24 bytes each: its memory.
    pub segments: [SymmetricSegment; SEGMENTS],
}

/// Why the bytes are not the record of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PeError {
    /// The length is not [`PE_BYTES`].
    #[error("the record of a process has a wrong length")]
    Length,
    /// The first bytes are not `TRPE`.
    #[error("the record is not of a process of Trunkline's OpenSHMEM")]
    Foreign,
    /// The version is not that of this code.
    #[error("the record has version {0}, this library {VERSION}; run all processes with the same library")]
    Version(u16),
}

impl From<ShortInput> for PeError {
    fn from(_: ShortInput) -> Self {
        Self::Length
    }
}

impl PeRecord {
    /// Returns the record's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PE_BYTES] {
        let mut out = FieldWriter::default();
        out.bytes(&MAGIC).u16(VERSION).u16(0).bytes(&self.node).u32(self.pid).u32(0);
        for segment in &self.segments {
            out.u64(segment.len).u64(segment.inode).u32(segment.fd).u32(0);
        }
        let mut bytes = [0; PE_BYTES];
        bytes[..out.0.len()].copy_from_slice(&out.0);
        bytes
    }

    /// Parses a record.
    ///
    /// # Errors
    /// [`PeError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PeError> {
        if bytes.len() != PE_BYTES {
            return Err(PeError::Length);
        }
        let mut reader = FieldReader(bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(PeError::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(PeError::Version(version));
        }
        reader.u16()?;
        let (node, pid, _) = (reader.array()?, reader.u32()?, reader.u32()?);
        let mut segments = [SymmetricSegment { len: 0, inode: 0, fd: 0 }; SEGMENTS];
        for segment in &mut segments {
            (segment.len, segment.inode, segment.fd) = (reader.u64()?, reader.u64()?, reader.u32()?);
            reader.u32()?;
        }
        Ok(Self { node, pid, segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pe() -> PeRecord {
        let segment = |n: u64| SymmetricSegment { len: n << 20, inode: n, fd: n as u32 + 3 };
        PeRecord { node: [7; 24], pid: 0x0403_0201, segments: [segment(1), segment(2), segment(3)] }
    }

    #[test]
    fn messages_round_trip_at_exact_length() {
        let bytes = pe().to_bytes();
        assert_eq!(PeRecord::from_bytes(&bytes), Ok(pe()));
        assert_eq!(bytes[..8], [b'T', b'R', b'P', b'E', 2, 0, 0, 0]);
        assert_eq!((&bytes[8..32], &bytes[32..40]), (&[7; 24][..], &[1, 2, 3, 4, 0, 0, 0, 0][..]));
        assert_eq!(bytes[40..64], [0, 0, 16, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        for len in 0..bytes.len() {
            assert_eq!(PeRecord::from_bytes(&bytes[..len]), Err(PeError::Length));
        }
        assert_eq!(PeRecord::from_bytes(&[&bytes[..], &[0]].concat()), Err(PeError::Length));
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let with = |at: usize, value: u8| {
            let mut bytes = pe().to_bytes();
            bytes[at] = value;
            PeRecord::from_bytes(&bytes)
        };
        assert_eq!(with(3, b'X'), Err(PeError::Foreign));
        assert_eq!(with(4, 1), Err(PeError::Version(1)));
    }
}
