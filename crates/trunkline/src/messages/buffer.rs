//! Bytes that a message is sent from, or received into.

use trunkline_mem::MemoryRange;
use trunkline_node::ipc::MessageBuffer as Inner;
use trunkline_proto::tagged::StridedRows;

use super::MessageError;

/// Bytes of this rank. Cheap to clone; clones are the same bytes. Private ones live as long as a clone or a message that uses them.
#[derive(Clone, Debug)]
pub struct Buffer(Inner);

impl From<MemoryRange> for Buffer {
    /// All bytes of a range of memory, which the buffer keeps.
    fn from(memory: MemoryRange) -> Self {
        Self(memory.into())
    }
}

impl Buffer {
    /// New zeroed bytes of this rank alone: others cannot map them.
    ///
    /// # Errors
    /// [`MessageError::Buffer`] when the system has no memory for them.
    pub fn private(len: usize) -> Result<Self, MessageError> {
        Ok(Self(MemoryRange::try_heap(len)?.into()))
    }

    /// Bytes inside one allocation of the kind of memory that messages were started with. That kind checks each copy against the memory that it has
    /// allocated: a caller that frees the allocation while a message uses it, or sends freed memory, receives an error.
    ///
    /// Where that kind is all private memory, no address can be checked so, and such a buffer is refused as not there: use
    /// [`Buffer::private`], or [`Buffer::from`] for a [`MemoryRange`] of the program.
    #[must_use]
    pub const fn from_address(addr: usize, len: usize) -> Self {
        Self(Inner::from_own(addr, len as u64))
    }

    /// Some of its bytes.
    ///
    /// # Errors
    /// [`MessageError::Range`].
    pub fn part(&self, from: usize, len: usize) -> Result<Self, MessageError> {
        let part = self.0.sub_buffer(from as u64, len as u64).map(Self);
        part.ok_or(MessageError::Range { from, len, all: self.len() })
    }

    /// Those of its bytes that stand in rows of `block` bytes, each `stride` behind the one before: a column of a matrix. The first row is at its
    /// begin; what is behind the last whole row is left out. It is sent and received as its rows one behind another, and a receive may have
    /// other rows than what is sent. Has no parts.
    ///
    /// # Errors
    /// [`MessageError::Rows`].
    pub fn in_rows(&self, block: usize, stride: usize) -> Result<Self, MessageError> {
        let rows = StridedRows::new(block as u64, stride as u64).filter(|_| self.0.rows().is_whole());
        rows.map(|rows| Self(self.0.in_rows(rows))).ok_or(MessageError::Rows { block, stride })
    }

    /// Where it begins, if it is of the kind of memory of its messages.
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        self.0.own_address()
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len() as usize
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies bytes in, of private memory. Of any memory [`Messages::write`](super::Messages::write) does.
    ///
    /// # Errors
    /// [`MessageError::Range`]; [`MessageError::Kind`] if it is not private.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), MessageError> {
        let (memory, at) = self.private_memory(at, bytes.len())?;
        // It is inside.
        let _ = memory.write(at, bytes);
        Ok(())
    }

    /// Copies bytes out, of private memory.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), MessageError> {
        let (memory, at) = self.private_memory(at, into.len())?;
        let _ = memory.read(at, into);
        Ok(())
    }

    fn private_memory(&self, from: usize, len: usize) -> Result<(&MemoryRange, u64), MessageError> {
        self.check_range(from, len)?;
        let (memory, at) = self.0.other_memory().ok_or(MessageError::Kind)?;
        Ok((memory, at + from as u64))
    }

    /// Whether it has that many bytes from one on.
    pub(super) fn check_range(&self, from: usize, len: usize) -> Result<(), MessageError> {
        let all = self.len();
        let inside = from.checked_add(len).is_some_and(|end| end <= all);
        if inside { Ok(()) } else { Err(MessageError::Range { from, len, all }) }
    }

    #[inline]
    pub(super) const fn ipc_buffer(&self) -> &Inner {
        &self.0
    }
}
