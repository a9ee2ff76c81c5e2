//! The functions that the library exports. Each type describes the symbol version in [`VERSIONS`].

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{FabricAttr, Fid, FidFabric, Info};

/// Name of the library.
pub const LIBRARY: &CStr = c"libfabric.so.1";

/// `enum fi_type`: the type of the value that [`Tostr`](Calls::tostr) formats.
pub type Type = c_uint;

/// `fi_getinfo`.
pub type Getinfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int;
/// `fi_freeinfo`.
pub type Freeinfo = unsafe extern "C" fn(info: *mut Info);
/// `fi_dupinfo`.
pub type Dupinfo = unsafe extern "C" fn(info: *const Info) -> *mut Info;
/// `fi_fabric`.
pub type OpenFabric =
    unsafe extern "C" fn(attr: *mut FabricAttr, fabric: *mut *mut FidFabric, context: *mut c_void) -> c_int;
/// `fi_open`.
pub type Open = unsafe extern "C" fn(
    version: u32,
    name: *const c_char,
    attr: *mut c_void,
    attr_len: usize,
    flags: u64,
    fid: *mut *mut Fid,
    context: *mut c_void,
) -> c_int;
/// `fi_version`.
pub type Version = unsafe extern "C" fn() -> u32;
/// `fi_strerror`.
pub type Strerror = unsafe extern "C" fn(errnum: c_int) -> *const c_char;
/// `fi_tostr`.
pub type ToStr = unsafe extern "C" fn(data: *const c_void, datatype: Type) -> *mut c_char;
/// `fi_tostr_r`.
pub type ToStrR =
    unsafe extern "C" fn(buf: *mut c_char, len: usize, data: *const c_void, datatype: Type) -> *mut c_char;

/// The exported functions. The name of a field is the function's, without `fi_`.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Returns a list of offers that match the hints; without hints, all offers.
    pub getinfo: Getinfo,
    /// Frees a list.
    pub freeinfo: Freeinfo,
    /// Copies the first entry of a list with all its attributes. Without an entry, allocates one of zeros.
    pub dupinfo: Dupinfo,
    /// Opens a fabric.
    pub fabric: OpenFabric,
    /// Opens an object of the library itself.
    pub open: Open,
    /// Returns the version of the library's interface; see [`version`].
    pub version: Version,
    /// Formats an error number of either sign as text.
    pub strerror: Strerror,
    /// Formats a value as text, in a buffer of the thread.
    pub tostr: ToStr,
    /// The same, in a buffer of the caller.
    pub tostr_r: ToStrR,
}

/// The symbol of each function, and its version.
pub const VERSIONS: &[(&CStr, &CStr)] = &[
    (c"fi_getinfo", c"FABRIC_1.3"),
    (c"fi_freeinfo", c"FABRIC_1.3"),
    (c"fi_dupinfo", c"FABRIC_1.3"),
    (c"fi_fabric", c"FABRIC_1.1"),
    (c"fi_open", c"FABRIC_1.5"),
    (c"fi_version", c"FABRIC_1.0"),
    (c"fi_strerror", c"FABRIC_1.0"),
    (c"fi_tostr", c"FABRIC_1.0"),
    (c"fi_tostr_r", c"FABRIC_1.4"),
];

/// `FI_VERSION`: encodes a version of the interface.
#[must_use]
pub const fn version(major: u16, minor: u16) -> u32 {
    (major as u32) << 16 | minor as u32
}

/// The version that these tables describe.
pub const API: u32 = version(1, 17);

/// The values of `enum fi_type` that callers use.
pub mod to_str {
    /// `FI_TYPE_INFO`.
    pub const INFO: u32 = 0;
    /// `FI_TYPE_EP_TYPE`.
    pub const EP_TYPE: u32 = 1;
    /// `FI_TYPE_CAPS`.
    pub const CAPS: u32 = 2;
    /// `FI_TYPE_OP_FLAGS`.
    pub const OP_FLAGS: u32 = 3;
    /// `FI_TYPE_MODE`.
    pub const MODE: u32 = 14;
    /// `FI_TYPE_CQ_EVENT_FLAGS`.
    pub const CQ_EVENT_FLAGS: u32 = 20;
    /// `FI_TYPE_MR_MODE`.
    pub const MR_MODE: u32 = 21;
}
