//! What OpenSHMEM has deprecated and programs still call: atomics and waits by their old names, the old names of the heap, and
//! calls for caches that need nothing.

use std::ffi::{c_int, c_long, c_void};

use trunkline_proto::rma::atomic::{Action, Type};

use crate::abi::memory::{aligned, found};
use crate::abi::table::{atomics, swaps};
use crate::abi::wait::{Compare, Word, until};
use crate::abi::words::{Bits, change, fetch};
use crate::abi::{bytes, export};
use crate::ctx::DEFAULT;
use crate::rma::inside;
use crate::world::{gives, with};

macro_rules! old {
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*) -> value, $action:expr) => {
        export!($name, "_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) -> $of {
            <$of>::of(fetch(concat!("shmem_", $name, "_", $verb), DEFAULT, dest, (Type::$kind, $action), pe))
        });
    };
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*), $action:expr) => {
        export!($name, "_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) {
            change(concat!("shmem_", $name, "_", $verb), DEFAULT, dest, (Type::$kind, $action), pe);
        });
    };
}

macro_rules! swapped {
    ($name:literal, $of:ty, $kind:ident) => {
        old!($name, "swap", $of, $kind, (value) -> value, Action::Set(value.bits()));
        old!($name, "fetch", $of, $kind, () -> value, Action::Fetch);
        old!($name, "set", $of, $kind, (value), Action::Set(value.bits()));
    };
}
swaps!(swapped);

macro_rules! counted {
    ($name:literal, $of:ty, $kind:ident) => {
        old!($name, "cswap", $of, $kind, (cond, value) -> value, Action::CompareSwap {
            expect: cond.bits(),
            swap: value.bits()
        });
        old!($name, "fadd", $of, $kind, (value) -> value, Action::Add(value.bits()));
        old!($name, "finc", $of, $kind, () -> value, Action::Add(1));
        old!($name, "add", $of, $kind, (value), Action::Add(value.bits()));
        old!($name, "inc", $of, $kind, (), Action::Add(1));
    };
}
atomics!(counted);

/// Waits until a word is another one.
macro_rules! waits {
    ($name:literal, $of:ty) => {
        export!($name, "wait" => fn(word: *const c_void, value: $of) {
            with(concat!("shmem_", $name, "wait"), |world| {
                let at = bytes(word, size_of::<$of>())?;
                until(world, || {
                    Ok((<$of>::read(&at, 0)? != value).then_some(()))
                })
            });
        });
    };
}
waits!("", i64);
waits!("short_", i16);
waits!("int_", i32);
waits!("long_", i64);
waits!("longlong_", i64);

export!("wait_until" => fn(word: *const c_void, cmp: c_int, value: c_long) {
    with("shmem_wait_until", |world| {
        let (at, compare) = (bytes(word, 8)?, Compare::named(cmp)?);
        until(world, || Ok(compare.holds(&(inside(at.load(0))? as i64), &value).then_some(())))
    });
});

export!("set_lock" => fn(lock: *mut c_void) {
    with("shmem_set_lock", |world| world.set_lock(lock.addr()));
});

export!("test_lock" => fn(lock: *mut c_void) -> c_int {
    with("shmem_test_lock", |world| Ok((!world.test_lock(lock.addr())?).into()))
});

export!("clear_lock" => fn(lock: *mut c_void) {
    with("shmem_clear_lock", |world| world.clear_lock(lock.addr()));
});

export!("set_cache_inv" => fn() {});
export!("clear_cache_inv" => fn() {});
export!("udcflush" => fn() {});
export!("set_cache_line_inv" => fn(_at: *mut c_void) {});
export!("clear_cache_line_inv" => fn(_at: *mut c_void) {});
export!("udcflush_line" => fn(_at: *mut c_void) {});

/// Old names without the line.
macro_rules! heap {
    ($($old:ident($($arg:ident: $of:ty),*) $(-> $out:ty)? => $by:ident $call:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $old($($arg: $of),*) $(-> $out)? {
            $by(stringify!($old), $call)
        }
    )*};
}
heap! {
    shmalloc(bytes: usize) -> *mut c_void
        => with |world| Ok(found(world, "shmalloc", world.malloc(bytes, 64)?, bytes));
    shmemalign(alignment: usize, bytes: usize) -> *mut c_void
        => with |world| aligned(world, "shmemalign", alignment, bytes);
    shrealloc(at: *mut c_void, bytes: usize) -> *mut c_void
        => with |world| Ok(found(world, "shrealloc", world.realloc(at.addr(), bytes)?, bytes));
    shfree(at: *mut c_void) => gives |world| world.free(at.addr());
}
