//! The allocator of this program: it counts large allocations, refuses one of them, and counts memory that is not freed. Armed by `trials`; it never
//! refuses a small one, because the standard library and other crates make those, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Bytes from which an allocation counts.
pub(crate) const LARGE: usize = 4096;

static ARMED: AtomicBool = AtomicBool::new(false);
/// Which one is refused, counted from 1; 0: none.
static NTH: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Bytes of the first of them, by number.
static SIZES: [AtomicUsize; 4096] = [const { AtomicUsize::new(0) }; 4096];
/// Allocations that are not freed, large ones, and the bytes of all.
static LARGE_LIVE: AtomicI64 = AtomicI64::new(0);
static BYTES_LIVE: AtomicI64 = AtomicI64::new(0);

/// Counts and refuses for the whole process.
pub(crate) struct Refusing;

/// From now on the `nth` large allocation of the process is refused; with 0 they are counted alone.
pub(crate) fn arm(nth: u64) {
    NTH.store(nth, Ordering::Relaxed);
    SEEN.store(0, Ordering::Relaxed);
    ARMED.store(true, Ordering::SeqCst);
}

/// Refuses nothing from now on. The bytes of each large allocation since `arm`, in their order.
pub(crate) fn disarm() -> Vec<usize> {
    ARMED.store(false, Ordering::SeqCst);
    let count = SEEN.load(Ordering::Relaxed) as usize;
    assert!(count <= SIZES.len(), "a case makes {count} large allocations, more than are noted");
    SIZES[..count].iter().map(|size| size.load(Ordering::Relaxed)).collect()
}

/// Large allocations since `arm`.
#[allow(dead_code, reason = "for trials that have phases")]
pub(crate) fn seen() -> usize {
    SEEN.load(Ordering::Relaxed) as usize
}

/// Allocations that are not freed: how many large ones, and the bytes of all.
pub(crate) fn live() -> (i64, i64) {
    (LARGE_LIVE.load(Ordering::Relaxed), BYTES_LIVE.load(Ordering::Relaxed))
}

/// Whether this allocation is the one to refuse. Also asked by the mappings of `trunkline_mem`, which are no allocator's.
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

// SAFETY: all memory is the system allocator's, by the same layouts; a null pointer says that there is none.
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
        // One that gets smaller has its memory.
        if bytes > layout.size() && refuses(bytes) {
            return ptr::null_mut();
        }
        note(layout.size(), -1);
        note(bytes, 1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}
