//! `libtrunkline_freehook.so`, which users preload (`LD_PRELOAD`): a free of GPU memory is counted once it has happened, and
//! Trunkline, which reads the count, has other processes unmap that memory at once instead of after the idle limit.
//!
//! The functions that free memory of GPUs ([`functions`]) stand here under their vendors' names, so a program's calls come here
//! first; each calls the vendor's function ([`next`]) and hands back its status. [`trunkline_free_count`] is all that Trunkline
//! knows of this library. It never allocates or frees GPU memory by itself, and never loads a vendor's library.
//!
//! Not seen are frees through pointers that a program took from the driver's library itself (`dlsym` on its handle,
//! `cuGetProcAddress`), as the static CUDA runtime and PyTorch's expandable segments do.

mod functions;
mod next;

use std::sync::atomic::AtomicU64;

/// How many frees have returned since the process began. `trunkline_mem::gpu::FreeCount` finds it by this name.
#[allow(non_upper_case_globals, reason = "the name of a C symbol")]
#[unsafe(no_mangle)]
pub static trunkline_free_count: AtomicU64 = AtomicU64::new(0);
