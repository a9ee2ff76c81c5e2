//! `shmem_longdouble_p` and `shmem_longdouble_g`. Rust has no `long double`, so a few instructions move the value
//! between memory and its place in System V's ABI for x86-64. An argument is on the stack, a result in `st(0)`. `rma`
//! does the rest.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use crate::abi::rma::{get, put};
use crate::ctx::DEFAULT;
use crate::memory::rma::ReturnPoint;

/// Bytes of a `long double`.
const LEN: usize = 16;

extern "C" fn put_one(dest: *mut c_void, pe: c_int, value: *const c_void) {
    put("shmem_longdouble_p", DEFAULT, dest, value, LEN, pe, ReturnPoint::Local);
}

extern "C" fn ctx_put_one(ctx: usize, dest: *mut c_void, pe: c_int, value: *const c_void) {
    put("shmem_ctx_longdouble_p", ctx, dest, value, LEN, pe, ReturnPoint::Local);
}

extern "C" fn get_one(source: *const c_void, pe: c_int, into: *mut c_void) {
    get("shmem_longdouble_g", DEFAULT, into, source, LEN, pe, ReturnPoint::Local);
}

extern "C" fn ctx_get_one(ctx: usize, source: *const c_void, pe: c_int, into: *mut c_void) {
    get("shmem_ctx_longdouble_g", ctx, into, source, LEN, pe, ReturnPoint::Local);
}

/// Defines a function that takes a value, and its profiling variant. Arguments: the parameters before the value, the
/// register after them, and the function to call.
macro_rules! takes {
    ($name:literal, ($($arg:ident: $of:ty),*), $register:literal, $call:ident) => {
        takes!(@ concat!("shmem_", $name), ($($arg: $of),*), $register, $call);
        takes!(@ concat!("pshmem_", $name), ($($arg: $of),*), $register, $call);
    };
    (@ $name:expr, ($($arg:ident: $of:ty),*), $register:literal, $call:ident) => {
        const _: () = {
            // The value is the only argument on the stack, right above the return address, and stays there until this
            // returns.
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            extern "C" fn exported($($arg: $of),*) {
                naked_asm!(concat!("lea ", $register, ", [rsp + 8]"), "jmp {call}", call = sym $call)
            }
        };
    };
}
takes!("longdouble_p", (_dest: *mut c_void, _pe: c_int), "rdx", put_one);
takes!("ctx_longdouble_p", (_ctx: usize, _dest: *mut c_void, _pe: c_int), "rcx", ctx_put_one);

/// Defines a function that returns a value, and its profiling variant.
macro_rules! gives {
    ($name:literal, ($($arg:ident: $of:ty),*), $register:literal, $call:ident) => {
        gives!(@ concat!("shmem_", $name), ($($arg: $of),*), $register, $call);
        gives!(@ concat!("pshmem_", $name), ($($arg: $of),*), $register, $call);
    };
    (@ $name:expr, ($($arg:ident: $of:ty),*), $register:literal, $call:ident) => {
        const _: () = {
            // 24 bytes: room for the value, and the stack is aligned to 16 bytes at the call.
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            extern "C" fn exported($($arg: $of),*) {
                naked_asm!(
                    "sub rsp, 24",
                    concat!("mov ", $register, ", rsp"),
                    "call {call}",
                    "fld tbyte ptr [rsp]",
                    "add rsp, 24",
                    "ret",
                    call = sym $call
                )
            }
        };
    };
}
gives!("longdouble_g", (_source: *const c_void, _pe: c_int), "rdx", get_one);
gives!("ctx_longdouble_g", (_ctx: usize, _source: *const c_void, _pe: c_int), "rcx", ctx_get_one);
