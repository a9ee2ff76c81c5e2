//! The allocated ranges of a symmetric heap. Pure: every process makes the same calls and so gets the same offsets, without a message
//! between processes.

use alloc::vec;
use alloc::vec::Vec;

use crate::reserve::{OutOfMemory, try_grow};

/// Alignment of allocations in bytes: a word that one rank waits for shares no cache line with other allocations.
pub const ALIGN: u64 = 64;

/// The free ranges of a heap, as offset and bytes, ordered by offset; no two are adjacent.
#[derive(Debug)]
pub struct HeapRanges {
    free: Vec<(u64, u64)>,
    /// Number of allocated ranges: at most one more range is free.
    taken: usize,
    /// No byte from this offset on was ever allocated.
    fresh: u64,
}

/// Returns the bytes that an allocation of `bytes` uses; `None` if the number overflows.
#[must_use]
pub fn rounded_size(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(ALIGN)
}

impl HeapRanges {
    /// Returns a heap of `bytes` free bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { free: vec![(0, bytes)], taken: 0, fresh: 0 }
    }

    /// Number of free bytes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(_, len)| len).sum()
    }

    /// The offset from which on no byte was ever allocated: these bytes are zero, as the system provided them.
    #[must_use]
    pub fn fresh_offset(&self) -> u64 {
        self.fresh
    }

    /// Reserves memory for the list of free ranges after one more allocation, so that [`HeapRanges::release_range`] needs none. Call it before each
    /// [`HeapRanges::allocate_range`].
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing is changed.
    pub fn reserve_gap(&mut self) -> Result<(), OutOfMemory> {
        let more = (self.taken + 2).saturating_sub(self.free.len());
        try_grow(&mut self.free, more)
    }

    /// Allocates from the first range that is long enough, and returns the offset; `None` if no range is.
    pub fn allocate_range(&mut self, bytes: u64) -> Option<u64> {
        let bytes = rounded_size(bytes)?;
        let at = self.free.iter().position(|&(_, len)| len >= bytes)?;
        let (offset, len) = self.free[at];
        if len == bytes {
            self.free.remove(at);
        } else {
            self.free[at] = (offset + bytes, len - bytes);
        }
        self.fresh = self.fresh.max(offset + bytes);
        self.taken += 1;
        Some(offset)
    }

    /// Frees an allocated range.
    pub fn release_range(&mut self, offset: u64, bytes: u64) {
        self.taken = self.taken.saturating_sub(1);
        self.release_end(offset, bytes);
    }

    /// Frees the last bytes of a range that stays allocated.
    pub fn release_end(&mut self, offset: u64, bytes: u64) {
        let Some(mut len) = rounded_size(bytes) else { return };
        let at = self.free.partition_point(|&(other, _)| other < offset);
        if let Some(&(next, more)) = self.free.get(at)
            && offset + len == next
        {
            len += more;
            self.free.remove(at);
        }
        match at.checked_sub(1).and_then(|before| self.free.get_mut(before)) {
            Some((before, has)) if *before + *has == offset => *has += len,
            _ => self.free.insert(at, (offset, len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 8) % end
        }
    }

    #[test]
    fn range_never_allocated_is_fresh() {
        let mut ranges = HeapRanges::new(1 << 16);
        assert_eq!((ranges.allocate_range(100), ranges.fresh_offset()), (Some(0), 128));
        assert_eq!((ranges.allocate_range(10), ranges.fresh_offset()), (Some(128), 192));
        ranges.release_range(0, 100);
        assert_eq!((ranges.allocate_range(1), ranges.fresh_offset()), (Some(0), 192));
        assert_eq!((ranges.allocate_range(100), ranges.fresh_offset()), (Some(192), 320));
    }

    #[test]
    fn ranges_are_disjoint_and_merge_when_freed() {
        for seed in 0..200 {
            let mut random = Dice(seed | 1 << 40);
            let mut ranges = HeapRanges::new(1 << 16);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for _ in 0..300 {
                if random.below(2) == 0 {
                    let bytes = random.below(5000);
                    if let Some(offset) = ranges.allocate_range(bytes) {
                        assert_eq!(offset % ALIGN, 0);
                        let end = offset + bytes;
                        assert!(end <= 1 << 16);
                        let apart = |&(other, len): &(u64, u64)| end <= other || other + len.max(1) <= offset;
                        assert!(taken.iter().all(apart), "seed {seed}");
                        taken.push((offset, bytes));
                    } else {
                        assert!(ranges.free.iter().all(|&(_, len)| len < rounded_size(bytes).unwrap()));
                    }
                } else if !taken.is_empty() {
                    let (offset, bytes) = taken.swap_remove(random.below(taken.len() as u64) as usize);
                    ranges.release_range(offset, bytes);
                }
                let used: u64 = taken.iter().map(|&(_, bytes)| rounded_size(bytes).unwrap()).sum();
                assert_eq!(ranges.free_bytes() + used, 1 << 16, "seed {seed}");
            }
            taken.drain(..).for_each(|(offset, bytes)| ranges.release_range(offset, bytes));
            assert_eq!(ranges.free, [(0, 1 << 16)], "seed {seed}");
        }
    }

    #[test]
    fn freeing_ranges_allocates_no_memory() {
        let mut ranges = HeapRanges::new(1 << 16);
        let mut taken = Vec::new();
        while ranges.reserve_gap().is_ok()
            && let Some(offset) = ranges.allocate_range(2 * ALIGN)
        {
            taken.push(offset);
        }
        let room = ranges.free.capacity();
        for offset in &taken {
            ranges.release_end(offset + ALIGN, ALIGN);
        }
        assert!(taken.len() == 512 && ranges.free.len() == 512, "each allocated range is followed by a gap");
        taken.iter().for_each(|offset| ranges.release_range(*offset, ALIGN));
        assert_eq!((&*ranges.free, ranges.free.capacity()), (&[(0, 1 << 16)][..], room));
    }

    #[test]
    fn allocation_beyond_the_free_bytes_fails() {
        let mut ranges = HeapRanges::new(100);
        assert_eq!(ranges.allocate_range(101), None);
        assert_eq!(ranges.allocate_range(u64::MAX), None);
        assert_eq!(ranges.allocate_range(1), Some(0));
        assert_eq!(ranges.allocate_range(64), None, "an allocation exceeded the 36 free bytes");
        assert_eq!(ranges.free_bytes(), 36);
    }
}
