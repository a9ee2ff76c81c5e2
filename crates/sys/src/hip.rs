//! The functions and constants of the HIP runtime that identify memory of AMD devices, and the function of the HSA
//! runtime that exports it. As in ROCm 6.0 and later; constants of ROCm 5 have other values.
//!
//! Read by `crates/mem`, which opens the libraries at run time. `cargo xtask bindings` compares this file with the
//! headers if they are installed.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Names of the HIP library, the newest first.
pub const LIBRARIES: [&CStr; 3] = [c"libamdhip64.so.7", c"libamdhip64.so.6", c"libamdhip64.so"];
/// Name of the HSA library, which the HIP library uses.
pub const HSA_LIBRARY: &CStr = c"libhsa-runtime64.so.1";

/// `hipError_t`; for functions of the HSA runtime, `hsa_status_t`.
pub type Status = c_uint;

/// Values of [`Status`].
pub mod status {
    use super::Status;

    /// `hipSuccess`, `HSA_STATUS_SUCCESS`.
    pub const SUCCESS: Status = 0;
    /// `hipErrorInvalidValue`.
    pub const INVALID_VALUE: Status = 1;
    /// `hipErrorOutOfMemory`.
    pub const OUT_OF_MEMORY: Status = 2;
    /// `hipErrorNotInitialized`.
    pub const NOT_INITIALIZED: Status = 3;
    /// `hipErrorInsufficientDriver`.
    pub const INSUFFICIENT_DRIVER: Status = 35;
    /// `hipErrorNoDevice`.
    pub const NO_DEVICE: Status = 100;
    /// `hipErrorInvalidDevice`.
    pub const INVALID_DEVICE: Status = 101;
    /// `hipErrorMapFailed`; also returned when an IPC handle cannot be mapped.
    pub const MAP_FAILED: Status = 205;
    /// `hipErrorAlreadyMapped`.
    pub const ALREADY_MAPPED: Status = 208;
    /// `hipErrorPeerAccessUnsupported`.
    pub const PEER_ACCESS_UNSUPPORTED: Status = 217;
    /// `hipErrorInvalidHandle`.
    pub const INVALID_HANDLE: Status = 400;
    /// `hipErrorNotSupported`.
    pub const NOT_SUPPORTED: Status = 801;
    /// `HSA_STATUS_ERROR`.
    pub const HSA_ERROR: Status = 0x1000;
    /// `HSA_STATUS_ERROR_INVALID_ALLOCATION`.
    pub const HSA_INVALID_ALLOCATION: Status = 0x1003;
    /// `HSA_STATUS_ERROR_INVALID_AGENT`.
    pub const HSA_INVALID_AGENT: Status = 0x1004;
    /// `HSA_STATUS_ERROR_OUT_OF_RESOURCES`.
    pub const HSA_OUT_OF_RESOURCES: Status = 0x1008;
}

/// Values of `hipMemoryType`.
pub mod memory_type {
    use core::ffi::c_uint;

    /// `hipMemoryTypeUnregistered`: memory unknown to HIP.
    pub const UNREGISTERED: c_uint = 0;
    /// `hipMemoryTypeHost`.
    pub const HOST: c_uint = 1;
    /// `hipMemoryTypeDevice`.
    pub const DEVICE: c_uint = 2;
    /// `hipMemoryTypeManaged`.
    pub const MANAGED: c_uint = 3;
}

/// `hipPointerAttribute_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PointerAttributes {
    /// A [`memory_type`].
    pub kind: c_uint,
    /// Ordinal of the device.
    pub device: c_int,
    /// Address as seen by the device.
    pub device_pointer: *mut c_void,
    /// Address as seen by the host.
    pub host_pointer: *mut c_void,
    /// Not 0 for managed memory.
    pub is_managed: c_int,
    /// Flags of the allocation.
    pub allocation_flags: c_uint,
}

/// `hipInit`.
pub type Init = unsafe extern "C" fn(flags: c_uint) -> Status;
/// `hipRuntimeGetVersion`: 10,000,000 times the major and 100,000 times the minor number, and the patch.
pub type RuntimeGetVersion = unsafe extern "C" fn(version: *mut c_int) -> Status;
/// `hipGetDeviceCount`.
pub type GetDeviceCount = unsafe extern "C" fn(count: *mut c_int) -> Status;
/// `hipPointerGetAttributes`.
pub type PointerGetAttributes =
    unsafe extern "C" fn(attributes: *mut PointerAttributes, ptr: *const c_void) -> Status;
/// `hipMemGetAddressRange`.
pub type MemGetAddressRange =
    unsafe extern "C" fn(base: *mut *mut c_void, size: *mut usize, ptr: *mut c_void) -> Status;
/// `hipMalloc`.
pub type Malloc = unsafe extern "C" fn(ptr: *mut *mut c_void, size: usize) -> Status;
/// `hipFree`.
pub type Free = unsafe extern "C" fn(ptr: *mut c_void) -> Status;
/// `hipGetErrorName`.
pub type GetErrorName = unsafe extern "C" fn(error: Status) -> *const c_char;
/// `hsa_amd_portable_export_dmabuf`, which returns an `hsa_status_t`; `offset` is the position of `ptr` in the
/// dma-buf.
pub type ExportDmabuf =
    unsafe extern "C" fn(ptr: *const c_void, size: usize, dmabuf: *mut c_int, offset: *mut u64) -> Status;

/// The exported functions. The name of a field is the function's, without `hip`. The [`Option`] marks the function of
/// the HSA runtime, which some supported versions lack.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Initialises the HIP and HSA runtimes.
    pub init: Init,
    /// Returns the version of the library.
    pub runtime_get_version: RuntimeGetVersion,
    /// Returns the number of devices.
    pub get_device_count: GetDeviceCount,
    /// Returns attributes of an address.
    pub pointer_get_attributes: PointerGetAttributes,
    /// Returns the allocation that contains an address.
    pub mem_get_address_range: MemGetAddressRange,
    /// Allocates memory on the thread's device.
    pub malloc: Malloc,
    /// Frees it.
    pub free: Free,
    /// Returns the name of a HIP error.
    pub get_error_name: GetErrorName,
    /// Exports a range as a dma-buf.
    pub export_dmabuf: Option<ExportDmabuf>,
}

/// The symbol of each field of [`Calls`], in order.
pub const SYMBOLS: [&CStr; 9] = [
    c"hipInit",
    c"hipRuntimeGetVersion",
    c"hipGetDeviceCount",
    c"hipPointerGetAttributes",
    c"hipMemGetAddressRange",
    c"hipMalloc",
    c"hipFree",
    c"hipGetErrorName",
    c"hsa_amd_portable_export_dmabuf",
];

const _: () = {
    assert!(size_of::<PointerAttributes>() == 32);
    assert!(core::mem::offset_of!(PointerAttributes, device_pointer) == 8);
    assert!(core::mem::offset_of!(PointerAttributes, is_managed) == 24);
};
