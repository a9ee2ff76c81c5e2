//! The table of C's types: their names in function names, and their types in Rust. All functions for several types,
//! and `shmem.h`, are generated from it.

/// Types of puts, gets and collectives that fit into a register.
macro_rules! scalars {
    ($make:ident) => {
        $make!("float", f32);
        $make!("double", f64);
        $make!("char", i8);
        $make!("schar", i8);
        $make!("short", i16);
        $make!("int", i32);
        $make!("long", i64);
        $make!("longlong", i64);
        $make!("uchar", u8);
        $make!("ushort", u16);
        $make!("uint", u32);
        $make!("ulong", u64);
        $make!("ulonglong", u64);
        $make!("int8", i8);
        $make!("int16", i16);
        $make!("int32", i32);
        $make!("int64", i64);
        $make!("uint8", u8);
        $make!("uint16", u16);
        $make!("uint32", u32);
        $make!("uint64", u64);
        $make!("size", u64);
        $make!("ptrdiff", i64);
    };
}
pub(crate) use scalars;

/// All types of puts, gets and collectives.
macro_rules! all_types {
    ($make:ident) => {
        crate::abi::table::scalars!($make);
        $make!("longdouble", crate::collective::reduce::LongDouble);
    };
}
pub(crate) use all_types;

/// Sizes of elements by which functions are named, in bits.
macro_rules! sizes {
    ($make:ident) => {
        $make!("8", 1);
        $make!("16", 2);
        $make!("32", 4);
        $make!("64", 8);
        $make!("128", 16);
    };
}
pub(crate) use sizes;

/// Types of integer reductions by bits.
macro_rules! integers {
    ($make:ident) => {
        $make!("uchar", u8);
        $make!("short", i16);
        $make!("ushort", u16);
        $make!("int", i32);
        $make!("uint", u32);
        $make!("long", i64);
        $make!("ulong", u64);
        $make!("longlong", i64);
        $make!("ulonglong", u64);
        $make!("int8", i8);
        $make!("int16", i16);
        $make!("int32", i32);
        $make!("int64", i64);
        $make!("uint8", u8);
        $make!("uint16", u16);
        $make!("uint32", u32);
        $make!("uint64", u64);
        $make!("size", u64);
    };
}
pub(crate) use integers;

/// Types of all atomics except bitwise ones.
macro_rules! atomics {
    ($make:ident) => {
        $make!("int", i32, I32);
        $make!("long", i64, I64);
        $make!("longlong", i64, I64);
        $make!("uint", u32, U32);
        $make!("ulong", u64, U64);
        $make!("ulonglong", u64, U64);
        $make!("int32", i32, I32);
        $make!("int64", i64, I64);
        $make!("uint32", u32, U32);
        $make!("uint64", u64, U64);
        $make!("size", u64, U64);
        $make!("ptrdiff", i64, I64);
    };
}
pub(crate) use atomics;

/// Types that can be fetched, set and swapped.
macro_rules! swaps {
    ($make:ident) => {
        crate::abi::table::atomics!($make);
        $make!("float", f32, F32);
        $make!("double", f64, F64);
    };
}
pub(crate) use swaps;

/// Types of bitwise atomics.
macro_rules! bits {
    ($make:ident) => {
        $make!("uint", u32, U32);
        $make!("ulong", u64, U64);
        $make!("ulonglong", u64, U64);
        $make!("int32", i32, I32);
        $make!("int64", i64, I64);
        $make!("uint32", u32, U32);
        $make!("uint64", u64, U64);
    };
}
pub(crate) use bits;

/// Types of words for waits and tests.
macro_rules! waited {
    ($make:ident) => {
        $make!("short", i16);
        $make!("int", i32);
        $make!("long", i64);
        $make!("longlong", i64);
        $make!("ushort", u16);
        $make!("uint", u32);
        $make!("ulong", u64);
        $make!("ulonglong", u64);
        $make!("int32", i32);
        $make!("int64", i64);
        $make!("uint32", u32);
        $make!("uint64", u64);
        $make!("size", u64);
        $make!("ptrdiff", i64);
    };
}
pub(crate) use waited;
