//! The handle of memory that NVSHMEM registers: its range, and its keys on each rail. `nvshmem` encodes and parses it. NVSHMEM distributes it to all
//! members, and passes the target member's handle to every operation. Layout: "Memory handle of NVSHMEM" of docs/wire.md.

use alloc::vec::Vec;

use crate::limits::RAILS_MAX;
use crate::wire::cursor::{FieldReader, ShortInput};
use crate::wire::dial::RemoteHeap;
use crate::wire::frame::RemoteRegion;

/// Size of a handle in bytes (`NVSHMEM_MEM_HANDLE_SIZE`).
pub const MEMORY_HANDLE_BYTES: usize = 512;

const MAGIC: [u8; 4] = *b"TRMH";
const VERSION: u16 = 1;
/// Bytes before the rails.
const HEAD: usize = 32;

/// A registered range of memory. The handle begins with `TRMH` and its version at offset 4 (2 bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegisteredMemory {
    /// Offset 6, 1 byte: its heap number in its process.
    pub heap: u8,
    /// Offset 8, 4 bytes: generation: which use of that number, from 1.
    pub generation: u32,
    /// Offset 16, 8 bytes: the address of its first byte in its process.
    pub base: u64,
    /// Offset 24, 8 bytes: its length in bytes.
    pub len: u64,
}

impl RegisteredMemory {
    /// Returns the offset of a range at `addr` in its process; `None` if the range is not inside this memory.
    #[must_use]
    pub fn offset_of(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.base)?;
        offset.checked_add(len).filter(|&end| end <= self.len)?;
        Some(offset)
    }
}

/// The whole handle.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemoryHandle {
    /// The memory.
    pub memory: RegisteredMemory,
    /// Offset 32, 16 bytes each: key and address by rail of its process. At least one; those beyond [`RAILS_MAX`] are not encoded. Their number is at
    /// offset 7, 1 byte.
    pub rails: Vec<RemoteRegion>,
}

/// Why the bytes are not a valid handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryHandleError {
    /// They are too short.
    #[error("the handle is cut short")]
    Short,
    /// The first bytes are not `TRMH`: another transport made the handle, or it was never written.
    #[error("the bytes are not a handle of Trunkline's")]
    Foreign,
    /// The version is not that of this code.
    #[error("the handle has version {0}, this library {VERSION}; run all processes with the same library")]
    Version(u16),
    /// The number of rails is 0 or above [`RAILS_MAX`].
    #[error("the handle has {0} rails, which is out of range")]
    Rails(u8),
    /// The generation is 0, which is reserved.
    #[error("the generation of the handle is 0, which is reserved")]
    Generation,
    /// The range reaches beyond the last address.
    #[error("{len} bytes at {base:#x} exceed the address range")]
    Range {
        /// The address of its first byte.
        base: u64,
        /// Its length in bytes.
        len: u64,
    },
}

impl From<ShortInput> for MemoryHandleError {
    fn from(_: ShortInput) -> Self {
        Self::Short
    }
}

impl MemoryHandle {
    /// Returns the handle's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MEMORY_HANDLE_BYTES] {
        let mut out = [0; MEMORY_HANDLE_BYTES];
        let RegisteredMemory { heap, generation, base, len } = self.memory;
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        (out[6], out[7]) = (heap, self.rails.len().min(RAILS_MAX) as u8);
        out[8..12].copy_from_slice(&generation.to_le_bytes());
        out[16..24].copy_from_slice(&base.to_le_bytes());
        out[24..32].copy_from_slice(&len.to_le_bytes());
        for (at, rail) in self.rails.iter().take(RAILS_MAX).enumerate() {
            let place = &mut out[HEAD + 16 * at..][..16];
            place[..8].copy_from_slice(&rail.key.to_le_bytes());
            place[8..].copy_from_slice(&rail.addr.to_le_bytes());
        }
        out
    }

    /// Parses the memory only, which every operation needs.
    ///
    /// # Errors
    /// [`MemoryHandleError`] names the invalid field.
    #[inline]
    pub fn memory_of(bytes: &[u8; MEMORY_HANDLE_BYTES]) -> Result<RegisteredMemory, MemoryHandleError> {
        let mut reader = FieldReader(bytes);
        Ok(read_head(&mut reader)?.0)
    }

    /// Parses the whole handle.
    ///
    /// # Errors
    /// [`MemoryHandleError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8; MEMORY_HANDLE_BYTES]) -> Result<Self, MemoryHandleError> {
        let mut reader = FieldReader(bytes);
        let (memory, count) = read_head(&mut reader)?;
        let mut rail = || Ok(RemoteRegion { key: reader.u64()?, addr: reader.u64()? });
        let rails = (0..count).map(|_| rail()).collect::<Result<_, ShortInput>>()?;
        Ok(Self { memory, rails })
    }

    /// Returns the heap that the engine registers, by rail.
    #[must_use]
    pub fn rail_heaps(&self) -> Vec<RemoteHeap> {
        self.rails.iter().map(|&region| RemoteHeap { len: self.memory.len, region }).collect()
    }
}

