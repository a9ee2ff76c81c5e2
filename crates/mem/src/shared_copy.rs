//! Copies of bytes that other threads, processes or NICs may change at the same time. The methods of [`MemoryRange`](crate::MemoryRange) and the
//! software NIC make all their copies here, so that concurrent use of a range results in torn bytes, and not in undefined behaviour.
//!
//! Rust's own copies are not atomic: two of them on the same bytes are a data race, which the compiler may assume never happens. The copies
//! here are opaque to the compiler: long ones call the C library's `memmove` by an address that the compiler does not know, and short ones are
//! assembly. Each is equivalent to a loop of relaxed atomic loads and stores, which is also how short copies work on other architectures, and
//! all copies under Miri.

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Length, in bytes, up to which a copy is made inline: for longer copies a call costs less than it saves.
const SHORT: usize = 32;

/// Length of a word, in bytes.
const WORD: usize = size_of::<u64>();

/// Copies `len` bytes; the two ranges may overlap. Other threads, processes and NICs may change either range during the copy: it is then torn,
/// unless it is of one aligned word of 8 bytes.
///
/// # Safety
/// Both ranges are mapped during the call, the second one writable. During the call no Rust reference to the second range's bytes is used, nor
/// a mutable one to the first range's.
#[inline]
pub unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    if len > SHORT && !cfg!(miri) {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { move_bytes(from, to, len) };
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller guarantees the conditions above, and `len` is at most `SHORT`.
    unsafe {
        x86::copy(from, to, len);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller guarantees the conditions above.
    unsafe {
        copy_by_atomics(from, to, len);
    }
}

/// Copies `len` bytes as [`copy_shared`] does, with whole words in order. If the target is aligned, each aligned word of 8 bytes is stored
/// whole, after all earlier stores of this thread, including the words to its left. For few bytes: it costs one more instruction per word.
///
/// # Safety
/// As [`copy_shared`], and the ranges do not overlap.
#[inline]
pub unsafe fn copy_shared_words(from: *const u8, to: *mut u8, len: usize) {
    let whole = if to.addr().is_multiple_of(WORD) { len & !(WORD - 1) } else { 0 };
    for at in (0..whole).step_by(WORD) {
        // SAFETY: these are eight bytes of the caller's first range.
        let word = unsafe { load_word(from.wrapping_add(at)) };
        // SAFETY: this is an aligned word of the caller's second range, to which no reference is used.
        let target = unsafe { AtomicU64::from_ptr(to.wrapping_add(at).cast()) };
        target.store(word, Ordering::Release);
    }
    // SAFETY: these are the remaining bytes of both ranges.
    unsafe { copy_shared(from.wrapping_add(whole), to.wrapping_add(whole), len - whole) };
}

/// Loads a word, in memory byte order, from any address.
///
/// # Safety
/// Eight bytes are mapped at `from`, and no mutable reference to them is used during the call.
#[inline]
unsafe fn load_word(from: *const u8) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let word;
        // SAFETY: the caller guarantees the conditions above; the instruction only loads.
        unsafe {
            std::arch::asm!(
                "mov {word}, qword ptr [{from}]",
                from = in(reg) from, word = out(reg) word,
                options(nostack, preserves_flags, readonly),
            );
        }
        word
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let mut bytes = [0; WORD];
        // SAFETY: the caller guarantees the source; the target is a local array.
        unsafe { copy_by_atomics(from, bytes.as_mut_ptr(), WORD) };
        u64::from_ne_bytes(bytes)
    }
}

/// Copies bytes by the C library; the ranges may overlap.
///
/// # Safety
/// As [`copy_shared`].
#[inline]
unsafe fn move_bytes(from: *const u8, to: *mut u8, len: usize) {
    type MoveBytes = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
    // The compiler knows the semantics of memmove, but not that this address is memmove.
    let move_bytes = black_box(libc::memmove as MoveBytes);
    // SAFETY: the caller guarantees that both ranges have `len` bytes; memmove allows overlap.
    unsafe { move_bytes(to.cast(), from.cast(), len) };
}

