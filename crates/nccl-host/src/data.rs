//! Test data: fills buffers and counts wrong elements.
//!
//! Called by a rank before and after a checked run. There are two kinds of data: bytes that a collective only moves,
//! for which any bits are valid, and values that it reduces, which are exact in every order (see `element`). A hash
//! of (seed, block, position) makes them, so no buffer with the expected result is stored.

use crate::element::{BufferElement, as_elements, elements_mut};
use crate::types::{DataType, RedOp};

/// Block number of the content of a result buffer before the run.
pub(crate) const POISON: u64 = u64::MAX;

/// Returns the hash of one 8-byte word, or of one element.
#[inline(always)]
pub(crate) fn hash(seed: u64, block: u64, position: u64) -> u64 {
    let mut x = position
        .wrapping_add(block.wrapping_mul(0xd6e8_feb8_6659_fd93))
        .wrapping_add(seed.wrapping_mul(0xa076_1d64_78bd_642f))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// Fills a block with its bytes.
pub(crate) fn fill_bytes(seed: u64, block: u64, out: &mut [u8]) {
    for (position, word) in out.chunks_mut(8).enumerate() {
        let bytes = hash(seed, block, position as u64).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// Counts the elements of `size` bytes that differ from the block's bytes.
pub(crate) fn wrong_bytes(seed: u64, block: u64, found: &[u8], size: usize) -> u64 {
    let mut wrong = 0;
    for (position, word) in found.chunks(8).enumerate() {
        let bytes = hash(seed, block, position as u64).to_le_bytes();
        if *word != bytes[..word.len()] {
            let pairs = word.chunks(size.max(1)).zip(bytes.chunks(size.max(1)));
            wrong += pairs.filter(|(x, y)| **x != y[..x.len()]).count() as u64;
        }
    }
    wrong
}

/// Fills a buffer with the values that `rank` contributes, from element `first` on.
pub(crate) fn fill_values(dtype: DataType, op: RedOp, seed: u64, rank: usize, first: usize, out: &mut [u8]) {
    fn fill<T: BufferElement>(op: RedOp, seed: u64, rank: usize, first: usize, out: &mut [u8]) {
        for (index, x) in elements_mut::<T>(out).iter_mut().enumerate() {
            *x = T::narrow(T::value(hash(seed, rank as u64, (first + index) as u64), op));
        }
    }
    crate::element::with_element!(dtype, fill::<_>(op, seed, rank, first, out));
}

/// Counts the elements that differ from the reduction of the values of `ranks`, from element `first` on.
pub(crate) fn wrong_values(
    dtype: DataType,
    op: RedOp,
    seed: u64,
    ranks: std::ops::Range<usize>,
    first: usize,
    found: &[u8],
) -> u64 {
    fn count<T: BufferElement>(
        op: RedOp,
        seed: u64,
        ranks: std::ops::Range<usize>,
        first: usize,
        found: &[u8],
    ) -> u64 {
        let mut wrong = 0;
        let n = ranks.len() as u32;
        for (index, x) in as_elements::<T>(found).iter().enumerate() {
            let position = (first + index) as u64;
            let mut expected = T::value(hash(seed, ranks.start as u64, position), op);
            for rank in ranks.start + 1..ranks.end {
                expected = T::combine(op, expected, T::value(hash(seed, rank as u64, position), op));
            }
            if op == RedOp::Avg && n > 1 {
                expected = T::divide(expected, n);
            }
            wrong += u64::from(!x.same(T::narrow(expected)));
        }
        wrong
    }
    crate::element::with_element!(dtype, count::<_>(op, seed, ranks, first, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_is_one_wrong_element() {
        let mut bytes = vec![0u8; 1003];
        fill_bytes(7, 3, &mut bytes);
        assert_eq!(wrong_bytes(7, 3, &bytes, 1), 0);
        bytes[1002] ^= 1;
        bytes[5] ^= 0x80;
        assert_eq!(wrong_bytes(7, 3, &bytes, 1), 2);
        assert_eq!(wrong_bytes(7, 3, &bytes, 4), 2);
    }

    #[test]
    fn values_of_all_ranks_reduce_exactly_in_any_order() {
        for dtype in DataType::ALL.iter().copied() {
            for op in RedOp::ALL.iter().copied() {
                let bytes = 64 * dtype.element_bytes();
                let mut sum = vec![0u64; bytes / 8];
                let mut next = vec![0u64; bytes / 8];
                // SAFETY: a `u64` may be seen as bytes.
                let (_, sum, _) = unsafe { sum.align_to_mut::<u8>() };
                // SAFETY: as above.
                let (_, next, _) = unsafe { next.align_to_mut::<u8>() };
                fill_values(dtype, op, 9, 15, 0, sum);
                for rank in (0..15).rev() {
                    fill_values(dtype, op, 9, rank, 0, next);
                    crate::reduce::reduce_in_place(dtype, op, sum, next);
                }
                if op == RedOp::Avg {
                    crate::reduce::divide_elements(dtype, sum, 16);
                }
                assert_eq!(wrong_values(dtype, op, 9, 0..16, 0, sum), 0, "{dtype} {op}");
                sum[0] ^= 0x40;
                assert_eq!(wrong_values(dtype, op, 9, 0..16, 0, sum), 1, "{dtype} {op}");
            }
        }
    }
}
