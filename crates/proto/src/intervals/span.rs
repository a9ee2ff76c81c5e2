//! A range of bytes, and the pages around it. A value; says nothing of whose bytes they are.

use crate::limits::WIDEN_PAGE_MAX;

/// The end that no span goes beyond, so that widening it to pages cannot overflow.
pub const END_MAX: u64 = !(WIDEN_PAGE_MAX - 1);

/// At least one byte, from an address or an offset on. Exact: nothing rounds it unasked.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ByteSpan {
    start: u64,
    end: u64,
}

/// The size of a kernel's pages in bytes: a power of two, at most [`WIDEN_PAGE_MAX`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageSize(u64);

impl ByteSpan {
    /// `len` bytes from `start` on; `None` without a byte, or if they go beyond [`END_MAX`].
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(end) if start < end && end <= END_MAX => Some(Self { start, end }),
            _ => None,
        }
    }

    /// The first byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The first byte behind it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Bytes; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no span is empty")]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether all bytes of `other` are in it.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether any byte of `other` is in it.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The whole pages that it touches.
    #[must_use]
    pub const fn widened_to(self, page: PageSize) -> Self {
        let within = page.0 - 1;
        Self { start: self.start & !within, end: (self.end + within) & !within }
    }
}

impl PageSize {
    /// Pages of so many bytes; `None` if no kernel has them.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() && bytes <= WIDEN_PAGE_MAX { Some(Self(bytes)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_byte_and_room_to_be_widened() {
        assert_eq!(
            (ByteSpan::new(5, 0), ByteSpan::new(u64::MAX, 2), ByteSpan::new(END_MAX, 1)),
            (None, None, None)
        );
        let last = ByteSpan::new(END_MAX - 1, 1).unwrap();
        assert_eq!(last.widened_to(PageSize::new(WIDEN_PAGE_MAX).unwrap()).end(), END_MAX);
        assert_eq!((last.start(), last.len()), (END_MAX - 1, 1));
    }

    #[test]
    fn pages_are_powers_of_two_up_to_the_limit() {
        assert!([1, 4096, WIDEN_PAGE_MAX].into_iter().all(|bytes| PageSize::new(bytes).is_some()));
        assert!([0, 4095, 4097, 2 * WIDEN_PAGE_MAX].into_iter().all(|bytes| PageSize::new(bytes).is_none()));
    }

    #[test]
    fn to_touch_is_not_to_overlap() {
        let span = |start, len| ByteSpan::new(start, len).unwrap();
        assert!(span(10, 5).overlaps(span(14, 9)) && !span(10, 5).overlaps(span(15, 1)));
        assert!(!span(10, 5).overlaps(span(9, 1)) && span(10, 5).overlaps(span(11, 1)));
        assert!(span(10, 5).contains(span(10, 5)) && !span(10, 5).contains(span(10, 6)));
        assert!(!span(10, 5).contains(span(9, 3)));
        assert_eq!(span(4095, 2).widened_to(PageSize::new(4096).unwrap()), span(0, 8192));
        assert_eq!(span(4096, 4096).widened_to(PageSize::new(4096).unwrap()), span(4096, 4096));
    }
}
