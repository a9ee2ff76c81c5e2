//! The segments of symmetric memory in this process. A pure look-up from an address of this process to a place that
//! is the same in every PE.

use trunkline_mem::MemoryRange;

/// The index of a segment. The engine's heaps have the same numbers.
pub(crate) type SegmentIndex = usize;
/// The symmetric heap.
pub(crate) const HEAP: SegmentIndex = 0;
/// Static variables of the program.
pub(crate) const STATICS: SegmentIndex = 1;
/// Memory of the library itself.
pub(crate) const INNER: SegmentIndex = 2;

/// A place in the symmetric memory of any PE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SymmetricPlace {
    pub(crate) segment: SegmentIndex,
    pub(crate) offset: u64,
}

impl SymmetricPlace {
    /// Returns the place `bytes` further on, or back.
    #[inline]
    pub(crate) const fn offset_by(self, bytes: i64) -> Self {
        Self { segment: self.segment, offset: self.offset.wrapping_add_signed(bytes) }
    }

    /// Returns a place in the library's own memory.
    #[inline]
    pub(crate) const fn in_inner(offset: u64) -> Self {
        Self { segment: INNER, offset }
    }
}

/// The segments of a process.
#[derive(Debug)]
pub(crate) struct SymmetricSegments(pub(crate) [MemoryRange; 3]);

impl SymmetricSegments {
    /// Returns the place of bytes, if they are symmetric.
    #[inline]
    pub(crate) fn find_place(&self, addr: usize, len: usize) -> Option<SymmetricPlace> {
        for segment in [HEAP, STATICS] {
            let memory = &self.0[segment];
            let offset = addr.wrapping_sub(memory.addr());
            if offset < memory.len() {
                let fits = len <= memory.len() - offset;
                return fits.then_some(SymmetricPlace { segment, offset: offset as u64 });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_place_finds_only_symmetric_addresses() {
        let segments =
            SymmetricSegments([MemoryRange::heap(8192), MemoryRange::heap(4096), MemoryRange::heap(4096)]);
        let [heap, statics, inner] = &segments.0;
        assert_eq!(segments.find_place(heap.addr(), 8192), Some(SymmetricPlace { segment: HEAP, offset: 0 }));
        assert_eq!(
            segments.find_place(heap.addr() + 8191, 1),
            Some(SymmetricPlace { segment: HEAP, offset: 8191 })
        );
        assert_eq!(
            segments.find_place(statics.addr() + 8, 8),
            Some(SymmetricPlace { segment: STATICS, offset: 8 })
        );
        for (addr, len) in [
            (heap.addr(), 8193),
            (heap.addr() + 8191, 2),
            (heap.addr().wrapping_sub(1), 1),
            (inner.addr(), 1),
            (0, 1),
            (usize::MAX, 1),
            (heap.addr() + 8, usize::MAX),
        ] {
            assert_eq!(segments.find_place(addr, len), None, "{addr:#x} {len}");
        }
    }
}
