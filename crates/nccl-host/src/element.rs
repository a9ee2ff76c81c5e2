//! The operations on each data type: combine two values, make a test value, compare exactly.
//!
//! Used by `reduce` (the kernels) and `data` (filling and verifying). Test values are chosen so that every
//! partial result of every order of up to 16 ranks is exact in the type, so that results compare bit by bit.

use half::{bf16, f16};

use crate::types::RedOp;

/// An element of a buffer.
pub(crate) trait BufferElement: Copy + 'static {
    /// The type in which values are combined: the type itself, or `f32` for the two 16-bit floats.
    type Wide: Copy;
    /// Converts to the combining type.
    fn widen(self) -> Self::Wide;
    /// Converts back to the stored type.
    fn narrow(wide: Self::Wide) -> Self;
    /// Returns the test value of a hash.
    fn value(hash: u64, op: RedOp) -> Self::Wide;
    /// Returns `a op b`; `Avg` only adds, because its division is last.
    fn combine(op: RedOp, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Does the division of `Avg`.
    fn divide(sum: Self::Wide, ranks: u32) -> Self::Wide;
    /// Compares all bits.
    fn same(self, other: Self) -> bool;
}

macro_rules! integer {
    ($type:ty, $small:expr) => {
        impl BufferElement for $type {
            type Wide = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                wide
            }
            #[inline(always)]
            fn value(hash: u64, op: RedOp) -> Self {
                let small: fn(u64) -> Self = $small;
                if op == RedOp::Avg { small(hash >> 40) } else { (hash >> 8) as Self }
            }
            #[inline(always)]
            fn combine(op: RedOp, a: Self, b: Self) -> Self {
                match op {
                    RedOp::Sum | RedOp::Avg => a.wrapping_add(b),
                    RedOp::Prod => a.wrapping_mul(b),
                    RedOp::Max => a.max(b),
                    RedOp::Min => a.min(b),
                }
            }
            #[inline(always)]
            fn divide(sum: Self, ranks: u32) -> Self {
                // At most 16 ranks, so the number fits in every type.
                sum.wrapping_div((ranks as Self).max(1))
            }
            #[inline(always)]
            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    };
}

integer!(i8, |h| (h % 15) as i8 - 7);
integer!(u8, |h| (h & 15) as u8);
integer!(i32, |h| (h & 0xffff) as i32 - 0x8000);
integer!(u32, |h| (h & 0xffff) as u32);
integer!(i64, |h| (h & 0xffff) as i64 - 0x8000);
integer!(u64, |h| h & 0xffff);

macro_rules! float {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl BufferElement for $type {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                let widen: fn(Self) -> $wide = $widen;
                widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                let narrow: fn($wide) -> Self = $narrow;
                narrow(wide)
            }
            #[inline(always)]
            fn value(hash: u64, op: RedOp) -> $wide {
                match op {
                    // 16 ranks times 8 is 128, within the 8 significant bits of bfloat16.
                    RedOp::Sum | RedOp::Avg => ((hash >> 40) & 15) as $wide - 8.0,
                    RedOp::Max | RedOp::Min => ((hash >> 40) & 255) as $wide - 128.0,
                    // Powers of two: 16 of them stay within the exponents of half.
                    RedOp::Prod => {
                        let magnitude = [0.5, 1.0, 2.0, 1.0][((hash >> 40) & 3) as usize];
                        if hash >> 63 == 0 { magnitude } else { -magnitude }
                    }
                }
            }
            #[inline(always)]
            fn combine(op: RedOp, a: $wide, b: $wide) -> $wide {
                match op {
                    RedOp::Sum | RedOp::Avg => a + b,
                    RedOp::Prod => a * b,
                    RedOp::Max => {
                        if a > b {
                            a
                        } else {
                            b
                        }
                    }
                    RedOp::Min => {
                        if a < b {
                            a
                        } else {
                            b
                        }
                    }
                }
            }
            #[inline(always)]
            fn divide(sum: $wide, ranks: u32) -> $wide {
                sum / (ranks.max(1) as $wide)
            }
            #[inline(always)]
            fn same(self, other: Self) -> bool {
                self.to_bits() == other.to_bits()
            }
        }
    };
}

float!(f32, f32, |x| x, |x| x);
float!(f64, f64, |x| x, |x| x);
float!(f16, f32, |x| x.to_f32(), f16::from_f32);
float!(bf16, f32, |x| x.to_f32(), bf16::from_f32);

/// Calls a generic function with the Rust type of a data type.
macro_rules! with_element {
    ($dtype:expr, $function:ident::<_>($($arg:expr),* $(,)?)) => {
        match $dtype {
            $crate::types::DataType::Int8 => $function::<i8>($($arg),*),
            $crate::types::DataType::Uint8 => $function::<u8>($($arg),*),
            $crate::types::DataType::Int32 => $function::<i32>($($arg),*),
            $crate::types::DataType::Uint32 => $function::<u32>($($arg),*),
            $crate::types::DataType::Int64 => $function::<i64>($($arg),*),
            $crate::types::DataType::Uint64 => $function::<u64>($($arg),*),
            $crate::types::DataType::Half => $function::<half::f16>($($arg),*),
            $crate::types::DataType::Float => $function::<f32>($($arg),*),
            $crate::types::DataType::Double => $function::<f64>($($arg),*),
            $crate::types::DataType::Bfloat16 => $function::<half::bf16>($($arg),*),
        }
    };
}
pub(crate) use with_element;

/// Views the bytes of a buffer as elements; bytes behind the last whole element are left out.
///
/// Buffers start at a page and extents at a whole element, so no bytes are lost at the front.
pub(crate) fn as_elements<T: BufferElement>(bytes: &[u8]) -> &[T] {
    // SAFETY: any bits are valid for every element type, and `align_to` keeps alignment and bounds.
    let (_, middle, _) = unsafe { bytes.align_to::<T>() };
    middle
}

/// Views the bytes of a buffer as elements for writing; otherwise as `elements`.
pub(crate) fn elements_mut<T: BufferElement>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: as in `elements`; any bits written are valid as bytes.
    let (_, middle, _) = unsafe { bytes.align_to_mut::<T>() };
    middle
}
