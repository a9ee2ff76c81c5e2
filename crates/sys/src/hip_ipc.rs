//! The functions of the HIP runtime by which processes of a host share memory of AMD's devices, as ROCm 6.0 and later have them.
//!
//! Read by `crates/mem`, which opens the library at run time. `cargo xtask bindings` compares all of it with the headers
//! where they are installed.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::hip::Status;

/// `hipIpcMemHandle_t`; opaque.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HipIpcMemHandle {
    /// The runtime's own.
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

/// `hipIpcMemLazyEnablePeerAccess`, the one flag that opening takes. Before ROCm 6 it was 0.
pub const IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// `HIP_POINTER_ATTRIBUTE_BUFFER_ID`: 32 bits, which come again.
pub const POINTER_ATTRIBUTE_BUFFER_ID: c_uint = 7;
/// `hipStreamNonBlocking`: it waits for no other.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `hipEventDisableTiming`: it tells that something has ended, not when.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `hipErrorNotReady`: the work that an event is behind has not ended.
pub const NOT_READY: Status = 600;
/// `hipMemcpyDefault`: the runtime tells by the addresses which way it goes.
pub const MEMCPY_DEFAULT: c_uint = 4;

/// `hipHostRegisterPortable`: it is pinned for all devices.
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

/// `hipHostRegister`: pins memory of the host.
pub type HostRegister = unsafe extern "C" fn(addr: *mut c_void, size: usize, flags: c_uint) -> Status;
/// `hipHostUnregister`.
pub type HostUnregister = unsafe extern "C" fn(addr: *mut c_void) -> Status;

/// The exported functions. A field is named as its function is, without `hip`.
#[derive(Clone, Copy)]
pub struct Calls {
    /// A handle of an allocation.
    pub ipc_get_mem_handle: IpcGetMemHandle,
    /// Maps what a handle of another process is of.
    pub ipc_open_mem_handle: IpcOpenMemHandle,
    /// Unmaps it.
    pub ipc_close_mem_handle: IpcCloseMemHandle,
    /// Asks about an address.
    pub pointer_get_attribute: PointerGetAttribute,
    /// The thread's device.
    pub get_device: GetDevice,
    /// Makes a device the thread's.
    pub set_device: SetDevice,
    /// A stream.
    pub stream_create_with_flags: StreamCreateWithFlags,
    /// Its end.
    pub stream_destroy: StreamDestroy,
    /// Waits for what it does.
    pub stream_synchronize: StreamSynchronize,
    /// Copies.
    pub memcpy_async: MemcpyAsync,
    /// An event.
    pub event_create_with_flags: EventCreateWithFlags,
    /// Its end.
    pub event_destroy: EventDestroy,
    /// Puts it behind all that a stream has begun.
    pub event_record: EventRecord,
    /// Whether that has ended.
    pub event_query: EventQuery,
    /// Pins memory of the host.
    pub host_register: HostRegister,
    /// Does no more.
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
