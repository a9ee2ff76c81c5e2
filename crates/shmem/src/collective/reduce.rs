//! Reductions. Short data is sent to all PEs, and each combines all of it. Of long data each PE combines a part: it
//! reads that part from all PEs and writes the result to all. Elements are combined in the order of PEs, so all PEs
//! have bit-identical results.

use bytemuck::{Pod, Zeroable};
use trunkline_proto::reserve::try_filled;

use crate::error::Result;
use crate::memory::raw_memory;
use crate::memory::rma::{ReturnPoint, map_bounds_error};
use crate::symmetric_segments::SymmetricPlace;

use super::TeamMember;
use super::group::CollectiveGroup;

/// Bytes that are combined at a time, which fit into the first-level cache.
const CHUNK: usize = 8 << 10;
/// The same for data over the fabric, where larger pieces save round trips.
const CHUNK_FAR: usize = 128 << 10;

/// Lines of 64 bytes in a slot of an exchange, at most.
const SLOT: usize = 16;

/// Combines the elements of the second slice into those of the first.
pub(crate) type CombineFn = fn(&mut [u8], &[u8]);

/// Bytes that are aligned for every element type.
struct AlignedBuffer(Box<[AlignedBlock]>);

#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct AlignedBlock([u8; 64]);

impl AlignedBuffer {
    fn new(len: usize) -> Result<Self> {
        Ok(Self(try_filled(AlignedBlock([0; 64]), len.div_ceil(64))?))
    }

    fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }
}

impl TeamMember {
    /// Combines `count` elements of `element` bytes each of every PE of a group.
    pub(crate) fn reduce(
        &self,
        group: &CollectiveGroup,
        dest: usize,
        source: usize,
        count: usize,
        element: usize,
        combine: CombineFn,
    ) -> Result<()> {
        let len = count * element;
        if len == 0 {
            return self.sync_group(group);
        }
        let dest_place = self.memory.find_place(dest, len)?;
        let source_place = self.memory.find_place(source, len)?;
        match group {
            CollectiveGroup::Team(team) if self.fits_slot(len) => {
                let mut acc = [AlignedBlock([0; 64]); SLOT];
                let mut other = [AlignedBlock([0; 64]); SLOT];
                let acc = &mut bytemuck::bytes_of_mut(&mut acc)[..len];
                let other = &mut bytemuck::bytes_of_mut(&mut other)[..len];
                self.exchange_bytes(team, &raw_memory(source, len), |index, from, at| {
                    if index == 0 {
                        return map_bounds_error(from.read(at, acc));
                    }
                    map_bounds_error(from.read(at, other))?;
                    combine(acc, other);
                    Ok(())
                })?;
                map_bounds_error(raw_memory(dest, len).write(0, acc))
            }
            _ => self.reduce_parts(group, dest_place, source_place, count, element, combine),
        }
    }

    fn reduce_parts(
        &self,
        group: &CollectiveGroup,
        dest: SymmetricPlace,
        source: SymmetricPlace,
        count: usize,
        element: usize,
        combine: CombineFn,
    ) -> Result<()> {
        let team = group.group_team();
        let me = self.index(team)?;
        let share = count.div_ceil(team.size) * element;
        let begin = (me * share).min(count * element);
        let end = ((me + 1) * share).min(count * element);
        let chunk = if self.memory.find_fabric().is_some() { CHUNK_FAR } else { CHUNK };
        let chunk = chunk - chunk % element;
        let mut acc = AlignedBuffer::new(chunk)?;
        let mut other = AlignedBuffer::new(chunk)?;
        self.sync_group(group)?;
        for at in (begin..end).step_by(chunk) {
            let len = chunk.min(end - at);
            let acc = acc.bytes_mut(len);
            let other = other.bytes_mut(len);
            self.memory.read_pe(team.pe_at(0), source.offset_by(at as i64), acc)?;
            for index in 1..team.size {
                self.memory.read_pe(team.pe_at(index), source.offset_by(at as i64), other)?;
                combine(acc, other);
            }
            for step in 0..team.size {
                let from = raw_memory(acc.as_ptr().expose_provenance(), len);
                self.memory.put(
                    0,
                    team.pe_at((me + step) % team.size),
                    dest.offset_by(at as i64),
                    &from,
                    ReturnPoint::Local,
                )?;
            }
        }
        self.memory.quiet_all()?;
        self.sync_group(group)
    }
}

