//! Symmetric memory: its ranges in this process, and how those of other PEs are reached. Pure look-up: from an address of this
//! process to a place that is the same in every PE.

use trunkline_mem::Memory;

/// Which range. The engine's heaps have the same numbers.
pub(crate) type Segment = usize;
/// The symmetric heap.
pub(crate) const HEAP: Segment = 0;
/// Static variables of the program.
pub(crate) const STATICS: Segment = 1;
/// What the library needs itself.
pub(crate) const INNER: Segment = 2;

/// A place in the symmetric memory of any PE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) segment: Segment,
    pub(crate) offset: u64,
}

impl Place {
    /// So many bytes further on, or back.
    #[inline]
    pub(crate) const fn plus(self, bytes: i64) -> Self {
        Self { segment: self.segment, offset: self.offset.wrapping_add_signed(bytes) }
    }

    /// In the library's own memory.
    #[inline]
    pub(crate) const fn inner(offset: u64) -> Self {
        Self { segment: INNER, offset }
    }
}

/// The ranges of a process.
#[derive(Debug)]
pub(crate) struct Segments(pub(crate) [Memory; 3]);

impl Segments {
    /// Where those bytes are, if they are symmetric.
    #[inline]
    pub(crate) fn find(&self, addr: usize, len: usize) -> Option<Place> {
        for segment in [HEAP, STATICS] {
            let memory = &self.0[segment];
            let offset = addr.wrapping_sub(memory.addr());
            if offset < memory.len() {
                let fits = len <= memory.len() - offset;
                return fits.then_some(Place { segment, offset: offset as u64 });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_symmetric_is_found_and_nothing_else() {
        let segments = Segments([Memory::heap(8192), Memory::heap(4096), Memory::heap(4096)]);
        let [heap, statics, inner] = &segments.0;
        assert_eq!(segments.find(heap.addr(), 8192), Some(Place { segment: HEAP, offset: 0 }));
        assert_eq!(segments.find(heap.addr() + 8191, 1), Some(Place { segment: HEAP, offset: 8191 }));
        assert_eq!(segments.find(statics.addr() + 8, 8), Some(Place { segment: STATICS, offset: 8 }));
        for (addr, len) in [
            (heap.addr(), 8193),
            (heap.addr() + 8191, 2),
            (heap.addr().wrapping_sub(1), 1),
            (inner.addr(), 1),
            (0, 1),
            (usize::MAX, 1),
            (heap.addr() + 8, usize::MAX),
        ] {
            assert_eq!(segments.find(addr, len), None, "{addr:#x} {len}");
        }
    }
}
