//! Tests whether bytes are on the stack of the calling thread. Used on the proxy's hot path, for values that NVSHMEM
//! passes without a handle: a live stack is always host memory, so the driver need not be queried.

use std::ops::Range;

thread_local! {
    /// The address range of this thread's stack; empty if the system does not report it.
    static OWN_STACK: Range<usize> = find_own_stack().unwrap_or(0..0);
}

/// Returns whether `len` bytes at `addr` are in a frame of a caller on this thread.
#[inline(never)]
pub(crate) fn is_own_stack(addr: usize, len: usize) -> bool {
    // Addresses below this frame may belong to other memory, because a stack grows only on use.
    let here = 0_u8;
    let frame = std::ptr::from_ref(&here).addr();
    let end = addr.checked_add(len);
    OWN_STACK.with(|stack| stack.contains(&frame) && addr > frame && end.is_some_and(|end| end <= stack.end))
}

fn find_own_stack() -> Option<Range<usize>> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: `pthread_self` has no preconditions.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the thread is the calling one, so it is alive; `attributes` is writable, and initialized if the call
    // returns 0.
    if unsafe { libc::pthread_getattr_np(thread, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let mut first = std::ptr::null_mut();
    let mut len = 0;
    // SAFETY: the call above initialized `attributes`; `first` and `len` are writable.
    let status = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut first, &raw mut len) };
    // SAFETY: the attributes were initialized above, and are not used afterwards.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (status == 0).then(|| first.addr()..first.addr() + len)
}

#[cfg(test)]
mod tests {
    use super::is_own_stack;

    #[test]
    fn only_the_callers_own_frames_are_its_stack() {
        let value = 7_u64;
        let addr = std::ptr::from_ref(&value).addr();
        assert!(is_own_stack(addr, 8), "a value on this thread's stack");
        let boxed = Box::new(7_u64);
        assert!(!is_own_stack(std::ptr::from_ref(&*boxed).addr(), 8), "a value on the heap");
        assert!(!is_own_stack(addr, usize::MAX) && !is_own_stack(addr, 1 << 40), "beyond the end");
        assert!(!is_own_stack(0, 8) && !is_own_stack(usize::MAX, 1));
        let seen = std::thread::scope(|scope| scope.spawn(|| is_own_stack(addr, 8)).join().unwrap_or(true));
        assert!(!seen, "a value on another thread's stack");
        assert_eq!(value, 7);
    }
}
