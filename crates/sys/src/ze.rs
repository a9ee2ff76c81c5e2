//! The functions of Level Zero by which processes of a host share memory of Intel's devices, as of version 1.6 of the interface and later
//! (`zeMemPutIpcHandle` has been there since then).
//!
//! Read by `crates/mem`, which opens the loader at run time. `cargo xtask bindings` compares all of it with `ze_api.h`
//! where that is installed.

use core::ffi::{CStr, c_char, c_uint, c_void};

/// Name of the loader.
pub const LIBRARY: &CStr = c"libze_loader.so.1";

/// `ze_result_t`.
pub type Status = c_uint;

/// Values of [`Status`].
pub mod status {
    use super::Status;

    /// `ZE_RESULT_SUCCESS`.
    pub const SUCCESS: Status = 0;
    /// `ZE_RESULT_NOT_READY`: an event was not signalled.
    pub const NOT_READY: Status = 1;
    /// `ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY`.
    pub const OUT_OF_HOST_MEMORY: Status = 0x7000_0002;
    /// `ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY`.
    pub const OUT_OF_DEVICE_MEMORY: Status = 0x7000_0003;
    /// `ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS`.
    pub const INSUFFICIENT_PERMISSIONS: Status = 0x7001_0000;
    /// `ZE_RESULT_ERROR_UNINITIALIZED`.
    pub const UNINITIALIZED: Status = 0x7800_0001;
    /// `ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`.
    pub const UNSUPPORTED_FEATURE: Status = 0x7800_0003;
    /// `ZE_RESULT_ERROR_INVALID_ARGUMENT`.
    pub const INVALID_ARGUMENT: Status = 0x7800_0004;
}

/// Values of `ze_memory_type_t`.
pub mod memory_type {
    use core::ffi::c_uint;

    /// `ZE_MEMORY_TYPE_DEVICE`.
    pub const DEVICE: c_uint = 2;
}

/// `ZE_STRUCTURE_TYPE_CONTEXT_DESC`.
pub const STRUCTURE_TYPE_CONTEXT_DESC: c_uint = 0xd;
/// `ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC`.
pub const STRUCTURE_TYPE_COMMAND_QUEUE_DESC: c_uint = 0xe;
/// `ZE_STRUCTURE_TYPE_EVENT_POOL_DESC`.
pub const STRUCTURE_TYPE_EVENT_POOL_DESC: c_uint = 0x10;
/// `ZE_STRUCTURE_TYPE_EVENT_DESC`.
pub const STRUCTURE_TYPE_EVENT_DESC: c_uint = 0x11;
/// `ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC`.
pub const STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC: c_uint = 0x15;
/// `ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES`.
pub const STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES: c_uint = 0x17;
/// `ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS`: what is appended has ended when the call returns.
pub const COMMAND_QUEUE_MODE_SYNCHRONOUS: c_uint = 1;
/// `ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS`: appended commands go on after the call.
pub const COMMAND_QUEUE_MODE_ASYNCHRONOUS: c_uint = 2;
/// `ZE_EVENT_POOL_FLAG_HOST_VISIBLE`: the host asks for its events.
pub const EVENT_POOL_FLAG_HOST_VISIBLE: c_uint = 1;
/// `ZE_EVENT_SCOPE_FLAG_HOST`: writes before an event are visible to the host.
pub const EVENT_SCOPE_FLAG_HOST: c_uint = 4;
/// `ZE_INIT_FLAG_GPU_ONLY`.
pub const INIT_FLAG_GPU_ONLY: c_uint = 1;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )* };
}

opaque! {
    /// `struct _ze_driver_handle_t`.
    ZeDriver
    /// `struct _ze_device_handle_t`.
    ZeDevice
    /// `struct _ze_context_handle_t`.
    ZeContext
    /// `struct _ze_command_list_handle_t`.
    ZeCommandList
    /// `struct _ze_event_handle_t`.
    ZeEvent
    /// `struct _ze_event_pool_handle_t`.
    ZeEventPool
}

