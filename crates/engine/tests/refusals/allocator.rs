//! The allocator of this program: it counts large allocations, fails one of them on request of `trials`, and counts
//! memory that is not freed. It never fails a small one, because the standard library and other crates make those, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Bytes from which an allocation counts as large.
pub(crate) const LARGE: usize = 4096;

static ARMED: AtomicBool = AtomicBool::new(false);
/// The number of the allocation to refuse, counted from 1; 0: none.
static NTH: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Bytes of each large allocation, by number.
static SIZES: [AtomicUsize; 4096] = [const { AtomicUsize::new(0) }; 4096];
/// Large allocations that are not freed, and the bytes of all allocations that are not freed.
static LARGE_LIVE: AtomicI64 = AtomicI64::new(0);
static BYTES_LIVE: AtomicI64 = AtomicI64::new(0);

/// Counts and refuses allocations of the whole process.
pub(crate) struct Refusing;

/// From now on the `nth` large allocation of the process is refused. With 0 allocations are only counted.
pub(crate) fn arm(nth: u64) {
    NTH.store(nth, Ordering::Relaxed);
    SEEN.store(0, Ordering::Relaxed);
    ARMED.store(true, Ordering::SeqCst);
}

/// Ends the refusals. Returns the bytes of each large allocation since `arm`, in their order.
pub(crate) fn disarm() -> Vec<usize> {
    ARMED.store(false, Ordering::SeqCst);
    let count = SEEN.load(Ordering::Relaxed) as usize;
    assert!(count <= SIZES.len(), "a case makes {count} large allocations, more than `SIZES` can record");
    SIZES[..count].iter().map(|size| size.load(Ordering::Relaxed)).collect()
}

/// Large allocations since `arm`.
#[allow(dead_code, reason = "only trials with phases use it")]
pub(crate) fn seen() -> usize {
    SEEN.load(Ordering::Relaxed) as usize
}

/// Returns how many large allocations are not freed, and the bytes of all that are not freed.
pub(crate) fn live() -> (i64, i64) {
    (LARGE_LIVE.load(Ordering::Relaxed), BYTES_LIVE.load(Ordering::Relaxed))
}

/// Returns whether this allocation is the one to refuse. The mappings of `trunkline_mem` also call it, because they
/// bypass the allocator.
pub(crate) fn refuses(bytes: usize) -> bool {
    if bytes < LARGE || !ARMED.load(Ordering::Relaxed) {
        return false;
    }
    let number = SEEN.fetch_add(1, Ordering::Relaxed);
    if let Some(size) = SIZES.get(number as usize) {
        size.store(bytes, Ordering::Relaxed);
    }
    number + 1 == NTH.load(Ordering::Relaxed)
}

fn note(bytes: usize, by: i64) {
    if bytes >= LARGE {
        LARGE_LIVE.fetch_add(by, Ordering::Relaxed);
    }
    BYTES_LIVE.fetch_add(by * bytes as i64, Ordering::Relaxed);
}

// SAFETY: all memory is from the system allocator, with the same layouts; a null pointer reports a failed allocation.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return ptr::null_mut();
        }
        note(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return ptr::null_mut();
        }
        note(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // An allocation that shrinks keeps its memory, so it is never refused.
        if bytes > layout.size() && refuses(bytes) {
            return ptr::null_mut();
        }
        note(layout.size(), -1);
        note(bytes, 1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}
