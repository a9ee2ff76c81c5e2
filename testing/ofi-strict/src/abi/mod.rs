//! The functions that C calls: the provider's exported symbol, and the tables of its objects. Each function converts
//! its arguments to values and calls safe Rust; a panic becomes an error number.
//!
//! All of it relies on two promises of libfabric's callers. A function of a table is called with an open object that
//! has this table. Pointers are valid as the interface requires.

mod av;
mod cq;
mod domain;
mod endpoint;
mod eq;
mod fabric;
mod info;
mod message;
mod mr;
mod rma;
mod submit;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use trunkline_sys::ofi::errno;

pub use fabric::fi_prov_ini;

/// The result of a call that panics.
const PANICKED: c_int = -errno::EIO;

/// Runs a call, and returns `panicked` if it panics.
fn catch_panics<R>(panicked: R, call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(panicked)
}

/// Returns the object behind a pointer of C.
///
/// # Safety
/// The object was created by [`hand_out`] as a `T`, and is open.
unsafe fn object_ref<'a, T>(fid: *const impl Sized) -> &'a T {
    // SAFETY: as this function's caller promises; the object's first field is the structure that C knows.
    unsafe { &*fid.cast::<T>() }
}

/// Passes an object to C.
///
/// # Safety
/// `place` may be written.
unsafe fn hand_out<T, F>(made: T, place: *mut *mut F) {
    // SAFETY: as this function's caller promises.
    unsafe { place.write(Box::into_raw(Box::new(made)).cast()) };
}

/// Takes an object back and drops it.
///
/// # Safety
/// As [`object_ref`], and no other reference to the object exists.
unsafe fn take_back<T>(fid: *mut impl Sized) {
    // SAFETY: as this function's caller promises.
    drop(unsafe { Box::from_raw(fid.cast::<T>()) });
}

/// Defines functions for unsupported slots, which return `-FI_ENOSYS`.
macro_rules! missing {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => { $(
        unsafe extern "C" fn $name($(_: $argument),*) -> $result {
            <$result>::from(-trunkline_sys::ofi::errno::ENOSYS as i16)
        }
    )* };
}
use missing;
