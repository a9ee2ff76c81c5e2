//! The types of words: atomics, signals and waits work on them, as OpenSHMEM's do on its standard types. Called by
//! those calls; nothing here communicates.

use bytemuck::Pod;
use trunkline_mem::MemoryRange;

use trunkline_proto::rma::atomic::AtomicType;
use trunkline_proto::wire::rma::word::WordWidth;

mod sealed {
    /// Keeps [`Word`](super::Word) to the types of this file.
    pub trait Sealed {
        /// The engine's name of the type.
        const TYPE: trunkline_proto::rma::atomic::AtomicType;
    }
}

pub(crate) use sealed::Sealed;

/// A value of 32 or 64 bits that is read and written whole: `i32`, `u32`, `f32`, `i64`, `u64`, `f64`, `isize`,
/// `usize`. Each type of OpenSHMEM's atomics (`int`, `long`, `size_t`, `ptrdiff_t` and so on) corresponds to one of
/// these.
pub trait Word: Pod + PartialOrd + Sealed + Send + Sync {
    /// Returns the bits of the value, as the lowest bits of the result.
    #[doc(hidden)]
    fn to_word(self) -> u64;
    /// Returns the value that has these bits.
    #[doc(hidden)]
    fn from_word(bits: u64) -> Self;
}

/// A [`Word`] that is an integer: atomics can add to it, mask it, and compare and swap it.
pub trait Integer: Word {
    /// The value 1.
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

// `usize` and `isize` are declared as words of 64 bits above.
const _: () = assert!(size_of::<usize>() == 8);

/// Reads the word at `offset`, which the caller has checked to be inside the memory.
#[inline]
pub(crate) fn load_word<T: Word>(memory: &MemoryRange, offset: u64) -> u64 {
    let word = match T::TYPE.word_width() {
        WordWidth::Eight => memory.load(offset),
        WordWidth::Four => memory.update_half(offset, |_| None).map(u64::from),
    };
    debug_assert!(word.is_ok());
    word.unwrap_or_default()
}

/// Writes the word at `offset`, which the caller has checked to be inside the memory.
#[inline]
pub(crate) fn store_word<T: Word>(memory: &MemoryRange, offset: u64, bits: u64) {
    let stored = match T::TYPE.word_width() {
        WordWidth::Eight => memory.store(offset, bits),
        WordWidth::Four => memory.update_half(offset, |_| Some(bits as u32)).map(drop),
    };
    debug_assert!(stored.is_ok());
}
