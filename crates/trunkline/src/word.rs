//! The types that atomics, signals and waits work on: those that OpenSHMEM has them for.

use bytemuck::Pod;
use trunkline_mem::MemoryRange;

use trunkline_proto::rma::atomic::AtomicType;
use trunkline_proto::wire::rma::word::WordWidth;

mod sealed {
    /// Keeps [`Word`](super::Word) to the types of this file.
    pub trait Sealed {
        /// How the engine calls it.
        const TYPE: trunkline_proto::rma::atomic::AtomicType;
    }
}

pub(crate) use sealed::Sealed;

/// A value of 32 or 64 bits that is read and written whole: `i32`, `u32`, `f32`, `i64`, `u64`, `f64`, `isize`, `usize`. Of
/// C's types, OpenSHMEM's `int`, `long`, `size_t`, `ptrdiff_t` and so on are one of these each.
pub trait Word: Pod + PartialOrd + Sealed + Send + Sync {
    /// Its bits, in the lowest ones.
    #[doc(hidden)]
    fn to_word(self) -> u64;
    /// The value of these bits.
    #[doc(hidden)]
    fn from_word(bits: u64) -> Self;
}

/// A [`Word`] that is a whole number, which can be added to, masked and compared.
pub trait Integer: Word {
    /// One.
    #[doc(hidden)]
    const ONE: Self;
}

macro_rules! word {
    ($($type:ty, $name:ident, $to:expr, $from:expr;)*) => {$(
        impl Sealed for $type {
            const TYPE: AtomicType = AtomicType::$name;
        }
        impl Word for $type {
            #[inline]
            fn to_word(self) -> u64 {
                $to(self)
            }
            #[inline]
            fn from_word(bits: u64) -> Self {
                $from(bits)
            }
        }
    )*};
}

word! {
    u64, U64, |value| value, |bits| bits;
    i64, I64, i64::cast_unsigned, u64::cast_signed;
    usize, U64, |value| value as u64, |bits| bits as usize;
    isize, I64, |value: isize| value as u64, |bits| bits as isize;
    f64, F64, f64::to_bits, f64::from_bits;
    u32, U32, u64::from, |bits| bits as u32;
    i32, I32, |value: i32| value.cast_unsigned().into(), |bits| (bits as u32).cast_signed();
    f32, F32, |value: f32| value.to_bits().into(), |bits| f32::from_bits(bits as u32);
}

macro_rules! integer {
    ($($type:ty)*) => {$(
        impl Integer for $type {
            const ONE: Self = 1;
        }
    )*};
}

integer!(u64 i64 usize isize u32 i32);

// Where it is not so, two of the types above lie about their width.
const _: () = assert!(size_of::<usize>() == 8);

/// The word at `offset`, which is there.
#[inline]
pub(crate) fn load_word<T: Word>(memory: &MemoryRange, offset: u64) -> u64 {
    let word = match T::TYPE.word_width() {
        WordWidth::Eight => memory.load(offset),
        WordWidth::Four => memory.update_half(offset, |_| None).map(u64::from),
    };
    debug_assert!(word.is_ok());
    word.unwrap_or_default()
}

/// The same, written.
#[inline]
pub(crate) fn store_word<T: Word>(memory: &MemoryRange, offset: u64, bits: u64) {
    let stored = match T::TYPE.word_width() {
        WordWidth::Eight => memory.store(offset, bits),
        WordWidth::Four => memory.update_half(offset, |_| Some(bits as u32)).map(drop),
    };
    debug_assert!(stored.is_ok());
}
