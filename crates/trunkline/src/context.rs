//! A context: the stream of operations of a thread. This file has puts, gets, fences and quiets; atomics, signals and
//! strided transfers are in files of their own.

use std::sync::Arc;

use bytemuck::Pod;
use trunkline_engine::rma::{HeapRange, RmaError};
use trunkline_runtime::{ContextCalls, CopyFrom, CopyInto, OneSidedContext};

use crate::error::Error;
use crate::pending::FetchTable;
use crate::shared_world::{HEAP, SharedWorld, heap_address};
use crate::symmetric::ElementPlace;

/// A stream of operations: puts, gets, atomics and signals that one thread begins and completes together. OpenSHMEM's
/// counterpart is a private context (`SHMEM_CTX_PRIVATE`).
///
/// A [`World`](crate::World) has a context. Further threads create their own with
/// [`World::context`](crate::World::context). Operations of different contexts are not ordered, and a
/// [`quiet`](Self::quiet) of one context does not wait for operations of another.
///
/// # When calls return
///
/// - Calls return when their local memory may be used again. The exceptions have names that end in `_nbi`
///   (non-blocking, implicit): their local memory may be used again after a quiet.
/// - Written data has arrived at its target, and is visible there, after a [`quiet`](Self::quiet) or a
///   [`barrier`](crate::World::barrier). It is visible to the target as well once a later signal of the same context
///   is.
/// - Every call that waits also serves the requests of other ranks. It returns an error if the rank that it waits for
///   has ended.
/// - Operations on this rank's own memory are complete when the call returns. The exception are atomics of 8 bytes
///   where NICs execute them: those complete as on other ranks.
pub struct Context {
    pub(crate) shared: Arc<SharedWorld>,
    /// The index of the context in the world's pool.
    number: usize,
    context: Arc<OneSidedContext>,
    pub(crate) fetches: FetchTable,
}

impl Context {
    pub(crate) fn new(shared: Arc<SharedWorld>, number: usize, context: Arc<OneSidedContext>) -> Self {
        Self { shared, number, context, fetches: FetchTable::default() }
    }

