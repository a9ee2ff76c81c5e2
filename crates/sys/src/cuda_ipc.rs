//! The functions of the CUDA driver API by which processes of a host share memory of NVIDIA devices, as in CUDA 11.0
//! and later. Memory is shared by legacy handles, or as virtual memory whose physical segments are exported as file
//! descriptors.
//!
//! Read by `crates/mem`, which opens the library at run time. `cargo xtask bindings` compares this file with `cuda.h`
//! if that header is installed.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::cuda::{DevicePtr, Status, Stream};
use crate::cuda_run::Event;

/// `CUipcMemHandle`; opaque.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CudaIpcMemHandle {
    /// Private to the driver.
    pub reserved: [c_char; 64],
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag that `cuIpcOpenMemHandle` accepts.
pub const IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// `CUmemGenericAllocationHandle`: a reference to a physical segment.
pub type AllocationHandle = c_ulonglong;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub const MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;

/// `CUmemAccessDesc`: a device and its access rights to an address range.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemAccessDesc {
    /// Kind of location: [`MEM_LOCATION_TYPE_DEVICE`].
    pub location_type: c_uint,
    /// Number of the location within its kind.
    pub location_id: c_int,
    /// Its access rights.
    pub flags: c_uint,
}

/// `cuIpcGetMemHandle`.
pub type IpcGetMemHandle = unsafe extern "C" fn(handle: *mut CudaIpcMemHandle, ptr: DevicePtr) -> Status;
/// `cuIpcOpenMemHandle_v2`.
pub type IpcOpenMemHandle =
    unsafe extern "C" fn(ptr: *mut DevicePtr, handle: CudaIpcMemHandle, flags: c_uint) -> Status;
/// `cuIpcCloseMemHandle`.
pub type IpcCloseMemHandle = unsafe extern "C" fn(ptr: DevicePtr) -> Status;
/// `cuMemGetAddressRange_v2`: the allocation or mapped segment that contains an address.
pub type MemGetAddressRange =
    unsafe extern "C" fn(base: *mut DevicePtr, size: *mut usize, ptr: DevicePtr) -> Status;
/// `cuMemRetainAllocationHandle`: acquires a reference to the segment at an address.
pub type MemRetainAllocationHandle =
    unsafe extern "C" fn(handle: *mut AllocationHandle, addr: *mut c_void) -> Status;
/// `cuMemRelease`: releases a reference to a segment.
pub type MemRelease = unsafe extern "C" fn(handle: AllocationHandle) -> Status;
/// `cuMemExportToShareableHandle`; the output points to an `int` if the type is a file descriptor.
pub type MemExportToShareableHandle = unsafe extern "C" fn(
    shareable: *mut c_void,
    handle: AllocationHandle,
    handle_type: c_uint,
    flags: c_ulonglong,
) -> Status;
/// `cuMemImportFromShareableHandle`; a file descriptor is passed in the pointer argument, and the caller still owns
/// it.
pub type MemImportFromShareableHandle = unsafe extern "C" fn(
    handle: *mut AllocationHandle,
    shareable: *mut c_void,
    handle_type: c_uint,
) -> Status;
/// `cuMemAddressReserve`.
pub type MemAddressReserve = unsafe extern "C" fn(
    ptr: *mut DevicePtr,
    size: usize,
    alignment: usize,
    addr: DevicePtr,
    flags: c_ulonglong,
) -> Status;
/// `cuMemAddressFree`.
pub type MemAddressFree = unsafe extern "C" fn(ptr: DevicePtr, size: usize) -> Status;
/// `cuMemMap`.
pub type MemMap = unsafe extern "C" fn(
    ptr: DevicePtr,
    size: usize,
    offset: usize,
    handle: AllocationHandle,
    flags: c_ulonglong,
) -> Status;
/// `cuMemUnmap`.
pub type MemUnmap = unsafe extern "C" fn(ptr: DevicePtr, size: usize) -> Status;
/// `cuMemSetAccess`.
pub type MemSetAccess =
    unsafe extern "C" fn(ptr: DevicePtr, size: usize, access: *const MemAccessDesc, count: usize) -> Status;
/// `cuStreamCreate`.
pub type StreamCreate = unsafe extern "C" fn(stream: *mut *mut Stream, flags: c_uint) -> Status;
/// `cuStreamDestroy_v2`.
pub type StreamDestroy = unsafe extern "C" fn(stream: *mut Stream) -> Status;
/// `cuStreamSynchronize`.
pub type StreamSynchronize = unsafe extern "C" fn(stream: *mut Stream) -> Status;
/// `cuMemcpyAsync`: copies between any two addresses; the driver derives the direction from them.
pub type MemcpyAsync =
    unsafe extern "C" fn(to: DevicePtr, from: DevicePtr, size: usize, stream: *mut Stream) -> Status;

