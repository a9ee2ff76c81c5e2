//! A word of a symmetric heap that a signal or an atomic changes. It consists of a heap and an offset, never of an address: only the owner of the
//! heap knows its address and length, and checks the word against them.

use crate::wire::cursor::{FieldReader, ShortInput};

/// Width of an offset in a heap, in bits.
pub const OFFSET_BITS: u32 = 48;

/// The width of a word.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum WordWidth {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl WordWidth {
    /// Returns the width in bytes.
    #[must_use]
    pub const fn byte_len(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Returns a mask of all bits of the word.
    #[must_use]
    pub const fn bit_mask(self) -> u64 {
        match self {
            Self::Four => u32::MAX as u64,
            Self::Eight => u64::MAX,
        }
    }

    /// Returns whether a value has no bits beyond the width.
    #[must_use]
    pub const fn can_hold(self, value: u64) -> bool {
        value & !self.bit_mask() == 0
    }
}

/// A naturally aligned word of a heap.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SymmetricWord {
    heap: u8,
    width: WordWidth,
    offset: u64,
}

/// Why a word is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WordError {
    /// It is not naturally aligned.
    #[error("a word of {width} bytes at offset {offset:#x} is not aligned")]
    Alignment {
        /// Offset from the start of the heap, in bytes.
        offset: u64,
        /// Width of the word in bytes.
        width: u64,
    },
    /// The offset has more than [`OFFSET_BITS`] bits.
    #[error("offset {0:#x} has more than 48 bits")]
    Offset(u64),
}

impl SymmetricWord {
    /// Returns the word at `offset` bytes of heap number `heap`.
    ///
    /// # Errors
    /// [`WordError`] if the word is invalid.
    pub const fn new(heap: u8, offset: u64, width: WordWidth) -> Result<Self, WordError> {
        if offset >> OFFSET_BITS != 0 {
            return Err(WordError::Offset(offset));
        }
        if offset & (width.byte_len() - 1) != 0 {
            return Err(WordError::Alignment { offset, width: width.byte_len() });
        }
        Ok(Self { heap, width, offset })
    }

    /// Returns the number of its heap.
    #[must_use]
    pub const fn heap(self) -> u8 {
        self.heap
    }

    /// Returns its width.
    #[must_use]
    pub const fn width(self) -> WordWidth {
        self.width
    }

    /// Returns its offset from the start of the heap, in bytes.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.offset
    }
}

/// Returns the low 48 bits as six bytes, little-endian.
pub(super) fn six_bytes(value: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = value.to_le_bytes();
    [a, b, c, d, e, f]
}

/// Parses six bytes as a number.
pub(super) fn read_six_bytes(reader: &mut FieldReader<'_>) -> Result<u64, ShortInput> {
    let [a, b, c, d, e, f] = reader.array()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_aligned_and_in_reach() {
        for (offset, width) in [
            (2, WordWidth::Four),
            (7, WordWidth::Four),
            (4, WordWidth::Eight),
            (1 << 47 | 1, WordWidth::Eight),
        ] {
            let wrong = WordError::Alignment { offset, width: width.byte_len() };
            assert_eq!(SymmetricWord::new(0, offset, width), Err(wrong));
        }
        assert_eq!(SymmetricWord::new(0, 1 << 48, WordWidth::Four), Err(WordError::Offset(1 << 48)));
        let last = (1 << 48) - 8;
        let word = SymmetricWord::new(255, last, WordWidth::Eight).unwrap();
        assert_eq!((word.heap(), word.offset(), word.width()), (255, last, WordWidth::Eight));
        assert!(SymmetricWord::new(0, 4, WordWidth::Four).is_ok());
    }

    #[test]
    fn width_limits_the_value() {
        assert!(
            WordWidth::Four.can_hold(0xffff_ffff)
                && !WordWidth::Four.can_hold(1 << 32)
                && WordWidth::Eight.can_hold(u64::MAX)
        );
    }
}
