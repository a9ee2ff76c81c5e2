//! The functions of the CUDA driver API by which processes of a host share memory of NVIDIA's devices: legacy handles, and virtual
//! memory whose physical segments are exported as file descriptors. As CUDA 11.0 and later have them.
//!
//! Read by `crates/mem`, which opens the library at run time. `cargo xtask bindings` compares all of it with `cuda.h`
//! where that is installed.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::cuda::{DevicePtr, Status, Stream};
use crate::cuda_run::Event;

/// `CUipcMemHandle`; opaque.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CudaIpcMemHandle {
    /// The driver's own.
    pub reserved: [c_char; 64],
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the one flag that opening takes.
pub const IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// `CUmemGenericAllocationHandle`: a reference to a physical segment.
pub type AllocationHandle = c_ulonglong;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub const MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;

/// `CUmemAccessDesc`: who may touch addresses, and how.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemAccessDesc {
    /// Kind of place: [`MEM_LOCATION_TYPE_DEVICE`].
    pub location_type: c_uint,
    /// Which of that kind.
    pub location_id: c_int,
    /// What it may do.
    pub flags: c_uint,
}

/// `cuIpcGetMemHandle`.
pub type IpcGetMemHandle = unsafe extern "C" fn(handle: *mut CudaIpcMemHandle, ptr: DevicePtr) -> Status;
/// `cuIpcOpenMemHandle_v2`.
pub type IpcOpenMemHandle =
    unsafe extern "C" fn(ptr: *mut DevicePtr, handle: CudaIpcMemHandle, flags: c_uint) -> Status;
/// `cuIpcCloseMemHandle`.
pub type IpcCloseMemHandle = unsafe extern "C" fn(ptr: DevicePtr) -> Status;
/// `cuMemGetAddressRange_v2`: the allocation, or the segment that is mapped, around an address.
pub type MemGetAddressRange =
    unsafe extern "C" fn(base: *mut DevicePtr, size: *mut usize, ptr: DevicePtr) -> Status;
/// `cuMemRetainAllocationHandle`: one more reference to the segment at an address.
pub type MemRetainAllocationHandle =
    unsafe extern "C" fn(handle: *mut AllocationHandle, addr: *mut c_void) -> Status;
/// `cuMemRelease`: ends one.
pub type MemRelease = unsafe extern "C" fn(handle: AllocationHandle) -> Status;
/// `cuMemExportToShareableHandle`; the place is for an `int` where the type is a file descriptor.
pub type MemExportToShareableHandle = unsafe extern "C" fn(
    shareable: *mut c_void,
    handle: AllocationHandle,
    handle_type: c_uint,
    flags: c_ulonglong,
) -> Status;
/// `cuMemImportFromShareableHandle`; a file descriptor is passed as if it were a pointer, and stays the caller's.
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
/// `cuMemcpyAsync`: between any two places, by their addresses.
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

/// The exported functions. A field is named as its function is, without `cu` and the number of its version.
#[derive(Clone, Copy)]
pub struct Calls {
    /// A handle of an allocation.
    pub ipc_get_mem_handle: IpcGetMemHandle,
    /// Maps what a handle of another process is of.
    pub ipc_open_mem_handle: IpcOpenMemHandle,
    /// Unmaps it.
    pub ipc_close_mem_handle: IpcCloseMemHandle,
    /// What is mapped around an address.
    pub mem_get_address_range: MemGetAddressRange,
    /// Refers to the segment at an address.
    pub mem_retain_allocation_handle: MemRetainAllocationHandle,
    /// Does no more.
    pub mem_release: MemRelease,
    /// A descriptor of a segment.
    pub mem_export_to_shareable_handle: MemExportToShareableHandle,
    /// Refers to the segment of a descriptor.
    pub mem_import_from_shareable_handle: MemImportFromShareableHandle,
    /// Takes addresses.
    pub mem_address_reserve: MemAddressReserve,
    /// Gives them back.
    pub mem_address_free: MemAddressFree,
    /// Puts a segment at addresses.
    pub mem_map: MemMap,
    /// Takes it away.
    pub mem_unmap: MemUnmap,
    /// Lets devices touch addresses.
    pub mem_set_access: MemSetAccess,
    /// A stream.
    pub stream_create: StreamCreate,
    /// Its end.
    pub stream_destroy: StreamDestroy,
    /// Waits for what it does.
    pub stream_synchronize: StreamSynchronize,
    /// Copies.
    pub memcpy_async: MemcpyAsync,
    /// An event.
    pub event_create: EventCreate,
    /// Its end.
    pub event_destroy: EventDestroy,
    /// Puts it behind all that a stream was told.
    pub event_record: EventRecord,
    /// Whether all before it has ended.
    pub event_query: EventQuery,
    /// Pins memory of the host.
    pub mem_host_register: MemHostRegister,
    /// Does no more.
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
