//! All atomics of the types that OpenSHMEM defines, and their effect on a word. Pure: the owner of the word loads it, calls
//! [`TypedAtomic::apply_to`], and stores the result, and lets no other access happen in between.

use crate::wire::rma::signal::{SignalUpdate, UpdateOp};
use crate::wire::rma::word::WordWidth;

/// The type of a word. C's types are one of these: `int`, `long`, `size_t` and the like by size and sign.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum AtomicType {
    /// Signed, 4 bytes.
    I32,
    /// Signed, 8 bytes.
    I64,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// Floating point, 4 bytes.
    F32,
    /// Floating point, 8 bytes.
    F64,
}

impl AtomicType {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::I32, Self::I64, Self::U32, Self::U64, Self::F32, Self::F64];

    /// Returns its width.
    #[must_use]
    pub const fn word_width(self) -> WordWidth {
        match self {
            Self::I32 | Self::U32 | Self::F32 => WordWidth::Four,
            Self::I64 | Self::U64 | Self::F64 => WordWidth::Eight,
        }
    }

    /// Returns the bits of a sum, from those of its operands.
    fn sum_bits(self, a: u64, b: u64) -> u64 {
        match self {
            Self::F32 => (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into(),
            Self::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
            Self::I32 | Self::I64 | Self::U32 | Self::U64 => a.wrapping_add(b),
        }
    }

    /// Returns whether adding wraps.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64)
    }
}

/// The operation on a word. Operands are the bits of a value, with none beyond the width of the type.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum AtomicAction {
    /// Reads it.
    Fetch,
    /// Replaces it; a swap if the atomic is fetching.
    Set(u64),
    /// Adds to it: wraps for integers, rounds for floating-point numbers. An increment adds 1.
    Add(u64),
    /// Keeps the bits that are set in the operand.
    And(u64),
    /// Sets the bits that are set in the operand.
    Or(u64),
    /// Inverts the bits that are set in the operand.
    Xor(u64),
    /// Replaces it by `swap` if its bits are those of `expect`.
    CompareSwap {
        /// The expected bits.
        expect: u64,
        /// The new bits.
        swap: u64,
    },
}

/// A valid atomic.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TypedAtomic {
    kind: AtomicType,
    action: AtomicAction,
    fetches: bool,
}

impl TypedAtomic {
    /// Creates an atomic; `None` if it is invalid. A floating-point number can only be fetched, set, swapped and added to. A fetch and a
    /// compare-and-swap always return the old value. No operand is wider than its type.
    #[must_use]
    pub fn new(kind: AtomicType, action: AtomicAction, fetches: bool) -> Option<Self> {
        let width = kind.word_width();
        let exists = match action {
            AtomicAction::Fetch => fetches,
            AtomicAction::Set(value) | AtomicAction::Add(value) => width.can_hold(value),
            AtomicAction::And(value) | AtomicAction::Or(value) | AtomicAction::Xor(value) => {
                kind.is_integer() && width.can_hold(value)
            }
            AtomicAction::CompareSwap { expect, swap } => {
                fetches && kind.is_integer() && width.can_hold(expect) && width.can_hold(swap)
            }
        };
        exists.then_some(Self { kind, action, fetches })
    }

    /// Returns the type of the word.
    #[must_use]
    pub const fn atomic_type(self) -> AtomicType {
        self.kind
    }

    /// Returns the operation.
    #[must_use]
    pub const fn action(self) -> AtomicAction {
        self.action
    }

    /// Returns whether the old value is requested.
    #[must_use]
    pub const fn is_fetching(self) -> bool {
        self.fetches
    }

    /// Returns the new value of a word that is `old`, of which bits beyond the width are ignored; `None` if the word does not change and nothing is
    /// to be stored. The result has no bits beyond the width.
    #[inline]
    #[must_use]
    pub fn apply_to(self, old: u64) -> Option<u64> {
        let mask = self.kind.word_width().bit_mask();
        let old = old & mask;
        let new = match self.action {
            AtomicAction::Fetch => return None,
            AtomicAction::Set(value) => value,
            AtomicAction::Add(value) => self.kind.sum_bits(old, value),
            AtomicAction::And(value) => old & value,
            AtomicAction::Or(value) => old | value,
            AtomicAction::Xor(value) => old ^ value,
            AtomicAction::CompareSwap { expect, swap } if old == expect => swap,
            AtomicAction::CompareSwap { .. } => return None,
        };
        Some(new & mask)
    }
}

impl SignalUpdate {
    /// Returns the new value that a signal gives a word that is `old`, as [`TypedAtomic::apply_to`] does.
    #[inline]
    #[must_use]
    pub const fn apply_to(self, old: u64) -> Option<u64> {
        let mask = self.word().width().bit_mask();
        let old = old & mask;
        match self.op() {
            UpdateOp::Set => Some(self.value()),
            UpdateOp::Add => Some(old.wrapping_add(self.value()) & mask),
            UpdateOp::Max if self.value() > old => Some(self.value()),
            UpdateOp::Max => None,
        }
    }

    /// Returns whether the old value of the word is needed.
    #[must_use]
    pub const fn needs_old_word(self) -> bool {
        !matches!(self.op(), UpdateOp::Set)
    }
}
