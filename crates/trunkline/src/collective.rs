//! What all ranks do together: barriers, memory, and two simple ways to hand data round. Each rank makes the same calls in the
//! same order; each call begins with a look that the others make it, too.

use bytemuck::Pod;
use trunkline_proto::ranges::rounded_size;

use crate::atomics::word_at;
use crate::error::Error;
use crate::shared_world::{INNER, WORDS};
use crate::signal::{ExpectedRanks, SignalOp};
use crate::symmetric::{Symmetric, SymmetricSlice};
use crate::world::World;

/// Rounds of a barrier: as many as the number of ranks has bits.
const ROUNDS_MAX: u32 = 16;
const _: () = assert!(ROUNDS_MAX as u64 * 16 <= WORDS);
const _: () = assert!(trunkline_bootstrap::RANKS_MAX <= 1 << ROUNDS_MAX);

/// A collective call, with what must be the same on all ranks.
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
    /// A short name of it: FNV-1a of its parts.
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
    /// Waits until all ranks have come here, in as many rounds as their number has bits: in round k each signals the rank 2^k
    /// after it. The word holds which meeting it is and what the rank calls, so that no word has to be cleared, and there are two of
    /// them in turns: a rank is at most one meeting ahead of who has not looked yet.
    ///
    /// It needs all ranks, so the death of any that this one signals or hears ends it; but who finishes leaves as soon as it may.
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
                // The others are to see it, too, and what this rank has begun goes on with its calls only.
                let _ = self.quiet();
                return Err(Error::Differ { rank: from });
            }
        }
        Ok(())
    }

    /// Waits until all ranks have come here, and all that they have begun by their worlds (not by contexts of their own) is
    /// complete.
    ///
    /// # Errors
    /// As [`quiet`](crate::Context::quiet); [`Error::Gone`], [`Error::Differ`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::Barrier)
    }

    /// Waits until all ranks have come here, and for nothing else.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Differ`].
    pub fn sync(&self) -> Result<(), Error> {
        self.synchronize_ranks(CollectiveCall::Sync)
    }

    /// Memory for `len` elements on each rank, all bytes zero. All ranks call it with the same number, and it comes back when all
    /// have.
    ///
    /// # Errors
    /// [`Error::Heap`] if the symmetric heap has no room, on all ranks; [`Error::Allocate`] if this rank has no memory for its tables, where the
    /// others return [`Error::Differ`]; [`Error::Gone`].
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<SymmetricSlice<T>, Error> {
        let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
        let bytes =
            bytes.filter(|_| align_of::<T>() as u64 <= trunkline_proto::ranges::ALIGN && size_of::<T>() > 0);
        let bytes =
            bytes.ok_or(Error::Argument("elements have 1 byte at least, and are aligned to at most 64"))?;
        let reserved = self.ranges.borrow_mut().reserve_gap();
        if let Err(lack) = reserved {
            // The others need not wait for this rank.
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
        // What was never taken is zero, and takes no memory before it is used.
        let used = fresh.saturating_sub(offset).div_ceil(size_of::<T>() as u64);
        slice.clear(len.min(used as usize));
        self.synchronize_ranks(CollectiveCall::Alloc { offset, bytes })?;
        Ok(slice)
    }

    /// Memory for one value on each rank, as [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_one<T: Pod>(&self) -> Result<Symmetric<T>, Error> {
        Ok(Symmetric::new(self.alloc(1)?))
    }

    /// Gives memory back, on all ranks, once all have called it and all that they have begun by their worlds is complete. What contexts of
    /// their own have begun must be.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn free<T: Pod>(&self, slice: SymmetricSlice<T>) -> Result<(), Error> {
        if !slice.is_in(&self.shared_world().heap) {
            return Err(Error::Argument("the symmetric object is of another world"));
        }
        let offset = slice.heap_offset();
        self.quiet()?;
        self.synchronize_ranks(CollectiveCall::Free { offset })?;
        let bytes = (slice.len() * size_of::<T>()) as u64;
        debug_assert!(rounded_size(bytes).is_some());
        self.ranges.borrow_mut().release_range(offset, bytes);
        Ok(())
    }

    /// The same of one value.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn free_one<T: Pod>(&self, value: Symmetric<T>) -> Result<(), Error> {
        self.free(value.into_slice())
    }

    /// Gives the elements of one rank to all: afterwards each has in `slice` what `root` has there. A barrier before and behind; no
    /// tree, so it is meant for a few ranks or little data.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
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

    /// Gives the elements of each rank to all: afterwards `all` holds `mine` of rank 0, then of rank 1, and so on. A barrier before
    /// and behind, and a put to each other rank.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier); [`Error::Range`] if `all` is too short.
    pub fn all_gather<T: Pod>(&self, mine: &[T], all: &SymmetricSlice<T>) -> Result<(), Error> {
        let count = mine.len();
        let whole = count.checked_mul(self.size()).ok_or(Error::Argument("no object is that long"))?;
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
