//! Reduction kernels: `into = a op b` over host memory.
//!
//! Called by the progress thread for each received chunk, and by tests. The loops are simple, so that the compiler
//! vectorises them. On x86-64 a second copy is compiled for AVX2, and used if the processor has it.

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use crate::element::{BufferElement, as_elements, elements_mut};
use crate::types::{DataType, RedOp};

/// Elements of the 16-bit floats that are converted at a time: two such blocks fit in the first-level cache.
const WIDE_BLOCK: usize = 1024;

/// Combines `b` into `into`.
pub(crate) fn reduce_in_place(dtype: DataType, op: RedOp, into: &mut [u8], b: &[u8]) {
    dispatch_cpu(dtype, op, into, None, b);
}

/// Writes `a op b` to `into`.
pub(crate) fn reduce_into(dtype: DataType, op: RedOp, into: &mut [u8], a: &[u8], b: &[u8]) {
    dispatch_cpu(dtype, op, into, Some(a), b);
}

/// Does the last step of `Avg`: divides every element by the number of ranks.
pub(crate) fn divide_elements(dtype: DataType, into: &mut [u8], ranks: u32) {
    fn all<T: BufferElement>(into: &mut [u8], ranks: u32) {
        for x in elements_mut::<T>(into) {
            *x = T::narrow(T::divide(x.widen(), ranks));
        }
    }
    crate::element::with_element!(dtype, all::<_>(into, ranks));
}

fn dispatch_cpu(dtype: DataType, op: RedOp, into: &mut [u8], a: Option<&[u8]>, b: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the features that the function is compiled for.
        unsafe { by_type_avx2(dtype, op, into, a, b) };
        return;
    }
    by_type(dtype, op, into, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn by_type_avx2(dtype: DataType, op: RedOp, into: &mut [u8], a: Option<&[u8]>, b: &[u8]) {
    by_type(dtype, op, into, a, b);
}

#[inline(always)]
fn by_type(dtype: DataType, op: RedOp, into: &mut [u8], a: Option<&[u8]>, b: &[u8]) {
    match dtype {
        DataType::Int8 => by_op::<i8>(op, into, a, b),
        DataType::Uint8 => by_op::<u8>(op, into, a, b),
        DataType::Int32 => by_op::<i32>(op, into, a, b),
        DataType::Uint32 => by_op::<u32>(op, into, a, b),
        DataType::Int64 => by_op::<i64>(op, into, a, b),
        DataType::Uint64 => by_op::<u64>(op, into, a, b),
        DataType::Float => by_op::<f32>(op, into, a, b),
        DataType::Double => by_op::<f64>(op, into, a, b),
        DataType::Half => by_block::<f16>(op, into, a, b),
        DataType::Bfloat16 => by_block::<bf16>(op, into, a, b),
    }
}

/// One loop per operator, so that no loop contains a branch.
#[inline(always)]
fn by_op<T: BufferElement<Wide = T>>(op: RedOp, into: &mut [u8], a: Option<&[u8]>, b: &[u8]) {
    let into = elements_mut::<T>(into);
    let a = a.map(as_elements::<T>);
    let b = as_elements::<T>(b);
    match op {
        RedOp::Sum | RedOp::Avg => zip_into(into, a, b, |x, y| T::combine(RedOp::Sum, x, y)),
        RedOp::Prod => zip_into(into, a, b, |x, y| T::combine(RedOp::Prod, x, y)),
        RedOp::Max => zip_into(into, a, b, |x, y| T::combine(RedOp::Max, x, y)),
        RedOp::Min => zip_into(into, a, b, |x, y| T::combine(RedOp::Min, x, y)),
    }
}

#[inline(always)]
fn zip_into<T: Copy>(into: &mut [T], a: Option<&[T]>, b: &[T], f: impl Fn(T, T) -> T) {
    match a {
        None => {
            for (x, y) in into.iter_mut().zip(b) {
                *x = f(*x, *y);
            }
        }
        Some(a) => {
            for ((to, x), y) in into.iter_mut().zip(a).zip(b) {
                *to = f(*x, *y);
            }
        }
    }
}

/// A 16-bit float whose slices the processor's instructions convert, if it has them.
trait HalfWidth: BufferElement<Wide = f32> {
    fn widen_all(from: &[Self], to: &mut [f32]);
    fn narrow_all(from: &[f32], to: &mut [Self]);
}

impl HalfWidth for f16 {
    fn widen_all(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn narrow_all(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl HalfWidth for bf16 {
    fn widen_all(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn narrow_all(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

#[inline(always)]
fn by_block<T: HalfWidth>(op: RedOp, into: &mut [u8], a: Option<&[u8]>, b: &[u8]) {
    let into = elements_mut::<T>(into);
    let a = a.map(as_elements::<T>);
    let b = as_elements::<T>(b);
    let count = into.len().min(b.len()).min(a.map_or(usize::MAX, <[T]>::len));
    let mut left = [0f32; WIDE_BLOCK];
    let mut right = [0f32; WIDE_BLOCK];
    let mut at = 0;
    while at < count {
        let len = WIDE_BLOCK.min(count - at);
        let left = &mut left[..len];
        let right = &mut right[..len];
        T::widen_all(a.map_or(&into[at..at + len], |a| &a[at..at + len]), left);
        T::widen_all(&b[at..at + len], right);
        match op {
            RedOp::Sum | RedOp::Avg => zip_into(left, None, right, |x, y| x + y),
            RedOp::Prod => zip_into(left, None, right, |x, y| x * y),
            RedOp::Max => zip_into(left, None, right, |x, y| if x > y { x } else { y }),
            RedOp::Min => zip_into(left, None, right, |x, y| if x < y { x } else { y }),
        }
        T::narrow_all(left, &mut into[at..at + len]);
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_and_operator_agrees_with_the_scalar_definition() {
        fn one<T: BufferElement>(dtype: DataType) {
            for op in RedOp::ALL.iter().copied() {
                let count = 2500;
                let bytes = count * dtype.element_bytes();
                let mut a = vec![0u64; bytes / 8 + 1];
                let mut b = vec![0u64; bytes / 8 + 1];
                let mut out = vec![0u64; bytes / 8 + 1];
                // SAFETY: a `u64` may be seen as bytes.
                let (_, a, _) = unsafe { a.align_to_mut::<u8>() };
                // SAFETY: as above.
                let (_, b, _) = unsafe { b.align_to_mut::<u8>() };
                // SAFETY: as above.
                let (_, out, _) = unsafe { out.align_to_mut::<u8>() };
                let a = &mut a[..bytes];
                let b = &mut b[..bytes];
                let out = &mut out[..bytes];
                for (i, x) in elements_mut::<T>(a).iter_mut().enumerate() {
                    *x = T::narrow(T::value(crate::data::hash(1, 2, i as u64), op));
                }
                for (i, x) in elements_mut::<T>(b).iter_mut().enumerate() {
                    *x = T::narrow(T::value(crate::data::hash(1, 3, i as u64), op));
                }
                reduce_into(dtype, op, out, a, b);
                for i in 0..count {
                    let x = as_elements::<T>(a)[i];
                    let y = as_elements::<T>(b)[i];
                    let want = T::narrow(T::combine(op, x.widen(), y.widen()));
                    assert!(as_elements::<T>(out)[i].same(want), "{dtype} {op} element {i}");
                }
                reduce_in_place(dtype, op, a, b);
                assert_eq!(a, out);
            }
        }
        for dtype in DataType::ALL.iter().copied() {
            crate::element::with_element!(dtype, one::<_>(dtype));
        }
    }
}
