//! Whether this is still the process that began something, and not a child of a fork, which is a copy of it. Used by what holds mappings and locks of the
//! process; costs one load, and no system call.
//!
//! A child has none of the mappings, and shares descriptors and so locks with its parent: whatever it did with them, it would do to its parent.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::error::CallFailure;
use super::mapping::cause_of;

/// Bytes of a page, or less.
const PAGE: usize = 4096;

/// A word that children find empty.
#[derive(Debug)]
pub(super) struct ForkGuard {
    addr: usize,
}

impl ForkGuard {
    /// This process it is.
    ///
    /// # Errors
    /// What the system says; one before Linux 4.14 has no such pages.
    pub(super) fn new() -> Result<Self, CallFailure> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let page =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE) };
        let here = Self { addr: page.map_err(cause_of("mmap"))?.expose_provenance() };
        let at = ptr::with_exposed_provenance_mut(here.addr);
        // SAFETY: a page of ours, of which this changes only what children see (madvise(2), `MADV_WIPEONFORK`).
        unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxWipeOnFork) }.map_err(cause_of("madvise"))?;
        here.process_word().store(1, Ordering::Relaxed);
        Ok(here)
    }

    /// Whether this is a child of the process that it was.
    #[inline]
    pub(super) fn is_child(&self) -> bool {
        self.process_word().load(Ordering::Relaxed) == 0
    }

    /// Whether it is not.
    ///
    /// # Errors
    /// That it is a child.
    pub(super) fn check_process(&self) -> Result<(), CallFailure> {
        let child = CallFailure::System { call: "a child of a fork", code: libc::EPERM };
        if self.is_child() { Err(child) } else { Ok(()) }
    }

    #[inline]
    fn process_word(&self) -> &AtomicU64 {
        // SAFETY: the first word of a page that is mapped as long as this is, and used in no other way.
        unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(self.addr)) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: called once by the owner of the page, from which nothing is borrowed any more; a child has a page of its own there.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.addr), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_began_it_is_no_child() {
        assert!(!ForkGuard::new().unwrap().is_child());
    }
}
