//! Bytes of this process that a message is copied from, or to.

use std::sync::Arc;

use trunkline_mem::ipc::{At, CopyBatch, CopyError, IpcMemory, Mapped, To};
use trunkline_mem::{Kind, Memory};
use trunkline_proto::tagged::{Rows, Runs};

/// Bytes of this process, in a row or in rows at equal distances. They stay as they are, and are nobody else's, while a message uses them.
#[derive(Clone, Debug)]
pub struct Buffer {
    stand: Stand,
    len: u64,
}

/// How they stand. Rows are behind a pointer, as messages that wait are moved, and most have none.
#[derive(Clone, Debug)]
enum Stand {
    Row(Place),
    Rows(Arc<(Place, Rows)>),
}

/// Where they are.
#[derive(Clone, Debug)]
enum Place {
    /// Inside one own allocation of the node's kind of memory, which others can map: the address of the first. The kind checks each copy
    /// against the memory that it has allocated. Where all private memory is one kind, nothing can be checked so for as long as a message lasts, and
    /// the address is refused.
    Own(usize),
    /// Any other memory that the CPU may touch: the first byte in it.
    Other(Memory, u64),
}

/// Bytes of another process that are mapped here: where the first of them is in what is mapped, and how they stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct There<'a> {
    pub(crate) mapped: &'a Mapped,
    pub(crate) at: u64,
    pub(crate) rows: Rows,
}

impl From<Memory> for Buffer {
    fn from(memory: Memory) -> Self {
        let len = memory.len() as u64;
        Self::of(memory, 0, len)
    }
}

impl Buffer {
    /// Bytes inside one own allocation of the node's kind of memory, which others can map. Such a buffer is not there
    /// ([`Buffer::is_there`]) on a node whose kind is all private memory: say it by its [`Memory`], which keeps it.
    #[must_use]
    pub const fn own(addr: usize, len: u64) -> Self {
        Self { stand: Stand::Row(Place::Own(addr)), len }
    }

    /// Bytes of any other memory that the CPU may touch, from an offset on.
    #[must_use]
    pub const fn of(memory: Memory, at: u64, len: u64) -> Self {
        Self { stand: Stand::Row(Place::Other(memory, at)), len }
    }

    /// Those of its bytes that stand in such rows, the first at its begin; what is behind the last whole row is left out.
    #[must_use]
    pub fn in_rows(&self, rows: Rows) -> Self {
        let len = rows.whole_in(self.len);
        let place = self.stands().0.clone();
        let stand = if rows.is_whole() { Stand::Row(place) } else { Stand::Rows(Arc::new((place, rows))) };
        Self { stand, len }
    }

    /// Some of its bytes; `None` if it has not so many in a row.
    #[must_use]
    pub fn part(&self, from: u64, len: u64) -> Option<Self> {
        let inside = from.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside {
            return None;
        }
        let Stand::Row(place) = &self.stand else { return None };
        let place = match place {
            Place::Own(addr) => Place::Own(plus(*addr, from)),
            Place::Other(memory, at) => Place::Other(memory.clone(), at + from),
        };
        Some(Self { stand: Stand::Row(place), len })
    }

    /// Bytes, as many as are sent.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How they stand.
    #[inline]
    #[must_use]
    pub fn rows(&self) -> Rows {
        self.stands().1
    }

    /// Has bytes copied, in parts that stand in one row at both ends: from number `done` of this buffer on, with what stands in those rows.
    #[inline]
    fn each(
        &self,
        there: Rows,
        (done, len): (u64, u64),
        mut copy: impl FnMut(&Place, [u64; 2], u64) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        match &self.stand {
            Stand::Row(place) if there.is_whole() => copy(place, [done, done], len),
            _ => {
                let (place, rows) = self.stands();
                Runs::new([rows, there], done, len).try_for_each(|(places, len)| copy(place, places, len))
            }
        }
    }

    #[inline]
    fn stands(&self) -> (&Place, Rows) {
        match &self.stand {
            Stand::Row(place) => (place, Rows::WHOLE),
            Stand::Rows(both) => (&both.0, both.1),
        }
    }

