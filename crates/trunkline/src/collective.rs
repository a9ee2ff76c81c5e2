//! The collective calls of a world: barriers, allocation of symmetric memory, broadcast and all-gather. Each rank
//! makes the same calls in the same order; each call checks first that the others make it, too.

use bytemuck::Pod;
use trunkline_proto::ranges::rounded_size;

use crate::atomics::word_at;
use crate::error::Error;
use crate::shared_world::{INNER, WORDS};
use crate::signal::{ExpectedRanks, SignalOp};
use crate::symmetric::{Symmetric, SymmetricSlice};
use crate::world::World;

/// Rounds of a barrier at most: one per bit of the largest number of ranks.
const ROUNDS_MAX: u32 = 16;
const _: () = assert!(ROUNDS_MAX as u64 * 16 <= WORDS);
const _: () = assert!(trunkline_bootstrap::RANKS_MAX <= 1 << ROUNDS_MAX);

/// A collective call, with the arguments that must be equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CollectiveCall {
    Barrier,
    Sync,
    Finish,
    Alloc { offset: u64, bytes: u64 },
    Free { offset: u64 },
    Broadcast { root: usize, offset: u64 },
    AllGather { offset: u64, count: usize },
}

impl CollectiveCall {
    /// Hashes the call and its arguments with FNV-1a, so that ranks compare 32 bits.
    fn to_digest(self) -> u32 {
        let parts = match self {
            Self::Barrier => [1, 0, 0],
            Self::Sync => [2, 0, 0],
            Self::Finish => [3, 0, 0],
            Self::Alloc { offset, bytes } => [4, offset, bytes],
            Self::Free { offset } => [5, offset, 0],
            Self::Broadcast { root, offset } => [6, root as u64, offset],
            Self::AllGather { offset, count } => [7, offset, count as u64],
        };
        parts
            .iter()
            .flat_map(|part| part.to_le_bytes())
            .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

impl World {
    /// Waits until all ranks have reached this call: a dissemination barrier. In round k each rank signals the rank
    /// 2^k after it.
    ///
    /// The word of a round contains the number of the barrier and the digest of the call, so no word has to be
    /// cleared. Two words per round alternate, because a rank is at most one barrier ahead of a rank that has not
    /// read its word yet.
    ///
    /// Every rank is needed, so the death of any partner of this rank ends the wait. In a finish only the rank that
    /// signals this one counts, because other partners may already have left.
    pub(crate) fn synchronize_ranks(&self, call: CollectiveCall) -> Result<(), Error> {
        let rank = self.rank();
        let size = self.size();
        let meeting = self.meetings.get().wrapping_add(1);
        self.meetings.set(meeting);
        let digest = call.to_digest();
        let value = u64::from(meeting) << 32 | u64::from(digest);
        let rounds = || (0_u32..).take_while(|round| 1_usize << round < size);
        let partners = |round| {
            let step = 1_usize << round;
            [(rank + step) % size, (rank + size - step) % size]
        };
        let all: Vec<usize> = rounds().flat_map(partners).collect();
        for round in rounds() {
            let [to, from] = partners(round);
            let leaves = matches!(call, CollectiveCall::Finish);
            let whom = if leaves { ExpectedRanks::Rank(from) } else { ExpectedRanks::Ranks(&all) };
            let offset = (u64::from(round) * 2 + u64::from(meeting & 1)) * 8;
            self.signal_word(to, word_at::<u64>(INNER, offset)?, SignalOp::Set, value)?;
            let theirs = self.wait_for(whom, || {
                let now = self.inner_word(offset);
                (now >> 32 == u64::from(meeting)).then_some(now as u32)
            })?;
            if theirs != digest {
                // The signal for the next rank must leave before this call fails: afterwards only calls of this rank
                // would send it.
                let _ = self.quiet();
                return Err(Error::Differ { rank: from });
            }
        }
        Ok(())
    }

    /// Waits until all ranks have called it, and all operations that they began by their worlds are complete.
    /// Operations of other contexts are not included. OpenSHMEM's counterpart is `shmem_barrier_all`.
    ///
    /// # Errors
    /// - [`Error::Failed`]: as [`quiet`](crate::Context::quiet).
    /// - [`Error::Gone`]: a rank has ended.
    /// - [`Error::Differ`]: a rank makes another collective call.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let word = world.alloc_one::<u64>()?;
    /// world.put(next, &word, &[world.rank() as u64])?;
    /// world.barrier()?; // the puts of all ranks are complete
    /// println!("rank {} wrote this word", word.load());
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn barrier(&self) -> Result<(), Error> {
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::Barrier)
    }

    /// Waits until all ranks have called it. It completes no operations. OpenSHMEM's counterpart is `shmem_sync_all`.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Differ`].
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let part = world.alloc::<f64>(1000)?;
    /// part.fill(1.5); // a rank's writes to its own part need no quiet
    /// world.sync()?; // all ranks have filled their parts
    /// let first: f64 = world.get_one(next, part.at(0))?;
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn sync(&self) -> Result<(), Error> {
        self.synchronize_ranks(CollectiveCall::Sync)
    }

    /// Allocates a symmetric object of `len` elements on each rank, with all bytes zero. All ranks call it with the
    /// same type and length; it returns when all have. OpenSHMEM's counterpart is `shmem_calloc`.
    ///
    /// # Errors
    /// - [`Error::Heap`], on all ranks: the symmetric heap has no room.
    /// - [`Error::Allocate`]: this rank has no memory for its tables. The other ranks return [`Error::Differ`].
    /// - [`Error::Argument`]: the elements have no bytes, or an alignment of more than 64.
    /// - [`Error::Gone`], [`Error::Differ`]: as [`barrier`](Self::barrier).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let slots = world.alloc::<u64>(world.size())?; // one slot per rank, on every rank
    /// // Each rank writes its own slot of rank 0, so no two ranks write the same element.
    /// world.put(0, slots.at(world.rank()), &[42])?;
    /// world.barrier()?;
    /// if world.rank() == 0 {
    ///     println!("{:?}", slots.to_vec());
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<SymmetricSlice<T>, Error> {
        let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
        let bytes =
            bytes.filter(|_| align_of::<T>() as u64 <= trunkline_proto::ranges::ALIGN && size_of::<T>() > 0);
        let bytes = bytes.ok_or(Error::Argument(
            "elements of a symmetric object have at least 1 byte, and an alignment of at most 64",
        ))?;
        let reserved = self.ranges.borrow_mut().reserve_gap();
        if let Err(lack) = reserved {
            // This rank still meets the others, with an offset that no rank can have, so that they fail instead of
            // waiting for it.
            let _ = self.synchronize_ranks(CollectiveCall::Alloc { offset: u64::MAX, bytes });
            return Err(Error::Allocate(lack));
        }
        let fresh = self.ranges.borrow().fresh_offset();
        let taken = self.ranges.borrow_mut().allocate_range(bytes);
        let Some(offset) = taken else {
            let free = self.ranges.borrow().free_bytes();
            let size = self.shared_world().heap.len() as u64;
            return Err(Error::Heap { asked: bytes, free, size });
        };
        let slice = SymmetricSlice::new(self.shared_world().heap.clone(), offset, len);
        // Memory that was never allocated is zero already, and untouched pages cost no memory.
        let used = fresh.saturating_sub(offset).div_ceil(size_of::<T>() as u64);
        slice.clear(len.min(used as usize));
        self.synchronize_ranks(CollectiveCall::Alloc { offset, bytes })?;
        Ok(slice)
    }

    /// Allocates one value on each rank, as [`alloc`](Self::alloc) does.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let counter = world.alloc_one::<u64>()?; // zero on every rank
    /// world.inc(0, &counter)?; // each rank counts itself at rank 0
    /// world.barrier()?;
    /// if world.rank() == 0 {
    ///     assert_eq!(counter.load(), world.size() as u64);
    /// }
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn alloc_one<T: Pod>(&self) -> Result<Symmetric<T>, Error> {
        Ok(Symmetric::new(self.alloc(1)?))
    }

    /// Frees a symmetric object on all ranks. All ranks call it; it returns when all have, and when all operations
    /// that they began by their worlds are complete. Operations of other contexts on the object must be complete
    /// before. OpenSHMEM's counterpart is `shmem_free`.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Argument`] if the object belongs to another world.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let scratch = world.alloc::<f64>(4_000_000)?; // 32 MB of a heap of 64 MiB
    /// world.free(scratch)?; // on all ranks, so that their heaps stay equal
    /// let larger = world.alloc::<f64>(6_000_000)?; // uses the same bytes again
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn free<T: Pod>(&self, slice: SymmetricSlice<T>) -> Result<(), Error> {
        if !slice.is_in(&self.shared_world().heap) {
            return Err(Error::Argument("the symmetric object belongs to another world"));
        }
        let offset = slice.heap_offset();
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::Free { offset })?;
        let bytes = (slice.len() * size_of::<T>()) as u64;
        debug_assert!(rounded_size(bytes).is_some());
        self.ranges.borrow_mut().release_range(offset, bytes);
        Ok(())
    }