/// `ze_ipc_mem_handle_t`. It begins with a file descriptor of the process that made it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeIpcMemHandle {
    /// The driver's own.
    pub data: [c_char; 64],
}

/// `ze_context_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeContextDesc {
    /// [`STRUCTURE_TYPE_CONTEXT_DESC`].
    pub stype: c_uint,
    /// Null.
    pub next: *const c_void,
    /// None.
    pub flags: c_uint,
}

/// `ze_command_queue_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeCommandQueueDesc {
    /// [`STRUCTURE_TYPE_COMMAND_QUEUE_DESC`].
    pub stype: c_uint,
    /// Null.
    pub next: *const c_void,
    /// Group of queues.
    pub ordinal: c_uint,
    /// Which of them.
    pub index: c_uint,
    /// None.
    pub flags: c_uint,
    /// [`COMMAND_QUEUE_MODE_SYNCHRONOUS`] or [`COMMAND_QUEUE_MODE_ASYNCHRONOUS`].
    pub mode: c_uint,
    /// 0 is normal.
    pub priority: c_uint,
}

/// `ze_event_pool_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeEventPoolDesc {
    /// [`STRUCTURE_TYPE_EVENT_POOL_DESC`].
    pub stype: c_uint,
    /// Null.
    pub next: *const c_void,
    /// [`EVENT_POOL_FLAG_HOST_VISIBLE`].
    pub flags: c_uint,
    /// Events.
    pub count: u32,
}

/// `ze_event_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeEventDesc {
    /// [`STRUCTURE_TYPE_EVENT_DESC`].
    pub stype: c_uint,
    /// Null.
    pub next: *const c_void,
    /// Its place in the pool.
    pub index: u32,
    /// [`EVENT_SCOPE_FLAG_HOST`].
    pub signal: c_uint,
    /// The same of who waits.
    pub wait: c_uint,
}

/// `ze_device_mem_alloc_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeDeviceMemAllocDesc {
    /// [`STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC`].
    pub stype: c_uint,
    /// Null.
    pub next: *const c_void,
    /// None.
    pub flags: c_uint,
    /// Which memory of the device.
    pub ordinal: c_uint,
}

/// `ze_memory_allocation_properties_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeMemoryAllocationProperties {
    /// [`STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES`].
    pub stype: c_uint,
    /// Null.
    pub next: *mut c_void,
    /// A [`memory_type`].
    pub kind: c_uint,
    /// Name of the allocation.
    pub id: u64,
    /// Bytes.
    pub page_size: u64,
}

/// `zeInit`.
pub type Init = unsafe extern "C" fn(flags: c_uint) -> Status;
/// `zeDriverGet`.
pub type DriverGet = unsafe extern "C" fn(count: *mut u32, drivers: *mut *mut ZeDriver) -> Status;
/// `zeDeviceGet`.
pub type DeviceGet =
    unsafe extern "C" fn(driver: *mut ZeDriver, count: *mut u32, devices: *mut *mut ZeDevice) -> Status;
/// `zeDeviceGetSubDevices`: the tiles of a device, each of which is a device, too.
pub type DeviceGetSubDevices =
    unsafe extern "C" fn(device: *mut ZeDevice, count: *mut u32, tiles: *mut *mut ZeDevice) -> Status;
