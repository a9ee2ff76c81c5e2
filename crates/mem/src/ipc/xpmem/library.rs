//! XPMEM's functions, and what their failures are.

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

/// What holds library and module.
const PACKAGE: &str = "XPMEM, the kernel module and its library (github.com/hpc/xpmem)";

/// Who may get what this process shows: the same user, as with system calls.
const MODE: usize = 0o600;

/// The library. It keeps the module open until the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct XpmemLibrary {
    calls: Calls,
}

impl XpmemLibrary {
    /// Opens the library, and asks it for its module.
    ///
    /// # Errors
    /// [`NoMemory`] says which of the two is not there.
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
        // SAFETY: takes nothing, and opens the module's device.
        let version = unsafe { (calls.version)() };
        match check_status("xpmem_version", version.into()) {
            Ok(_) => Ok(Self { calls }),
            Err(CallFailure::System { code: libc::ENOENT | libc::ENXIO | libc::ENODEV, .. }) => {
                Err(GpuUnavailable::Module { module: "xpmem", package: PACKAGE }.into())
            }
            Err(cause) => Err(cause.into()),
        }
    }

    /// Shows all of this process's addresses to others of the same user.
    pub(super) fn make_segment(&self) -> Result<SegmentId, CallFailure> {
        let mode = ptr::without_provenance_mut(MODE);
        // SAFETY: nothing is touched; what others attach they copy from, as they might by system calls.
        check_status("xpmem_make", unsafe {
            (self.calls.make)(ptr::null_mut(), MAXADDR_SIZE, PERMIT_MODE, mode)
        })
    }

    /// Shows them no more.
    pub(super) fn remove(&self, segment: SegmentId) {
        // SAFETY: a number. One that is none changes nothing; the process's end removes it, too.
        unsafe { (self.calls.remove)(segment) };
    }

    /// Asks for another process's addresses.
    pub(super) fn get(&self, segment: SegmentId) -> Result<PermitId, CallFailure> {
        // SAFETY: numbers, and null as is asked for.
        check_status("xpmem_get", unsafe { (self.calls.get)(segment, RDWR, PERMIT_MODE, ptr::null_mut()) })
    }

    /// Is done with them; what is attached of them is so no more.
    pub(super) fn release_permit(&self, permit: PermitId) {
        // SAFETY: as of `remove`.
        unsafe { (self.calls.release)(permit) };
    }

    /// Attaches bytes from an address of the other process on, which begins a page; where.
    pub(super) fn attach_range(
        &self,
        permit: PermitId,
        from: usize,
        len: usize,
    ) -> Result<usize, CallFailure> {
        let invalid = CallFailure::System { call: "xpmem_attach", code: libc::EINVAL };
        let offset = i64::try_from(from).map_err(|_| invalid)?;
        let what = Addr { apid: permit, offset };
        // SAFETY: a new mapping at a place of the kernel's choice replaces nothing.
        let at = unsafe { (self.calls.attach)(what, len, ptr::null_mut()) };
        let is_none = at.addr() == usize::MAX || at.is_null();
        check_status("xpmem_attach", if is_none { -1 } else { 0 })?;
        Ok(at.expose_provenance())
    }

    /// It is attached no more.
    pub(super) fn detach_range(&self, at: usize) {
        // SAFETY: what `attach` gave, which nobody copies from any more. What the library says of it changes nothing.
        unsafe { (self.calls.detach)(ptr::with_exposed_provenance_mut::<c_void>(at)) };
    }
}

/// What a function failed with, if it did.
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
