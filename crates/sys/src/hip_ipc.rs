//! The functions of the HIP runtime by which processes of a host share memory of AMD devices, as in ROCm 6.0 and
//! later.
//!
//! Read by `crates/mem`, which opens the library at run time. `cargo xtask bindings` compares this file with the
//! headers if they are installed.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::hip::Status;

/// `hipIpcMemHandle_t`; opaque.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HipIpcMemHandle {
    /// Private to the runtime.
    pub reserved: [c_char; 64],
}

/// `struct ihipStream_t`.
#[repr(C)]
pub struct HipStream {
    _private: [u8; 0],
}

/// `struct ihipEvent_t`.
#[repr(C)]
pub struct HipEvent {
    _private: [u8; 0],
}

/// `hipIpcMemLazyEnablePeerAccess`, the only flag that `hipIpcOpenMemHandle` accepts. Before ROCm 6 its value was 0.
pub const IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// `HIP_POINTER_ATTRIBUTE_BUFFER_ID`: 32 bits, which are reused.
pub const POINTER_ATTRIBUTE_BUFFER_ID: c_uint = 7;
/// `hipStreamNonBlocking`: the stream does not synchronize with the default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `hipEventDisableTiming`: the event records no time.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `hipErrorNotReady`: the work before an event has not completed.
pub const NOT_READY: Status = 600;
/// `hipMemcpyDefault`: the runtime derives the direction of the copy from the addresses.
pub const MEMCPY_DEFAULT: c_uint = 4;

/// `hipHostRegisterPortable`: pinned for all devices.
pub const HOST_REGISTER_PORTABLE: c_uint = 1;

/// `hipIpcGetMemHandle`.
pub type IpcGetMemHandle = unsafe extern "C" fn(handle: *mut HipIpcMemHandle, ptr: *mut c_void) -> Status;
/// `hipIpcOpenMemHandle`.
pub type IpcOpenMemHandle =
    unsafe extern "C" fn(ptr: *mut *mut c_void, handle: HipIpcMemHandle, flags: c_uint) -> Status;
/// `hipIpcCloseMemHandle`.
pub type IpcCloseMemHandle = unsafe extern "C" fn(ptr: *mut c_void) -> Status;
/// `hipPointerGetAttribute`.
pub type PointerGetAttribute =
    unsafe extern "C" fn(data: *mut c_void, attribute: c_uint, ptr: *mut c_void) -> Status;
/// `hipGetDevice`.
pub type GetDevice = unsafe extern "C" fn(device: *mut c_int) -> Status;
/// `hipSetDevice`.
pub type SetDevice = unsafe extern "C" fn(device: c_int) -> Status;
/// `hipStreamCreateWithFlags`.
pub type StreamCreateWithFlags = unsafe extern "C" fn(stream: *mut *mut HipStream, flags: c_uint) -> Status;
/// `hipStreamDestroy`.
pub type StreamDestroy = unsafe extern "C" fn(stream: *mut HipStream) -> Status;
/// `hipStreamSynchronize`.
pub type StreamSynchronize = unsafe extern "C" fn(stream: *mut HipStream) -> Status;
/// `hipEventCreateWithFlags`.
pub type EventCreateWithFlags = unsafe extern "C" fn(event: *mut *mut HipEvent, flags: c_uint) -> Status;
/// `hipEventDestroy`.
pub type EventDestroy = unsafe extern "C" fn(event: *mut HipEvent) -> Status;
/// `hipEventRecord`.
pub type EventRecord = unsafe extern "C" fn(event: *mut HipEvent, stream: *mut HipStream) -> Status;
/// `hipEventQuery`.
pub type EventQuery = unsafe extern "C" fn(event: *mut HipEvent) -> Status;
/// `hipMemcpyAsync`.
pub type MemcpyAsync = unsafe extern "C" fn(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_uint,
    stream: *mut HipStream,
) -> Status;

/// `hipHostRegister`: pins host memory.
pub type HostRegister = unsafe extern "C" fn(addr: *mut c_void, size: usize, flags: c_uint) -> Status;
/// `hipHostUnregister`.
pub type HostUnregister = unsafe extern "C" fn(addr: *mut c_void) -> Status;

/// The exported functions. The name of a field is the function's, without `hip`.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Returns a handle of an allocation.
    pub ipc_get_mem_handle: IpcGetMemHandle,
    /// Maps the allocation of another process's handle.
    pub ipc_open_mem_handle: IpcOpenMemHandle,
    /// Unmaps it.
    pub ipc_close_mem_handle: IpcCloseMemHandle,
    /// Returns an attribute of an address.
    pub pointer_get_attribute: PointerGetAttribute,
    /// Returns the thread's device.
    pub get_device: GetDevice,
    /// Sets the thread's device.
    pub set_device: SetDevice,
    /// Creates a stream.
    pub stream_create_with_flags: StreamCreateWithFlags,
    /// Destroys a stream.
    pub stream_destroy: StreamDestroy,
    /// Waits until the stream's work has completed.
    pub stream_synchronize: StreamSynchronize,
    /// Copies, in the order of a stream.
    pub memcpy_async: MemcpyAsync,
    /// Creates an event.
    pub event_create_with_flags: EventCreateWithFlags,
    /// Destroys an event.
    pub event_destroy: EventDestroy,
    /// Records the event after all operations submitted to a stream so far.
    pub event_record: EventRecord,
    /// Whether all operations before the event have completed.
    pub event_query: EventQuery,
    /// Pins host memory.
    pub host_register: HostRegister,
    /// Unpins it.
    pub host_unregister: HostUnregister,
}

/// The symbol of each field of [`Calls`], in order.
pub const SYMBOLS: [&CStr; 16] = [
    c"hipIpcGetMemHandle",
    c"hipIpcOpenMemHandle",
    c"hipIpcCloseMemHandle",
    c"hipPointerGetAttribute",
    c"hipGetDevice",
    c"hipSetDevice",
    c"hipStreamCreateWithFlags",
    c"hipStreamDestroy",
    c"hipStreamSynchronize",
    c"hipMemcpyAsync",
    c"hipEventCreateWithFlags",
    c"hipEventDestroy",
    c"hipEventRecord",
    c"hipEventQuery",
    c"hipHostRegister",
    c"hipHostUnregister",
];

const _: () = assert!(size_of::<HipIpcMemHandle>() == 64);
