//! Bytes that a message is sent from, or received into.

use trunkline_engine::ipc::Buffer as Inner;
use trunkline_mem::Memory;

use super::MessageError;

/// Bytes of this rank. Cheap to clone; clones are the same bytes. Private ones live as long as a clone or a message that uses them.
#[derive(Clone, Debug)]
pub struct Buffer(Inner);

impl Buffer {
    /// New zeroed bytes of this rank alone: others cannot map them.
    #[must_use]
    pub fn private(len: usize) -> Self {
        Self(Memory::heap(len).into())
    }

    /// Bytes inside one allocation of the kind of memory that messages were started with. Who frees it while a message uses it, or sends
    /// what it has freed, is told.
    #[must_use]
    pub const fn own(addr: usize, len: usize) -> Self {
        Self(Inner::Own { addr, len: len as u64 })
    }

    /// Some of its bytes.
    ///
    /// # Errors
    /// [`MessageError::Range`].
    pub fn part(&self, from: usize, len: usize) -> Result<Self, MessageError> {
        let range = MessageError::Range { from, len, all: self.len() };
        if from.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(range);
        }
        Ok(Self(match &self.0 {
            Inner::Own { addr, .. } => Inner::Own { addr: addr + from, len: len as u64 },
            Inner::Other { memory, at, .. } => {
                Inner::Other { memory: memory.clone(), at: at + from as u64, len: len as u64 }
            }
        }))
    }

    /// Where it begins, if it is of the kind of memory of its messages.
    #[must_use]
    pub const fn address(&self) -> Option<usize> {
        match &self.0 {
            Inner::Own { addr, .. } => Some(*addr),
            Inner::Other { .. } => None,
        }
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
        let (memory, at) = self.memory(at, bytes.len())?;
        // It is inside.
        let _ = memory.write(at, bytes);
        Ok(())
    }

    /// Copies bytes out, of private memory.
    ///
    /// # Errors
    /// As [`Buffer::write`].
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), MessageError> {
        let (memory, at) = self.memory(at, into.len())?;
        let _ = memory.read(at, into);
        Ok(())
    }

    fn memory(&self, from: usize, len: usize) -> Result<(&Memory, u64), MessageError> {
        let all = self.len();
        if from.checked_add(len).is_none_or(|end| end > all) {
            return Err(MessageError::Range { from, len, all });
        }
        match &self.0 {
            Inner::Own { .. } => Err(MessageError::Kind),
            Inner::Other { memory, at, .. } => Ok((memory, at + from as u64)),
        }
    }

    #[inline]
    pub(super) const fn inner(&self) -> &Inner {
        &self.0
    }
}
