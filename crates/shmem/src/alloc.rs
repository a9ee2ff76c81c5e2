//! The symmetric heap. Every PE makes the same calls with the same sizes, so offsets are equal in all PEs. Each call
//! checks that the other PEs make it, too.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use trunkline_mem::{MemoryRange, OutOfMemory};
use trunkline_proto::ranges::{HeapRanges, rounded_size};

use crate::error::{Result, ShmemError};
use crate::lock::LockTable;
use crate::memory::rma::map_bounds_error;
use crate::pe::{ALIGN_MAX, Pe};
use crate::symmetric_segments::HEAP;
use crate::team::WORLD;

/// The alignment of allocations, unless the program requests a larger one.
const ALIGN: usize = 64;

/// Returns whether memory can have this alignment.
pub(crate) const fn is_valid_alignment(align: usize) -> bool {
    align.is_power_of_two() && align <= ALIGN_MAX
}

/// The outcome of a call of the heap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HeapAllocation {
    /// Memory at this address.
    At(usize),
    /// No memory, by the arguments of the call.
    Nothing,
    /// None: the symmetric heap has no room.
    Full,
    /// No memory on any PE, because this one has none for the tables of its heap.
    NoTables(usize),
}

/// A call of the heap with its arguments, which must be equal on all PEs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct HeapRequest {
    call: HeapCall,
    bytes: usize,
    align: usize,
    /// The offset of the allocation that is freed or resized.
    offset: usize,
    /// Whether this PE has no memory for its tables. PEs may differ in this.
    lacks: bool,
}

/// The kind of call. Other functions of the heap are variants of these.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
enum HeapCall {
    Malloc = 1,
    Calloc,
    Realloc,
    Free,
}

impl HeapCall {
    fn call_name(number: u64) -> &'static str {
        match number {
            1 => "shmem_malloc or shmem_align",
            2 => "shmem_calloc",
            3 => "shmem_realloc",
            4 => "shmem_free",
            _ => "another call",
        }
    }
}

impl HeapRequest {
    const WORDS: usize = 5;

    const fn to_words(self) -> [u64; Self::WORDS] {
        let align = if self.align < ALIGN { ALIGN } else { self.align };
        [self.call as u64, self.bytes as u64, align as u64, self.offset as u64, self.lacks as u64]
    }

    /// Fails if a PE makes another request.
    fn check_request(&self, pe: usize, theirs: [u64; Self::WORDS]) -> Result<()> {
        let ours = self.to_words();
        let differs = |at: usize| theirs[at] != ours[at];
        if differs(0) {
            let theirs = HeapCall::call_name(theirs[0]);
            let ours = HeapCall::call_name(ours[0]);
            return Err(ShmemError::Calls { pe, theirs, ours });
        }
        let whats = [
            (1, "this allocation"),
            (2, "alignment"),
            (3, "the heap before the allocation that it frees or reallocates"),
        ];
        match whats.into_iter().find(|(at, _)| differs(*at)) {
            Some((at, what)) => Err(ShmemError::Differ { pe, what, theirs: theirs[at], ours: ours[at] }),
            None => Ok(()),
        }
    }
}

/// An allocation of the symmetric heap.
#[derive(Clone, Copy, Debug)]
struct HeapBlock {
    /// The offset of its first byte. The program's offset is greater if the allocation is aligned to more than
    /// [`ALIGN`].
    begin: u64,
    /// The number of its bytes.
    total: u64,
    /// The number of bytes that the program requested.
    asked: u64,
}

/// The allocations of this PE's symmetric heap.
///
/// The calls of the heap in this file use it, under the lock in `Pe`. It never waits for other PEs, and never
/// accesses the bytes of the heap.
///
/// - `taken` contains each allocation, by the program's offset. Allocations do not overlap each other or the free
///   ranges of `ranges`.
#[derive(Debug)]
pub(crate) struct SymmetricHeap {
    ranges: HeapRanges,
    taken: HashMap<u64, HeapBlock>,
}

fn no_allocation() -> ShmemError {
    ShmemError::Argument("no allocation begins at this address, or it was freed before")
}

