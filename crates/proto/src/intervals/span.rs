//! A range of bytes. It is a value, and does not contain the owner of the bytes.

/// The greatest end of a span: 64 KiB below the last address, so that an end that is rounded up to a page of any kernel does not
/// overflow.
pub const END_MAX: u64 = !0xffff;

/// At least one byte, from an address or an offset on. Exact: it is never rounded implicitly.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ByteSpan {
    start: u64,
    end: u64,
}

impl ByteSpan {
    /// Returns the span of `len` bytes from `start` on; `None` if it is empty or ends beyond [`END_MAX`].
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

    /// The first byte after the span.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a span contains at least one byte")]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the span contains all bytes of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether the span contains any byte of `other`.
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
    fn adjacent_spans_do_not_overlap() {
        let span = |start, len| ByteSpan::new(start, len).unwrap();
        assert!(span(10, 5).overlaps(span(14, 9)) && !span(10, 5).overlaps(span(15, 1)));
        assert!(!span(10, 5).overlaps(span(9, 1)) && span(10, 5).overlaps(span(11, 1)));
        assert!(span(10, 5).contains(span(10, 5)) && !span(10, 5).contains(span(10, 6)));
        assert!(!span(10, 5).contains(span(9, 3)));
    }
}
