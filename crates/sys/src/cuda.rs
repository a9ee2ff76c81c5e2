//! The functions and constants of the CUDA driver API that identify and export memory of NVIDIA devices, as in CUDA
//! 11.0 and later.
//!
//! Read by `crates/mem`, which opens the library at run time. `cargo xtask bindings` compares this file with `cuda.h`
//! if that header is installed.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

/// Name of the library, which is part of the kernel driver's package.
pub const LIBRARY: &CStr = c"libcuda.so.1";

/// `CUresult`.
pub type Status = c_uint;
/// `CUdevice`.
pub type Device = c_int;
/// `CUdeviceptr`.
pub type DevicePtr = c_ulonglong;

/// `struct CUctx_st`: opaque; Trunkline only passes pointers to it.
#[repr(C)]
pub struct Context {
    _private: [u8; 0],
}

/// Values of [`Status`].
pub mod status {
    use super::Status;

    /// `CUDA_SUCCESS`.
    pub const SUCCESS: Status = 0;
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: Status = 1;
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: Status = 2;
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub const NOT_INITIALIZED: Status = 3;
    /// `CUDA_ERROR_DEINITIALIZED`.
    pub const DEINITIALIZED: Status = 4;
    /// `CUDA_ERROR_STUB_LIBRARY`.
    pub const STUB_LIBRARY: Status = 34;
    /// `CUDA_ERROR_NO_DEVICE`.
    pub const NO_DEVICE: Status = 100;
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub const INVALID_DEVICE: Status = 101;
    /// `CUDA_ERROR_INVALID_CONTEXT`.
    pub const INVALID_CONTEXT: Status = 201;
    /// `CUDA_ERROR_ALREADY_MAPPED`.
    pub const ALREADY_MAPPED: Status = 208;
    /// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`.
    pub const PEER_ACCESS_UNSUPPORTED: Status = 217;
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub const INVALID_HANDLE: Status = 400;
    /// `CUDA_ERROR_NOT_FOUND`.
    pub const NOT_FOUND: Status = 500;
    /// `CUDA_ERROR_TOO_MANY_PEERS`.
    pub const TOO_MANY_PEERS: Status = 711;
    /// `CUDA_ERROR_NOT_PERMITTED`.
    pub const NOT_PERMITTED: Status = 800;
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: Status = 801;
    /// `CUDA_ERROR_SYSTEM_NOT_READY`.
    pub const SYSTEM_NOT_READY: Status = 802;
    /// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`.
    pub const SYSTEM_DRIVER_MISMATCH: Status = 803;
    /// `CUDA_ERROR_UNKNOWN`.
    pub const UNKNOWN: Status = 999;
}

/// Values of `CUpointer_attribute`.
pub mod pointer_attribute {
    use core::ffi::c_uint;

    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`: a [`memory_type`](super::memory_type), or 0 for memory unknown to CUDA.
    pub const MEMORY_TYPE: c_uint = 2;
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`: synchronous copies of this memory return only after they have completed.
    pub const SYNC_MEMOPS: c_uint = 6;
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: 64 bits, never reused for another allocation of the process.
    pub const BUFFER_ID: c_uint = 7;
    /// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
    pub const IS_MANAGED: c_uint = 8;
    /// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
    pub const DEVICE_ORDINAL: c_uint = 9;
    /// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`: 1 for memory that `cuIpcGetMemHandle` accepts.
    pub const IS_LEGACY_CUDA_IPC_CAPABLE: c_uint = 10;
    /// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`: start of the allocation; for virtual memory, of the reserved range.
    pub const RANGE_START_ADDR: c_uint = 11;
    /// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`: bytes of that allocation or reserved range.
    pub const RANGE_SIZE: c_uint = 12;
    /// `CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES`: bits, the export types that were requested at `cuMemCreate`.
    pub const ALLOWED_HANDLE_TYPES: c_uint = 14;
    /// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`, since CUDA 11.2: the pool of the allocation, or null.
    pub const MEMPOOL_HANDLE: c_uint = 17;
}

/// Values of `CUmemorytype`.
pub mod memory_type {
    use core::ffi::c_uint;

