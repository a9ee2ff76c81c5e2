//! Strided bytes, in rows of equal length at equal distances: a column of a matrix, a face of a cube. Bytes are numbered as if they were contiguous.
//! Computes offsets only; copies nothing.

/// The layout of bytes in memory.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct StridedRows {
    /// Bytes of a row; `u64::MAX` for a single row.
    block: u64,
    /// Distance between the beginnings of two successive rows, in bytes.
    stride: u64,
}

impl StridedRows {
    /// Contiguous bytes: a single row.
    pub const WHOLE: Self = Self { block: u64::MAX, stride: u64::MAX };

    /// Returns rows of `block` bytes, which begin at multiples of `stride`; `None` if rows are empty or overlap.
    #[must_use]
    pub const fn new(block: u64, stride: u64) -> Option<Self> {
        if block == 0 || stride < block || stride == u64::MAX { None } else { Some(Self { block, stride }) }
    }

    /// Whether the bytes are a single row.
    #[inline]
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.block == u64::MAX
    }

    /// Returns the words for a frame: two zeros for a single row.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        if self.is_whole() { [0, 0] } else { [self.block, self.stride] }
    }

    /// Reads the words of a frame; `None` if they are invalid.
    #[must_use]
    pub const fn of_words([block, stride]: [u64; 2]) -> Option<Self> {
        if block == 0 && stride == 0 { Some(Self::WHOLE) } else { Self::new(block, stride) }
    }

    /// The distance of byte number `at` from the first byte.
    #[inline]
    #[must_use]
    pub const fn offset_of(&self, at: u64) -> u64 {
        if self.is_whole() {
            return at;
        }
        (at / self.block).saturating_mul(self.stride).saturating_add(at % self.block)
    }

    /// Bytes from byte number `at` to the end of its row.
    #[inline]
    const fn left_in_row(&self, at: u64) -> u64 {
        if self.is_whole() { u64::MAX } else { self.block - at % self.block }
    }

    /// Distance from the first byte to behind the last of `len`, including gaps between rows. `None` if it exceeds 64 bits.
    #[must_use]
    pub const fn spanned_bytes(&self, len: u64) -> Option<u64> {
        if self.is_whole() || len == 0 {
            return Some(len);
        }
        match ((len - 1) / self.block).checked_mul(self.stride) {
            Some(before) => before.checked_add((len - 1) % self.block + 1),
            None => None,
        }
    }

    /// Number of bytes in rows within `span` bytes, which must end with a whole row; `None` if they do not.
    #[must_use]
    pub const fn packed_bytes(&self, span: u64) -> Option<u64> {
        if self.is_whole() {
            return Some(span);
        }
        match span.checked_sub(self.block) {
            Some(before) if before.is_multiple_of(self.stride) => {
                (before / self.stride + 1).checked_mul(self.block)
            }
            _ => None,
        }
    }

    /// Number of bytes in the whole rows within `span` bytes.
    #[must_use]
    pub const fn whole_in(&self, span: u64) -> u64 {
        if self.is_whole() {
            return span;
        }
        match span.checked_sub(self.block) {
            Some(before) => (before / self.stride + 1).saturating_mul(self.block),
            None => 0,
        }
    }
}

/// The parts of some bytes that are contiguous at both of two ends: the offset of each part at each end, and its length.
#[derive(Clone, Copy, Debug)]
pub struct RowRuns {
    ends: [StridedRows; 2],
    at: u64,
    left: u64,
}

impl RowRuns {
    /// Returns the runs of `len` bytes from number `at` on.
    #[inline]
    #[must_use]
    pub const fn new(ends: [StridedRows; 2], at: u64, len: u64) -> Self {
        Self { ends, at, left: len }
    }
}

impl Iterator for RowRuns {
    type Item = ([u64; 2], u64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let [one, other] = self.ends;
        let len = self.left.min(one.left_in_row(self.at)).min(other.left_in_row(self.at));
        if len == 0 {
            return None;
        }
        let run = ([one.offset_of(self.at), other.offset_of(self.at)], len);
        self.at += len;
        self.left -= len;
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rows_are_counted_as_one_range() {
        let rows = StridedRows::new(3, 10).unwrap();
        assert_eq!([0, 2, 3, 5, 6].map(|at| rows.offset_of(at)), [0, 2, 10, 12, 20]);
        assert_eq!([1, 3, 4, 6].map(|len| rows.spanned_bytes(len)), [1, 3, 11, 13].map(Some));
        assert_eq!(
            [3, 13, 23, 12, 2].map(|span| rows.packed_bytes(span)),
            [Some(3), Some(6), Some(9), None, None]
        );
        assert_eq!([2, 3, 12, 13, 22].map(|span| rows.whole_in(span)), [0, 3, 3, 6, 6]);
        assert_eq!(
            (StridedRows::new(0, 5), StridedRows::new(6, 5), StridedRows::new(1, u64::MAX)),
            (None, None, None)
        );
        assert_eq!(StridedRows::of_words([0, 0]), Some(StridedRows::WHOLE));
        assert_eq!(
            (StridedRows::of_words([0, 1]), StridedRows::of_words(rows.to_words())),
            (None, Some(rows))
        );
        assert_eq!(StridedRows::new(2, 1 << 62).unwrap().spanned_bytes(100), None);
    }

    proptest! {
        #[test]
        fn runs_cover_all_bytes_in_order_within_rows(
            blocks in (1u64..40, 1u64..40), gaps in (0u64..9, 0u64..9), at in 0u64..100, len in 0u64..200
        ) {
            let ends = [(blocks.0, gaps.0), (blocks.1, gaps.1)]
                .map(|(block, gap)| StridedRows::new(block, block + gap).unwrap());
            for ends in [ends, [ends[0], StridedRows::WHOLE], [StridedRows::WHOLE; 2]] {
                let mut found = Vec::new();
                for (places, run) in RowRuns::new(ends, at, len) {
                    prop_assert!(run > 0);
                    found.extend((0..run).map(|more| places.map(|place| place + more)));
                }
                let expected: Vec<_> = (at..at + len).map(|at| ends.map(|rows| rows.offset_of(at))).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
