//! Deprecated functions that programs still call: atomics, waits and allocations under their old names, and cache
//! calls without effect.

use std::ffi::{c_int, c_long, c_void};

use trunkline_proto::rma::atomic::{AtomicAction, AtomicType};

use crate::abi::atomics::{WordBits, change_word, fetch_word};
use crate::abi::memory::{allocate_aligned, allocation_pointer};
use crate::abi::table::{atomics, swaps};
use crate::abi::wait::{CompareOp, WaitWord, wait_until};
use crate::abi::{caller_memory, export};
use crate::ctx::DEFAULT;
use crate::memory::rma::map_bounds_error;
use crate::process_pe::{with_pe, with_pe_unless_ending};

macro_rules! old {
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*) -> value, $action:expr) => {
        export!($name, "_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) -> $of {
            <$of>::of(fetch_word(concat!("shmem_", $name, "_", $verb), DEFAULT, dest, AtomicType::$kind, $action, pe))
        });
    };
    ($name:literal, $verb:literal, $of:ty, $kind:ident, ($($value:ident),*), $action:expr) => {
        export!($name, "_", $verb => fn(dest: *mut c_void, $($value: $of,)* pe: c_int) {
            change_word(concat!("shmem_", $name, "_", $verb), DEFAULT, dest, AtomicType::$kind, $action, pe);
        });
    };
}

macro_rules! swapped {
    ($name:literal, $of:ty, $kind:ident) => {
        old!($name, "swap", $of, $kind, (value) -> value, AtomicAction::Set(value.bits()));
        old!($name, "fetch", $of, $kind, () -> value, AtomicAction::Fetch);
        old!($name, "set", $of, $kind, (value), AtomicAction::Set(value.bits()));
    };
}
swaps!(swapped);

macro_rules! counted {
    ($name:literal, $of:ty, $kind:ident) => {
        old!($name, "cswap", $of, $kind, (cond, value) -> value, AtomicAction::CompareSwap {
            expect: cond.bits(),
            swap: value.bits()
        });
        old!($name, "fadd", $of, $kind, (value) -> value, AtomicAction::Add(value.bits()));
        old!($name, "finc", $of, $kind, () -> value, AtomicAction::Add(1));
        old!($name, "add", $of, $kind, (value), AtomicAction::Add(value.bits()));
        old!($name, "inc", $of, $kind, (), AtomicAction::Add(1));
    };
}
atomics!(counted);

/// Defines the wait until a word differs from a value.
macro_rules! waits {
    ($name:literal, $of:ty) => {
        export!($name, "wait" => fn(word: *const c_void, value: $of) {
            with_pe(concat!("shmem_", $name, "wait"), |world| {
                let at = caller_memory(word, size_of::<$of>())?;
                wait_until(world, || {
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
    with_pe("shmem_wait_until", |world| {
        let (at, compare) = (caller_memory(word, 8)?, CompareOp::check_code(cmp)?);
        wait_until(world, || Ok(compare.holds(&(map_bounds_error(at.load(0))? as i64), &value).then_some(())))
    });
});

export!("set_lock" => fn(lock: *mut c_void) {
    with_pe("shmem_set_lock", |world| world.locks.set_lock(world.symmetric_memory(), lock.addr()));
});

export!("test_lock" => fn(lock: *mut c_void) -> c_int {
    with_pe("shmem_test_lock", |world| Ok((!world.locks.test_lock(world.symmetric_memory(), lock.addr())?).into()))
});

export!("clear_lock" => fn(lock: *mut c_void) {
    with_pe("shmem_clear_lock", |world| world.locks.clear_lock(world.symmetric_memory(), lock.addr()));
});

export!("set_cache_inv" => fn() {});
export!("clear_cache_inv" => fn() {});
export!("udcflush" => fn() {});
export!("set_cache_line_inv" => fn(_at: *mut c_void) {});
export!("clear_cache_line_inv" => fn(_at: *mut c_void) {});
export!("udcflush_line" => fn(_at: *mut c_void) {});

/// Defines functions whose old names have no underscore.
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
        => with_pe |world| Ok(allocation_pointer(world, "shmalloc", world.malloc(bytes, 64)?, bytes));
    shmemalign(alignment: usize, bytes: usize) -> *mut c_void
        => with_pe |world| allocate_aligned(world, "shmemalign", alignment, bytes);
    shrealloc(at: *mut c_void, bytes: usize) -> *mut c_void
        => with_pe |world| Ok(allocation_pointer(world, "shrealloc", world.realloc(at.addr(), bytes)?, bytes));
    shfree(at: *mut c_void) => with_pe_unless_ending |world| world.free(at.addr());
}
