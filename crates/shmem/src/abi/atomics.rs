//! Atomics of every type: `shmem_TYPE_atomic_*`, their variants with a context, and with `_nbi`, which complete
//! before they return.

use std::ffi::{c_int, c_void};

use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};

use crate::abi::table::{atomics, bits, swaps};
use crate::abi::{export, result_memory};
use crate::ctx::DEFAULT;
use crate::error::ShmemError;
use crate::fast_path;
use crate::memory::rma::map_bounds_error;
use crate::process_pe::with_pe;

/// A number that is stored as the bits of a word.
pub(super) trait WordBits: Copy {
    /// Returns the bits of the number.
    fn bits(self) -> u64;
    /// Returns the number with these bits.
    fn of(bits: u64) -> Self;
}

macro_rules! as_bits {
    ($($of:ty, $unsigned:ty);*) => {$(
        impl WordBits for $of {
            #[inline]
            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
            #[inline]
            fn of(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}
as_bits! { i32, u32; i64, u64; u32, u32; u64, u64; i16, u16; u16, u16 }

impl WordBits for f32 {
    #[inline]
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
    #[inline]
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
}

impl WordBits for f64 {
    #[inline]
    fn bits(self) -> u64 {
        self.to_bits()
    }
    #[inline]
    fn of(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

/// Executes an atomic, and returns the former value of the word.
#[inline]
pub(super) fn fetch_word(
    call: &str,
    ctx: usize,
    at: *const c_void,
    kind: AtomicType,
    action: AtomicAction,
    pe: c_int,
) -> u64 {
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        world.symmetric_memory().fetch_atomic(on.lane, pe, aligned_place(world, at, kind)?, kind, action)
    })
}

#[inline]
pub(super) fn change_word(
    call: &str,
    ctx: usize,
    at: *const c_void,
    kind: AtomicType,
    action: AtomicAction,
    pe: c_int,
) {
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        world.symmetric_memory().post_atomic(on.lane, pe, aligned_place(world, at, kind)?, kind, action)
    });
}

/// Returns the place of a word, which must be aligned.
#[inline]
fn aligned_place(
    world: &crate::pe::Pe,
    at: *const c_void,
    kind: AtomicType,
) -> crate::error::Result<crate::symmetric_segments::SymmetricPlace> {
    let bytes = kind.word_width().byte_len() as usize;
    if !at.addr().is_multiple_of(bytes) {
        return Err(ShmemError::Unaligned(at.addr()));
    }
    world.symmetric_memory().find_place(at.addr(), bytes)
}

/// Fetches the value, and stores it at once, although OpenSHMEM defines it only after a quiet.
#[inline]
fn fetch_nbi<T: WordBits>(
    call: &str,
    ctx: usize,
    into: *mut T,
    at: *const c_void,
    kind: AtomicType,
    action: AtomicAction,
    pe: c_int,
) {
    // The result's memory is checked before the word is changed.
    let into = with_pe(call, |_| result_memory(into.cast(), size_of::<T>()));
    let bits = fetch_word(call, ctx, at, kind, action, pe).to_le_bytes();
    with_pe(call, |_| map_bounds_error(into.write(0, &bits[..size_of::<T>()])));
}

/// Defines the variants of an atomic that fetches: plain, with a context, and non-blocking.
macro_rules! fetching {
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*), $action:expr) => {
        export!($name, "_atomic_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) -> $of {
            let quick = fast_path::fetch_one(dest, AtomicType::$kind.word_width(), $action, pe);
            let call = concat!("shmem_", $name, "_atomic_", $verb);
            <$of>::of(quick.unwrap_or_else(|| fetch_word(call, DEFAULT, dest, AtomicType::$kind, $action, pe)))
        });
        export!("ctx_", $name, "_atomic_", $verb => fn(ctx: usize, dest: *mut c_void, $($value: $of,)* pe: c_int) -> $of {
            let call = concat!("shmem_ctx_", $name, "_atomic_", $verb);
            <$of>::of(fetch_word(call, ctx, dest, AtomicType::$kind, $action, pe))
        });
        export!($name, "_atomic_", $verb, "_nbi" => fn(into: *mut $of, dest: *mut c_void, $($value: $of,)* pe: c_int) {
            let call = concat!("shmem_", $name, "_atomic_", $verb, "_nbi");
            fetch_nbi(call, DEFAULT, into, dest, AtomicType::$kind, $action, pe);
        });
        export!("ctx_", $name, "_atomic_", $verb, "_nbi" => fn(
            ctx: usize,
            into: *mut $of,
            dest: *mut c_void,
            $($value: $of,)*
            pe: c_int,
        ) {
            let call = concat!("shmem_ctx_", $name, "_atomic_", $verb, "_nbi");
            fetch_nbi(call, ctx, into, dest, AtomicType::$kind, $action, pe);
        });
    };
}

/// Defines the variants of an atomic that does not fetch.
macro_rules! changing {
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*), $action:expr) => {
        export!($name, "_atomic_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) {
            if fast_path::fetch_one(dest, AtomicType::$kind.word_width(), $action, pe).is_none() {
                change_word(concat!("shmem_", $name, "_atomic_", $verb), DEFAULT, dest, AtomicType::$kind, $action, pe);
            }
        });
        export!("ctx_", $name, "_atomic_", $verb => fn(ctx: usize, dest: *mut c_void, $($value: $of,)* pe: c_int) {
            change_word(concat!("shmem_ctx_", $name, "_atomic_", $verb), ctx, dest, AtomicType::$kind, $action, pe);
        });
    };
}

macro_rules! swapped {
    ($name:literal, $of:ty, $kind:ident) => {
        fetching!($name, "fetch", $of, $kind, (), AtomicAction::Fetch);
        changing!($name, "set", $of, $kind, (value), AtomicAction::Set(value.bits()));
        fetching!($name, "swap", $of, $kind, (value), AtomicAction::Set(value.bits()));
    };
}
swaps!(swapped);

macro_rules! counted {
    ($name:literal, $of:ty, $kind:ident) => {
        fetching!(
            $name,
            "compare_swap",
            $of,
            $kind,
            (cond, value),
            AtomicAction::CompareSwap { expect: cond.bits(), swap: value.bits() }
        );
        fetching!($name, "fetch_inc", $of, $kind, (), AtomicAction::Add(1));
        changing!($name, "inc", $of, $kind, (), AtomicAction::Add(1));
        fetching!($name, "fetch_add", $of, $kind, (value), AtomicAction::Add(value.bits()));
        changing!($name, "add", $of, $kind, (value), AtomicAction::Add(value.bits()));
    };
}
atomics!(counted);

macro_rules! by_bits {
    ($name:literal, $of:ty, $kind:ident) => {
        fetching!($name, "fetch_and", $of, $kind, (value), AtomicAction::And(value.bits()));
        changing!($name, "and", $of, $kind, (value), AtomicAction::And(value.bits()));
        fetching!($name, "fetch_or", $of, $kind, (value), AtomicAction::Or(value.bits()));
        changing!($name, "or", $of, $kind, (value), AtomicAction::Or(value.bits()));
        fetching!($name, "fetch_xor", $of, $kind, (value), AtomicAction::Xor(value.bits()));
        changing!($name, "xor", $of, $kind, (value), AtomicAction::Xor(value.bits()));
    };
}
bits!(by_bits);
