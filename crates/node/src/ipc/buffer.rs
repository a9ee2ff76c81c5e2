//! The bytes of this process that a message is copied from or to. Used by the node and by the tagged endpoint. A
//! buffer does not keep memory of the node's kind allocated.

use std::sync::Arc;

use trunkline_mem::ipc::{CopyBatch, CopyError, CopyPlace, CopyTarget, IpcMemory, OpenedHandle};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_proto::tagged::{RowRuns, StridedRows};

/// Bytes of this process, contiguous or in rows at equal distances. While a message uses them, they must stay
/// allocated and must not be used otherwise.
#[derive(Clone, Debug)]
pub struct MessageBuffer {
    stand: BufferLayout,
    len: u64,
}

/// The layout. Rows are behind a pointer: waiting messages are moved, and most of them have no rows.
#[derive(Clone, Debug)]
enum BufferLayout {
    Row(BufferOrigin),
    Rows(Arc<(BufferOrigin, StridedRows)>),
}

/// Where the bytes are.
#[derive(Clone, Debug)]
enum BufferOrigin {
    /// Inside one allocation of this process, of the node's kind of memory, which neighbours can map: the address of
    /// the first byte. The kind checks each copy against its allocations. A kind of private memory could not hold
    /// such a check for the duration of a message, so there the address is refused.
    Own(usize),
    /// Any other memory that the CPU may access: the offset of the first byte in it.
    Other(MemoryRange, u64),
}

/// Mapped bytes of another process: the offset of the first byte in the mapping, and their layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRows<'a> {
    pub(crate) mapped: &'a OpenedHandle,
    pub(crate) at: u64,
    pub(crate) rows: StridedRows,
}

/// Where bytes of a message are staged: an offset in memory that both processes share, or in a buffer that keeps a
/// message for its receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageOffset<'a> {
    pub(crate) memory: &'a MemoryRange,
    pub(crate) at: u64,
}

impl From<MemoryRange> for MessageBuffer {
    fn from(memory: MemoryRange) -> Self {
        let len = memory.len() as u64;
        Self::from_memory(memory, 0, len)
    }
}

impl MessageBuffer {
    /// Bytes inside one allocation of this process, of the node's kind of memory, which neighbours can map. On a node
    /// whose kind is all private memory, such a buffer is invalid ([`MessageBuffer::is_there`]): construct it from a
    /// [`MemoryRange`], which keeps the memory.
    #[must_use]
    pub const fn from_own(addr: usize, len: u64) -> Self {
        Self { stand: BufferLayout::Row(BufferOrigin::Own(addr)), len }
    }

    /// Bytes of any other memory that the CPU may access, from an offset on.
    #[must_use]
    pub const fn from_memory(memory: MemoryRange, at: u64, len: u64) -> Self {
        Self { stand: BufferLayout::Row(BufferOrigin::Other(memory, at)), len }
    }

    /// Selects those bytes that are in such rows, from the first byte on; bytes behind the last whole row are left
    /// out.
    #[must_use]
    pub fn in_rows(&self, rows: StridedRows) -> Self {
        let len = rows.whole_in(self.len);
        let place = self.place_and_rows().0.clone();
        let stand = if rows.is_whole() {
            BufferLayout::Row(place)
        } else {
            BufferLayout::Rows(Arc::new((place, rows)))
        };
        Self { stand, len }
    }

    /// Returns a part of the bytes; `None` if it is not inside one row of the buffer.
    #[must_use]
    pub fn sub_buffer(&self, from: u64, len: u64) -> Option<Self> {
        let inside = from.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside {
            return None;
        }
        let BufferLayout::Row(place) = &self.stand else { return None };
        let place = match place {
            BufferOrigin::Own(addr) => BufferOrigin::Own(add_offset(*addr, from)),
            BufferOrigin::Other(memory, at) => BufferOrigin::Other(memory.clone(), at + from),
        };
        Some(Self { stand: BufferLayout::Row(place), len })
    }

