//! XPMEM's library (`xpmem.h` of the module of that name): the memory of a process in the address space of others. Opened at run time.
//!
//! Read by `mem`; calls nothing.

use core::ffi::{CStr, c_int, c_void};
use core::mem::{offset_of, size_of};

/// Name of the library.
pub const LIBRARY: &CStr = c"libxpmem.so.0";

/// `xpmem_segid_t`: memory that others may get.
pub type SegmentId = i64;
/// `xpmem_apid_t`: the permission to attach it.
pub type PermitId = i64;

/// `struct xpmem_addr`, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Addr {
    /// What may be attached.
    pub apid: PermitId,
    /// From where on in its segment, at the begin of a page.
    pub offset: i64,
}

/// `XPMEM_MAXADDR_SIZE`: all of an address space.
pub const MAXADDR_SIZE: usize = usize::MAX;
/// `XPMEM_RDWR`. What was got to be read only is not attached.
pub const RDWR: c_int = 2;
/// `XPMEM_PERMIT_MODE`: who may get a segment is said as of files.
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
/// `xpmem_attach`: what, bytes, and null for any place. All bits are set in what comes back from one that failed.
pub type Attach = unsafe extern "C" fn(Addr, usize, *mut c_void) -> *mut c_void;
/// `xpmem_detach`. What is unmapped in another way costs the process its life.
pub type Detach = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The exported functions. They fail with -1, and `errno` says why.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Whether there is a module.
    pub version: Version,
    /// Shows memory to others.
    pub make: Make,
    /// And no more.
    pub remove: Remove,
    /// Asks for another process's.
    pub get: Get,
    /// And is done with it.
    pub release: Release,
    /// Maps some of it.
    pub attach: Attach,
    /// And no more.
    pub detach: Detach,
}

/// Their names, in the order of the fields.
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