    /// Frees a symmetric value on all ranks, as [`free`](Self::free) does.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let tickets = world.alloc_one::<u64>()?;
    /// let mine: u64 = world.fetch_inc(0, &tickets)?;
    /// world.free_one(tickets)?; // returns when all ranks have their tickets
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn free_one<T: Pod>(&self, value: Symmetric<T>) -> Result<(), Error> {
        self.free(value.into_slice())
    }

    /// Copies the elements of `root` to all ranks: afterwards `slice` has the same elements everywhere. All ranks
    /// call it. It begins and ends with a barrier.
    ///
    /// The root puts to each other rank by itself, without a tree, so the call is meant for few ranks or little data.
    /// OpenSHMEM's counterpart is `shmem_broadcast`.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::NoRank`].
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let parameters = world.alloc::<f64>(3)?;
    /// if world.rank() == 0 {
    ///     parameters.write(0, &[0.01, 300.0, 1.5]); // as read from a file that only rank 0 has
    /// }
    /// world.broadcast(0, &parameters)?;
    /// let time_step: f64 = parameters.load(0); // 0.01 on all ranks
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn broadcast<T: Pod>(&self, root: usize, slice: &SymmetricSlice<T>) -> Result<(), Error> {
        self.member_id(root)?;
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::Broadcast { root, offset: slice.heap_offset() })?;
        if self.rank() == root {
            for rank in (0..self.size()).filter(|&rank| rank != root) {
                self.put_nbi(rank, slice, slice, slice.len())?;
            }
        }
        self.barrier()
    }

    /// Gathers the elements of all ranks at all ranks: afterwards `all` has `mine` of rank 0, then of rank 1, and so
    /// on. All ranks call it with equally many elements. It begins and ends with a barrier, and each rank puts to
    /// each other rank. OpenSHMEM's counterpart is `shmem_fcollect`.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Range`] if `all` is too short.
    ///
    /// # Examples
    /// ```no_run
    /// # let world = trunkline::World::start()?;
    /// let found: u64 = 17; // the result of this rank
    /// let all = world.alloc::<u64>(world.size())?;
    /// world.all_gather(&[found], &all)?;
    /// let sum: u64 = all.to_vec().iter().sum(); // equal on all ranks
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn all_gather<T: Pod>(&self, mine: &[T], all: &SymmetricSlice<T>) -> Result<(), Error> {
        let count = mine.len();
        let whole = count
            .checked_mul(self.size())
            .ok_or(Error::Argument("the elements of all ranks exceed the address space; gather fewer"))?;
        self.heap_offset(all.at(0), whole)?;
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::AllGather { offset: all.heap_offset(), count })?;
        let first = self.rank() * count;
        all.write(first, mine);
        for step in 1..self.size() {
            self.put_nbi((self.rank() + step) % self.size(), all.at(first), all.at(first), count)?;
        }
        self.barrier()
    }
}
