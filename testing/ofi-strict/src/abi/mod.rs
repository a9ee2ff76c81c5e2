//! What C calls: the provider's one symbol, and the tables in its objects. Each function turns what it was given into values
//! and goes on in safe Rust; a panic ends in an error number.
//!
//! Two promises of libfabric's callers stand behind all of it: a function of a table is called with an object that carries
//! this table and is not closed, and pointers are good for what the interface says of them.

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

/// What a panic ends in.
const PANICKED: c_int = -errno::EIO;

/// Runs a call.
fn catch_panics<R>(panicked: R, call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(panicked)
}

/// The object behind a pointer that C has.
///
/// # Safety
/// The object was made by [`hand_out`] as a `T`, and is not closed.
unsafe fn object_ref<'a, T>(fid: *const impl Sized) -> &'a T {
    // SAFETY: as this function's caller promises; its first field is what C knows of it.
    unsafe { &*fid.cast::<T>() }
}

/// Hands an object to C.
///
/// # Safety
/// The place may be written.
unsafe fn hand_out<T, F>(made: T, place: *mut *mut F) {
    // SAFETY: as this function's caller promises.
    unsafe { place.write(Box::into_raw(Box::new(made)).cast()) };
}

/// Takes an object back.
///
/// # Safety
/// As [`object_ref`], and nobody uses it any more.
unsafe fn take_back<T>(fid: *mut impl Sized) {
    // SAFETY: as this function's caller promises.
    drop(unsafe { Box::from_raw(fid.cast::<T>()) });
}

/// Slots for what is not there.
macro_rules! missing {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => { $(
        unsafe extern "C" fn $name($(_: $argument),*) -> $result {
            <$result>::from(-trunkline_sys::ofi::errno::ENOSYS as i16)
        }
    )* };
}
use missing;
