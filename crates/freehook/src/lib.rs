//! `libtrunkline_freehook.so`, which users preload (`LD_PRELOAD`): it counts frees of GPU memory after they have happened. Trunkline reads the count, and has
//! other processes unmap that memory at once instead of after the idle limit.
//!
//! The functions that free memory of GPUs (`functions.rs`) have their vendors' names here, so a program's calls reach them first. Each calls the vendor's
//! function (`next.rs`), returns its status and counts the call. [`trunkline_free_count`] is the only symbol that Trunkline reads. The library never allocates
//! or frees GPU memory by itself, and never loads a vendor's library.
//!
//! It does not see frees through pointers that a program got from the driver's library itself (`dlsym` on its handle, `cuGetProcAddress`), as the static CUDA
//! runtime and PyTorch's expandable segments do.

mod functions;
mod next;

use std::sync::atomic::AtomicU64;

/// How many frees have returned since the process began. `trunkline_mem::gpu::FreeCount` finds it by this name.
#[allow(non_upper_case_globals, reason = "the name of a C symbol")]
#[unsafe(no_mangle)]
pub static trunkline_free_count: AtomicU64 = AtomicU64::new(0);