/// `zeContextCreate`.
pub type ContextCreate = unsafe extern "C" fn(
    driver: *mut ZeDriver,
    desc: *const ZeContextDesc,
    context: *mut *mut ZeContext,
) -> Status;
/// `zeContextDestroy`.
pub type ContextDestroy = unsafe extern "C" fn(context: *mut ZeContext) -> Status;
/// `zeMemAllocDevice`.
pub type MemAllocDevice = unsafe extern "C" fn(
    context: *mut ZeContext,
    desc: *const ZeDeviceMemAllocDesc,
    size: usize,
    alignment: usize,
    device: *mut ZeDevice,
    ptr: *mut *mut c_void,
) -> Status;
/// `zeMemFree`.
pub type MemFree = unsafe extern "C" fn(context: *mut ZeContext, ptr: *mut c_void) -> Status;
/// `zeMemGetAllocProperties`.
pub type MemGetAllocProperties = unsafe extern "C" fn(
    context: *mut ZeContext,
    ptr: *const c_void,
    properties: *mut ZeMemoryAllocationProperties,
    device: *mut *mut ZeDevice,
) -> Status;
/// `zeMemGetAddressRange`.
pub type MemGetAddressRange = unsafe extern "C" fn(
    context: *mut ZeContext,
    ptr: *const c_void,
    base: *mut *mut c_void,
    size: *mut usize,
) -> Status;
/// `zeMemGetIpcHandle`.
pub type MemGetIpcHandle =
    unsafe extern "C" fn(context: *mut ZeContext, ptr: *const c_void, handle: *mut ZeIpcMemHandle) -> Status;
/// `zeMemPutIpcHandle`.
pub type MemPutIpcHandle = unsafe extern "C" fn(context: *mut ZeContext, handle: ZeIpcMemHandle) -> Status;
/// `zeMemOpenIpcHandle`.
pub type MemOpenIpcHandle = unsafe extern "C" fn(
    context: *mut ZeContext,
    device: *mut ZeDevice,
    handle: ZeIpcMemHandle,
    flags: c_uint,
    ptr: *mut *mut c_void,
) -> Status;
/// `zeMemCloseIpcHandle`.
pub type MemCloseIpcHandle = unsafe extern "C" fn(context: *mut ZeContext, ptr: *const c_void) -> Status;
/// `zeCommandListCreateImmediate`.
pub type CommandListCreateImmediate = unsafe extern "C" fn(
    context: *mut ZeContext,
    device: *mut ZeDevice,
    desc: *const ZeCommandQueueDesc,
    list: *mut *mut ZeCommandList,
) -> Status;
/// `zeCommandListDestroy`.
pub type CommandListDestroy = unsafe extern "C" fn(list: *mut ZeCommandList) -> Status;
/// `zeCommandListAppendMemoryCopy`.
pub type CommandListAppendMemoryCopy = unsafe extern "C" fn(
    list: *mut ZeCommandList,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    signal: *mut ZeEvent,
    waits: u32,
    wait: *mut *mut ZeEvent,
) -> Status;

/// `zeCommandListAppendBarrier`: behind all that was appended before.
pub type CommandListAppendBarrier = unsafe extern "C" fn(
    list: *mut ZeCommandList,
    signal: *mut ZeEvent,
    waits: u32,
    wait: *mut *mut ZeEvent,
) -> Status;
/// `zeEventPoolCreate`.
pub type EventPoolCreate = unsafe extern "C" fn(
    context: *mut ZeContext,
    desc: *const ZeEventPoolDesc,
    count: u32,
    devices: *mut *mut ZeDevice,
    pool: *mut *mut ZeEventPool,
) -> Status;
/// `zeEventPoolDestroy`.
pub type EventPoolDestroy = unsafe extern "C" fn(pool: *mut ZeEventPool) -> Status;
/// `zeEventCreate`.
pub type EventCreate = unsafe extern "C" fn(
    pool: *mut ZeEventPool,
    desc: *const ZeEventDesc,
    event: *mut *mut ZeEvent,
) -> Status;
/// `zeEventDestroy`.
pub type EventDestroy = unsafe extern "C" fn(event: *mut ZeEvent) -> Status;
/// `zeEventHostReset`.
pub type EventHostReset = unsafe extern "C" fn(event: *mut ZeEvent) -> Status;
/// `zeEventQueryStatus`.
pub type EventQueryStatus = unsafe extern "C" fn(event: *mut ZeEvent) -> Status;
/// `zeEventHostSynchronize`.
pub type EventHostSynchronize = unsafe extern "C" fn(event: *mut ZeEvent, timeout: u64) -> Status;