    /// Returns the calls of this context over the fabric.
    #[inline]
    pub(crate) fn fabric_calls(&self) -> ContextCalls<'_, FetchTable> {
        self.shared.network.calls_on(&self.context, &self.fetches)
    }

    /// Returns the number of this rank, counted from 0.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// // The neighbours of this rank in a ring.
    /// let next = (world.rank() + 1) % world.size();
    /// let before = (world.rank() + world.size() - 1) % world.size();
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Returns the number of ranks of the world.
    ///
    /// See [`rank`](Self::rank) for an example.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Checks a rank, and returns it as the engine's type.
    #[inline]
    pub(crate) fn member_id(&self, rank: usize) -> Result<u32, Error> {
        match u32::try_from(rank) {
            Ok(member) if rank < self.shared.size => Ok(member),
            _ => Err(Error::NoRank { rank, size: self.shared.size }),
        }
    }

    /// Returns the offset of elements in the symmetric heap. Fails if the object belongs to another world, or does
    /// not have `count` elements from there on.
    #[inline]
    pub(crate) fn heap_offset<T: Pod>(&self, place: ElementPlace<'_, T>, count: usize) -> Result<u64, Error> {
        if !place.symmetric_slice().is_in(&self.shared.heap) {
            return Err(Error::Argument("the symmetric object belongs to another world"));
        }
        place.checked_offset(count)
    }

    /// Writes elements to a rank, from `to` on. Returns when `from` may be changed; the elements are visible at the
    /// target after a [`quiet`](Self::quiet). OpenSHMEM's counterpart is `shmem_put`.
    ///
    /// Puts of up to the NIC's inline limit are copied into the request. Longer ones are copied to a registered stage
    /// of 256 KiB, for whose room the call may wait.
    ///
    /// # Errors
    /// - [`Error::NoRank`]: the world has no such rank.
    /// - [`Error::Range`]: the object does not have the elements.
    /// - [`Error::Argument`]: the object belongs to another world.
    /// - [`Error::Gone`]: the rank has ended, or is unreachable.
    /// - [`Error::Failed`]: an earlier operation of this context did not complete.
    /// - [`Error::Engine`]: the engine has no resources for the operation.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let data = world.alloc::<u64>(256)?;
    /// let mut buffer = [0_u64; 64];
    /// for block in 0..4_usize {
    ///     buffer.fill(block as u64); // the previous put no longer needs it
    ///     world.put(next, data.at(64 * block), &buffer)?;
    /// }
    /// world.quiet()?; // all four blocks are visible at the next rank
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Writes elements of this rank's part of a symmetric object to a rank, from `to` on, without a copy. Returns when
    /// the put is posted; `from` must not change until a [`quiet`](Self::quiet). OpenSHMEM's counterpart is
    /// `shmem_put_nbi`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let block = world.alloc::<f64>(1000)?;
    /// let inbox = world.alloc::<f64>(1000)?;
    /// block.fill(1.0);
    /// world.put_nbi(next, &inbox, &block, 1000)?; // the NIC may read `block` after this call
    /// world.quiet()?;
    /// block.fill(2.0); // the put is complete, so `block` may change
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Reads elements of a rank, from `from` on. Returns when they are in `into`. OpenSHMEM's counterpart is
    /// `shmem_get`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let grid = world.alloc::<f64>(1000)?;
    /// let mut row = [0.0_f64; 100];
    /// world.get(next, grid.at(200), &mut row)?; // elements 200 to 299 of the next rank
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Reads one element of a rank, and returns it. OpenSHMEM's counterpart is `shmem_g`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let grid = world.alloc::<f64>(1000)?;
    /// let corner: f64 = world.get_one(next, grid.at(999))?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Reads elements of a rank into this rank's part of a symmetric object. Returns when it is posted; the elements
    /// have arrived after a [`quiet`](Self::quiet). OpenSHMEM's counterpart is `shmem_get_nbi`.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let part = world.alloc::<f64>(100)?;
    /// let all = world.alloc::<f64>(100 * world.size())?;
    /// for rank in 0..world.size() {
    ///     world.get_nbi(rank, &part, all.at(100 * rank), 100)?; // the gets overlap
    /// }
    /// world.quiet()?; // `all` contains the parts of all ranks
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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

    /// Orders operations towards the same rank: those that this context begins later arrive after those that it has
    /// begun before. It does not wait, and does not order operations towards different ranks. OpenSHMEM's counterpart
    /// is `shmem_ctx_fence`.
    ///
    /// # Errors
    /// It does not fail today.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::Compare;
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// # let before = (world.rank() + world.size() - 1) % world.size();
    /// let data = world.alloc::<f64>(100)?;
    /// let flag = world.alloc_one::<u64>()?;
    /// world.put(next, &data, &[1.5; 100])?;
    /// world.fence()?; // the flag must arrive after the data
    /// world.put(next, &flag, &[1])?;
    /// world.wait_until(&flag, Compare::Equal, 1, before)?; // then the data is here, too
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn fence(&self) -> Result<(), Error> {
        Ok(self.fabric_calls().fence()?)
    }

    /// Waits until all operations of this context are complete, and visible at their targets. OpenSHMEM's counterpart
    /// is `shmem_ctx_quiet`.
    ///
    /// # Errors
    /// [`Error::Failed`]: an operation did not complete and never will, because its rank has ended. Each such rank is
    /// returned once. Operations towards other ranks may still be under way: call it again to complete them.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::Error;
    /// # let world = trunkline::World::start()?;
    /// while let Err(error) = world.quiet() {
    ///     match error {
    ///         // Each rank that has ended is returned once. The next call waits for the others.
    ///         Error::Failed { rank, .. } => eprintln!("rank {rank} did not receive everything"),
    ///         other => return Err(other),
    ///     }
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn quiet(&self) -> Result<(), Error> {
        Ok(self.fabric_calls().quiet()?)
    }

    /// Waits until all operations of this context towards one rank are complete, and visible there.
    ///
    /// # Errors
    /// As [`quiet`](Self::quiet); [`Error::NoRank`].
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// # let before = (world.rank() + world.size() - 1) % world.size();
    /// let edges = world.alloc::<f64>(2)?;
    /// world.put(next, edges.at(0), &[1.5])?;
    /// world.put(before, edges.at(1), &[2.5])?;
    /// world.quiet_rank(next)?; // does not wait for the put to the rank before
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn quiet_rank(&self, rank: usize) -> Result<(), Error> {
        let member = self.member_id(rank)?;
        Ok(self.fabric_calls().quiet_member(member)?)
    }

    /// Serves requests of other ranks, and advances the operations of this context, without waiting. Returns whether
    /// anything moved. Meant for programs that compute for long without passive progress
    /// ([`WorldBuilder::passive`](crate::WorldBuilder::passive)).
    ///
    /// # Errors
    /// It does not fail today.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::builder().passive(false).start()?;
    /// # fn relax_row(_row: usize) {}
    /// for row in 0..10_000 {
    ///     relax_row(row);
    ///     world.progress()?; // serves other ranks between two rows, and never waits for them
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn progress(&self) -> Result<bool, Error> {
        Ok(self.fabric_calls().make_progress()?)
    }

    /// Converts an error that earlier checks exclude.
    #[inline]
    pub(crate) fn map_bounds_error<T>(
        &self,
        done: Result<T, trunkline_mem::OutOfBounds>,
    ) -> Result<T, Error> {
        done.map_err(|_| Error::Engine(RmaError::Argument("the element is outside of the symmetric heap")))
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
