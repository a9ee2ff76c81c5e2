//! The symmetric heap. Every PE makes the same calls with the same sizes, and so has the same offsets; each call looks whether the others
//! make it, too.

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

/// What allocations are aligned to unless more is asked for.
const ALIGN: usize = 64;

/// Whether memory can be aligned to so many bytes.
pub(crate) const fn is_valid_alignment(align: usize) -> bool {
    align.is_power_of_two() && align <= ALIGN_MAX
}

/// The outcome of a call of the heap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HeapAllocation {
    /// Memory at this address.
    At(usize),
    /// None, as the caller wants.
    Nothing,
    /// None: the symmetric heap has no room.
    Full,
    /// None on any PE: this one has no memory of its own for the tables of its heap.
    NoTables(usize),
}

/// A call of the heap, which all PEs make alike.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct HeapRequest {
    call: HeapCall,
    bytes: usize,
    align: usize,
    /// Where in the heap what is freed or moved begins.
    offset: usize,
    /// This PE has no memory for its tables. The PEs may differ in this.
    lacks: bool,
}

/// Which: those that are not here are the same as one of them.
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

    /// Fails if a PE asks for something else.
    fn check_request(&self, pe: usize, theirs: [u64; Self::WORDS]) -> Result<()> {
        let ours = self.to_words();
        let differs = |at: usize| theirs[at] != ours[at];
        if differs(0) {
            let theirs = HeapCall::call_name(theirs[0]);
            let ours = HeapCall::call_name(ours[0]);
            return Err(ShmemError::Calls { pe, theirs, ours });
        }
        let whats =
            [(1, "this allocation"), (2, "alignment"), (3, "the heap before what it frees or has moved")];
        match whats.into_iter().find(|(at, _)| differs(*at)) {
            Some((at, what)) => Err(ShmemError::Differ { pe, what, theirs: theirs[at], ours: ours[at] }),
            None => Ok(()),
        }
    }
}

/// An allocation of the symmetric heap.
#[derive(Clone, Copy, Debug)]
struct HeapBlock {
    /// The offset of its first byte. The offset that C has is greater if that is aligned to more than [`ALIGN`].
    begin: u64,
    /// The number of its bytes.
    total: u64,
    /// The number of bytes that C asked for.
    asked: u64,
}

/// The bytes of this PE's symmetric heap that are allocated.
///
/// The calls of the heap in this file use it, under the lock that `Pe` has. It never waits for other PEs, and never touches the bytes
/// of the heap.
///
/// - `taken` has each allocation by the offset that C has. No two of them have a byte in common, nor has one with a free range of `ranges`.
#[derive(Debug)]
pub(crate) struct SymmetricHeap {
    ranges: HeapRanges,
    taken: HashMap<u64, HeapBlock>,
}

fn no_allocation() -> ShmemError {
    ShmemError::Argument("nothing was allocated at this address, or it was freed before")
}

impl SymmetricHeap {
    /// A heap of so many bytes, all free.
    pub(crate) fn new(bytes: u64) -> Self {
        Self { ranges: HeapRanges::new(bytes), taken: HashMap::new() }
    }

    /// Makes room in the tables for one more allocation, and for the gap that it may leave: freeing needs no memory.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    fn reserve_tables(&mut self) -> std::result::Result<(), OutOfMemory> {
        let bytes = (self.taken.len() + 1) * size_of::<(u64, HeapBlock)>();
        self.taken.try_reserve(1).map_err(|_| OutOfMemory { bytes })?;
        self.ranges.reserve_gap()
    }

    /// Takes bytes of the heap, and returns their offset; `None` if it has no room.
    fn take_bytes(&mut self, bytes: usize, align: usize) -> std::result::Result<Option<u64>, OutOfMemory> {
        self.reserve_tables()?;
        let more = if align > ALIGN { align } else { 0 };
        let Some(total) = (bytes as u64).checked_add(more as u64) else { return Ok(None) };
        let Some(begin) = self.ranges.allocate_range(total) else { return Ok(None) };
        // The same offset everywhere, and aligned here: heaps begin at pages.
        let offset = if more > 0 { begin.next_multiple_of(align as u64) } else { begin };
        self.taken.insert(offset, HeapBlock { begin, total, asked: bytes as u64 });
        Ok(Some(offset))
    }

    /// The number of bytes that C asked for at an offset.
    fn asked_bytes(&self, offset: u64) -> Result<u64> {
        self.taken.get(&offset).map(|block| block.asked).ok_or_else(no_allocation)
    }

    /// Gives the bytes of an allocation back, and has `locks` forget those in them.
    fn release_bytes(&mut self, offset: u64, locks: &LockTable) -> Result<()> {
        let HeapBlock { begin, total, .. } = self.taken.remove(&offset).ok_or_else(no_allocation)?;
        self.ranges.release_range(begin, total);
        locks.forget_range(begin, total);
        Ok(())
    }

    /// Makes an allocation one of so many bytes where it is, if it has room for them: what is behind them is free then.
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

    /// A barrier at which all PEs ask for the same. Returns the first PE that has no memory for its tables, if there is one.
    fn exchange_requests(&self, ask: HeapRequest) -> Result<Option<usize>> {
        self.symmetric_memory().quiet_all()?;
        let world = self.team_table().team_at(WORLD).ok_or_else(ShmemError::not_running)?;
        let mut differs = Ok(());
        let mut lacks = None;
        // All words are read first: each PE then learns of a difference.
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

    /// Takes bytes of the heap, and returns their address; `None` if it has no room.
    fn take_bytes(&self, bytes: usize, align: usize) -> std::result::Result<Option<usize>, OutOfMemory> {
        let base = self.heap_memory().addr();
        let offset = self.lock_heap().take_bytes(bytes, align)?;
        Ok(offset.map(|offset| base + offset as usize))
    }

    /// Allocates the bytes that all PEs want, and has `prepare` fill it before any of them returns.
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

    /// The same, all zero.
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

    /// Gives bytes back, when all PEs do.
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

    /// Gives the bytes of an allocation back.
    fn release_bytes(&self, addr: usize) -> Result<()> {
        let offset = addr.wrapping_sub(self.heap_memory().addr()) as u64;
        self.lock_heap().release_bytes(offset, &self.locks)
    }

    /// As many other bytes, with what was in the first of them. Memory that it cannot replace stays as it is.
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
        // Nobody writes into what moves.
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
