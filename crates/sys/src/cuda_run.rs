//! The functions of the CUDA driver API by which kernels are loaded and started, and by which memory that both the host and a device
//! use is allocated and copied; as CUDA 11.0 and later have them.
//!
//! Read by `crates/mem`, which opens the library at run time. `cargo xtask bindings` compares all of it with `cuda.h`
//! where that is installed.

use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};

use crate::cuda::{Device, DevicePtr, Status, Stream};

/// `CUDA_ERROR_NOT_READY`: what was asked about is still under way.
pub const NOT_READY: Status = 600;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context.
pub const HOST_ALLOC_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: devices see it.
pub const HOST_ALLOC_DEVICEMAP: c_uint = 2;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`.
pub const PCI_BUS_ID: c_uint = 33;
/// `CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID`.
pub const PCI_DEVICE_ID: c_uint = 34;
/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`.
pub const PCI_DOMAIN_ID: c_uint = 50;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub const COMPUTE_CAPABILITY_MAJOR: c_uint = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub const COMPUTE_CAPABILITY_MINOR: c_uint = 76;

/// A module: kernels that are loaded.
#[repr(C)]
pub struct Module {
    _private: [u8; 0],
}

/// A kernel of a module.
#[repr(C)]
pub struct Function {
    _private: [u8; 0],
}

/// An event.
#[repr(C)]
pub struct Event {
    _private: [u8; 0],
}

/// `cuDeviceGetAttribute`, once more: what a device is.
pub type DeviceGetAttribute =
    unsafe extern "C" fn(value: *mut c_int, attribute: c_uint, device: Device) -> Status;
/// `cuMemHostAlloc`.
pub type MemHostAlloc = unsafe extern "C" fn(pointer: *mut *mut c_void, size: usize, flags: c_uint) -> Status;
/// `cuMemFreeHost`.
pub type MemFreeHost = unsafe extern "C" fn(pointer: *mut c_void) -> Status;
/// `cuMemHostGetDevicePointer_v2`.
pub type MemHostGetDevicePointer =
    unsafe extern "C" fn(at: *mut DevicePtr, pointer: *mut c_void, flags: c_uint) -> Status;
/// `cuMemcpyAsync`: addresses of a device, or of the host.
pub type MemcpyAsync =
    unsafe extern "C" fn(to: DevicePtr, from: DevicePtr, size: usize, stream: *mut Stream) -> Status;
/// `cuMemsetD8Async`.
pub type MemsetD8Async =
    unsafe extern "C" fn(to: DevicePtr, value: c_uchar, size: usize, stream: *mut Stream) -> Status;
/// `cuModuleLoadData`.
pub type ModuleLoadData = unsafe extern "C" fn(module: *mut *mut Module, image: *const c_void) -> Status;
/// `cuModuleUnload`.
pub type ModuleUnload = unsafe extern "C" fn(module: *mut Module) -> Status;
/// `cuModuleGetFunction`.
pub type ModuleGetFunction =
    unsafe extern "C" fn(function: *mut *mut Function, module: *mut Module, name: *const c_char) -> Status;
/// `cuLaunchKernel`.
pub type LaunchKernel = unsafe extern "C" fn(
    function: *mut Function,
    blocks_x: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads_x: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    stream: *mut Stream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status;
/// `cuStreamCreate`.
pub type StreamCreate = unsafe extern "C" fn(stream: *mut *mut Stream, flags: c_uint) -> Status;
/// `cuStreamDestroy_v2`.
pub type StreamDestroy = unsafe extern "C" fn(stream: *mut Stream) -> Status;
/// `cuStreamQuery`.
pub type StreamQuery = unsafe extern "C" fn(stream: *mut Stream) -> Status;
/// `cuStreamSynchronize`.
pub type StreamSynchronize = unsafe extern "C" fn(stream: *mut Stream) -> Status;
/// `cuEventCreate`.
pub type EventCreate = unsafe extern "C" fn(event: *mut *mut Event, flags: c_uint) -> Status;
/// `cuEventDestroy_v2`.
pub type EventDestroy = unsafe extern "C" fn(event: *mut Event) -> Status;
/// `cuEventRecord`.
pub type EventRecord = unsafe extern "C" fn(event: *mut Event, stream: *mut Stream) -> Status;
/// `cuEventQuery`.
pub type EventQuery = unsafe extern "C" fn(event: *mut Event) -> Status;

/// The functions. A field is named as its function is, without `cu` and the number of its version.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Asks a device what it can do.
    pub device_get_attribute: DeviceGetAttribute,
    /// Allocates memory of the host that stays where it is.
    pub mem_host_alloc: MemHostAlloc,
    /// Frees it.
    pub mem_free_host: MemFreeHost,
    /// Where the device of the thread's context sees it.
    pub mem_host_get_device_pointer: MemHostGetDevicePointer,
    /// Copies, in the order of a stream.
    pub memcpy_async: MemcpyAsync,
    /// Sets bytes, in the order of a stream.
    pub memset_d8_async: MemsetD8Async,
    /// Loads kernels.
    pub module_load_data: ModuleLoadData,
    /// Unloads them.
    pub module_unload: ModuleUnload,
    /// Finds a kernel.
    pub module_get_function: ModuleGetFunction,
    /// Starts it, in the order of a stream.
    pub launch_kernel: LaunchKernel,
    /// A stream.
    pub stream_create: StreamCreate,
    /// Its end.
    pub stream_destroy: StreamDestroy,
    /// Whether all on it has ended.
    pub stream_query: StreamQuery,
    /// Waits for that.
    pub stream_synchronize: StreamSynchronize,
    /// An event.
    pub event_create: EventCreate,
    /// Its end.
    pub event_destroy: EventDestroy,
    /// Puts it behind all that is on a stream.
    pub event_record: EventRecord,
    /// Whether all before it has ended.
    pub event_query: EventQuery,
}

/// The symbol of each field of [`Calls`], in order.
pub const SYMBOLS: [&CStr; 18] = [
    c"cuDeviceGetAttribute",
    c"cuMemHostAlloc",
    c"cuMemFreeHost",
    c"cuMemHostGetDevicePointer_v2",
    c"cuMemcpyAsync",
    c"cuMemsetD8Async",
    c"cuModuleLoadData",
    c"cuModuleUnload",
    c"cuModuleGetFunction",
    c"cuLaunchKernel",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamQuery",
    c"cuStreamSynchronize",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventQuery",
];
