//! XPMEM's functions, and their errors.

use std::ffi::c_void;
use std::io;
use std::ptr;

use trunkline_sys::xpmem::{
    self as calls, Addr, Calls, LIBRARY, MAXADDR_SIZE, PERMIT_MODE, PermitId, RDWR, SegmentId,
};

use crate::gpu::GpuUnavailable;
use crate::gpu::library::{DynamicLibrary, table};
use crate::ipc::NoMemory;
use crate::ipc::error::CallFailure;
use crate::ipc::mapping::cause_of;

/// The package that contains library and module.
const PACKAGE: &str = "XPMEM, the kernel module and its library (github.com/hpc/xpmem)";

/// Access mode of this process's segment: the same user only, as with system calls.
const MODE: usize = 0o600;

/// The library. It keeps the module's device open until the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct XpmemLibrary {
    calls: Calls,
}

impl XpmemLibrary {
    /// Opens the library and the module.
    ///
    /// # Errors
    /// [`NoMemory`] names the missing one of the two.
    pub(super) fn load() -> Result<Self, NoMemory> {
        let library = DynamicLibrary::open(&[LIBRARY], PACKAGE)?;
        let calls = table!(library, calls;
            version Version c"xpmem_version"
            make Make c"xpmem_make"
            remove Remove c"xpmem_remove"
            get Get c"xpmem_get"
            release Release c"xpmem_release"
            attach Attach c"xpmem_attach"
            detach Detach c"xpmem_detach"
        );
        // SAFETY: the call takes no arguments; it opens the module's device.
        let version = unsafe { (calls.version)() };
        match check_status("xpmem_version", version.into()) {
            Ok(_) => Ok(Self { calls }),
            Err(CallFailure::System { code: libc::ENOENT | libc::ENXIO | libc::ENODEV, .. }) => {
                Err(GpuUnavailable::Module { module: "xpmem", package: PACKAGE }.into())
            }
            Err(cause) => Err(cause.into()),
        }
    }

    /// Makes all addresses of this process available to processes of the same user.
    pub(super) fn make_segment(&self) -> Result<SegmentId, CallFailure> {
        let mode = ptr::without_provenance_mut(MODE);
        // SAFETY: the call accesses no memory. Other processes can then copy as they could by system calls.
        check_status("xpmem_make", unsafe {
            (self.calls.make)(ptr::null_mut(), MAXADDR_SIZE, PERMIT_MODE, mode)
        })
    }

    /// Removes a segment.
    pub(super) fn remove(&self, segment: SegmentId) {
        // SAFETY: the call takes a number; an unknown one changes nothing. The module also removes the segment when the process ends.
        unsafe { (self.calls.remove)(segment) };
    }

    /// Gets the permission to attach another process's segment.
    pub(super) fn get(&self, segment: SegmentId) -> Result<PermitId, CallFailure> {
        // SAFETY: the call takes numbers, and a null pointer as the interface requires.
        check_status("xpmem_get", unsafe { (self.calls.get)(segment, RDWR, PERMIT_MODE, ptr::null_mut()) })
    }

    /// Releases a permission, which also detaches its attachments.
    pub(super) fn release_permit(&self, permit: PermitId) {
        // SAFETY: the call takes a number; an unknown one changes nothing.
        unsafe { (self.calls.release)(permit) };
    }

    /// Attaches `len` bytes of another process, from the page-aligned address `from` on; returns the local address.
    pub(super) fn attach_range(
        &self,
        permit: PermitId,
        from: usize,
        len: usize,
    ) -> Result<usize, CallFailure> {
        let invalid = CallFailure::System { call: "xpmem_attach", code: libc::EINVAL };
        let offset = i64::try_from(from).map_err(|_| invalid)?;
        let what = Addr { apid: permit, offset };
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at = unsafe { (self.calls.attach)(what, len, ptr::null_mut()) };
        let is_none = at.addr() == usize::MAX || at.is_null();
        check_status("xpmem_attach", if is_none { -1 } else { 0 })?;
        Ok(at.expose_provenance())
    }

    /// Detaches a range.
    pub(super) fn detach_range(&self, at: usize) {
        // SAFETY: `attach_range` returned the address, and no copy uses it any more. The caller could not act on an error.
        unsafe { (self.calls.detach)(ptr::with_exposed_provenance_mut::<c_void>(at)) };
    }
}

/// Converts -1 to the error of the last system call.
fn check_status(call: &'static str, got: i64) -> Result<i64, CallFailure> {
    if got == -1 { Err(cause_of(call)(io::Error::last_os_error())) } else { Ok(got) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_symbol() {
        let lines =
            include_str!("library.rs").lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let loaded: Vec<_> = lines
            .filter_map(|line| match line[..] {
                [field, kind, symbol] if symbol.starts_with("c\"xpmem_") => Some((field, kind, symbol)),
                _ => None,
            })
            .collect();
        assert_eq!(loaded.len(), calls::SYMBOLS.len());
        for ((field, kind, symbol), named) in loaded.into_iter().zip(calls::SYMBOLS) {
            assert_eq!(symbol, format!("{named:?}").replace('"', "\"").replacen('"', "c\"", 1));
            assert_eq!(format!("xpmem_{field}"), named.to_str().unwrap());
            assert_eq!(kind.to_lowercase(), field);
        }
    }

    #[test]
    fn failures_keep_their_numbers() {
        assert_eq!(check_status("xpmem_get", 7), Ok(7));
        // SAFETY: no descriptor has that number.
        unsafe { libc::close(-1) };
        let cause = CallFailure::System { call: "xpmem_get", code: libc::EBADF };
        assert_eq!(check_status("xpmem_get", -1), Err(cause));
    }
}