/// Parses the head: the memory, and the number of rails after it.
#[inline]
fn read_head(reader: &mut FieldReader<'_>) -> Result<(RegisteredMemory, u8), MemoryHandleError> {
    if reader.array::<4>()? != MAGIC {
        return Err(MemoryHandleError::Foreign);
    }
    let [low, high, heap, rails] = reader.array()?;
    let version = u16::from_le_bytes([low, high]);
    if version != VERSION {
        return Err(MemoryHandleError::Version(version));
    }
    if rails == 0 || usize::from(rails) > RAILS_MAX {
        return Err(MemoryHandleError::Rails(rails));
    }
    let (generation, _, base, len) = (reader.u32()?, reader.u32()?, reader.u64()?, reader.u64()?);
    if generation == 0 {
        return Err(MemoryHandleError::Generation);
    }
    base.checked_add(len).ok_or(MemoryHandleError::Range { base, len })?;
    Ok((RegisteredMemory { heap, generation, base, len }, rails))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> MemoryHandle {
        let memory =
            RegisteredMemory { heap: 9, generation: 0x0403_0201, base: 0x7000_0000_1000, len: 1 << 31 };
        let rails = [1, 2, 3, 4].map(|n| RemoteRegion { key: n, addr: n << 40 });
        MemoryHandle { memory, rails: rails.into_iter().collect() }
    }

    #[test]
    fn memory_handle_round_trips() {
        let bytes = handle().to_bytes();
        assert_eq!(MemoryHandle::from_bytes(&bytes), Ok(handle()));
        assert_eq!(MemoryHandle::memory_of(&bytes), Ok(handle().memory));
        assert_eq!(bytes[..12], [b'T', b'R', b'M', b'H', 1, 0, 9, 4, 1, 2, 3, 4]);
        assert_eq!(bytes[16..24], 0x7000_0000_1000_u64.to_le_bytes());
        assert_eq!(bytes[32..48], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(
            handle().rail_heaps()[2],
            RemoteHeap { len: 1 << 31, region: RemoteRegion { key: 3, addr: 3 << 40 } }
        );
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let with = |at: usize, value: u8| {
            let mut bytes = handle().to_bytes();
            bytes[at] = value;
            assert_eq!(MemoryHandle::memory_of(&bytes).err(), MemoryHandle::from_bytes(&bytes).err());
            MemoryHandle::from_bytes(&bytes)
        };
        assert_eq!(with(0, 0), Err(MemoryHandleError::Foreign));
        assert_eq!(with(4, 2), Err(MemoryHandleError::Version(2)));
        assert_eq!(with(7, 0), Err(MemoryHandleError::Rails(0)));
        assert_eq!(with(7, 5), Err(MemoryHandleError::Rails(5)));
        let mut far = handle();
        (far.memory.base, far.memory.len) = (u64::MAX - 10, 11);
        let range = MemoryHandleError::Range { base: u64::MAX - 10, len: 11 };
        assert_eq!(MemoryHandle::from_bytes(&far.to_bytes()), Err(range));
        far.memory.len = 10;
        assert_eq!(MemoryHandle::from_bytes(&far.to_bytes()), Ok(far));
        let mut unused = handle().to_bytes();
        unused[8..12].fill(0);
        assert_eq!(MemoryHandle::from_bytes(&unused), Err(MemoryHandleError::Generation));
    }

    #[test]
    fn range_check_matches_the_handle() {
        let memory = RegisteredMemory { heap: 0, generation: 1, base: 1000, len: 24 };
        assert_eq!((memory.offset_of(1000, 24), memory.offset_of(1023, 1)), (Some(0), Some(23)));
        assert_eq!(memory.offset_of(1024, 0), Some(24));
        for (addr, len) in [(999, 1), (1000, 25), (1024, 1), (0, 0), (u64::MAX, 2), (1001, u64::MAX)] {
            assert_eq!(memory.offset_of(addr, len), None, "{addr} {len}");
        }
    }
}
