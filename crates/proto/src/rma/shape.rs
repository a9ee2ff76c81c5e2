//! The width of epoch numbers on the wire, and how many epochs may be live. Both ends of a stream have the same shape.

use crate::wire::imm::CountedImmediate;

/// Validated numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EpochShape {
    mask: u64,
    window: u64,
    acknowledge_after: u64,
}

impl EpochShape {
    /// The values of docs/wire.md: epochs of 16 bits, of which 128 may be live, and an acknowledgement after 32.
    pub const WIRE: Self = Self { mask: 0xffff, window: 128, acknowledge_after: 32 };

    /// Creates a shape with epochs of `bits` bits, of which `window` may be live. `window` is a power of two and at most half of all values: past
    /// epochs are then distinguished from coming ones. A target that applied `acknowledge_after` epochs acknowledges them without a request; at most
    /// `window`, or both ends would wait for each other. `None` if a number breaks one of these rules.
    #[must_use]
    pub const fn new(bits: u32, window: u32, acknowledge_after: u32) -> Option<Self> {
        let fits = bits <= CountedImmediate::EPOCH_BITS
            && window.is_power_of_two()
            && window as u64 * 2 <= 1 << bits;
        if !fits || acknowledge_after == 0 || acknowledge_after > window {
            return None;
        }
        let window = window as u64;
        let acknowledge_after = acknowledge_after as u64;
        Some(Self { mask: (1 << bits) - 1, window, acknowledge_after })
    }

    /// Returns how many epochs may be live at once.
    #[must_use]
    pub const fn epoch_window(self) -> u64 {
        self.window
    }

    /// Returns after how many applied signals an acknowledgement is due.
    #[must_use]
    pub const fn acknowledge_after(self) -> u64 {
        self.acknowledge_after
    }

    /// Returns the bits of an epoch's number that messages carry. No value is reserved.
    #[inline]
    #[must_use]
    pub const fn wire_epoch(self, number: u64) -> u16 {
        (number & self.mask) as u16
    }

    /// Returns how far the epoch with that number on the wire is ahead of `number`.
    #[inline]
    #[must_use]
    pub const fn epochs_ahead(self, wire: u16, number: u64) -> u64 {
        (wire as u64).wrapping_sub(number) & self.mask
    }

    /// Returns whether a number on the wire is valid.
    #[must_use]
    pub const fn is_valid_epoch(self, wire: u16) -> bool {
        wire as u64 & !self.mask == 0
    }

    /// Returns an epoch's index in a ring of [`EpochShape::epoch_window`] entries.
    #[inline]
    #[must_use]
    pub const fn ring_index(self, number: u64) -> usize {
        (number & (self.window - 1)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_alias_or_stall_are_rejected() {
        for (bits, window, after) in
            [(17, 8, 1), (4, 16, 1), (4, 6, 1), (4, 0, 1), (4, 8, 0), (4, 8, 9), (0, 1, 1)]
        {
            assert_eq!(EpochShape::new(bits, window, after), None, "{bits} {window} {after}");
        }
        assert_eq!(EpochShape::new(16, 128, 32), Some(EpochShape::WIRE));
        assert!(EpochShape::new(4, 8, 8).is_some() && EpochShape::new(1, 1, 1).is_some());
    }

    #[test]
    fn both_ends_use_the_same_sequence_of_values() {
        let shape = EpochShape::new(4, 8, 2).unwrap();
        let mut seen = [0; 16];
        for number in 1000_u64..1032 {
            let wire = shape.wire_epoch(number);
            seen[usize::from(wire)] += 1;
            for behind in 0..8 {
                assert_eq!(shape.epochs_ahead(wire, number - behind), behind);
                assert_eq!(shape.epochs_ahead(shape.wire_epoch(number - behind), number), (16 - behind) % 16);
            }
        }
        assert_eq!(seen, [2; 16], "a value is reserved");
        assert!(shape.is_valid_epoch(15) && !shape.is_valid_epoch(16));
    }
}