    /// Returns the length in bytes, without the gaps between rows.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the buffer is empty.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the layout.
    #[inline]
    #[must_use]
    pub fn rows(&self) -> StridedRows {
        self.place_and_rows().1
    }

    /// Calls `copy` for each part that is contiguous at both ends: from byte `done` of this buffer on, and in the
    /// rows of the other end.
    #[inline]
    fn for_each_run(
        &self,
        there: StridedRows,
        done: u64,
        len: u64,
        mut copy: impl FnMut(&BufferOrigin, [u64; 2], u64) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        match &self.stand {
            BufferLayout::Row(place) if there.is_whole() => copy(place, [done, done], len),
            _ => {
                let (place, rows) = self.place_and_rows();
                RowRuns::new([rows, there], done, len).try_for_each(|(places, len)| copy(place, places, len))
            }
        }
    }

    #[inline]
    fn place_and_rows(&self) -> (&BufferOrigin, StridedRows) {
        match &self.stand {
            BufferLayout::Row(place) => (place, StridedRows::WHOLE),
            BufferLayout::Rows(both) => (&both.0, both.1),
        }
    }

    /// The address of the first byte, if it is of the node's kind of memory.
    #[inline]
    #[must_use]
    pub fn own_address(&self) -> Option<usize> {
        match self.place_and_rows().0 {
            BufferOrigin::Own(addr) => Some(*addr),
            BufferOrigin::Other(..) => None,
        }
    }

    /// The address of the first byte, if it is of any other memory that the processor reaches.
    #[inline]
    #[must_use]
    pub(crate) fn host_address(&self) -> Option<usize> {
        match self.place_and_rows().0 {
            BufferOrigin::Other(memory, at) if memory.kind() == MemoryKind::Host => {
                Some(add_offset(memory.addr(), *at))
            }
            BufferOrigin::Own(_) | BufferOrigin::Other(..) => None,
        }
    }

    /// The memory and the first byte in it, if it is other memory, and contiguous.
    #[must_use]
    pub fn other_memory(&self) -> Option<(&MemoryRange, u64)> {
        match &self.stand {
            BufferLayout::Row(BufferOrigin::Other(memory, at)) => Some((memory, *at)),
            _ => None,
        }
    }

