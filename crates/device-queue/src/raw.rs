//! Words of 8 bytes at an address, in memory that a device or another process also accesses. Except for the feature
//! `cuda`, this is the only unsafe code of the crate.
#![allow(unsafe_code, reason = "the caller passes memory that other code owns, by its address")]

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

/// The reason why memory cannot be used as words.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RawError {
    /// The address is not a multiple of 8.
    #[error("words must be 8-byte aligned, but {0:#x} is not")]
    Unaligned(usize),
    /// The length exceeds the address space.
    #[error("{0} bytes of words exceed the address space")]
    Long(usize),
}

/// Returns the words in the `bytes` bytes from `start` on, without an incomplete last word. The returned slice
/// implements [`WordMemory`](crate::WordMemory), so a device queue can use it.
///
/// # Errors
/// [`RawError::Unaligned`], [`RawError::Long`].
///
/// # Safety
/// For all of `'a`:
///
/// - the bytes are mapped, readable and writable;
/// - all code of this process, and all devices and other processes, access them only by atomic operations;
/// - the mapping supports the processor's atomic instructions. The mapped BAR of a device may support plain loads and
///   stores only.
pub unsafe fn words_at<'a>(start: NonNull<u8>, bytes: usize) -> Result<&'a [AtomicU64], RawError> {
    let first = start.cast::<AtomicU64>();
    if !first.is_aligned() {
        return Err(RawError::Unaligned(start.addr().get()));
    }
    if isize::try_from(bytes).is_err() || start.addr().get().checked_add(bytes).is_none() {
        return Err(RawError::Long(bytes));
    }
    // SAFETY: aligned and short enough, as checked above; the caller guarantees that the bytes are mapped for `'a`, and
    // accessed by atomics alone.
    Ok(unsafe { core::slice::from_raw_parts(first.as_ptr(), bytes / size_of::<AtomicU64>()) })
}
