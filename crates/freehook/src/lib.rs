//! `libtrunkline_freehook.so`, which users preload (`LD_PRELOAD`): it counts frees of GPU memory after they have
//! happened. Trunkline reads the count, and other processes then unmap that memory at once instead of after the idle
//! limit.
//!
//! The functions that free GPU memory (`functions.rs`) have the names of the vendors' functions, so a program's calls
//! reach them first. Each calls the vendor's function (`next.rs`), counts the call and returns its status.
//! [`trunkline_free_count`] is the only symbol that Trunkline reads. The library itself never allocates or frees GPU
//! memory, and never loads a vendor's library.
//!
//! It does not see frees through pointers that a program resolved in the driver's library itself (`dlsym` on its
//! handle, `cuGetProcAddress`). The static CUDA runtime and PyTorch's expandable segments do so.

mod functions;
mod next;

use std::sync::atomic::AtomicU64;

/// Number of frees that have returned since the process began. `trunkline_mem::gpu::FreeCount` finds it by this name.
#[allow(non_upper_case_globals, reason = "the name is that of a C symbol")]
#[unsafe(no_mangle)]
pub static trunkline_free_count: AtomicU64 = AtomicU64::new(0);