/// `cuEventCreate`.
pub type EventCreate = unsafe extern "C" fn(event: *mut *mut Event, flags: c_uint) -> Status;
/// `cuEventDestroy_v2`.
pub type EventDestroy = unsafe extern "C" fn(event: *mut Event) -> Status;
/// `cuEventRecord`.
pub type EventRecord = unsafe extern "C" fn(event: *mut Event, stream: *mut Stream) -> Status;
/// `cuEventQuery`.
pub type EventQuery = unsafe extern "C" fn(event: *mut Event) -> Status;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for the contexts of all devices.
pub const MEM_HOST_REGISTER_PORTABLE: c_uint = 1;
/// `cuMemHostRegister_v2`: pins memory of the host.
pub type MemHostRegister = unsafe extern "C" fn(addr: *mut c_void, size: usize, flags: c_uint) -> Status;
/// `cuMemHostUnregister`.
pub type MemHostUnregister = unsafe extern "C" fn(addr: *mut c_void) -> Status;

/// The exported functions. The name of a field is the function's, without `cu` and the version suffix.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Returns a handle of an allocation.
    pub ipc_get_mem_handle: IpcGetMemHandle,
    /// Maps the allocation of another process's handle.
    pub ipc_open_mem_handle: IpcOpenMemHandle,
    /// Unmaps it.
    pub ipc_close_mem_handle: IpcCloseMemHandle,
    /// Returns the allocation or mapped segment that contains an address.
    pub mem_get_address_range: MemGetAddressRange,
    /// Acquires a reference to the segment at an address.
    pub mem_retain_allocation_handle: MemRetainAllocationHandle,
    /// Releases a reference to a segment.
    pub mem_release: MemRelease,
    /// Exports a segment as a descriptor.
    pub mem_export_to_shareable_handle: MemExportToShareableHandle,
    /// Acquires a reference to the segment of a descriptor.
    pub mem_import_from_shareable_handle: MemImportFromShareableHandle,
    /// Reserves a range of addresses.
    pub mem_address_reserve: MemAddressReserve,
    /// Frees such a range.
    pub mem_address_free: MemAddressFree,
    /// Maps a segment at reserved addresses.
    pub mem_map: MemMap,
    /// Unmaps it.
    pub mem_unmap: MemUnmap,
    /// Sets the devices' access rights to mapped addresses.
    pub mem_set_access: MemSetAccess,
    /// Creates a stream.
    pub stream_create: StreamCreate,
    /// Destroys a stream.
    pub stream_destroy: StreamDestroy,
    /// Waits until the stream's work has completed.
    pub stream_synchronize: StreamSynchronize,
    /// Copies, in the order of a stream.
    pub memcpy_async: MemcpyAsync,
    /// Creates an event.
    pub event_create: EventCreate,
    /// Destroys an event.
    pub event_destroy: EventDestroy,
    /// Records the event after all operations submitted to a stream so far.
    pub event_record: EventRecord,
    /// Whether all operations before the event have completed.
    pub event_query: EventQuery,
    /// Pins host memory.
    pub mem_host_register: MemHostRegister,
    /// Unpins it.
    pub mem_host_unregister: MemHostUnregister,
}

/// The symbol of each field of [`Calls`], in order.
pub const SYMBOLS: [&CStr; 23] = [
    c"cuIpcGetMemHandle",
    c"cuIpcOpenMemHandle_v2",
    c"cuIpcCloseMemHandle",
    c"cuMemGetAddressRange_v2",
    c"cuMemRetainAllocationHandle",
    c"cuMemRelease",
    c"cuMemExportToShareableHandle",
    c"cuMemImportFromShareableHandle",
    c"cuMemAddressReserve",
    c"cuMemAddressFree",
    c"cuMemMap",
    c"cuMemUnmap",
    c"cuMemSetAccess",
    c"cuStreamCreate",
    c"cuStreamDestroy_v2",
    c"cuStreamSynchronize",
    c"cuMemcpyAsync",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuMemHostRegister_v2",
    c"cuMemHostUnregister",
];

const _: () = {
    assert!(size_of::<CudaIpcMemHandle>() == 64);
    assert!(size_of::<MemAccessDesc>() == 12);
};
