//! Indices of entries and completions. Software counts in 64 bits and never wraps. A NIC keeps the lowest 16 bits of an entry's index, the lowest 16
//! in a doorbell record, and the lowest 32 in a WAIT.

/// Most entries of a queue: beyond it, the 16 bits of an index would be ambiguous.
pub const DEPTH_MAX: u32 = 1 << 15;

/// Returns the parity of the lap of an index in a ring of `depth` places (a power of two): the owner bit of its completion.
#[must_use]
pub const fn lap_bit(index: u64, depth: u32) -> bool {
    (index >> depth.trailing_zeros()) & 1 == 1
}

/// Returns the doorbell record after `posted` entries, up to which the NIC reads.
#[must_use]
pub const fn doorbell_record(posted: u64) -> [u8; 4] {
    (posted as u32 & 0xffff).to_be_bytes()
}

/// Returns the index with the 16 bits of a completion: `next`, or an index beyond it by fewer than 65,536.
#[must_use]
pub const fn full_index(counter: u16, next: u64) -> u64 {
    next.wrapping_add(counter.wrapping_sub(next as u16) as u64)
}

/// Returns whether a WAIT for completion number `index` of a queue is over, given that the queue has had `produced` completions. A WAIT for
/// completion i needs i + 1 completions. Both numbers count modulo 2^32 and are less than 2^31 apart.
#[must_use]
pub fn wait_is_over(produced: u32, index: u32) -> bool {
    produced.wrapping_sub(index).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lap_bits_alternate_and_start_clear() {
        let laps = |depth: u32, indices: [u64; 6]| indices.map(|index| lap_bit(index, depth));
        assert_eq!(laps(8, [0, 7, 8, 15, 16, 65_536]), [false, false, true, true, false, false]);
        assert_eq!(laps(2, [0, 1, 2, 3, 4, 6]), [false, false, true, true, false, true]);
        assert_eq!(
            laps(DEPTH_MAX, [0, 32_767, 32_768, 65_535, 65_536, 1 << 40]),
            [false, false, true, true, false, false]
        );
    }

    #[test]
    fn doorbells_have_16_bits() {
        assert_eq!(
            [1, 0xffff, 0x1_0000, 0x1_0203].map(doorbell_record),
            [[0, 0, 0, 1], [0, 0, 255, 255], [0; 4], [0, 0, 2, 3]]
        );
    }

    /// Also where 32 bits wrap.
    #[test]
    fn wait_ends_with_its_own_completion() {
        for index in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX] {
            let over = |more: u32| wait_is_over(index.wrapping_add(more), index);
            assert_eq!([0, 1, 2, 1000].map(over), [false, true, true, true], "{index}");
            assert!(!wait_is_over(index.wrapping_sub(1000), index), "{index}");
        }
    }

    proptest! {
        #[test]
        fn index_is_restored_from_sixteen_bits(next: u64, beyond in 0..65_536u64) {
            prop_assert_eq!(full_index(next.wrapping_add(beyond) as u16, next), next.wrapping_add(beyond));
        }
    }
}
