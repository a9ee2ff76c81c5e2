//! The symmetric heap. Every PE makes the same calls with the same sizes, and so has the same offsets; each call looks whether the others
//! make it, too.

use std::sync::PoisonError;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::pe::{ALIGN_MAX, Pe};
use crate::place::HEAP;
use crate::rma::inside;
use crate::team::WORLD;

/// What allocations are aligned to unless more is asked for.
const ALIGN: usize = 64;

/// Whether memory can be aligned to so many bytes.
pub(crate) const fn aligns(align: usize) -> bool {
    align.is_power_of_two() && align <= ALIGN_MAX
}

impl Pe {
    /// A barrier at which all PEs ask for the same.
    fn agree(&self, bytes: usize) -> Result<()> {
        self.complete()?;
        let world = Group::Team(self.teams.at(WORLD).ok_or_else(Error::not_running)?);
        let all = self.numbers(&world, bytes as u64)?;
        match all.iter().position(|&theirs| theirs != bytes as u64) {
            Some(_) if crate::planted("shmem-allocates-apart") => Ok(()),
            Some(pe) => {
                Err(Error::Differ { pe, what: "this allocation", theirs: all[pe], ours: bytes as u64 })
            }
            None => Ok(()),
        }
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
        self.agree(bytes)?;
        Ok(addr)
    }

    /// The same, all zero.
    pub(crate) fn calloc(&self, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        let addr = self.take(bytes, ALIGN).unwrap_or(0);
        if addr != 0 {
            let zeros = [0; 4096];
            let (heap, mut at) = (&self.segments.0[HEAP], 0);
            while at < bytes {
                let len = zeros.len().min(bytes - at);
                inside(heap.write((addr - heap.addr() + at) as u64, &zeros[..len]))?;
                at += len;
            }
        }
        self.agree(bytes)?;
        Ok(addr)
    }

    /// Gives bytes back, when all PEs do.
    pub(crate) fn free(&self, addr: usize) -> Result<()> {
        if addr == 0 {
            return Ok(());
        }
        let offset = addr.wrapping_sub(self.segments.0[HEAP].addr());
        self.agree(offset)?;
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
        if !crate::planted("shmem-remembers-freed-locks") {
            // What comes to be there is another lock.
            self.locks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|held| !held.is_in(begin, total));
        }
        Ok(())
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
        self.agree(bytes)?;
        let Some(new) = self.take(bytes, ALIGN) else { return Ok(0) };
        inside(heap.copy_from((new - heap.addr()) as u64, heap, offset, had.min(bytes as u64)))?;
        self.give(addr)?;
        self.agree(bytes)?;
        Ok(new)
    }
}
