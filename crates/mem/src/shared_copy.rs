//! Copies of bytes that other threads, processes or NICs may change at the same moment. [`Memory`](crate::Memory) makes all its
//! copies here, so that safe code which uses one range from two threads meets torn bytes and no undefined behaviour.
//!
//! Rust's own copies are not atomic: two of them on the same bytes are a data race, which the compiler may assume away. These are
//! instructions that the compiler does not look into: short copies in assembly, long ones by the C library's `memmove`, called by
//! an address that the compiler does not know. Each is as good as a loop of relaxed atomic loads and stores of bytes, which is what the
//! other architectures and Miri get.

/// Copies `len` bytes; the two ranges may overlap.
///
/// # Safety
/// Both ranges are mapped for as long as the call takes, the second one writable, and no Rust reference to the second one's bytes
/// is used meanwhile, nor a mutable one to the first one's.
#[inline]
pub(crate) unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise.
    unsafe {
        x86::copy(from, to, len);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's promise.
    unsafe {
        copy_bytes(from, to, len);
    }
}

/// The same, byte by byte.
///
/// # Safety
/// As [`copy_shared`].
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};

    let copy_one = |at: usize| {
        // SAFETY: a byte of the first range, which is mapped; a byte is always aligned.
        let source = unsafe { AtomicU8::from_ptr(from.wrapping_add(at).cast_mut()) };
        // SAFETY: as above, of the second range.
        let target = unsafe { AtomicU8::from_ptr(to.wrapping_add(at)) };
        target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    if from.addr() < to.addr() {
        (0..len).rev().for_each(copy_one);
    } else {
        (0..len).for_each(copy_one);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::asm;
    use std::ffi::c_void;
    use std::hint::black_box;

    /// Bytes up to which a copy is made in place: beyond that a call costs less than it saves.
    const SHORT: usize = 32;

    /// See [`copy_shared`](super::copy_shared). All is loaded before anything is stored, so that overlapping ranges are right.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        match len {
            // Most copies are of words, whose length is often known here.
            // SAFETY: the caller's promise of eight bytes.
            8 => unsafe { copy_word(from, to) },
            0 => {}
            // SAFETY: the caller's promise; there are so many bytes.
            1..8 => unsafe { copy_few(from, to, len) },
            // SAFETY: as above.
            9..=SHORT => unsafe { copy_short(from, to, len) },
            _ => {
                type MoveBytes = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
                // The compiler knows memmove, and not the function at this address.
                let move_bytes = black_box(libc::memmove as MoveBytes);
                // SAFETY: both ranges hold so many bytes, and may overlap.
                unsafe { move_bytes(to.cast(), from.cast(), len) };
            }
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

    /// Copies nine to [`SHORT`] bytes.
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
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
                assert_eq!(copied(from, to, len, copy_bytes), expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn words_that_others_store_arrive_whole() {
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
}