    /// Where the first is, if it is of the node's kind of memory.
    #[inline]
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        match self.stands().0 {
            Place::Own(addr) => Some(*addr),
            Place::Other(..) => None,
        }
    }

    /// Where the first is, if it is of any other memory, and the processor reaches it.
    #[inline]
    #[must_use]
    pub(crate) fn host_address(&self) -> Option<usize> {
        match self.stands().0 {
            Place::Other(memory, at) if memory.kind() == Kind::Host => Some(plus(memory.addr(), *at)),
            Place::Own(_) | Place::Other(..) => None,
        }
    }

    /// The memory and the first byte in it, if it is any other memory, and in one row.
    #[must_use]
    pub fn memory(&self) -> Option<(&Memory, u64)> {
        match &self.stand {
            Stand::Row(Place::Other(memory, at)) => Some((memory, *at)),
            _ => None,
        }
    }

    /// Begins to copy bytes of another process's memory to byte number `done` here and on, in a batch.
    #[inline]
    pub(crate) fn begin_get<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        there: There<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        self.each(there.rows, (done, len), |place, [here, away], len| {
            let from = At::Open(there.mapped, there.at + away);
            let to = match place {
                Place::Own(addr) => To::Own(plus(*addr, here)),
                Place::Other(memory, at) => To::Memory(memory, at + here),
            };
            of.begin_copy(batch, from, to, len as usize)
        })
    }

    /// Begins to copy bytes from byte number `done` here and on to another process's memory, in a batch.
    #[inline]
    pub(crate) fn begin_put<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        there: There<'_>,
        len: u64,
    ) -> Result<(), CopyError> {
        self.each(there.rows, (done, len), |place, [here, away], len| {
            let away = there.at + away;
            match place {
                Place::Own(addr) => {
                    let from = At::Own(plus(*addr, here));
                    let to = To::Open(there.mapped, away);
                    of.begin_copy(batch, from, to, len as usize)
                }
                Place::Other(memory, at) => {
                    of.begin_fill(batch, At::Open(there.mapped, away), memory, at + here, len as usize)
                }
            }
        })
    }

    /// Copies bytes from byte number `done` here and on to memory that both processes have.
    #[inline]
    pub(crate) fn stage<M: IpcMemory>(
        &self,
        of: &M,
        done: u64,
        (memory, at): (&Memory, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        self.each(Rows::WHOLE, (done, len), |place, [here, away], len| {
            let away = at + away - done;
            match place {
                Place::Own(addr) => {
                    of.copy(At::Own(plus(*addr, here)), To::Memory(memory, away), len as usize)?;
                }
                Place::Other(from, at) => {
                    memory.copy_from(away, from, at + here, len).map_err(|_| outside(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Copies bytes from memory that both processes have to byte number `done` here and on.
    #[inline]
    pub(crate) fn unstage<M: IpcMemory>(
        &self,
        of: &M,
        done: u64,
        (memory, at): (&Memory, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        self.each(Rows::WHOLE, (done, len), |place, [here, away], len| {
            let away = at + away - done;
            match place {
                Place::Own(addr) => of.fill(At::Own(plus(*addr, here)), memory, away, len as usize)?,
                Place::Other(into, at) => {
                    into.copy_from(at + here, memory, away, len).map_err(|_| outside(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Begins to copy as [`Buffer::stage`] copies, in a batch. Bytes of any other memory are copied at once.
    pub(crate) fn begin_stage<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        (memory, at): (&Memory, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        self.each(Rows::WHOLE, (done, len), |place, [here, away], len| {
            let away = at + away - done;
            match place {
                Place::Own(addr) => {
                    let from = At::Own(plus(*addr, here));
                    let to = To::Memory(memory, away);
                    of.begin_copy(batch, from, to, len as usize)
                }
                Place::Other(from, at) => {
                    memory.copy_from(away, from, at + here, len).map_err(|_| outside(*at + here, len))
                }
            }
        })
    }

    /// Begins to copy as [`Buffer::unstage`] copies, in a batch. Bytes for any other memory are copied at once.
    pub(crate) fn begin_unstage<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        done: u64,
        (memory, at): (&Memory, u64),
        len: u64,
    ) -> Result<(), CopyError> {
        self.each(Rows::WHOLE, (done, len), |place, [here, away], len| {
            let away = at + away - done;
            match place {
                Place::Own(addr) => {
                    of.begin_fill(batch, At::Own(plus(*addr, here)), memory, away, len as usize)
                }
                Place::Other(into, at) => {
                    into.copy_from(at + here, memory, away, len).map_err(|_| outside(*at + here, len))
                }
            }
        })
    }

    /// Copies bytes of this process's own to byte number `done` here and on.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn write<M: IpcMemory>(&self, of: &M, done: u64, bytes: &[u8]) -> Result<(), CopyError> {
        self.each(Rows::WHOLE, (done, bytes.len() as u64), |place, [here, away], len| {
            let from = (away - done) as usize;
            let part = bytes.get(from..from + len as usize).unwrap_or_default();
            match place {
                Place::Own(addr) => of.write(At::Own(plus(*addr, here)), part)?,
                Place::Other(memory, at) => {
                    memory.write(at + here, part).map_err(|_| outside(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Copies bytes from byte number `done` here and on.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn read<M: IpcMemory>(&self, of: &M, done: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.each(Rows::WHOLE, (done, into.len() as u64), |place, [here, away], len| {
            let to = (away - done) as usize;
            let part = into.get_mut(to..to + len as usize).unwrap_or_default();
            match place {
                Place::Own(addr) => of.read(At::Own(plus(*addr, here)), part)?,
                Place::Other(memory, at) => {
                    memory.read(at + here, part).map_err(|_| outside(*at + here, len))?;
                }
            }
            Ok(())
        })
    }

    /// Begins to copy bytes, from byte number `done` on, to another buffer of this process, which is as long or longer, in a batch. Bytes of other memory at
    /// both ends is copied at once.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::Busy`] for a first copy only.
    pub fn begin_copy<M: IpcMemory>(
        &self,
        of: &M,
        batch: &mut Option<CopyBatch>,
        into: &Self,
        (done, len): (u64, u64),
    ) -> Result<(), CopyError> {
        let ((place, rows), (target, target_rows)) = (self.stands(), into.stands());
        Runs::new([rows, target_rows], done, len).try_for_each(|([from, to], len)| match (place, target) {
            (Place::Own(source), Place::Own(target)) => {
                let from = At::Own(plus(*source, from));
                let to = To::Own(plus(*target, to));
                of.begin_copy(batch, from, to, len as usize)
            }
            (Place::Own(source), Place::Other(memory, at)) => {
                let from = At::Own(plus(*source, from));
                let to = To::Memory(memory, at + to);
                of.begin_copy(batch, from, to, len as usize)
            }
            (Place::Other(memory, at), Place::Own(target)) => {
                of.begin_fill(batch, At::Own(plus(*target, to)), memory, at + from, len as usize)
            }
            (Place::Other(source, at), Place::Other(memory, into)) => {
                let copied = memory.copy_from(into + to, source, at + from, len);
                copied.map_err(|_| outside(*at + from, len))
            }
        })
    }

    /// Copies all of it to another buffer of this process, which is as long or longer.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copy<M: IpcMemory>(&self, of: &M, into: &Self) -> Result<(), CopyError> {
        let ((place, rows), (target, target_rows)) = (self.stands(), into.stands());
        for ([from, to], len) in Runs::new([rows, target_rows], 0, self.len) {
            match (place, target) {
                (Place::Own(source), Place::Own(target)) => {
                    of.copy(At::Own(plus(*source, from)), To::Own(plus(*target, to)), len as usize)?;
                }
                (Place::Own(source), Place::Other(memory, at)) => {
                    of.copy(At::Own(plus(*source, from)), To::Memory(memory, at + to), len as usize)?;
                }
                (Place::Other(memory, at), Place::Own(target)) => {
                    of.fill(At::Own(plus(*target, to)), memory, at + from, len as usize)?;
                }
                (Place::Other(source, at), Place::Other(memory, into)) => {
                    let copied = memory.copy_from(into + to, source, at + from, len);
                    copied.map_err(|_| outside(*at + from, len))?;
                }
            }
        }
        Ok(())
    }

    /// Whether its bytes are where it says.
    #[inline]
    pub fn is_there<M: IpcMemory>(&self, of: &M) -> bool {
        let (place, rows) = self.stands();
        let Some(span) = rows.span(self.len) else { return false };
        match place {
            // Peers would write there when it has long been freed, and a reference of this process names it.
            Place::Own(_) if of.is_everything() => false,
            Place::Own(addr) => usize::try_from(span).is_ok_and(|span| of.holds(*addr, span)),
            Place::Other(memory, at) => memory.checked(*at, span).is_ok(),
        }
    }
}

const fn plus(addr: usize, offset: u64) -> usize {
    addr.saturating_add(offset as usize)
}

const fn outside(at: u64, len: u64) -> CopyError {
    CopyError::Outside { at, len: len as usize }
}
