//! A context: what a thread begins. Puts, gets, fences and quiets; atomics, signals and strided transfers are in files of their own.

use std::sync::Arc;

use bytemuck::Pod;
use trunkline_engine::rma::{HeapRange, RmaError};
use trunkline_runtime::{ContextCalls, CopyFrom, CopyInto, OneSidedContext};

use crate::error::Error;
use crate::pending::FetchTable;
use crate::shared_world::{HEAP, SharedWorld, heap_address};
use crate::symmetric::ElementPlace;

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
    /// Its number among the contexts of the world.
    number: usize,
    context: Arc<OneSidedContext>,
    pub(crate) fetches: FetchTable,
}

impl Context {
    pub(crate) fn new(shared: Arc<SharedWorld>, number: usize, context: Arc<OneSidedContext>) -> Self {
        Self { shared, number, context, fetches: FetchTable::default() }
    }

    /// The calls over the fabric.
    #[inline]
    pub(crate) fn fabric_calls(&self) -> ContextCalls<'_, FetchTable> {
        self.shared.network.calls_on(&self.context, &self.fetches)
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

    pub(crate) fn put_bytes(&self, rank: usize, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        if rank == self.rank() {
            return self.map_bounds_error(self.shared.heap.write(offset, bytes));
        }
        Ok(self.fabric_calls().put_copied(heap_address(member, offset), CopyFrom::Slice(bytes))?)
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
        let from = HeapRange { heap: HEAP, offset: from, len };
        Ok(self.fabric_calls().put_registered(heap_address(member, to), from)?)
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

    fn get_bytes(&self, rank: usize, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        if rank == self.rank() {
            return self.map_bounds_error(self.shared.heap.read(offset, bytes));
        }
        Ok(self.fabric_calls().get_copied(heap_address(member, offset), CopyInto::Slice(bytes))?)
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
        let into = HeapRange { heap: HEAP, offset: into, len };
        Ok(self.fabric_calls().get_registered(heap_address(member, from), into)?)
    }

    /// What this context begins from now on towards a rank comes there after what it has begun before towards that rank.
    ///
    /// # Errors
    /// None today.
    pub fn fence(&self) -> Result<(), Error> {
        Ok(self.fabric_calls().fence()?)
    }

    /// Waits until all that this context has begun is complete, and visible, where it was to go.
    ///
    /// # Errors
    /// [`Error::Failed`]: something is not, and never will be, as its rank is gone. Told once; what went to other ranks is
    /// to be waited for by another quiet.
    pub fn quiet(&self) -> Result<(), Error> {
        Ok(self.fabric_calls().quiet()?)
    }

    /// The same of what it has begun towards one rank.
    ///
    /// # Errors
    /// As [`quiet`](Self::quiet).
    pub fn quiet_rank(&self, rank: usize) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        Ok(self.fabric_calls().quiet_member(member)?)
    }

    /// Goes on with what others want of this rank, and with what this context has begun; whether there was anything. For programs
    /// without passive progress that compute for long.
    ///
    /// # Errors
    /// None today.
    pub fn progress(&self) -> Result<bool, Error> {
        Ok(self.fabric_calls().make_progress()?)
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
        self.shared.release_context(self.number);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} of rank {} of {})", self.number, self.rank(), self.size())
    }
}
