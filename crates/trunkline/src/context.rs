//! A context: what a thread begins. Puts, gets, fences and quiets; atomics, signals and strided transfers are in files of their own.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytemuck::Pod;
use trunkline_engine::rma::{ContextId, HeapRange, PutSource, RmaError};

use crate::error::Error;
use crate::shared_world::{HEAP, INNER, STAGE, SharedWorld};
use crate::symmetric::ElementPlace;
use crate::wait::wait_until;

/// A stream of operations: puts, gets, atomics and signals that one thread begins, and waits for together.
///
/// A [`World`](crate::World) has one; threads make their own with [`World::context`](crate::World::context), and share nothing
/// then. What different contexts begin is in no order, and a [`quiet`](Self::quiet) of one waits for nothing of another.
///
/// All calls but those whose names end in `_nbi` (non-blocking, implicit: a quiet waits for them) come back when their local memory may
/// be used again. What they wrote is at its target, and visible there, after a [`quiet`](Self::quiet), a
/// [`barrier`](crate::World::barrier), or when a signal has come there that was sent after it. Every call that waits goes on
/// with what others want of this rank, and ends with an error if the rank that it waits for is gone.
///
/// On the own rank an operation is done when its call comes back.
pub struct Context {
    pub(crate) shared: Arc<SharedWorld>,
    pub(crate) id: ContextId,
    /// Which stage is its own.
    pub(crate) place: usize,
    pub(crate) inline_max: usize,
    /// Bytes of the stage in use.
    staged: Cell<u64>,
    pub(crate) fetches: RefCell<crate::pending::FetchTable>,
}

impl Context {
    pub(crate) fn new(
        shared: Arc<SharedWorld>,
        id: ContextId,
        place: usize,
        staged: u64,
    ) -> Result<Self, Error> {
        let inline_max = shared.job.inline_max(id)? as usize;
        let fetches = RefCell::default();
        Ok(Self { shared, id, place, inline_max, staged: Cell::new(staged), fetches })
    }

    /// This rank's number, from 0.
    #[inline]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Ranks of the world.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// The rank as the engine calls it.
    #[inline]
    pub(crate) fn member_id(&self, rank: usize) -> Result<u32, Error> {
        match u32::try_from(rank) {
            Ok(member) if rank < self.shared.size => Ok(member),
            _ => Err(Error::NoRank { rank, size: self.shared.size }),
        }
    }

    /// Where elements begin, if they are an object's of this world.
    #[inline]
    pub(crate) fn heap_offset<T: Pod>(&self, place: ElementPlace<'_, T>, count: usize) -> Result<u64, Error> {
        if !place.symmetric_slice().is_in(&self.shared.heap) {
            return Err(Error::Argument("the symmetric object is of another world"));
        }
        place.checked_offset(count)
    }