impl SymmetricHeap {
    /// Returns a heap of `bytes` free bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        Self { ranges: HeapRanges::new(bytes), taken: HashMap::new() }
    }

    /// Reserves room in the tables for one more allocation, and for the gap that it may leave, so that freeing needs
    /// no memory.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    fn reserve_tables(&mut self) -> std::result::Result<(), OutOfMemory> {
        let bytes = (self.taken.len() + 1) * size_of::<(u64, HeapBlock)>();
        self.taken.try_reserve(1).map_err(|_| OutOfMemory { bytes })?;
        self.ranges.reserve_gap()
    }

    /// Allocates bytes, and returns their offset; `None` if the heap has no room.
    fn take_bytes(&mut self, bytes: usize, align: usize) -> std::result::Result<Option<u64>, OutOfMemory> {
        self.reserve_tables()?;
        let more = if align > ALIGN { align } else { 0 };
        let Some(total) = (bytes as u64).checked_add(more as u64) else { return Ok(None) };
        let Some(begin) = self.ranges.allocate_range(total) else { return Ok(None) };
        // The offset is equal everywhere, and aligned here, because heaps are aligned.
        let offset = if more > 0 { begin.next_multiple_of(align as u64) } else { begin };
        self.taken.insert(offset, HeapBlock { begin, total, asked: bytes as u64 });
        Ok(Some(offset))
    }

    /// Returns the number of bytes that the program requested at an offset.
    fn asked_bytes(&self, offset: u64) -> Result<u64> {
        self.taken.get(&offset).map(|block| block.asked).ok_or_else(no_allocation)
    }

    /// Frees an allocation, and removes locks inside it from `locks`.
    fn release_bytes(&mut self, offset: u64, locks: &LockTable) -> Result<()> {
        let HeapBlock { begin, total, .. } = self.taken.remove(&offset).ok_or_else(no_allocation)?;
        self.ranges.release_range(begin, total);
        locks.forget_range(begin, total);
        Ok(())
    }

    /// Resizes an allocation in place, if it has room; bytes behind the new end become free. Returns whether it did.
    fn resize_in_place(&mut self, offset: u64, bytes: u64, locks: &LockTable) -> bool {
        let Some(block) = self.taken.get_mut(&offset) else { return false };
        let needs = (offset - block.begin).checked_add(bytes);
        let (Some(needs), Some(keeps), Some(has)) =
            (needs, needs.and_then(rounded_size), rounded_size(block.total))
        else {
            return false;
        };
        if needs > block.total {
            return false;
        }
        if keeps < has {
            let rest = block.begin + keeps;
            self.ranges.release_end(rest, has - keeps);
            locks.forget_range(rest, has - keeps);
        }
        block.total = needs;
        block.asked = bytes;
        true
    }
}

