//! Finds the vendor's function behind a hook. The search runs at the first call, because vendors' libraries may be
//! loaded long after this library.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The vendor of a function.
pub(crate) struct Vendor {
    /// Names of the library, the newest first. They are searched if no library of the global scope has the function,
    /// because a library that a plugin loads may be visible only to that plugin.
    pub(crate) libraries: &'static [&'static CStr],
    /// The status that the functions return if the library was not initialized.
    pub(crate) uninitialized: c_int,
}

/// The vendor's function of the same name, once found.
pub(crate) struct Next {
    name: &'static CStr,
    vendor: &'static Vendor,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr, vendor: &'static Vendor) -> Self {
        Self { name, vendor, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the vendor's function; `None` if no loaded library has it.
    pub(crate) fn find(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.found.load(Ordering::Acquire)).or_else(|| {
            let found = self.search()?;
            self.found.store(found.as_ptr(), Ordering::Release);
            Some(found)
        })
    }

    fn search(&self) -> Option<NonNull<c_void>> {
        // SAFETY: the name is NUL-terminated; RTLD_NEXT searches the libraries after this one in the search order, and
        // loads none.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        NonNull::new(next)
            .or_else(|| self.vendor.libraries.iter().find_map(|library| self.search_in(library)))
    }

    fn search_in(&self, library: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the name is NUL-terminated; RTLD_NOLOAD only raises the reference count of a loaded library, and
        // runs no constructor.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // The handle is never closed, so the library and the function stay valid.
        // SAFETY: the handle is open, and the name is NUL-terminated.
        NonNull::new(unsafe { libc::dlsym(handle, self.name.as_ptr()) })
    }
}