    /// Writes elements to a rank, from `to` on. `from` may be changed afterwards.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Range`], [`Error::NoRank`], and [`Error::Failed`] of what was begun before.
    #[inline]
    pub fn put<'a, T: Pod>(
        &self,
        rank: usize,
        to: impl Into<ElementPlace<'a, T>>,
        from: &[T],
    ) -> Result<(), Error> {
        let offset = self.heap_offset(to.into(), from.len())?;
        self.put_bytes(rank, offset, bytemuck::cast_slice(from))
    }

    pub(crate) fn put_bytes(&self, rank: usize, mut offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        if rank == self.rank() {
            return self.map_bounds_error(self.shared.heap.write(offset, bytes));
        }
        if bytes.len() <= self.inline_max {
            let put = || self.shared.job.put(self.id, member, HEAP, offset, PutSource::Bytes(bytes));
            return if bytes.is_empty() { Ok(()) } else { wait_until(self, || Ok(put()?)).map(drop) };
        }
        for chunk in bytes.chunks(STAGE as usize) {
            let staged = self.allocate_stage(chunk.len() as u64)?;
            self.map_bounds_error(self.shared.inner.write(staged.offset, chunk))?;
            self.put_local(member, offset, staged)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    /// The same from elements of this rank's part of a symmetric object, which are not copied: they must stay as they are until a
    /// quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_nbi<'a, 'b, T: Pod>(
        &self,
        rank: usize,
        to: impl Into<ElementPlace<'a, T>>,
        from: impl Into<ElementPlace<'b, T>>,
        count: usize,
    ) -> Result<(), Error> {
        let to = self.heap_offset(to.into(), count)?;
        let from = self.heap_offset(from.into(), count)?;
        let member = self.member_id(rank)?;
        let len = (count * size_of::<T>()) as u64;
        if rank == self.rank() {
            return self.map_bounds_error(self.shared.heap.copy_from(to, &self.shared.heap, from, len));
        }
        self.put_local(member, to, HeapRange { heap: HEAP, offset: from, len })
    }

    /// Puts registered bytes, in as many pieces as it takes.
    fn put_local(&self, member: u32, mut offset: u64, mut from: HeapRange) -> Result<(), Error> {
        while from.len > 0 {
            let put = || self.shared.job.put(self.id, member, HEAP, offset, PutSource::Heap(from));
            let taken = wait_until(self, || Ok(put()?))?;
            (offset, from.offset, from.len) = (offset + taken, from.offset + taken, from.len - taken);
        }
        Ok(())
    }

    /// Reads elements of a rank, from `from` on. They are there when it comes back.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    #[inline]
    pub fn get<'a, T: Pod>(
        &self,
        rank: usize,
        from: impl Into<ElementPlace<'a, T>>,
        into: &mut [T],
    ) -> Result<(), Error> {
        let offset = self.heap_offset(from.into(), into.len())?;
        self.get_bytes(rank, offset, bytemuck::cast_slice_mut(into))
    }

    /// One element of a rank.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    #[inline]
    pub fn get_one<'a, T: Pod>(&self, rank: usize, from: impl Into<ElementPlace<'a, T>>) -> Result<T, Error> {
        let mut one = [T::zeroed()];
        self.get(rank, from, &mut one)?;
        Ok(one[0])
    }

    fn get_bytes(&self, rank: usize, mut offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        if rank == self.rank() {
            return self.map_bounds_error(self.shared.heap.read(offset, bytes));
        }
        for chunk in bytes.chunks_mut(STAGE as usize) {
            let staged = self.allocate_stage(chunk.len() as u64)?;
            self.get_local(member, offset, staged)?;
            self.quiet_rank(rank)?;
            self.map_bounds_error(self.shared.inner.read(staged.offset, chunk))?;
            self.free_stage(staged);
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    /// Reads elements of a rank into this rank's part of a symmetric object. They are there after a quiet.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get_nbi<'a, 'b, T: Pod>(
        &self,
        rank: usize,
        from: impl Into<ElementPlace<'a, T>>,
        into: impl Into<ElementPlace<'b, T>>,
        count: usize,
    ) -> Result<(), Error> {
        let from = self.heap_offset(from.into(), count)?;
        let into = self.heap_offset(into.into(), count)?;
        let member = self.member_id(rank)?;
        let len = (count * size_of::<T>()) as u64;
        if rank == self.rank() {
            return self.map_bounds_error(self.shared.heap.copy_from(into, &self.shared.heap, from, len));
        }
        self.get_local(member, from, HeapRange { heap: HEAP, offset: into, len })
    }

    /// Gets into registered bytes, in as many pieces as it takes.
    pub(crate) fn get_local(&self, member: u32, mut offset: u64, mut into: HeapRange) -> Result<(), Error> {
        while into.len > 0 {
            let get = || self.shared.job.get(self.id, member, HEAP, offset, into);
            let taken = wait_until(self, || Ok(get()?))?;
            (offset, into.offset, into.len) = (offset + taken, into.offset + taken, into.len - taken);
        }
        Ok(())
    }

    /// What this context begins from now on towards a rank comes there after what it has begun before towards that rank.
    ///
    /// # Errors
    /// None today.
    pub fn fence(&self) -> Result<(), Error> {
        Ok(self.shared.job.fence(self.id)?)
    }

    /// Waits until all that this context has begun is complete, and visible, where it was to go.
    ///
    /// # Errors
    /// [`Error::Failed`]: something is not, and never will be, as its rank is gone. Told once; what went to other ranks is
    /// to be waited for by another quiet.
    pub fn quiet(&self) -> Result<(), Error> {
        wait_until(self, || Ok(self.shared.job.quiet(self.id)?.then_some(())))?;
        self.staged.set(0);
        Ok(())
    }

    /// The same of what it has begun towards one rank.
    ///
    /// # Errors
    /// As [`quiet`](Self::quiet).
    pub fn quiet_rank(&self, rank: usize) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        wait_until(self, || Ok(self.shared.job.quiet_member(self.id, member)?.then_some(())))
    }

    /// Goes on with what others want of this rank, and with what this context has begun; whether there was anything. For programs
    /// without passive progress that compute for long.
    ///
    /// # Errors
    /// None today.
    pub fn progress(&self) -> Result<bool, Error> {
        Ok(self.shared.job.progress(self.id)?)
    }

    /// Registered bytes that nothing else uses, at most [`STAGE`].
    pub(crate) fn allocate_stage(&self, len: u64) -> Result<HeapRange, Error> {
        if self.staged.get() + len > STAGE {
            self.quiet()?;
        }
        let offset = self.shared.stage_offset(self.place) + self.staged.get();
        // Elements of eight bytes are not to be torn.
        self.staged.set((self.staged.get() + len).next_multiple_of(8));
        Ok(HeapRange { heap: INNER, offset, len })
    }

    /// Gives back what was staged last, which nothing uses any more.
    pub(crate) fn free_stage(&self, staged: HeapRange) {
        self.staged.set(staged.offset - self.shared.stage_offset(self.place));
    }

    /// What was checked before.
    #[inline]
    pub(crate) fn map_bounds_error<T>(
        &self,
        done: Result<T, trunkline_mem::OutOfBounds>,
    ) -> Result<T, Error> {
        done.map_err(|_| Error::Engine(RmaError::Argument("outside of the heap")))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.shared.release_context(self.id, self.place, self.staged.get());
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} of rank {} of {})", self.place, self.rank(), self.size())
    }
}
