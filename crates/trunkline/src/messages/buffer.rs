//! Buffers: the bytes that a message is sent from or received into.

use trunkline_mem::MemoryRange;
use trunkline_node::ipc::MessageBuffer as Inner;
use trunkline_proto::tagged::StridedRows;

use super::MessageError;

/// Bytes of this rank. Clones are cheap, and refer to the same bytes. Private bytes live as long as a clone, or a
/// message that uses them.
#[derive(Clone, Debug)]
pub struct Buffer(Inner);

impl From<MemoryRange> for Buffer {
    /// Refers to all bytes of a range of memory, which the buffer keeps alive.
    fn from(memory: MemoryRange) -> Self {
        Self(memory.into())
    }
}

impl Buffer {
    /// Allocates zeroed bytes for this rank alone. Other ranks cannot map them.
    ///
    /// # Errors
    /// [`MessageError::Buffer`] when the system has no memory for them.
    ///
    /// # Examples
    /// ```
    /// use trunkline::messages::Buffer;
    ///
    /// let buffer = Buffer::private(4096)?;
    /// let mut first = [1; 4];
    /// buffer.read(0, &mut first)?;
    /// assert_eq!(first, [0; 4]);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn private(len: usize) -> Result<Self, MessageError> {
        Ok(Self(MemoryRange::try_heap(len)?.into()))
    }

    /// Refers to bytes inside one allocation of the kind of memory that the messages were started with. That kind
    /// checks each copy against its allocations: a caller that frees the allocation while a message uses it, or sends
    /// freed memory, receives an error.
    ///
    /// If that kind is all private memory, no address can be checked. Such a buffer is rejected with
    /// [`MessageError::Outside`]: use [`Buffer::private`], or [`Buffer::from`] for a [`MemoryRange`] of the program.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let address = messages.memory().alloc(1 << 20)?;
    /// let buffer = Buffer::from_address(address, 1 << 20);
    /// let second_half = Buffer::from_address(address + (1 << 19), 1 << 19);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub const fn from_address(addr: usize, len: usize) -> Self {
        Self(Inner::from_own(addr, len as u64))
    }

    /// Returns a buffer of `len` of its bytes, from `from` on.
    ///
    /// # Errors
    /// [`MessageError::Range`] if the bytes are not inside this buffer, or it is in rows.
    ///
    /// # Examples
    /// ```
    /// use trunkline::messages::Buffer;
    ///
    /// let buffer = Buffer::private(4096)?;
    /// let header = buffer.part(0, 64)?;
    /// header.write(0, b"v1")?;
    /// let mut version = [0; 2];
    /// buffer.read(0, &mut version)?; // Both have the same bytes.
    /// assert_eq!(&version, b"v1");
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn part(&self, from: usize, len: usize) -> Result<Self, MessageError> {
        let part = self.0.sub_buffer(from as u64, len as u64).map(Self);
        part.ok_or(MessageError::Range { from, len, all: self.len() })
    }

    /// Returns a buffer of rows: `block` bytes each, their starts `stride` bytes apart, as a column of a matrix.
    /// The first row begins at the first byte; bytes after the last whole row are excluded. A message contains the
    /// rows one after another, and the receiver may have other rows than the sender. A buffer in rows has no parts.
    ///
    /// # Errors
    /// [`MessageError::Rows`] if rows are empty or overlap, or the buffer is in rows already.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// // A matrix of 100 rows of 100 elements, each of 8 bytes.
    /// let matrix = Buffer::private(8 * 100 * 100)?;
    /// let from = 8 * 5; // Column 5 begins at element 5 of the first row.
    /// let column = matrix.part(from, matrix.len() - from)?.in_rows(8, 8 * 100)?;
    /// assert_eq!(column.len(), 8 * 100);
    /// let sending = messages.isend(1, 7, &column)?;
    /// messages.wait(sending)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn in_rows(&self, block: usize, stride: usize) -> Result<Self, MessageError> {
        let rows = StridedRows::new(block as u64, stride as u64).filter(|_| self.0.rows().is_whole());
        rows.map(|rows| Self(self.0.in_rows(rows))).ok_or(MessageError::Rows { block, stride })
    }

    /// Returns the address of the first byte, if the buffer is of the kind of memory of its messages.
    ///
    /// # Examples
    /// ```
    /// use trunkline::messages::Buffer;
    ///
    /// let shared = Buffer::from_address(0x7000, 64);
    /// assert_eq!(shared.address(), Some(0x7000));
    /// assert_eq!(Buffer::private(64)?.address(), None);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        self.0.own_address()
    }

    /// Returns the number of bytes.
    ///
    /// # Examples
    /// ```
    /// use trunkline::messages::Buffer;
    ///
    /// let buffer = Buffer::private(100)?;
    /// assert_eq!(buffer.len(), 100);
    /// assert_eq!(buffer.in_rows(8, 16)?.len(), 6 * 8); // The gaps do not count.
    /// assert!(buffer.part(100, 0)?.is_empty());
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len() as usize
    }

    /// Returns whether the buffer has no bytes.
    ///
    /// See [`Buffer::len`] for an example.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies bytes into a private buffer, from `at` on. [`Messages::write`](super::Messages::write) does so for any
    /// memory.
    ///
    /// # Errors
    /// [`MessageError::Range`]; [`MessageError::Kind`] if the buffer is not private.
    ///
    /// # Examples
    /// ```
    /// use trunkline::messages::Buffer;
    ///
    /// let buffer = Buffer::private(16)?;
    /// buffer.write(4, b"text")?;
    /// assert!(buffer.write(14, b"text").is_err()); // Nothing is written.
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), MessageError> {
        let (memory, at) = self.private_memory(at, bytes.len())?;
        // The check above excludes an error.
        let _ = memory.write(at, bytes);
        Ok(())
    }

    /// Copies bytes out of a private buffer, from `at` on. [`Messages::read`](super::Messages::read) does so for any
    /// memory.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    ///
    /// # Examples
    /// ```
    /// use trunkline::messages::Buffer;
    ///
    /// let buffer = Buffer::private(16)?;
    /// buffer.write(4, b"text")?;
    /// let mut bytes = [0; 4];
    /// buffer.read(4, &mut bytes)?;
    /// assert_eq!(&bytes, b"text");
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Checks that the buffer has `len` bytes from `from` on.
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
