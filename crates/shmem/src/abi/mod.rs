//! OpenSHMEM's functions, as C calls them. Each is exported under its name and, for profiling tools, with a `p`
//! before it; no code here calls an exported function. Functions of all types come from one table, [`table`].
//!
//! The files of this folder implement the functions, and keep no state. Unit tests of this crate call none of them,
//! and are compiled without.

#[cfg(not(test))]
mod atomics;
#[cfg(not(test))]
mod coll;
#[cfg(not(test))]
mod ctx;
#[cfg(not(test))]
mod legacy;
#[cfg(not(test))]
mod long_double;
#[cfg(not(test))]
mod memory;
#[cfg(not(test))]
mod query;
#[cfg(not(test))]
mod rma;
#[cfg(not(test))]
mod setup;
#[cfg(not(test))]
mod signal;
pub(crate) mod table;
#[cfg(not(test))]
mod team;
#[cfg(not(test))]
mod wait;

use std::ffi::c_void;

use trunkline_mem::MemoryRange;

use crate::error::{Result, ShmemError};
use crate::memory::raw_memory;

/// Exports functions by their name and their name for profiling tools. The parts of a name are joined.
macro_rules! export {
    ($($name:expr),+ => fn($($arg:ident: $of:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        const _: () = {
            #[inline]
            #[allow(clippy::too_many_arguments, reason = "the arguments are those of OpenSHMEM's function")]
            fn done($($arg: $of),*) $(-> $out)? $body

            #[unsafe(export_name = concat!("shmem_", $($name),+))]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            extern "C" fn plain($($arg: $of),*) $(-> $out)? {
                done($($arg),*)
            }

            #[unsafe(export_name = concat!("pshmem_", $($name),+))]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            extern "C" fn profiled($($arg: $of),*) $(-> $out)? {
                done($($arg),*)
            }
        };
    };
}
pub(crate) use export;

/// Returns the bytes of `count` elements.
///
/// # Errors
/// [`ShmemError::Argument`] if the product overflows.
#[inline]
fn byte_len(count: usize, element: usize) -> Result<usize> {
    count.checked_mul(element).ok_or_else(too_many)
}

#[cold]
fn too_many() -> ShmemError {
    ShmemError::invalid_argument("the elements exceed the address space")
}

/// Returns the bytes of `count` elements, saturated; no memory contains the largest value.
#[inline]
fn saturating_len(count: usize, element: usize) -> usize {
    count.saturating_mul(element)
}

/// Returns memory of the caller at a C pointer.
///
/// # Errors
/// [`ShmemError::Argument`] if the pointer is null: the access would be a fault without a message.
#[inline]
fn caller_memory(at: *const c_void, len: usize) -> Result<MemoryRange> {
    if at.is_null() && len > 0 {
        return Err(ShmemError::Argument("a buffer of this PE is NULL"));
    }
    Ok(raw_memory(at.expose_provenance(), len))
}

/// Returns the memory for a result of `len` bytes.
///
/// # Errors
/// As [`caller_memory`].
#[inline]
fn result_memory(at: *mut c_void, len: usize) -> Result<MemoryRange> {
    if at.is_null() {
        return Err(ShmemError::Argument("the place for the result is NULL"));
    }
    Ok(raw_memory(at.expose_provenance(), len))
}
