//! The 32-bit immediate that identifies a write to its receiver. All protocols of Trunkline share this layout: "Immediate data" of docs/wire.md.

use crate::limits::RMA_STREAMS_MAX;
use crate::wire::rma::RmaStream;

/// Identifies one buffer of one outstanding receive at the receiver: slot in bits 0-14, generation in bits 15-23.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct BufferToken {
    slot: u16,
    generation: u16,
}

impl BufferToken {
    /// Width of a slot in bits.
    pub const SLOT_BITS: u32 = 15;
    /// Width of a generation in bits.
    pub const GENERATION_BITS: u32 = 9;

    const SLOTS: u32 = (1 << Self::SLOT_BITS) - 1;
    const GENERATIONS: u32 = (1 << Self::GENERATION_BITS) - 1;

    /// Returns the token of that slot and generation; bits beyond their widths are dropped.
    #[must_use]
    pub const fn new(slot: u16, generation: u16) -> Self {
        Self { slot: slot & Self::SLOTS as u16, generation: generation & Self::GENERATIONS as u16 }
    }

    /// Returns the token in the low 24 bits of a word.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        let generation = bits >> Self::SLOT_BITS & Self::GENERATIONS;
        Self { slot: (bits & Self::SLOTS) as u16, generation: generation as u16 }
    }

    /// Returns the token as the low 24 bits of a word.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        (self.generation as u32) << Self::SLOT_BITS | self.slot as u32
    }

    /// Returns the slot of the buffer.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// Returns the generation: which use of the slot.
    #[must_use]
    pub const fn generation(self) -> u16 {
        self.generation
    }

    /// Returns the token of the next use of the same slot.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.slot, self.generation.wrapping_add(1))
    }
}

/// The meaning of a write with an immediate. Kind in bits 28-31, stripe index in bits 24-27, token below.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WriteImmediate {
    /// Kind 1: the whole message, with the length of the buffer.
    Full(BufferToken),
    /// Kind 2: the whole message, with the length of the write.
    Whole(BufferToken),
    /// Kind 3: one of several writes, with its index, 0 to 15.
    Stripe(BufferToken, u8),
    /// Kind 4: a fin record.
    Fin(BufferToken),
}

impl WriteImmediate {
    /// Returns the immediate's bits.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        let (kind, stripe, token) = match self {
            Self::Full(token) => (1, 0, token),
            Self::Whole(token) => (2, 0, token),
            Self::Stripe(token, index) => (3, (index & 15) as u32, token),
            Self::Fin(token) => (4, 0, token),
        };
        kind << 28 | stripe << 24 | token.to_bits()
    }

    /// Parses an immediate; `None` for reserved bits.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        let token = BufferToken::from_bits(bits);
        let stripe = (bits >> 24 & 15) as u8;
        match (bits >> 28, stripe) {
            (1, 0) => Some(Self::Full(token)),
            (2, 0) => Some(Self::Whole(token)),
            (3, index) => Some(Self::Stripe(token, index)),
            (4, 0) => Some(Self::Fin(token)),
            _ => None,
        }
    }

    /// Returns the token of the buffer.
    #[must_use]
    pub const fn buffer_token(self) -> BufferToken {
        match self {
            Self::Full(token) | Self::Whole(token) | Self::Stripe(token, _) | Self::Fin(token) => token,
        }
    }
}

/// The immediate of a write that a stream's signals count (kind 5): stream in bits 16-23, epoch in bits 0-15. No bits are valid both here and as a
/// [`WriteImmediate`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CountedImmediate {
    stream: RmaStream,
    epoch: u16,
}

impl CountedImmediate {
    /// Width of an epoch in bits.
    pub const EPOCH_BITS: u32 = 16;

    const KIND: u32 = 5;

    /// Returns the immediate of a write of that epoch of that stream.
    #[must_use]
    pub const fn new(stream: RmaStream, epoch: u16) -> Self {
        Self { stream, epoch }
    }

    /// Returns the immediate's bits.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        Self::KIND << 28 | (self.stream.number() as u32) << Self::EPOCH_BITS | self.epoch as u32
    }

    /// Parses an immediate; `None` for other kinds and for streams out of range.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        let rest = bits.wrapping_sub(Self::KIND << 28);
        if rest >= (RMA_STREAMS_MAX as u32) << Self::EPOCH_BITS {
            return None;
        }
        match RmaStream::new((rest >> Self::EPOCH_BITS) as u8) {
            Some(stream) => Some(Self { stream, epoch: rest as u16 }),
            None => None,
        }
    }

    /// Returns the stream.
    #[inline]
    #[must_use]
    pub const fn stream(self) -> RmaStream {
        self.stream
    }

    /// Returns the epoch.
    #[inline]
    #[must_use]
    pub const fn epoch(self) -> u16 {
        self.epoch
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn layout_is_the_documented_one() {
        assert_eq!(WriteImmediate::Full(BufferToken::new(0x7fff, 0)).to_bits(), 0x1000_7fff);
        assert_eq!(WriteImmediate::Stripe(BufferToken::new(1, 0x1ff), 15).to_bits(), 0x3fff_8001);
        assert_eq!(BufferToken::new(5, 511).next(), BufferToken::new(5, 0));
        assert_eq!(CountedImmediate::new(RmaStream::new(63).unwrap(), 0x1234).to_bits(), 0x503f_1234);
    }

    proptest! {
        #[test]
        fn immediates_round_trip_from_any_bits(bits: u32) {
            if let Some(imm) = WriteImmediate::from_bits(bits) {
                prop_assert_eq!(imm.to_bits(), bits);
            }
        }

        #[test]
        fn counted_immediates_round_trip_from_any_bits(bits: u32, low: u32) {
            for bits in [bits, 5 << 28 | low & 0xff_ffff] {
                if let Some(counted) = CountedImmediate::from_bits(bits) {
                    prop_assert_eq!((counted.to_bits(), WriteImmediate::from_bits(bits)), (bits, None));
                }
            }
            let last = 5 << 28 | 63 << 16 | low & 0xffff;
            prop_assert!(CountedImmediate::from_bits(last).is_some() && CountedImmediate::from_bits(last + (1 << 16)).is_none());
        }
    }
}
