//! Atomics of every type: `shmem_TYPE_atomic_*`, the same of a context, and with values that come later (`_nbi`).

use std::ffi::{c_int, c_void};

use trunkline_proto::rma::atomic::{Action, Type};

use crate::abi::table::{atomics, bits, swaps};
use crate::abi::{export, result};
use crate::ctx::DEFAULT;
use crate::error::Error;
use crate::quick;
use crate::rma::inside;
use crate::world::with;

/// A number as the bits of a word.
pub(super) trait Bits: Copy {
    /// Its bits.
    fn bits(self) -> u64;
    /// The number of bits.
    fn of(bits: u64) -> Self;
}

macro_rules! as_bits {
    ($($of:ty, $unsigned:ty);*) => {$(
        impl Bits for $of {
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

impl Bits for f32 {
    #[inline]
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
    #[inline]
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
}

impl Bits for f64 {
    #[inline]
    fn bits(self) -> u64 {
        self.to_bits()
    }
    #[inline]
    fn of(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

/// What a word was.
#[inline]
pub(super) fn fetch(
    call: &str,
    ctx: usize,
    at: *const c_void,
    (kind, action): (Type, Action),
    pe: c_int,
) -> u64 {
    with(call, |world| {
        let on = world.on(ctx)?;
        let pe = on.team.named(pe.into())?;
        world.fetch(on.lane, pe, aligned(world, at, kind)?, kind, action)
    })
}

#[inline]
pub(super) fn change(call: &str, ctx: usize, at: *const c_void, (kind, action): (Type, Action), pe: c_int) {
    with(call, |world| {
        let on = world.on(ctx)?;
        let pe = on.team.named(pe.into())?;
        world.change(on.lane, pe, aligned(world, at, kind)?, kind, action)
    });
}

/// Where a word is.
#[inline]
fn aligned(
    world: &crate::pe::Pe,
    at: *const c_void,
    kind: Type,
) -> crate::error::Result<crate::place::Place> {
    let bytes = kind.width().bytes() as usize;
    if !at.addr().is_multiple_of(bytes) {
        return Err(Error::Unaligned(at.addr()));
    }
    world.place(at.addr(), bytes)
}

/// The value, which may be used after a quiet.
#[inline]
fn fetch_nbi<T: Bits>(
    call: &str,
    ctx: usize,
    into: *mut T,
    at: *const c_void,
    (what, pe): ((Type, Action), c_int),
) {
    // Before the word is another one.
    let into = with(call, |_| result(into.cast(), size_of::<T>()));
    let bits = fetch(call, ctx, at, what, pe).to_le_bytes();
    if !crate::planted("shmem-keeps-what-it-fetched") {
        with(call, |_| inside(into.write(0, &bits[..size_of::<T>()])));
    }
}

/// An atomic that fetches: by itself, of a context, and later.
macro_rules! fetching {
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*), $action:expr) => {
        export!($name, "_atomic_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) -> $of {
            let quick = quick::fetch(dest, Type::$kind.width(), $action, pe);
            let call = concat!("shmem_", $name, "_atomic_", $verb);
            <$of>::of(quick.unwrap_or_else(|| fetch(call, DEFAULT, dest, (Type::$kind, $action), pe)))
        });
        export!("ctx_", $name, "_atomic_", $verb => fn(ctx: usize, dest: *mut c_void, $($value: $of,)* pe: c_int) -> $of {
            let call = concat!("shmem_ctx_", $name, "_atomic_", $verb);
            <$of>::of(fetch(call, ctx, dest, (Type::$kind, $action), pe))
        });
        export!($name, "_atomic_", $verb, "_nbi" => fn(into: *mut $of, dest: *mut c_void, $($value: $of,)* pe: c_int) {
            let call = concat!("shmem_", $name, "_atomic_", $verb, "_nbi");
            fetch_nbi(call, DEFAULT, into, dest, ((Type::$kind, $action), pe));
        });
        export!("ctx_", $name, "_atomic_", $verb, "_nbi" => fn(
            ctx: usize,
            into: *mut $of,
            dest: *mut c_void,
            $($value: $of,)*
            pe: c_int,
        ) {
            let call = concat!("shmem_ctx_", $name, "_atomic_", $verb, "_nbi");
            fetch_nbi(call, ctx, into, dest, ((Type::$kind, $action), pe));
        });
    };
}

/// One that does not.
macro_rules! changing {
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*), $action:expr) => {
        export!($name, "_atomic_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) {
            if quick::fetch(dest, Type::$kind.width(), $action, pe).is_none() {
                change(concat!("shmem_", $name, "_atomic_", $verb), DEFAULT, dest, (Type::$kind, $action), pe);
            }
        });
        export!("ctx_", $name, "_atomic_", $verb => fn(ctx: usize, dest: *mut c_void, $($value: $of,)* pe: c_int) {
            change(concat!("shmem_ctx_", $name, "_atomic_", $verb), ctx, dest, (Type::$kind, $action), pe);
        });
    };
}

macro_rules! swapped {
    ($name:literal, $of:ty, $kind:ident) => {
        fetching!($name, "fetch", $of, $kind, (), Action::Fetch);
        changing!($name, "set", $of, $kind, (value), Action::Set(value.bits()));
        fetching!($name, "swap", $of, $kind, (value), Action::Set(value.bits()));
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
            Action::CompareSwap { expect: cond.bits(), swap: value.bits() }
        );
        fetching!($name, "fetch_inc", $of, $kind, (), Action::Add(1));
        changing!($name, "inc", $of, $kind, (), Action::Add(1));
        fetching!($name, "fetch_add", $of, $kind, (value), Action::Add(value.bits()));
        changing!($name, "add", $of, $kind, (value), Action::Add(value.bits()));
    };
}
atomics!(counted);

macro_rules! by_bits {
    ($name:literal, $of:ty, $kind:ident) => {
        fetching!($name, "fetch_and", $of, $kind, (value), Action::And(value.bits()));
        changing!($name, "and", $of, $kind, (value), Action::And(value.bits()));
        fetching!($name, "fetch_or", $of, $kind, (value), Action::Or(value.bits()));
        changing!($name, "or", $of, $kind, (value), Action::Or(value.bits()));
        fetching!($name, "fetch_xor", $of, $kind, (value), Action::Xor(value.bits()));
        changing!($name, "xor", $of, $kind, (value), Action::Xor(value.bits()));
    };
}
bits!(by_bits);