    /// `CU_MEMORYTYPE_HOST`.
    pub const HOST: c_uint = 1;
    /// `CU_MEMORYTYPE_DEVICE`.
    pub const DEVICE: c_uint = 2;
}

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
pub const DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: c_uint = 124;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`: the handle is an `int`, a file descriptor.
pub const MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: c_uint = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
pub const MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE: c_ulonglong = 1;

/// `cuInit`.
pub type Init = unsafe extern "C" fn(flags: c_uint) -> Status;
/// `cuDriverGetVersion`: 1000 times the major and 10 times the minor number.
pub type DriverGetVersion = unsafe extern "C" fn(version: *mut c_int) -> Status;
/// `cuDeviceGetCount`.
pub type DeviceGetCount = unsafe extern "C" fn(count: *mut c_int) -> Status;
/// `cuDeviceGet`.
pub type DeviceGet = unsafe extern "C" fn(device: *mut Device, ordinal: c_int) -> Status;
/// `cuDeviceGetAttribute`.
pub type DeviceGetAttribute =
    unsafe extern "C" fn(value: *mut c_int, attribute: c_uint, device: Device) -> Status;
/// `cuDevicePrimaryCtxRetain`.
pub type DevicePrimaryCtxRetain = unsafe extern "C" fn(context: *mut *mut Context, device: Device) -> Status;
/// `cuDevicePrimaryCtxRelease_v2`.
pub type DevicePrimaryCtxRelease = unsafe extern "C" fn(device: Device) -> Status;
/// `cuCtxPushCurrent_v2`.
pub type CtxPushCurrent = unsafe extern "C" fn(context: *mut Context) -> Status;
/// `cuCtxPopCurrent_v2`.
pub type CtxPopCurrent = unsafe extern "C" fn(context: *mut *mut Context) -> Status;
/// `cuPointerGetAttributes`.
pub type PointerGetAttributes = unsafe extern "C" fn(
    count: c_uint,
    attributes: *mut c_uint,
    data: *mut *mut c_void,
    ptr: DevicePtr,
) -> Status;
/// `cuPointerSetAttribute`.
pub type PointerSetAttribute =
    unsafe extern "C" fn(value: *const c_void, attribute: c_uint, ptr: DevicePtr) -> Status;
/// `cuMemAlloc_v2`.
pub type MemAlloc = unsafe extern "C" fn(ptr: *mut DevicePtr, size: usize) -> Status;
/// `cuMemFree_v2`.
pub type MemFree = unsafe extern "C" fn(ptr: DevicePtr) -> Status;
/// `cuGetErrorName`.
pub type GetErrorName = unsafe extern "C" fn(error: Status, name: *mut *const c_char) -> Status;
/// `cuMemGetHandleForAddressRange`, since CUDA 11.7; address and size must be multiples of the host's page size.
pub type MemGetHandleForAddressRange = unsafe extern "C" fn(
    handle: *mut c_void,
    ptr: DevicePtr,
    size: usize,
    handle_type: c_uint,
    flags: c_ulonglong,
) -> Status;

/// `CU_CTX_SYNC_MEMOPS`, since CUDA 12.1: synchronous copies and memsets of a context have completed when they
/// return, for all memory.
pub const CTX_SYNC_MEMOPS: c_uint = 0x80;
/// `CU_CTX_FLAGS_MASK`: the flags that [`CtxSetFlags`] accepts.
pub const CTX_FLAGS_MASK: c_uint = 0xff;
/// `cuCtxGetFlags`: the flags of the thread's context.
pub type CtxGetFlags = unsafe extern "C" fn(flags: *mut c_uint) -> Status;
/// `cuCtxSetFlags`, since CUDA 12.1: replaces the flags of the thread's context.
pub type CtxSetFlags = unsafe extern "C" fn(flags: c_uint) -> Status;

/// The exported functions. The name of a field is the function's, without `cu` and the version suffix. An [`Option`]
/// marks a function that some supported versions lack.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Initialises the driver; must precede all other calls except the version query.
    pub init: Init,
    /// The newest CUDA version that the driver supports.
    pub driver_get_version: DriverGetVersion,
    /// The number of devices.
    pub device_get_count: DeviceGetCount,
    /// Returns the device with a given number.
    pub device_get: DeviceGet,
    /// Returns an attribute of a device.
    pub device_get_attribute: DeviceGetAttribute,
    /// Acquires a reference to the process's primary context on a device.
    pub device_primary_ctx_retain: DevicePrimaryCtxRetain,
    /// Releases that reference.
    pub device_primary_ctx_release: DevicePrimaryCtxRelease,
    /// Makes a context the thread's current one, and keeps the previous one below it.
    pub ctx_push_current: CtxPushCurrent,
    /// Removes the current context and restores the previous one.
    pub ctx_pop_current: CtxPopCurrent,
    /// Returns attributes of an address.
    pub pointer_get_attributes: PointerGetAttributes,
    /// Sets an attribute of the allocation at an address.
    pub pointer_set_attribute: PointerSetAttribute,
    /// Allocates memory on the device of the thread's context.
    pub mem_alloc: MemAlloc,
    /// Frees such memory.
    pub mem_free: MemFree,
    /// The name of an error.
    pub get_error_name: GetErrorName,
    /// Exports a range.
    pub mem_get_handle_for_address_range: Option<MemGetHandleForAddressRange>,
    /// The flags of the thread's context.
    pub ctx_get_flags: Option<CtxGetFlags>,
    /// Replaces the flags of the thread's context.
    pub ctx_set_flags: Option<CtxSetFlags>,
}

/// The symbol of each field of [`Calls`], in order.
pub const SYMBOLS: [&CStr; 17] = [
    c"cuInit",
    c"cuDriverGetVersion",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuCtxPushCurrent_v2",
    c"cuCtxPopCurrent_v2",
    c"cuPointerGetAttributes",
    c"cuPointerSetAttribute",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuGetErrorName",
    c"cuMemGetHandleForAddressRange",
    c"cuCtxGetFlags",
    c"cuCtxSetFlags",
];

/// A stream of a device.
#[repr(C)]
pub struct Stream {
    _private: [u8; 0],
}

/// `CU_STREAM_NON_BLOCKING`: the stream does not synchronize with the default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;

/// `cuStreamCreate`.
pub type StreamCreate = unsafe extern "C" fn(stream: *mut *mut Stream, flags: c_uint) -> Status;
/// `cuStreamDestroy_v2`.
pub type StreamDestroy = unsafe extern "C" fn(stream: *mut Stream) -> Status;
/// `cuStreamSynchronize`.
pub type StreamSynchronize = unsafe extern "C" fn(stream: *mut Stream) -> Status;
/// `cuMemcpyDtoHAsync_v2`.
pub type MemcpyDtoHAsync =
    unsafe extern "C" fn(to: *mut c_void, from: DevicePtr, size: usize, stream: *mut Stream) -> Status;
/// `cuMemcpyHtoDAsync_v2`.
pub type MemcpyHtoDAsync =
    unsafe extern "C" fn(to: DevicePtr, from: *const c_void, size: usize, stream: *mut Stream) -> Status;

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`.
pub const FLUSH_TARGET_CURRENT_CTX: c_int = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`.
pub const FLUSH_TO_OWNER: c_int = 100;

/// `cuFlushGPUDirectRDMAWrites`, since CUDA 11.3.
pub type FlushGpuDirectRdmaWrites = unsafe extern "C" fn(target: c_int, scope: c_int) -> Status;

/// The functions for copies; resolved only if copies are used.
#[derive(Clone, Copy)]
pub struct CopyCalls {
    /// Creates a stream.
    pub stream_create: StreamCreate,
    /// Destroys a stream.
    pub stream_destroy: StreamDestroy,
    /// Waits until the stream's work has completed.
    pub stream_synchronize: StreamSynchronize,
    /// Copies from the device to the host.
    pub memcpy_dtoh_async: MemcpyDtoHAsync,
    /// Copies from the host to the device.
    pub memcpy_htod_async: MemcpyHtoDAsync,
    /// Waits until writes of NICs to the device's memory are visible.
    pub flush_gpu_direct_rdma_writes: Option<FlushGpuDirectRdmaWrites>,
}
