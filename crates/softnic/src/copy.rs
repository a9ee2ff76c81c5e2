//! Moves bytes. Every copy of payload in this crate is one of these functions; none of them checks anything.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies `len` bytes; the ranges may overlap.
///
/// # Safety
/// Both ranges are mapped, `from` readable and `to` writable, and stay so during the call.
#[inline]
pub(crate) unsafe fn bytes(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise is that of `copy`.
    unsafe { ptr::copy(from, to, len) }
}

/// Copies a few bytes so that aligned 8-byte words of the target arrive whole and in ascending order.
///
/// # Safety
/// As [`bytes`], and the ranges do not overlap.
#[inline]
pub(crate) unsafe fn words(to: *mut u8, from: *const u8, len: usize) {
    if !to.addr().is_multiple_of(8) {
        // SAFETY: the caller's promise.
        return unsafe { bytes(to, from, len) };
    }
    let mut at = 0;
    while at + 8 <= len {
        // SAFETY: `at + 8 <= len`, inside the source range.
        let source = unsafe { from.add(at) };
        // SAFETY: eight readable bytes.
        let word = unsafe { ptr::read_unaligned(source.cast::<u64>()) };
        // SAFETY: `at + 8 <= len`, inside the target range.
        let target = unsafe { to.add(at) };
        // SAFETY: `to` is aligned and `at` is a multiple of eight; memory a NIC writes is not borrowed.
        let target = unsafe { AtomicU64::from_ptr(target.cast()) };
        target.store(word, Ordering::Release);
        at += 8;
    }
    if at < len {
        // SAFETY: `at < len`.
        let source = unsafe { from.add(at) };
        // SAFETY: `at < len`.
        let target = unsafe { to.add(at) };
        // SAFETY: what is left of both ranges.
        unsafe { ptr::copy_nonoverlapping(source, target, len - at) };
    }
}