/// A reduction of two elements.
pub(crate) trait ReduceOp<T> {
    /// Returns the combination of both.
    fn apply(one: T, other: T) -> T;
}

/// Combines slices of a type, element by element.
pub(crate) fn combine_slices<T: Pod, O: ReduceOp<T>>(acc: &mut [u8], with: &[u8]) {
    let acc = bytemuck::cast_slice_mut::<u8, T>(acc);
    let with = bytemuck::cast_slice::<u8, T>(with);
    for (one, other) in acc.iter_mut().zip(with) {
        *one = O::apply(*one, *other);
    }
}

macro_rules! ops {
    ($($op:ident)*) => {$(
        #[doc = "One of OpenSHMEM's reductions."]
        pub(crate) struct $op;
    )*};
}
ops! { And Or Xor Min Max Sum Prod }

macro_rules! integers {
    ($($of:ty)*) => {$(
        impl ReduceOp<$of> for And { fn apply(one: $of, other: $of) -> $of { one & other } }
        impl ReduceOp<$of> for Or { fn apply(one: $of, other: $of) -> $of { one | other } }
        impl ReduceOp<$of> for Xor { fn apply(one: $of, other: $of) -> $of { one ^ other } }
        impl ReduceOp<$of> for Min { fn apply(one: $of, other: $of) -> $of { one.min(other) } }
        impl ReduceOp<$of> for Max { fn apply(one: $of, other: $of) -> $of { one.max(other) } }
        impl ReduceOp<$of> for Sum { fn apply(one: $of, other: $of) -> $of { one.wrapping_add(other) } }
        impl ReduceOp<$of> for Prod { fn apply(one: $of, other: $of) -> $of { one.wrapping_mul(other) } }
    )*};
}
integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

macro_rules! floats {
    ($($of:ty)*) => {$(
        impl ReduceOp<$of> for Min { fn apply(one: $of, other: $of) -> $of { if other < one { other } else { one } } }
        impl ReduceOp<$of> for Max { fn apply(one: $of, other: $of) -> $of { if other > one { other } else { one } } }
        impl ReduceOp<$of> for Sum { fn apply(one: $of, other: $of) -> $of { one + other } }
        impl ReduceOp<$of> for Prod { fn apply(one: $of, other: $of) -> $of { one * other } }
    )*};
}
floats! { f32 f64 }

/// C's complex numbers.
#[derive(Clone, Copy, Debug, PartialEq, Zeroable, Pod)]
#[repr(transparent)]
pub(crate) struct Complex<T>([T; 2]);

macro_rules! complex {
    ($($of:ty)*) => {$(
        impl ReduceOp<Complex<$of>> for Sum {
            fn apply(one: Complex<$of>, other: Complex<$of>) -> Complex<$of> {
                Complex([one.0[0] + other.0[0], one.0[1] + other.0[1]])
            }
        }
        impl ReduceOp<Complex<$of>> for Prod {
            fn apply(one: Complex<$of>, other: Complex<$of>) -> Complex<$of> {
                let ([a, b], [c, d]) = (one.0, other.0);
                Complex([a * c - b * d, a * d + b * c])
            }
        }
    )*};
}
complex! { f32 f64 }

/// C's `long double` on x86-64: a number of 10 bytes in 16.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Zeroable, Pod)]
#[repr(C, align(16))]
pub(crate) struct LongDouble(pub(crate) [u8; 16]);

