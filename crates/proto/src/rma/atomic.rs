//! Atomics of every type that OpenSHMEM has them for, and what each makes of a word. Pure: who owns the word loads it, asks
//! here and stores, with nobody in between.

use crate::mutant::Mutant;
use crate::wire::rma::signal::{SignalOp, Update};
use crate::wire::rma::word::Width;

/// The type of a word. C's types are one of these: `int`, `long`, `size_t` and the like by size and sign.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Type {
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

impl Type {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::I32, Self::I64, Self::U32, Self::U64, Self::F32, Self::F64];

    /// How wide.
    #[must_use]
    pub const fn width(self) -> Width {
        match self {
            Self::I32 | Self::U32 | Self::F32 => Width::Four,
            Self::I64 | Self::U64 | Self::F64 => Width::Eight,
        }
    }

    /// The bits of a sum, by those of what is added.
    fn sum(self, a: u64, b: u64) -> u64 {
        match self {
            Self::F32 => (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into(),
            Self::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
            Self::I32 | Self::I64 | Self::U32 | Self::U64 => a.wrapping_add(b),
        }
    }

    /// Whether adding wraps.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64)
    }
}

/// What to do with a word; operands are its bits, with none beyond its width.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Action {
    /// Reads it.
    Fetch,
    /// Replaces it; where it fetches, a swap.
    Set(u64),
    /// Adds to it: wrapping, or as floating-point numbers do; an increment adds 1.
    Add(u64),
    /// Keeps these bits.
    And(u64),
    /// Sets these bits.
    Or(u64),
    /// Turns these bits.
    Xor(u64),
    /// Replaces it by `swap` if its bits are those of `expect`.
    CompareSwap {
        /// What it is compared with.
        expect: u64,
        /// What it becomes.
        swap: u64,
    },
}

/// An atomic that there is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Atomic {
    kind: Type,
    action: Action,
    fetches: bool,
}

impl Atomic {
    /// `None` if there is no such atomic: a floating-point number can only be fetched, set, swapped and added to, a fetch and a
    /// compare-and-swap always fetch, and no operand is wider than its type.
    #[must_use]
    pub fn new(kind: Type, action: Action, fetches: bool) -> Option<Self> {
        let width = kind.width();
        let exists = match action {
            Action::Fetch => fetches,
            Action::Set(value) | Action::Add(value) => width.holds(value),
            Action::And(value) | Action::Or(value) | Action::Xor(value) => {
                kind.is_integer() && width.holds(value)
            }
            Action::CompareSwap { expect, swap } => {
                fetches && kind.is_integer() && width.holds(expect) && width.holds(swap)
            }
        };
        exists.then_some(Self { kind, action, fetches })
    }

    /// On what.
    #[must_use]
    pub const fn kind(self) -> Type {
        self.kind
    }

    /// What.
    #[must_use]
    pub const fn action(self) -> Action {
        self.action
    }

    /// Whether the value before is asked for.
    #[must_use]
    pub const fn fetches(self) -> bool {
        self.fetches
    }

    /// What becomes of a word that is `old`, whose bits beyond its width are not looked at; `None` if it stays as it is, and
    /// nothing is to be stored. The result has no bits beyond the width.
    #[inline]
    #[must_use]
    pub fn apply(self, old: u64, mutant: Mutant) -> Option<u64> {
        let mask = self.kind.width().mask();
        let old = old & mask;
        let new = match self.action {
            Action::Fetch => return None,
            Action::Set(value) => value,
            Action::Add(value) => self.kind.sum(old, value),
            Action::And(value) => old & value,
            Action::Or(value) => old | value,
            Action::Xor(value) => old ^ value,
            Action::CompareSwap { expect, swap } if old == expect => swap,
            Action::CompareSwap { .. } => return None,
        };
        Some(if mutant.is("rma-sums-are-wide") { new } else { new & mask })
    }
}

impl Update {
    /// What a signal makes of a word that is `old`: as [`Atomic::apply`].
    #[inline]
    #[must_use]
    pub const fn apply(self, old: u64) -> Option<u64> {
        let mask = self.word().width().mask();
        let old = old & mask;
        match self.op() {
            SignalOp::Set => Some(self.value()),
            SignalOp::Add => Some(old.wrapping_add(self.value()) & mask),
            SignalOp::Max if self.value() > old => Some(self.value()),
            SignalOp::Max => None,
        }
    }

    /// Whether the word has to be read for that.
    #[must_use]
    pub const fn reads(self) -> bool {
        !matches!(self.op(), SignalOp::Set)
    }
}
