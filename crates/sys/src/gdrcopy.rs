//! GDRCopy's library (`gdrapi.h`, API 2), which maps a GPU's memory for the CPU. Opened at run time.
//!
//! Read by `mem`; calls no function.

use core::ffi::{CStr, c_int, c_uint, c_ulong, c_void};
use core::mem::{offset_of, size_of};

/// Names of the library, the newest first.
pub const LIBRARIES: [&CStr; 2] = [c"libgdrapi.so.2", c"libgdrapi.so"];

/// `struct gdr`, the object that `gdr_open` returns.
#[repr(C)]
pub struct Open {
    _private: [u8; 0],
}

/// `gdr_mh_t`, passed by value: a handle of pinned memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pinned {
    /// The library's number of the pinned memory.
    pub h: c_ulong,
}

/// `gdr_info_v2_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Info {
    /// The GPU's address of the mapping's first byte, at the start of a GPU page.
    pub va: u64,
    /// Bytes of the mapping.
    pub mapped_size: u64,
    /// Bytes of a GPU page.
    pub page_size: u32,
    /// Not used.
    pub tm_cycles: u64,
    /// Not used.
    pub cycles_per_ms: u32,
    /// Two bits: `mapped`, and `wc_mapping` (write-combined).
    pub bits: c_uint,
    /// How the memory is mapped; older libraries do not write this field.
    pub mapping_type: c_uint,
}

/// `gdr_open`.
pub type OpenFn = unsafe extern "C" fn() -> *mut Open;
/// `gdr_close`.
pub type Close = unsafe extern "C" fn(*mut Open) -> c_int;
/// `gdr_pin_buffer`: address, bytes, and two numbers that must be zero.
pub type PinBuffer = unsafe extern "C" fn(*mut Open, c_ulong, usize, u64, u32, handle: *mut Pinned) -> c_int;
/// `gdr_unpin_buffer`.
pub type UnpinBuffer = unsafe extern "C" fn(*mut Open, Pinned) -> c_int;
/// `gdr_get_info_v2`.
pub type GetInfo = unsafe extern "C" fn(*mut Open, Pinned, *mut Info) -> c_int;
/// `gdr_map`.
pub type Map = unsafe extern "C" fn(*mut Open, Pinned, *mut *mut c_void, usize) -> c_int;
/// `gdr_unmap`.
pub type Unmap = unsafe extern "C" fn(*mut Open, Pinned, *mut c_void, usize) -> c_int;

/// `gdr_copy_to_mapping`: mapping, destination in the mapping, source, bytes.
pub type CopyToMapping = unsafe extern "C" fn(Pinned, *mut c_void, *const c_void, usize) -> c_int;
/// `gdr_copy_from_mapping`: mapping, destination, source in the mapping, bytes.
pub type CopyFromMapping = unsafe extern "C" fn(Pinned, *mut c_void, *const c_void, usize) -> c_int;

/// The exported functions.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Opens the library's connection to its kernel driver.
    pub open: OpenFn,
    /// Closes it.
    pub close: Close,
    /// Pins memory of a GPU.
    pub pin_buffer: PinBuffer,
    /// Unpins it.
    pub unpin_buffer: UnpinBuffer,
    /// Describes a mapping.
    pub get_info: GetInfo,
    /// Maps pinned memory for the CPU.
    pub map: Map,
    /// Unmaps it.
    pub unmap: Unmap,
    /// Copies to a mapping.
    pub copy_to_mapping: CopyToMapping,
    /// Copies from a mapping.
    pub copy_from_mapping: CopyFromMapping,
}

const _: () = {
    assert!(size_of::<Pinned>() == 8 && size_of::<Info>() == 48);
    assert!(offset_of!(Info, tm_cycles) == 24 && offset_of!(Info, bits) == 36);
};
