//! XPMEM's library (`xpmem.h` of the kernel module), which attaches memory of one process to the address space of
//! another. Opened at run time.
//!
//! Read by `mem`; calls no function.

use core::ffi::{CStr, c_int, c_void};
use core::mem::{offset_of, size_of};

/// Name of the library.
pub const LIBRARY: &CStr = c"libxpmem.so.0";

/// `xpmem_segid_t`: memory that its owner has published.
pub type SegmentId = i64;
/// `xpmem_apid_t`: a permission to attach such memory.
pub type PermitId = i64;

/// `struct xpmem_addr`, passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Addr {
    /// The permission.
    pub apid: PermitId,
    /// Offset in the segment; a multiple of the page size.
    pub offset: i64,
}

/// `XPMEM_MAXADDR_SIZE`: the whole address space.
pub const MAXADDR_SIZE: usize = usize::MAX;
/// `XPMEM_RDWR`. Always requested, because attaching with a read-only permission fails.
pub const RDWR: c_int = 2;
/// `XPMEM_PERMIT_MODE`: access is checked against a mode, as for files.
pub const PERMIT_MODE: c_int = 1;

/// `xpmem_version`.
pub type Version = unsafe extern "C" fn() -> c_int;
/// `xpmem_make`: first address, bytes, [`PERMIT_MODE`], and the mode as if it were a pointer.
pub type Make = unsafe extern "C" fn(*mut c_void, usize, c_int, *mut c_void) -> SegmentId;
/// `xpmem_remove`.
pub type Remove = unsafe extern "C" fn(SegmentId) -> c_int;
/// `xpmem_get`: the segment, [`RDWR`], [`PERMIT_MODE`], and null.
pub type Get = unsafe extern "C" fn(SegmentId, c_int, c_int, *mut c_void) -> PermitId;
/// `xpmem_release`.
pub type Release = unsafe extern "C" fn(PermitId) -> c_int;
/// `xpmem_attach`: memory, bytes, and null for any address. On failure all bits of the returned pointer are set.
pub type Attach = unsafe extern "C" fn(Addr, usize, *mut c_void) -> *mut c_void;
/// `xpmem_detach`. Unmapping attached memory by other means kills the process.
pub type Detach = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The exported functions. On failure they return -1 and set `errno`.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Returns the version; fails if the kernel module is not loaded.
    pub version: Version,
    /// Publishes memory.
    pub make: Make,
    /// Withdraws it.
    pub remove: Remove,
    /// Acquires a permission for memory of another process.
    pub get: Get,
    /// Releases the permission.
    pub release: Release,
    /// Attaches a part of that memory.
    pub attach: Attach,
    /// Detaches it.
    pub detach: Detach,
}

/// The symbol of each field of [`Calls`], in order.
pub const SYMBOLS: [&CStr; 7] = [
    c"xpmem_version",
    c"xpmem_make",
    c"xpmem_remove",
    c"xpmem_get",
    c"xpmem_release",
    c"xpmem_attach",
    c"xpmem_detach",
];

const _: () = {
    assert!(size_of::<Addr>() == 16 && offset_of!(Addr, offset) == 8);
    assert!(size_of::<Calls>() == SYMBOLS.len() * size_of::<usize>());
};
