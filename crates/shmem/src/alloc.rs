//! The symmetric heap. Every PE makes the same calls with the same sizes, and so has the same offsets; each call looks whether the others
//! make it, too.

use std::sync::PoisonError;

use trunkline_mem::Memory;
use trunkline_proto::ranges::rounded;

use crate::error::{Error, Result};
use crate::pe::{ALIGN_MAX, Heap, Pe};
use crate::place::HEAP;
use crate::rma::inside;
use crate::team::WORLD;

/// What allocations are aligned to unless more is asked for.
const ALIGN: usize = 64;

/// Whether memory can be aligned to so many bytes.
pub(crate) const fn aligns(align: usize) -> bool {
    align.is_power_of_two() && align <= ALIGN_MAX
}

/// A call of the heap, which all PEs make alike.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Ask {
    call: Call,
    bytes: usize,
    align: usize,
    /// Where in the heap what is freed or moved begins.
    offset: usize,
}

/// Which: those that are not here are the same as one of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
enum Call {
    Malloc = 1,
    Calloc,
    Realloc,
    Free,
}

impl Call {
    fn name(number: u64) -> &'static str {
        match number {
            1 => "shmem_malloc or shmem_align",
            2 => "shmem_calloc",
            3 => "shmem_realloc",
            4 => "shmem_free",
            _ => "another call",
        }
    }
}

impl Ask {
    const WORDS: usize = 4;

    const fn words(&self) -> [u64; Self::WORDS] {
        let align = if self.align < ALIGN { ALIGN } else { self.align };
        [self.call as u64, self.bytes as u64, align as u64, self.offset as u64]
    }

    /// Fails if a PE asks for something else.
    fn compare(&self, pe: usize, theirs: [u64; Self::WORDS]) -> Result<()> {
        let ours = self.words();
        let differs = |at: usize| theirs[at] != ours[at];
        if crate::planted("shmem-allocates-apart") || crate::planted("shmem-compares-sizes") && !differs(1) {
            return Ok(());
        }
        if differs(0) {
            let (theirs, ours) = (Call::name(theirs[0]), Call::name(ours[0]));
            return Err(Error::Calls { pe, theirs, ours });
        }
        let whats =
            [(1, "this allocation"), (2, "alignment"), (3, "the heap before what it frees or has moved")];
        match whats.into_iter().find(|(at, _)| differs(*at)) {
            Some((at, what)) => Err(Error::Differ { pe, what, theirs: theirs[at], ours: ours[at] }),
            None => Ok(()),
        }
    }
}

impl Pe {
    /// A barrier at which all PEs ask for the same.
    fn agree(&self, ask: Ask) -> Result<()> {
        self.complete()?;
        let world = self.teams.at(WORLD).ok_or_else(Error::not_running)?;
        let own = Memory::try_heap(Ask::WORDS * 8)?;
        for (at, word) in (0..).step_by(8).zip(ask.words()) {
            inside(own.store(at, word))?;
        }
        // All are heard first: who differs is told to everybody.
        let mut differs = Ok(());
        self.exchange(&world, &own, |pe, memory, at| {
            let mut theirs = [0; Ask::WORDS];
            for (at, word) in (at..).step_by(8).zip(&mut theirs) {
                *word = inside(memory.load(at))?;
            }
            if differs.is_ok() {
                differs = ask.compare(pe, theirs);
            }
            Ok(())
        })?;
        differs
    }

    fn take(&self, bytes: usize, align: usize) -> Option<usize> {
        let base = self.segments.0[HEAP].addr();
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        let more = if align > ALIGN { align } else { 0 };
        let total = (bytes as u64).checked_add(more as u64)?;
        let begin = heap.ranges.take(total)?;
        // The same offset everywhere, and aligned here: heaps begin at pages.
        let offset = if more > 0 { begin.next_multiple_of(align as u64) } else { begin };
        heap.taken.insert(offset, (begin, total, bytes as u64));
        Some(base + offset as usize)
    }

