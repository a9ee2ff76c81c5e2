//! Bytes of this process that a message is copied from, or to.

use trunkline_mem::Memory;
use trunkline_mem::ipc::{At, CopyError, IpcMemory, Mapped, To};

/// Bytes of this process. They stay as they are, and are nobody else's, while a message uses them.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// Inside one own allocation of the node's kind of memory, which others can map.
    Own {
        /// Address of the first.
        addr: usize,
        /// How many.
        len: u64,
    },
    /// Any other memory that the CPU may touch.
    Other {
        /// The memory.
        memory: Memory,
        /// The first byte in it.
        at: u64,
        /// How many.
        len: u64,
    },
}

impl From<Memory> for Buffer {
    fn from(memory: Memory) -> Self {
        let len = memory.len() as u64;
        Self::Other { memory, at: 0, len }
    }
}

impl Buffer {
    /// Bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u64 {
        match self {
            Self::Own { len, .. } | Self::Other { len, .. } => *len,
        }
    }

    /// Whether it has none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes of another process's memory that is mapped to `offset` here.
    pub(crate) fn get<M: IpcMemory>(
        &self,
        of: &M,
        offset: u64,
        from: (&Mapped, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        let from = At::Open(from.0, from.1);
        match self {
            Self::Own { addr, .. } => of.copy(from, To::Own(plus(*addr, offset)), len as usize),
            Self::Other { memory, at, .. } => of.copy(from, To::Memory(memory, at + offset), len as usize),
        }
    }

    /// Copies bytes from `offset` here to another process's memory that is mapped.
    pub(crate) fn put<M: IpcMemory>(
        &self,
        of: &M,
        offset: u64,
        to: (&Mapped, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        match self {
            Self::Own { addr, .. } => {
                of.copy(At::Own(plus(*addr, offset)), To::Open(to.0, to.1), len as usize)
            }
            Self::Other { memory, at, .. } => {
                of.fill(At::Open(to.0, to.1), memory, at + offset, len as usize)
            }
        }
    }

    /// Copies bytes from `offset` here to memory that both processes have.
    #[inline]
    pub(crate) fn stage<M: IpcMemory>(
        &self,
        of: &M,
        offset: u64,
        to: (&Memory, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        match self {
            Self::Own { addr, .. } => {
                of.copy(At::Own(plus(*addr, offset)), To::Memory(to.0, to.1), len as usize)
            }
            Self::Other { memory, at, .. } => {
                to.0.copy_from(to.1, memory, at + offset, len).map_err(|_| outside(*at + offset, len))
            }
        }
    }

    /// Copies bytes from memory that both processes have to `offset` here.
    #[inline]
    pub(crate) fn unstage<M: IpcMemory>(
        &self,
        of: &M,
        offset: u64,
        from: (&Memory, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        match self {
            Self::Own { addr, .. } => of.fill(At::Own(plus(*addr, offset)), from.0, from.1, len as usize),
            Self::Other { memory, at, .. } => {
                memory.copy_from(at + offset, from.0, from.1, len).map_err(|_| outside(*at + offset, len))
            }
        }
    }

    /// Copies bytes of this process's own to `offset` here.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn write<M: IpcMemory>(&self, of: &M, offset: u64, bytes: &[u8]) -> Result<(), CopyError> {
        match self {
            Self::Own { addr, .. } => of.write(At::Own(plus(*addr, offset)), bytes),
            Self::Other { memory, at, .. } => {
                memory.write(at + offset, bytes).map_err(|_| outside(*at + offset, bytes.len() as u64))
            }
        }
    }

    /// Copies bytes from `offset` here.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn read<M: IpcMemory>(&self, of: &M, offset: u64, into: &mut [u8]) -> Result<(), CopyError> {
        match self {
            Self::Own { addr, .. } => of.read(At::Own(plus(*addr, offset)), into),
            Self::Other { memory, at, .. } => {
                memory.read(at + offset, into).map_err(|_| outside(*at + offset, into.len() as u64))
            }
        }
    }

    /// Copies all of it to the begin of another buffer of this process, which is as long or longer.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy<M: IpcMemory>(&self, of: &M, into: &Self) -> Result<(), CopyError> {
        match into {
            Self::Own { addr, .. } => match self {
                Self::Own { addr: from, len } => of.copy(At::Own(*from), To::Own(*addr), *len as usize),
                Self::Other { memory, at, len } => of.fill(At::Own(*addr), memory, *at, *len as usize),
            },
            Self::Other { memory, at, .. } => self.stage(of, 0, (memory, *at), self.len()),
        }
    }

    /// Whether its bytes are where it says.
    pub(crate) fn is_there<M: IpcMemory>(&self, of: &M) -> bool {
        match self {
            Self::Own { addr, len } => {
                let found = of.allocation_of(*addr).ok();
                let room = found.and_then(|found| Some(found.len - found.offset_of(*addr)?));
                room.is_some_and(|room| *len <= room as u64)
            }
            Self::Other { memory, at, len } => memory.checked(*at, *len).is_ok(),
        }
    }
}

const fn plus(addr: usize, offset: u64) -> usize {
    addr.saturating_add(offset as usize)
}

const fn outside(at: u64, len: u64) -> CopyError {
    CopyError::Outside { at, len: len as usize }
}
