//! OpenSHMEM's functions, as C calls them. Each is exported by its name and, for tools that put themselves in between, with a `p`
//! before it; nothing here calls an exported one. A type's functions come from one table, [`table`]. Files beside this one say what each
//! function does; they hold no state. The tests
//! inside this crate call none, and are compiled without.

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
            #[allow(clippy::too_many_arguments, reason = "as many as OpenSHMEM's function has")]
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

/// Bytes of so many elements.
///
/// # Errors
/// [`ShmemError::Argument`] if no memory is that long.
#[inline]
fn byte_len(count: usize, element: usize) -> Result<usize> {
    count.checked_mul(element).ok_or_else(too_many)
}

#[cold]
fn too_many() -> ShmemError {
    ShmemError::invalid_argument("no memory has so many elements")
}

/// Bytes of so many elements; all that can be, which are found nowhere, if there are more.
#[inline]
fn saturating_len(count: usize, element: usize) -> usize {
    count.saturating_mul(element)
}

/// So many bytes of the caller's at a pointer of C.
///
/// # Errors
/// [`ShmemError::Argument`] if it is null: what follows would be a fault that says nothing.
#[inline]
fn caller_memory(at: *const c_void, len: usize) -> Result<MemoryRange> {
    if at.is_null() && len > 0 {
        return Err(ShmemError::Argument("a buffer of this PE is NULL"));
    }
    Ok(raw_memory(at.expose_provenance(), len))
}

/// Where C wants a result of so many bytes.
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