    /// Begins to copy bytes of another process's memory to this buffer, from its byte `done` on, in a batch.
    #[inline]
    pub(crate) fn begin_get<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        there: MappedRows<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        self.for_each_run(there.rows, done, len, |place, [here, away], len| {
            let from = CopyPlace::Open(there.mapped, there.at + away);
            let to = match place {
                BufferOrigin::Own(addr) => CopyTarget::Own(add_offset(*addr, here)),
                BufferOrigin::Other(memory, at) => CopyTarget::Memory(memory, at + here),
            };
            of.begin_copy(batch, from, to, len as usize)
        })
    }

    /// Begins to copy bytes of this buffer, from its byte `done` on, to another process's memory, in a batch.
    #[inline]
    pub(crate) fn begin_put<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        there: MappedRows<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        self.for_each_run(there.rows, done, len, |place, [here, away], len| {
            let away = there.at + away;
            match place {
                BufferOrigin::Own(addr) => {
                    let from = CopyPlace::Own(add_offset(*addr, here));
                    let to = CopyTarget::Open(there.mapped, away);
                    of.begin_copy(batch, from, to, len as usize)
                }
                BufferOrigin::Other(memory, at) => {
                    of.begin_fill(batch, CopyPlace::Open(there.mapped, away), memory, at + here, len as usize)
                }
            }
        })
    }

    /// Copies bytes of this buffer, from its byte `done` on, to memory that both processes share.
    #[inline]
    pub(crate) fn copy_to_stage<M: IpcMemory>(
        &self,
        of: &M,
        done: u64,
        to_stage: StageOffset<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        let StageOffset { memory, at } = to_stage;
        self.for_each_run(StridedRows::WHOLE, done, len, |place, [here, away], len| {
            let away = at + away - done;
            match place {
                BufferOrigin::Own(addr) => {
                    of.copy(
                        CopyPlace::Own(add_offset(*addr, here)),
                        CopyTarget::Memory(memory, away),
                        len as usize,
                    )?;
                }
                BufferOrigin::Other(from, at) => {
                    memory
                        .copy_from(away, from, at + here, len)
                        .map_err(|_| outside_error(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Copies bytes from memory that both processes share to this buffer, from its byte `done` on.
    #[inline]
    pub(crate) fn copy_from_stage<M: IpcMemory>(
        &self,
        of: &M,
        done: u64,
        from_stage: StageOffset<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        let StageOffset { memory, at } = from_stage;
        self.for_each_run(StridedRows::WHOLE, done, len, |place, [here, away], len| {
            let away = at + away - done;
            match place {
                BufferOrigin::Own(addr) => {
                    of.fill_from(CopyPlace::Own(add_offset(*addr, here)), memory, away, len as usize)?
                }
                BufferOrigin::Other(into, at) => {
                    into.copy_from(at + here, memory, away, len)
                        .map_err(|_| outside_error(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Begins a copy as [`MessageBuffer::copy_to_stage`], in a batch. Bytes of other memory are copied at once.
    pub(crate) fn begin_stage<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        to_stage: StageOffset<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        let StageOffset { memory, at } = to_stage;
        self.for_each_run(StridedRows::WHOLE, done, len, |place, [here, away], len| {
            let away = at + away - done;
            match place {
                BufferOrigin::Own(addr) => {
                    let from = CopyPlace::Own(add_offset(*addr, here));
                    let to = CopyTarget::Memory(memory, away);
                    of.begin_copy(batch, from, to, len as usize)
                }
                BufferOrigin::Other(from, at) => {
                    memory.copy_from(away, from, at + here, len).map_err(|_| outside_error(*at + here, len))
                }
            }
        })
    }

    /// Begins a copy as [`MessageBuffer::copy_from_stage`], in a batch. Bytes for other memory are copied at once.
    pub(crate) fn begin_unstage<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        from_stage: StageOffset<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        let StageOffset { memory, at } = from_stage;
        self.for_each_run(StridedRows::WHOLE, done, len, |place, [here, away], len| {
            let away = at + away - done;
            match place {
                BufferOrigin::Own(addr) => {
                    of.begin_fill(batch, CopyPlace::Own(add_offset(*addr, here)), memory, away, len as usize)
                }
                BufferOrigin::Other(into, at) => {
                    into.copy_from(at + here, memory, away, len).map_err(|_| outside_error(*at + here, len))
                }
            }
        })
    }

    /// Copies bytes of a slice to this buffer, from its byte `done` on.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn write_bytes<M: IpcMemory>(&self, of: &M, done: u64, bytes: &[u8]) -> Result<(), CopyError> {
        self.for_each_run(StridedRows::WHOLE, done, bytes.len() as u64, |place, [here, away], len| {
            let from = (away - done) as usize;
            let part = bytes.get(from..from + len as usize).unwrap_or_default();
            match place {
                BufferOrigin::Own(addr) => of.write(CopyPlace::Own(add_offset(*addr, here)), part)?,
                BufferOrigin::Other(memory, at) => {
                    memory.write(at + here, part).map_err(|_| outside_error(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Copies bytes of this buffer, from its byte `done` on, into a slice.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn read_bytes<M: IpcMemory>(&self, of: &M, done: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.for_each_run(StridedRows::WHOLE, done, into.len() as u64, |place, [here, away], len| {
            let to = (away - done) as usize;
            let part = into.get_mut(to..to + len as usize).unwrap_or_default();
            match place {
                BufferOrigin::Own(addr) => of.read(CopyPlace::Own(add_offset(*addr, here)), part)?,
                BufferOrigin::Other(memory, at) => {
                    memory.read(at + here, part).map_err(|_| outside_error(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Begins to copy bytes, from byte `done` on, to another buffer of this process of at least the same length, in a
    /// batch. If both ends are other memory, the bytes are copied at once.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::Busy`] for a first copy only.
    pub fn begin_copy<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        into: &Self,
        done: u64,
        len: u64,
    ) -> Result<(), CopyError> {
        let ((place, rows), (target, target_rows)) = (self.place_and_rows(), into.place_and_rows());
        RowRuns::new([rows, target_rows], done, len).try_for_each(|([from, to], len)| match (place, target) {
            (BufferOrigin::Own(source), BufferOrigin::Own(target)) => {
                let from = CopyPlace::Own(add_offset(*source, from));
                let to = CopyTarget::Own(add_offset(*target, to));
                of.begin_copy(batch, from, to, len as usize)
            }
            (BufferOrigin::Own(source), BufferOrigin::Other(memory, at)) => {
                let from = CopyPlace::Own(add_offset(*source, from));
                let to = CopyTarget::Memory(memory, at + to);
                of.begin_copy(batch, from, to, len as usize)
            }
            (BufferOrigin::Other(memory, at), BufferOrigin::Own(target)) => {
                of.begin_fill(batch, CopyPlace::Own(add_offset(*target, to)), memory, at + from, len as usize)
            }
            (BufferOrigin::Other(source, at), BufferOrigin::Other(memory, into)) => {
                let copied = memory.copy_from(into + to, source, at + from, len);
                copied.map_err(|_| outside_error(*at + from, len))
            }
        })
    }

    /// Copies all bytes to another buffer of this process of at least the same length.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy_into<M: IpcMemory>(&self, of: &M, into: &Self) -> Result<(), CopyError> {
        let ((place, rows), (target, target_rows)) = (self.place_and_rows(), into.place_and_rows());
        for ([from, to], len) in RowRuns::new([rows, target_rows], 0, self.len) {
            match (place, target) {
                (BufferOrigin::Own(source), BufferOrigin::Own(target)) => {
                    of.copy(
                        CopyPlace::Own(add_offset(*source, from)),
                        CopyTarget::Own(add_offset(*target, to)),
                        len as usize,
                    )?;
                }
                (BufferOrigin::Own(source), BufferOrigin::Other(memory, at)) => {
                    of.copy(
                        CopyPlace::Own(add_offset(*source, from)),
                        CopyTarget::Memory(memory, at + to),
                        len as usize,
                    )?;
                }
                (BufferOrigin::Other(memory, at), BufferOrigin::Own(target)) => {
                    of.fill_from(CopyPlace::Own(add_offset(*target, to)), memory, at + from, len as usize)?;
                }
                (BufferOrigin::Other(source, at), BufferOrigin::Other(memory, into)) => {
                    let copied = memory.copy_from(into + to, source, at + from, len);
                    copied.map_err(|_| outside_error(*at + from, len))?;
                }
            }
        }
        Ok(())
    }

    /// Whether the bytes are allocated where the buffer refers to them.
    #[inline]
    pub fn is_there<M: IpcMemory>(&self, of: &M) -> bool {
        let (place, rows) = self.place_and_rows();
        let Some(span) = rows.spanned_bytes(self.len) else { return false };
        match place {
            // Peers would write to the address long after it was freed, because a reference of this process contains
            // it.
            BufferOrigin::Own(_) if of.is_everything() => false,
            BufferOrigin::Own(addr) => usize::try_from(span).is_ok_and(|span| of.holds_range(*addr, span)),
            BufferOrigin::Other(memory, at) => memory.checked_address(*at, span).is_ok(),
        }
    }
}

const fn add_offset(addr: usize, offset: u64) -> usize {
    addr.saturating_add(offset as usize)
}

const fn outside_error(at: u64, len: u64) -> CopyError {
    CopyError::Outside { at, len: len as usize }
}