impl Pe {
    fn lock_heap(&self) -> MutexGuard<'_, SymmetricHeap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heap_memory(&self) -> &MemoryRange {
        &self.symmetric_memory().own_segments().0[HEAP]
    }

    /// Waits for all PEs, and checks that they make the same request. Returns the first PE that has no memory for its
    /// tables, if there is one.
    fn exchange_requests(&self, ask: HeapRequest) -> Result<Option<usize>> {
        self.symmetric_memory().quiet_all()?;
        let world = self.team_table().team_at(WORLD).ok_or_else(ShmemError::not_running)?;
        let mut differs = Ok(());
        let mut lacks = None;
        // All words are read before the check fails, so that each PE detects a difference.
        self.team_member.exchange_words(&world, ask.to_words(), |pe, theirs| {
            if differs.is_ok() {
                differs = ask.check_request(pe, theirs);
            }
            if theirs[HeapRequest::WORDS - 1] != 0 && lacks.is_none() {
                lacks = Some(pe);
            }
        })?;
        differs.map(|()| lacks)
    }

    /// Allocates bytes, and returns their address; `None` if the heap has no room.
    fn take_bytes(&self, bytes: usize, align: usize) -> std::result::Result<Option<usize>, OutOfMemory> {
        let base = self.heap_memory().addr();
        let offset = self.lock_heap().take_bytes(bytes, align)?;
        Ok(offset.map(|offset| base + offset as usize))
    }

    /// Allocates bytes on all PEs, and runs `prepare` on them before any PE returns.
    fn allocate_alike(
        &self,
        call: HeapCall,
        bytes: usize,
        align: usize,
        prepare: impl FnOnce(usize) -> Result<()>,
    ) -> Result<HeapAllocation> {
        let taken = self.take_bytes(bytes, align);
        if let Ok(Some(addr)) = taken {
            prepare(addr)?;
        }
        let lacks = taken.is_err();
        let lacking = self.exchange_requests(HeapRequest { call, bytes, align, offset: 0, lacks })?;
        match (taken, lacking) {
            (Ok(Some(addr)), None) => Ok(HeapAllocation::At(addr)),
            (Ok(taken), Some(pe)) => {
                taken.map_or(Ok(()), |addr| self.release_bytes(addr))?;
                Ok(HeapAllocation::NoTables(pe))
            }
            (Ok(None), None) => Ok(HeapAllocation::Full),
            (Err(_), pe) => Ok(HeapAllocation::NoTables(pe.unwrap_or(self.symmetric_memory().own_pe()))),
        }
    }

    /// Allocates bytes on every PE.
    pub(crate) fn malloc(&self, bytes: usize, align: usize) -> Result<HeapAllocation> {
        if bytes == 0 || !is_valid_alignment(align) {
            return Ok(HeapAllocation::Nothing);
        }
        self.allocate_alike(HeapCall::Malloc, bytes, align, |_| Ok(()))
    }

    /// Allocates zeroed bytes on every PE.
    pub(crate) fn calloc(&self, bytes: usize) -> Result<HeapAllocation> {
        if bytes == 0 {
            return Ok(HeapAllocation::Nothing);
        }
        self.allocate_alike(HeapCall::Calloc, bytes, ALIGN, |addr| {
            let zeros = [0; 4096];
            let heap = self.heap_memory();
            let mut at = 0;
            while at < bytes {
                let len = zeros.len().min(bytes - at);
                map_bounds_error(heap.write((addr - heap.addr() + at) as u64, &zeros[..len]))?;
                at += len;
            }
            Ok(())
        })
    }

    /// Frees an allocation, when all PEs do.
    pub(crate) fn free(&self, addr: usize) -> Result<()> {
        if addr == 0 {
            return Ok(());
        }
        let offset = addr.wrapping_sub(self.heap_memory().addr());
        self.exchange_requests(HeapRequest {
            call: HeapCall::Free,
            bytes: 0,
            align: ALIGN,
            offset,
            lacks: false,
        })?;
        self.release_bytes(addr)
    }

    /// Frees an allocation without waiting for other PEs.
    fn release_bytes(&self, addr: usize) -> Result<()> {
        let offset = addr.wrapping_sub(self.heap_memory().addr()) as u64;
        self.lock_heap().release_bytes(offset, &self.locks)
    }

    /// Resizes an allocation, and keeps its content. If there is no room, the allocation stays as it is.
    pub(crate) fn realloc(&self, addr: usize, bytes: usize) -> Result<HeapAllocation> {
        if addr == 0 {
            return self.malloc(bytes, ALIGN);
        }
        if bytes == 0 {
            return self.free(addr).map(|()| HeapAllocation::Nothing);
        }
        let heap = self.heap_memory();
        let offset = addr.wrapping_sub(heap.addr()) as u64;
        let (had, lacks) = {
            let mut heap = self.lock_heap();
            (heap.asked_bytes(offset)?, heap.reserve_tables().is_err())
        };
        // The exchange below completes all operations, so that no PE writes to the bytes while they are moved.
        let ask =
            HeapRequest { call: HeapCall::Realloc, bytes, align: ALIGN, offset: offset as usize, lacks };
        if let Some(pe) = self.exchange_requests(ask)? {
            return Ok(HeapAllocation::NoTables(pe));
        }
        if self.lock_heap().resize_in_place(offset, bytes as u64, &self.locks) {
            return Ok(HeapAllocation::At(addr));
        }
        let Some(new) = self.take_bytes(bytes, ALIGN)? else { return Ok(HeapAllocation::Full) };
        map_bounds_error(heap.copy_from((new - heap.addr()) as u64, heap, offset, had.min(bytes as u64)))?;
        self.release_bytes(addr)?;
        self.exchange_requests(ask)?;
        Ok(HeapAllocation::At(new))
    }
}
