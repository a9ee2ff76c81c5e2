//! The functions of the CUDA driver API that load and start kernels, and that allocate and copy memory used by both
//! host and device, as in CUDA 11.0 and later.
//!
//! Read by `crates/mem`, which opens the library at run time. `cargo xtask bindings` compares this file with `cuda.h`
//! if that header is installed.

use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};

use crate::cuda::{Device, DevicePtr, Status, Stream};

/// `CUDA_ERROR_NOT_READY`: the queried work has not completed.
pub const NOT_READY: Status = 600;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
pub const HOST_ALLOC_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: mapped into the devices' address space.
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

/// `struct CUmod_st`, a module: a set of loaded kernels.
#[repr(C)]
pub struct Module {
    _private: [u8; 0],
}

/// `struct CUfunc_st`, a kernel of a module.
#[repr(C)]
pub struct Function {
    _private: [u8; 0],
}

/// `struct CUevent_st`, an event.
#[repr(C)]
pub struct Event {
    _private: [u8; 0],
}

/// `cuDeviceGetAttribute`, declared here a second time so that [`Calls`] is complete: an attribute of a device.
pub type DeviceGetAttribute =
    unsafe extern "C" fn(value: *mut c_int, attribute: c_uint, device: Device) -> Status;
/// `cuMemHostAlloc`.
pub type MemHostAlloc = unsafe extern "C" fn(pointer: *mut *mut c_void, size: usize, flags: c_uint) -> Status;
/// `cuMemFreeHost`.
pub type MemFreeHost = unsafe extern "C" fn(pointer: *mut c_void) -> Status;
/// `cuMemHostGetDevicePointer_v2`.
pub type MemHostGetDevicePointer =
    unsafe extern "C" fn(at: *mut DevicePtr, pointer: *mut c_void, flags: c_uint) -> Status;
/// `cuMemcpyAsync`: between addresses of a device or of the host.
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

/// The functions. The name of a field is the function's, without `cu` and the version suffix.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Returns an attribute of a device.
    pub device_get_attribute: DeviceGetAttribute,
    /// Allocates pinned host memory.
    pub mem_host_alloc: MemHostAlloc,
    /// Frees it.
    pub mem_free_host: MemFreeHost,
    /// Returns its address as seen by the device of the thread's context.
    pub mem_host_get_device_pointer: MemHostGetDevicePointer,
    /// Copies, in the order of a stream.
    pub memcpy_async: MemcpyAsync,
    /// Sets bytes, in the order of a stream.
    pub memset_d8_async: MemsetD8Async,
    /// Loads kernels.
    pub module_load_data: ModuleLoadData,
    /// Unloads them.
    pub module_unload: ModuleUnload,
    /// Finds a kernel by its name.
    pub module_get_function: ModuleGetFunction,
    /// Starts a kernel, in the order of a stream.
    pub launch_kernel: LaunchKernel,
    /// Creates a stream.
    pub stream_create: StreamCreate,
    /// Destroys a stream.
    pub stream_destroy: StreamDestroy,
    /// Whether the stream's work has completed.
    pub stream_query: StreamQuery,
    /// Waits until it has completed.
    pub stream_synchronize: StreamSynchronize,
    /// Creates an event.
    pub event_create: EventCreate,
    /// Destroys an event.
    pub event_destroy: EventDestroy,
    /// Records the event after all operations submitted to a stream so far.
    pub event_record: EventRecord,
    /// Whether all operations before the event have completed.
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
