//! Detects that this process is a forked child of the process that created the guard. Used by owners of mappings and locks; a check costs one
//! load and no system call.
//!
//! A child has none of the mappings, and shares descriptors, and therefore locks, with its parent: any operation on them would affect the
//! parent.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::error::CallFailure;
use super::mapping::cause_of;

/// The page size, or a divisor of it, in bytes.
const PAGE: usize = 4096;

/// A word that is zero in forked children.
#[derive(Debug)]
pub(super) struct ForkGuard {
    addr: usize,
}

impl ForkGuard {
    /// Creates the guard for this process.
    ///
    /// # Errors
    /// The system's error; kernels before Linux 4.14 have no `MADV_WIPEONFORK`.
    pub(super) fn new() -> Result<Self, CallFailure> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let page =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) };
        let here = Self { addr: page.map_err(cause_of("mmap"))?.expose_provenance() };
        let at = ptr::with_exposed_provenance_mut(here.addr);
        // SAFETY: the page was mapped above; the call only changes the content that children see (madvise(2), `MADV_WIPEONFORK`).
        unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxWipeOnFork) }.map_err(cause_of("madvise"))?;
        here.process_word().store(1, Ordering::Relaxed);
        Ok(here)
    }

    /// Returns whether this process is a forked child of the creator.
    #[inline]
    pub(super) fn is_child(&self) -> bool {
        self.process_word().load(Ordering::Relaxed) == 0
    }

    /// Fails in a forked child.
    ///
    /// # Errors
    /// `EPERM` in a forked child.
    pub(super) fn check_process(&self) -> Result<(), CallFailure> {
        let child = CallFailure::System { call: "a call in a forked child", code: libc::EPERM };
        if self.is_child() { Err(child) } else { Ok(()) }
    }

    #[inline]
    fn process_word(&self) -> &AtomicU64 {
        // SAFETY: the word is the first of a page that `self` keeps mapped, and is accessed only here.
        unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(self.addr)) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: called once by the owner of the page, from which no borrow is left; a child unmaps its own copy of the page.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.addr), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creating_process_is_not_a_child() {
        assert!(!ForkGuard::new().unwrap().is_child());
    }
}
