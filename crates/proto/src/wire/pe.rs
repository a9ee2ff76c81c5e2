//! What a process with symmetric memory tells the others of its job about that memory: on which host it is, and what others of the same host
//! find it by. Made and read by `shmem` when a job starts; says nothing about how the memory is reached over a network.

use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};

/// Bytes of it.
pub const PE_BYTES: usize = 128;
/// Ranges of symmetric memory: the heap, the static variables of the program, and what the library needs itself.
pub const SEGMENTS: usize = 3;

const MAGIC: [u8; 4] = *b"TRPE";
const VERSION: u16 = 2;

/// One range of a process's symmetric memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SymmetricSegment {
    /// Its bytes.
    pub len: u64,
    /// The number of the memory file that it is; 0 for one that nobody else can map.
    pub inode: u64,
    /// The descriptor of that file in its process.
    pub fd: u32,
}

/// A process and its memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeRecord {
    /// The same for processes that can map each other's memory, and for no others.
    pub node: [u8; 24],
    /// The number of the process.
    pub pid: u32,
    /// Its memory.
    pub segments: [SymmetricSegment; SEGMENTS],
}

/// Bytes are no description of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PeError {
    /// Fewer bytes, or more.
    #[error("wrong length")]
    Length,
    /// It is not one of Trunkline's.
    #[error("not a process of Trunkline's OpenSHMEM")]
    Foreign,
    /// Another version made it.
    #[error("version {0}, and this is {VERSION}: all processes need the same library")]
    Version(u16),
}

impl From<ShortInput> for PeError {
    fn from(_: ShortInput) -> Self {
        Self::Length
    }
}

impl PeRecord {
    /// Its bytes.
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

    /// Reads one.
    ///
    /// # Errors
    /// [`PeError`] says what is wrong.
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
    fn what_is_said_is_heard_and_nothing_shorter_or_longer() {
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
    fn others_are_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = pe().to_bytes();
            bytes[at] = value;
            PeRecord::from_bytes(&bytes)
        };
        assert_eq!(with(3, b'X'), Err(PeError::Foreign));
        assert_eq!(with(4, 1), Err(PeError::Version(1)));
    }
}
