//! The vendor's own function behind one of ours. Found at the first call, because vendors' libraries may be loaded long after this one.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Whose function it is.
pub(crate) struct Vendor {
    /// Names of the library, the newest first. Looked into where no library of the whole program has the function: what a plugin brings
    /// with it is seen by that plugin alone.
    pub(crate) libraries: &'static [&'static CStr],
    /// The status that its functions return where the library was not initialized.
    pub(crate) uninitialized: c_int,
}

/// The function of one name that comes after ours.
pub(crate) struct Next {
    name: &'static CStr,
    vendor: &'static Vendor,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr, vendor: &'static Vendor) -> Self {
        Self { name, vendor, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The vendor's function; `None` if no library that is loaded has it.
    pub(crate) fn find(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.found.load(Ordering::Acquire)).or_else(|| {
            let found = self.search()?;
            self.found.store(found.as_ptr(), Ordering::Release);
            Some(found)
        })
    }

    fn search(&self) -> Option<NonNull<c_void>> {
        // SAFETY: the name ends with a zero byte; RTLD_NEXT searches the libraries loaded after the one this code is in.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        NonNull::new(next)
            .or_else(|| self.vendor.libraries.iter().find_map(|library| self.search_in(library)))
    }

    fn search_in(&self, library: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the name ends with a zero byte; RTLD_NOLOAD only raises the count of a library that is there already.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // The handle stays open, so the library stays, and with it the function.
        // SAFETY: the handle is open, and the name ends with a zero byte.
        NonNull::new(unsafe { libc::dlsym(handle, self.name.as_ptr()) })
    }
}