/// Copies word by word if both ranges are aligned, else byte by byte; the ranges may overlap.
///
/// # Safety
/// As [`copy_shared`].
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
unsafe fn copy_by_atomics(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::AtomicU8;

    let copy_byte = |at: usize| {
        // SAFETY: this is a byte of the first range, which is mapped; a byte is always aligned.
        let source = unsafe { AtomicU8::from_ptr(from.wrapping_add(at).cast_mut()) };
        // SAFETY: this is a byte of the second range, which is mapped; a byte is always aligned.
        let target = unsafe { AtomicU8::from_ptr(to.wrapping_add(at)) };
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let copy_word = |index: usize| {
        // SAFETY: this is a word of the first range, which is mapped, and aligned by the check of `are_words` below.
        let source = unsafe { AtomicU64::from_ptr(from.wrapping_add(WORD * index).cast_mut().cast()) };
        // SAFETY: this is a word of the second range, which is mapped, and aligned by the check of `are_words` below.
        let target = unsafe { AtomicU64::from_ptr(to.wrapping_add(WORD * index).cast()) };
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let are_words = (from.addr() | to.addr() | len).is_multiple_of(WORD);
    match (are_words, from.addr() < to.addr()) {
        (true, true) => (0..len / WORD).rev().for_each(copy_word),
        (true, false) => (0..len / WORD).for_each(copy_word),
        (false, true) => (0..len).rev().for_each(copy_byte),
        (false, false) => (0..len).for_each(copy_byte),
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::asm;

    /// Copies at most [`SHORT`](super::SHORT) bytes. All loads precede all stores, so that overlapping ranges are copied correctly.
    ///
    /// # Safety
    /// As [`copy_shared`](super::copy_shared).
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        match len {
            // Most copies are of words, whose length is often a constant here.
            // SAFETY: the caller guarantees eight bytes.
            8 => unsafe { copy_word(from, to) },
            0 => {}
            // SAFETY: the caller guarantees `len` bytes.
            1..8 => unsafe { copy_few(from, to, len) },
            // SAFETY: the caller guarantees `len` bytes.
            _ => unsafe { copy_short(from, to, len) },
        }
    }

    /// Copies eight bytes.
    ///
    /// # Safety
    /// As [`copy`].
    #[inline]
    unsafe fn copy_word(from: *const u8, to: *mut u8) {
        // SAFETY: eight bytes lie inside both ranges.
        unsafe {
            asm!(
                "mov {word}, qword ptr [{from}]",
                "mov qword ptr [{to}], {word}",
                from = in(reg) from, to = in(reg) to, word = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies one to seven bytes.
    ///
    /// # Safety
    /// As [`copy`].
    #[inline]
    unsafe fn copy_few(from: *const u8, to: *mut u8, len: usize) {
        if len >= 4 {
            // SAFETY: the first and the last four bytes lie inside both ranges.
            unsafe {
                asm!(
                    "mov {first:e}, dword ptr [{from}]",
                    "mov {last:e}, dword ptr [{from} + {len} - 4]",
                    "mov dword ptr [{to}], {first:e}",
                    "mov dword ptr [{to} + {len} - 4], {last:e}",
                    from = in(reg) from, to = in(reg) to, len = in(reg) len,
                    first = out(reg) _, last = out(reg) _,
                    options(nostack, preserves_flags),
                );
            }
            return;
        }
        // SAFETY: the first, middle and last byte lie inside both ranges.
        unsafe {
            asm!(
                "movzx {first:e}, byte ptr [{from}]",
                "movzx {middle:e}, byte ptr [{from} + {half}]",
                "movzx {last:e}, byte ptr [{from} + {len} - 1]",
                "mov byte ptr [{to}], {first:l}",
                "mov byte ptr [{to} + {half}], {middle:l}",
                "mov byte ptr [{to} + {len} - 1], {last:l}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len, half = in(reg) len / 2,
                first = out(reg) _, middle = out(reg) _, last = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies nine to [`SHORT`](super::SHORT) bytes.
    ///
    /// # Safety
    /// As [`copy`].
    #[inline]
    unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
        if len >= 16 {
            // SAFETY: the first and the last sixteen bytes lie inside both ranges.
            unsafe {
                asm!(
                    "movups {first}, xmmword ptr [{from}]",
                    "movups {last}, xmmword ptr [{from} + {len} - 16]",
                    "movups xmmword ptr [{to}], {first}",
                    "movups xmmword ptr [{to} + {len} - 16], {last}",
                    from = in(reg) from, to = in(reg) to, len = in(reg) len,
                    first = out(xmm_reg) _, last = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
            return;
        }
        // SAFETY: the first and the last eight bytes lie inside both ranges.
        unsafe {
            asm!(
                "mov {first}, qword ptr [{from}]",
                "mov {last}, qword ptr [{from} + {len} - 8]",
                "mov qword ptr [{to}], {first}",
                "mov qword ptr [{to} + {len} - 8], {last}",
                from = in(reg) from, to = in(reg) to, len = in(reg) len,
                first = out(reg) _, last = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Copies inside of 400 bytes, each different from its neighbours.
    fn copied(from: usize, to: usize, len: usize, copy: unsafe fn(*const u8, *mut u8, usize)) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..400_u32).map(|at| (at * 7 + at / 250) as u8).collect();
        let start = bytes.as_mut_ptr();
        assert!(from + len <= bytes.len() && to + len <= bytes.len());
        // SAFETY: both ranges lie inside the vector, to which no reference exists now.
        unsafe { copy(start.wrapping_add(from), start.wrapping_add(to), len) };
        bytes
    }

    #[test]
    fn copies_of_every_length_and_overlap_are_whole() {
        for len in 0..=130 {
            for (from, to) in [(0, 200), (200, 1), (0, 1), (1, 0), (0, len / 2), (len / 2, 0), (3, 3)] {
                let expected = {
                    let mut bytes = copied(0, 0, 0, copy_shared);
                    bytes.copy_within(from..from + len, to);
                    bytes
                };
                assert_eq!(copied(from, to, len, copy_shared), expected, "{len} bytes from {from} to {to}");
                assert_eq!(
                    copied(from, to, len, copy_by_atomics),
                    expected,
                    "{len} bytes from {from} to {to}"
                );
            }
        }
    }

    #[test]
    fn concurrently_stored_words_are_not_torn() {
        let words: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::new(0));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..100_000_u64 {
                    words.iter().for_each(|word| word.store(value << 32 | value, Ordering::Relaxed));
                }
                ended.store(true, Ordering::Relaxed);
            });
            while !ended.load(Ordering::Relaxed) {
                for count in [1, 2, 4, 64] {
                    let mut seen = [0_u64; 64];
                    // SAFETY: words that are only accessed as atomics and by such copies, and an array of this thread.
                    unsafe { copy_shared(words.as_ptr().cast(), seen.as_mut_ptr().cast(), 8 * count) };
                    assert!(seen.iter().all(|word| word >> 32 == word & 0xffff_ffff), "{seen:x?}");
                }
            }
        });
    }
    #[test]
    fn copies_of_words_are_whole_at_every_offset() {
        for len in 0..=130 {
            for (from, to) in [(0, 200), (3, 200), (0, 201), (5, 203), (200, 8)] {
                let expected = {
                    let mut bytes = copied(0, 0, 0, copy_shared);
                    bytes.copy_within(from..from + len, to);
                    bytes
                };
                assert_eq!(
                    copied(from, to, len, copy_shared_words),
                    expected,
                    "{len} bytes from {from} to {to}"
                );
            }
        }
    }

    #[test]
    fn words_are_stored_whole_from_left_to_right() {
        let words: [AtomicU64; 12] = std::array::from_fn(|_| AtomicU64::new(0));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..100_000_u64 {
                    let same = [value << 32 | value; 12];
                    // SAFETY: an array of this thread, and words that are only accessed as atomics and by this copy.
                    unsafe { copy_shared_words(same.as_ptr().cast(), words.as_ptr().cast_mut().cast(), 96) };
                }
                ended.store(true, Ordering::Relaxed);
            });
            while !ended.load(Ordering::Relaxed) {
                let mut right = 0;
                for word in words.iter().rev() {
                    let left = word.load(Ordering::Acquire);
                    assert_eq!(left >> 32, left & 0xffff_ffff, "torn");
                    assert!(left >= right, "{left:x} to the left of {right:x}");
                    right = left;
                }
            }
        });
    }
}