/// The exported functions. A field is named as its function is, without `ze`.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Begins.
    pub init: Init,
    /// The drivers.
    pub driver_get: DriverGet,
    /// A driver's devices.
    pub device_get: DeviceGet,
    /// A device's tiles.
    pub device_get_sub_devices: DeviceGetSubDevices,
    /// A context, of which addresses and handles are.
    pub context_create: ContextCreate,
    /// Its end.
    pub context_destroy: ContextDestroy,
    /// Memory of a device.
    pub mem_alloc_device: MemAllocDevice,
    /// Frees it.
    pub mem_free: MemFree,
    /// Asks about an address.
    pub mem_get_alloc_properties: MemGetAllocProperties,
    /// The allocation around an address.
    pub mem_get_address_range: MemGetAddressRange,
    /// A handle of an allocation.
    pub mem_get_ipc_handle: MemGetIpcHandle,
    /// Its end.
    pub mem_put_ipc_handle: MemPutIpcHandle,
    /// Maps what a handle of another process is of.
    pub mem_open_ipc_handle: MemOpenIpcHandle,
    /// Unmaps it.
    pub mem_close_ipc_handle: MemCloseIpcHandle,
    /// A list of commands, each begun when it is appended.
    pub command_list_create_immediate: CommandListCreateImmediate,
    /// Its end.
    pub command_list_destroy: CommandListDestroy,
    /// Copies.
    pub command_list_append_memory_copy: CommandListAppendMemoryCopy,
    /// Signals an event behind all that was appended.
    pub command_list_append_barrier: CommandListAppendBarrier,
    /// Room for events.
    pub event_pool_create: EventPoolCreate,
    /// Its end.
    pub event_pool_destroy: EventPoolDestroy,
    /// An event.
    pub event_create: EventCreate,
    /// Its end.
    pub event_destroy: EventDestroy,
    /// It was not signalled any more.
    pub event_host_reset: EventHostReset,
    /// Whether it was signalled.
    pub event_query_status: EventQueryStatus,
    /// Waits until it is.
    pub event_host_synchronize: EventHostSynchronize,
}

/// The symbol of each field of [`Calls`], in order.
pub const SYMBOLS: [&CStr; 25] = [
    c"zeInit",
    c"zeDriverGet",
    c"zeDeviceGet",
    c"zeDeviceGetSubDevices",
    c"zeContextCreate",
    c"zeContextDestroy",
    c"zeMemAllocDevice",
    c"zeMemFree",
    c"zeMemGetAllocProperties",
    c"zeMemGetAddressRange",
    c"zeMemGetIpcHandle",
    c"zeMemPutIpcHandle",
    c"zeMemOpenIpcHandle",
    c"zeMemCloseIpcHandle",
    c"zeCommandListCreateImmediate",
    c"zeCommandListDestroy",
    c"zeCommandListAppendMemoryCopy",
    c"zeCommandListAppendBarrier",
    c"zeEventPoolCreate",
    c"zeEventPoolDestroy",
    c"zeEventCreate",
    c"zeEventDestroy",
    c"zeEventHostReset",
    c"zeEventQueryStatus",
    c"zeEventHostSynchronize",
];

const _: () = {
    assert!(size_of::<ZeIpcMemHandle>() == 64);
    assert!(size_of::<ZeContextDesc>() == 24);
    assert!(size_of::<ZeCommandQueueDesc>() == 40);
    assert!(size_of::<ZeEventPoolDesc>() == 24);
    assert!(size_of::<ZeEventDesc>() == 32);
    assert!(size_of::<ZeDeviceMemAllocDesc>() == 24);
    assert!(size_of::<ZeMemoryAllocationProperties>() == 40);
};