    /// Bytes on every PE; 0 if there are not so many in a row.
    pub(crate) fn malloc(&self, bytes: usize, align: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        if !aligns(align) {
            return Ok(0);
        }
        let addr = self.take(bytes, align).unwrap_or(0);
        self.agree(Ask { call: Call::Malloc, bytes, align, offset: 0 })?;
        Ok(addr)
    }

    /// The same, all zero.
    pub(crate) fn calloc(&self, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        let addr = self.take(bytes, ALIGN).unwrap_or(0);
        if addr != 0 && !crate::planted("shmem-callocs-what-was-there") {
            let zeros = [0; 4096];
            let (heap, mut at) = (&self.segments.0[HEAP], 0);
            while at < bytes {
                let len = zeros.len().min(bytes - at);
                inside(heap.write((addr - heap.addr() + at) as u64, &zeros[..len]))?;
                at += len;
            }
        }
        self.agree(Ask { call: Call::Calloc, bytes, align: ALIGN, offset: 0 })?;
        Ok(addr)
    }

    /// Gives bytes back, when all PEs do.
    pub(crate) fn free(&self, addr: usize) -> Result<()> {
        if addr == 0 {
            return Ok(());
        }
        let offset = addr.wrapping_sub(self.segments.0[HEAP].addr());
        self.agree(Ask { call: Call::Free, bytes: 0, align: ALIGN, offset })?;
        self.give(addr)
    }

    fn give(&self, addr: usize) -> Result<()> {
        let offset = addr.wrapping_sub(self.segments.0[HEAP].addr()) as u64;
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        let none = Error::Argument("nothing was allocated at this address, or it was freed before");
        let (begin, total, _) = heap.taken.remove(&offset).ok_or(none)?;
        if !crate::planted("shmem-frees-nothing") {
            heap.ranges.give(begin, total);
        }
        self.forget_locks(begin, total);
        Ok(())
    }

    /// Makes an allocation one of so many bytes where it is, if it has room for them: what is behind them is free then.
    fn stays(&self, offset: u64, bytes: u64) -> bool {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        let Heap { ranges, taken } = &mut *heap;
        let Some((begin, total, asked)) = taken.get_mut(&offset) else { return false };
        let needs = (offset - *begin).checked_add(bytes);
        let (Some(needs), Some(keeps), Some(has)) = (needs, needs.and_then(rounded), rounded(*total)) else {
            return false;
        };
        if needs > *total || crate::planted("shmem-moves-what-shrinks") {
            return false;
        }
        if keeps < has {
            let rest = (*begin + keeps, has - keeps);
            ranges.give(rest.0, rest.1);
            self.forget_locks(rest.0, rest.1);
        }
        (*total, *asked) = (needs, bytes);
        true
    }

    /// What comes to be there is another lock.
    fn forget_locks(&self, offset: u64, len: u64) {
        if !crate::planted("shmem-remembers-freed-locks") {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|held| !held.is_in(offset, len));
        }
    }

    /// As many other bytes, with what was in the first of them.
    pub(crate) fn realloc(&self, addr: usize, bytes: usize) -> Result<usize> {
        if addr == 0 {
            return self.malloc(bytes, ALIGN);
        }
        if bytes == 0 {
            return self.free(addr).map(|()| 0);
        }
        let heap = &self.segments.0[HEAP];
        let offset = addr.wrapping_sub(heap.addr()) as u64;
        let none = Error::Argument("nothing was allocated at this address, or it was freed before");
        let had = {
            let heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
            heap.taken.get(&offset).map(|(_, _, asked)| *asked).ok_or(none)?
        };
        // Nobody writes into what moves.
        let ask = Ask { call: Call::Realloc, bytes, align: ALIGN, offset: offset as usize };
        self.agree(ask)?;
        if self.stays(offset, bytes as u64) {
            return Ok(addr);
        }
        let Some(new) = self.take(bytes, ALIGN) else { return Ok(0) };
        inside(heap.copy_from((new - heap.addr()) as u64, heap, offset, had.min(bytes as u64)))?;
        self.give(addr)?;
        self.agree(ask)?;
        Ok(new)
    }
}