macro_rules! extended {
    ($op:ident, $instruction:literal) => {
        impl ReduceOp<LongDouble> for $op {
            fn apply(mut one: LongDouble, other: LongDouble) -> LongDouble {
                // SAFETY: `one` and `other` are valid for 16 bytes, of which the instructions read and write 10. They
                // pop as many values as they push on the x87 stack.
                unsafe {
                    std::arch::asm!(
                        "fld tbyte ptr [{one}]",
                        "fld tbyte ptr [{other}]",
                        $instruction,
                        "fstp tbyte ptr [{one}]",
                        one = in(reg) std::ptr::from_mut(&mut one),
                        other = in(reg) std::ptr::from_ref(&other),
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                one
            }
        }
    };
}
extended!(Sum, "faddp");
extended!(Prod, "fmulp");

/// Returns whether `one` is less than `other`.
fn is_less(one: &LongDouble, other: &LongDouble) -> bool {
    let less: u8;
    // SAFETY: `one` and `other` are valid for 16 bytes, of which the instructions read 10. They pop as many values as
    // they push on the x87 stack.
    unsafe {
        std::arch::asm!(
            "fld tbyte ptr [{one}]",
            "fld tbyte ptr [{other}]",
            "fcomip st, st(1)",
            "seta {less}",
            "fstp st(0)",
            one = in(reg) std::ptr::from_ref(one),
            other = in(reg) std::ptr::from_ref(other),
            less = out(reg_byte) less,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            options(nostack, readonly),
        );
    }
    less != 0
}

impl ReduceOp<LongDouble> for Min {
    fn apply(one: LongDouble, other: LongDouble) -> LongDouble {
        if is_less(&other, &one) { other } else { one }
    }
}

impl ReduceOp<LongDouble> for Max {
    fn apply(one: LongDouble, other: LongDouble) -> LongDouble {
        if is_less(&one, &other) { other } else { one }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns 2^exponent in the x87 format.
    fn power(exponent: i16, negative: bool) -> LongDouble {
        let mut bytes = [0; 16];
        bytes[7] = 0x80;
        let sign = if negative { 0x8000 } else { 0 };
        bytes[8..10].copy_from_slice(&((16383 + exponent) as u16 | sign).to_le_bytes());
        LongDouble(bytes)
    }

    #[test]
    fn long_doubles_are_added_multiplied_and_compared() {
        let two = power(1, false);
        let four = power(2, false);
        let less = power(3, true);
        assert_eq!(<Sum as ReduceOp<_>>::apply(two, two), four);
        assert_eq!(<Prod as ReduceOp<_>>::apply(two, two), four);
        assert_eq!(
            (<Min as ReduceOp<_>>::apply(two, four), <Max as ReduceOp<_>>::apply(two, four)),
            (two, four)
        );
        assert_eq!(
            (<Min as ReduceOp<_>>::apply(four, less), <Max as ReduceOp<_>>::apply(less, two)),
            (less, two)
        );
        // A `double` would round the sum.
        let sum = <Sum as ReduceOp<_>>::apply(power(60, false), power(0, false));
        assert_ne!(sum, power(60, false));
    }

    #[test]
    fn reductions_combine_matching_elements() {
        let mut acc = AlignedBuffer::new(24).unwrap();
        acc.bytes_mut(24).copy_from_slice(bytemuck::cast_slice(&[1.5_f64, -2.0, f64::MAX]));
        let mut with = AlignedBuffer::new(24).unwrap();
        with.bytes_mut(24).copy_from_slice(bytemuck::cast_slice(&[2.0_f64, -3.0, f64::MAX]));
        combine_slices::<f64, Sum>(acc.bytes_mut(24), with.bytes_mut(24));
        assert_eq!(bytemuck::cast_slice::<u8, f64>(acc.bytes_mut(24)), [3.5, -5.0, f64::INFINITY]);
        let complex = <Prod as ReduceOp<_>>::apply(Complex([1.0_f32, 2.0]), Complex([3.0, -1.0]));
        assert_eq!(complex, Complex([5.0, 5.0]));
        assert_eq!(<Sum as ReduceOp<i8>>::apply(127, 1), -128);
    }
}
