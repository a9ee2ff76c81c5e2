//! The functions of Level Zero by which processes of a host share memory of Intel devices, from version 1.6 of the
//! interface, which added `zeMemPutIpcHandle`.
//!
//! Read by `crates/mem`, which opens the loader at run time. `cargo xtask bindings` compares this file with
//! `ze_api.h` if that header is installed.

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
    /// `ZE_RESULT_NOT_READY`: an event is not signalled.
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
/// `ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS`: an appended command has completed when the call returns.
pub const COMMAND_QUEUE_MODE_SYNCHRONOUS: c_uint = 1;
/// `ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS`: appended commands may execute after the call.
pub const COMMAND_QUEUE_MODE_ASYNCHRONOUS: c_uint = 2;
/// `ZE_EVENT_POOL_FLAG_HOST_VISIBLE`: the host can query the pool's events.
pub const EVENT_POOL_FLAG_HOST_VISIBLE: c_uint = 1;
/// `ZE_EVENT_SCOPE_FLAG_HOST`: writes that precede an event are visible to the host.
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

/// `ze_ipc_mem_handle_t`. It begins with a file descriptor of the exporting process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZeIpcMemHandle {
    /// Private to the driver.
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
    /// Always 0.
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
    /// Number of the group of queues.
    pub ordinal: c_uint,
    /// Number of the queue within the group.
    pub index: c_uint,
    /// Always 0.
    pub flags: c_uint,
    /// [`COMMAND_QUEUE_MODE_SYNCHRONOUS`] or [`COMMAND_QUEUE_MODE_ASYNCHRONOUS`].
    pub mode: c_uint,
    /// Priority; 0 is normal.
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
    /// Number of events.
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
    /// Index of the event in the pool.
    pub index: u32,
    /// Scope in which the signal is visible: [`EVENT_SCOPE_FLAG_HOST`].
    pub signal: c_uint,
    /// Scope of the waits, with the same values.
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
    /// Always 0.
    pub flags: c_uint,
    /// Number of the memory of the device.
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
    /// Number of the allocation.
    pub id: u64,
    /// Bytes of a page.
    pub page_size: u64,
}

/// `zeInit`.
pub type Init = unsafe extern "C" fn(flags: c_uint) -> Status;
/// `zeDriverGet`.
pub type DriverGet = unsafe extern "C" fn(count: *mut u32, drivers: *mut *mut ZeDriver) -> Status;
/// `zeDeviceGet`.
pub type DeviceGet =
    unsafe extern "C" fn(driver: *mut ZeDriver, count: *mut u32, devices: *mut *mut ZeDevice) -> Status;
/// `zeDeviceGetSubDevices`: the tiles of a device, each of which is itself a device.
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

/// `zeCommandListAppendBarrier`: completes after all commands appended before it.
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

/// The exported functions. The name of a field is the function's, without `ze`.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Initialises the loader and its drivers.
    pub init: Init,
    /// Returns the drivers.
    pub driver_get: DriverGet,
    /// Returns a driver's devices.
    pub device_get: DeviceGet,
    /// Returns a device's tiles.
    pub device_get_sub_devices: DeviceGetSubDevices,
    /// Creates a context, to which addresses and handles belong.
    pub context_create: ContextCreate,
    /// Destroys a context.
    pub context_destroy: ContextDestroy,
    /// Allocates memory of a device.
    pub mem_alloc_device: MemAllocDevice,
    /// Frees it.
    pub mem_free: MemFree,
    /// Returns properties of an address.
    pub mem_get_alloc_properties: MemGetAllocProperties,
    /// Returns the allocation that contains an address.
    pub mem_get_address_range: MemGetAddressRange,
    /// Returns a handle of an allocation.
    pub mem_get_ipc_handle: MemGetIpcHandle,
    /// Frees such a handle.
    pub mem_put_ipc_handle: MemPutIpcHandle,
    /// Maps the allocation of another process's handle.
    pub mem_open_ipc_handle: MemOpenIpcHandle,
    /// Unmaps it.
    pub mem_close_ipc_handle: MemCloseIpcHandle,
    /// Creates an immediate command list: each command starts when it is appended.
    pub command_list_create_immediate: CommandListCreateImmediate,
    /// Destroys a command list.
    pub command_list_destroy: CommandListDestroy,
    /// Appends a copy.
    pub command_list_append_memory_copy: CommandListAppendMemoryCopy,
    /// Appends a barrier, which signals an event after all commands before it.
    pub command_list_append_barrier: CommandListAppendBarrier,
    /// Creates a pool of events.
    pub event_pool_create: EventPoolCreate,
    /// Destroys a pool.
    pub event_pool_destroy: EventPoolDestroy,
    /// Creates an event.
    pub event_create: EventCreate,
    /// Destroys an event.
    pub event_destroy: EventDestroy,
    /// Resets an event to not signalled.
    pub event_host_reset: EventHostReset,
    /// Whether an event is signalled.
    pub event_query_status: EventQueryStatus,
    /// Waits until an event is signalled.
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
