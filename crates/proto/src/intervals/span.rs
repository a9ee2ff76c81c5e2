//! A range of bytes. A value; says nothing of whose bytes they are.

/// The end that no span goes beyond: 64 KiB below the last address, so that an end rounded up to a page of any kernel does not
/// overflow.
pub const END_MAX: u64 = !0xffff;

/// At least one byte, from an address or an offset on. Exact: nothing rounds it unasked.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ByteSpan {
    start: u64,
    end: u64,
}

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_has_a_byte_and_ends_before_the_limit() {
        assert_eq!(
            (ByteSpan::new(5, 0), ByteSpan::new(u64::MAX, 2), ByteSpan::new(END_MAX, 1)),
            (None, None, None)
        );
        let last = ByteSpan::new(END_MAX - 1, 1).unwrap();
        assert_eq!((last.start(), last.end(), last.len()), (END_MAX - 1, END_MAX, 1));
    }

    #[test]
    fn to_touch_is_not_to_overlap() {
        let span = |start, len| ByteSpan::new(start, len).unwrap();
        assert!(span(10, 5).overlaps(span(14, 9)) && !span(10, 5).overlaps(span(15, 1)));
        assert!(!span(10, 5).overlaps(span(9, 1)) && span(10, 5).overlaps(span(11, 1)));
        assert!(span(10, 5).contains(span(10, 5)) && !span(10, 5).contains(span(10, 6)));
        assert!(!span(10, 5).contains(span(9, 3)));
    }
}
