//! Words at an address: memory that a device or another process shares. The only unsafe code of this crate.
#![allow(unsafe_code, reason = "memory of others is known by its address alone")]

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

/// Memory cannot be used as words.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RawError {
    /// The address is no multiple of 8.
    #[error("words at {0:#x}, which is not aligned")]
    Unaligned(usize),
    /// There are more bytes than an address space has.
    #[error("{0} bytes of words")]
    Long(usize),
}

/// The words in `bytes` bytes from `start`; those of a last part of a word are left out. A slice of atomics is a
/// [`Memory`](crate::WordMemory).
///
/// # Errors
/// [`RawError`], if no words can lie there.
///
/// # Safety
/// For all of `'a` the bytes are mapped, may be read and written, and this process makes no plain access to them: whoever else has them
/// uses atomics, as devices and other processes do. The mapping allows what a processor's atomics need, so it is no window to a
/// device that takes plain stores only.
pub unsafe fn words_at<'a>(start: NonNull<u8>, bytes: usize) -> Result<&'a [AtomicU64], RawError> {
    let first = start.cast::<AtomicU64>();
    if !first.is_aligned() {
        return Err(RawError::Unaligned(start.addr().get()));
    }
    if isize::try_from(bytes).is_err() || start.addr().get().checked_add(bytes).is_none() {
        return Err(RawError::Long(bytes));
    }
    // SAFETY: aligned and short enough as just checked; mapped, and reached by atomics alone, as the caller says.
    Ok(unsafe { core::slice::from_raw_parts(first.as_ptr(), bytes / size_of::<AtomicU64>()) })
}
