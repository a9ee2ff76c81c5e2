//! The NCCL network plugin interface, versions 6 to 12.
//!
//! There is one module per ABI version, with that version's properties and function table. Types common to all
//! versions are in this module: result codes, the logger, the profiler callback, device handles and limits. Read by
//! `nccl`, which exports the tables, and by `nccl-host`, which loads them. Nothing here calls through a table.
//!
//! Every function slot is an `Option`, because a table written in C may contain NULL in any slot. In some
//! (`regMrDmaBuf`, `getDeviceMr`, `irecvConsumed`, `makeVDevice`, `setNetAttr`) NULL is usual.

pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::mem::{offset_of, size_of};

/// Bytes of the opaque handle that `listen` fills and `connect` reads (`NCCL_NET_HANDLE_MAXSIZE`).
pub const HANDLE_BYTES: usize = 128;
/// Largest value that a plugin may report as `maxP2pBytes` or `maxCollBytes` (`NCCL_MAX_NET_SIZE_BYTES`).
pub const NET_SIZE_BYTES_MAX: usize = 1 << 40;
/// Largest message that NCCL sends through a plugin of version 8 or older.
pub const NET_SIZE_BYTES_V8: usize = 1 << 30;
/// Requests in flight that a communicator must support (`NCCL_NET_MAX_REQUESTS`).
pub const NET_REQUESTS_MAX: usize = 32;
/// Largest number of grouped receives that NCCL posts in one call.
pub const NET_RECVS_MAX: usize = 8;
/// Most devices of a fused NIC up to version 11 (`NCCL_NET_MAX_DEVS_PER_NIC_V11`).
pub const DEVS_PER_NIC_V11: usize = 4;
/// Most devices of a fused NIC from version 12 (`NCCL_NET_MAX_DEVS_PER_NIC_V12`).
pub const DEVS_PER_NIC_V12: usize = 8;
/// Value found in `*request` before `irecv` when the completion of the receive is optional.
pub const OPTIONAL_RECV_COMPLETION: usize = 0x1;
/// Value found in `*request` for a request of several parts; defined by NCCL, not used by its core.
pub const MULTI_REQUEST: usize = 0x2;
/// Host memory, both as the `type` of `regMr` and as a bit of `ptrSupport`.
pub const PTR_HOST: c_int = 0x1;
/// CUDA or HIP device memory, both as the `type` of `regMr` and as a bit of `ptrSupport`.
pub const PTR_CUDA: c_int = 0x2;
/// Bit of `ptrSupport`: device memory can be registered through a dma-buf descriptor.
pub const PTR_DMABUF: c_int = 0x4;
/// `CommConfig::traffic_class` if the user did not select one.
pub const TRAFFIC_CLASS_UNDEF: c_int = -1;
/// Unknown value of any field of a `setNetAttr` attribute.
pub const NET_ATTR_UNDEF: i32 = -1;
/// `railId` or `planeId` of a device without a rail or plane.
pub const NET_ID_UNDEF: i16 = -1;
/// `netDeviceType`: the host drives the network.
pub const NET_DEVICE_HOST: c_int = 0;
/// `netDeviceType`: the device unpacks received data.
pub const NET_DEVICE_UNPACK: c_int = 1;

/// `ncclResult_t`: the result of every function of a table.
///
/// A transparent integer instead of a Rust enum, because a foreign plugin may return any number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(transparent)]
#[must_use]
pub struct ResultCode(pub c_int);

impl ResultCode {
    /// `ncclSuccess`.
    pub const SUCCESS: Self = Self(0);
    /// `ncclUnhandledCudaError`: a CUDA or HIP call failed.
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    /// `ncclSystemError`: the operating system or the hardware failed.
    pub const SYSTEM_ERROR: Self = Self(2);
    /// `ncclInternalError`: a bug in the plugin, or incorrect use of it.
    pub const INTERNAL_ERROR: Self = Self(3);
    /// `ncclInvalidArgument`.
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// `ncclInvalidUsage`: the configuration is invalid.
    pub const INVALID_USAGE: Self = Self(5);
    /// `ncclRemoteError`: the peer failed or closed the connection.
    pub const REMOTE_ERROR: Self = Self(6);
    /// `ncclInProgress`: never returned by plugins.
    pub const IN_PROGRESS: Self = Self(7);
}

/// `ncclDebugLogLevel` of one log line.
pub mod log_level {
    use core::ffi::c_int;

    /// No output.
    pub const NONE: c_int = 0;
    /// The version line.
    pub const VERSION: c_int = 1;
    /// Warnings.
    pub const WARN: c_int = 2;
    /// Information.
    pub const INFO: c_int = 3;
    /// Abort information.
    pub const ABORT: c_int = 4;
    /// Traces.
    pub const TRACE: c_int = 5;
}

/// `ncclDebugLogSubSys` bits of one log line.
pub mod log_subsys {
    use core::ffi::c_ulong;

    /// Initialization.
    pub const INIT: c_ulong = 0x1;
    /// Networks.
    pub const NET: c_ulong = 0x10;
    /// Environment variables.
    pub const ENV: c_ulong = 0x80;
    /// Memory registration.
    pub const REG: c_ulong = 0x2000;
    /// All subsystems.
    pub const ALL: c_ulong = !0;
}

/// `ncclDebugLogger_t`: the printf-like logger that `init` receives.
///
/// Rust callers pass the format `"%s"` and one NUL-terminated string.
pub type Logger = unsafe extern "C" fn(
    level: c_int,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    fmt: *const c_char,
    ...
);

/// `ncclProfilerCallback_t`: how a plugin reports events to NCCL's profiler (version 10 and newer).
pub type ProfilerCallback = unsafe extern "C" fn(
    event: *mut *mut c_void,
    kind: c_int,
    phandle: *mut c_void,
    plugin_id: i64,
    data: *mut c_void,
) -> ResultCode;

/// `ncclNetDeviceHandle_v7_t` to `_v12_t`: the object that connect and accept return for a device offload.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceHandle {
    /// Kind of offload, `NET_DEVICE_HOST` for none.
    pub net_device_type: c_int,
    /// Version of that offload.
    pub net_device_version: c_int,
    /// The object that the device code reads.
    pub handle: *mut c_void,
    /// Bytes of that object.
    pub size: usize,
    /// Whether NCCL's proxy thread must still drive the connection.
    pub needs_proxy_progress: c_int,
}

/// `ncclNetCommConfig_v10_t` to `_v12_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommConfig {
    /// Traffic class, interpreted by the plugin; `TRAFFIC_CLASS_UNDEF` for none.
    pub traffic_class: c_int,
}

/// `ncclNetVDeviceProps_v9_t` to `_v11_t`: the members of a fused NIC.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VDeviceProps4 {
    /// Members in use.
    pub ndevs: c_int,
    /// Device numbers of the members.
    pub devs: [c_int; DEVS_PER_NIC_V11],
}

/// `ncclNetVDeviceProps_v12_t`: the members of a fused NIC.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VDeviceProps8 {
    /// Members in use.
    pub ndevs: c_int,
    /// Device numbers of the members.
    pub devs: [c_int; DEVS_PER_NIC_V12],
}

/// `ncclNetCommAttr_v11_t` and `_v12_t`: the expected use of connections in one direction.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommAttr {
    /// Most peers that are active at one time.
    pub max_concurrent_peers: i32,
    /// Fewest peers that are active at one time.
    pub min_concurrent_peers: i32,
    /// Most flows to one peer.
    pub max_flows_per_peer: i32,
    /// Fewest flows to one peer.
    pub min_flows_per_peer: i32,
}

impl CommAttr {
    /// Every field undefined.
    pub const UNDEF: Self = Self {
        max_concurrent_peers: NET_ATTR_UNDEF,
        min_concurrent_peers: NET_ATTR_UNDEF,
        max_flows_per_peer: NET_ATTR_UNDEF,
        min_flows_per_peer: NET_ATTR_UNDEF,
    };
}

/// `ncclNetAttr_v11_t` and `_v12_t`: hints about future traffic.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetAttr {
    /// Attributes of sending connections.
    pub send_comm_attr: CommAttr,
    /// Attributes of receiving connections.
    pub recv_comm_attr: CommAttr,
    /// Bit mask of collective operations.
    pub op: u32,
    /// Bit mask of algorithms.
    pub algo: u32,
    /// Bit mask of protocols.
    pub proto: u32,
}

impl NetAttr {
    /// Every field undefined (`NCCL_NET_ATTR_INIT`).
    pub const UNDEF: Self = Self {
        send_comm_attr: CommAttr::UNDEF,
        recv_comm_attr: CommAttr::UNDEF,
        op: u32::MAX,
        algo: u32::MAX,
        proto: u32::MAX,
    };
}

/// `init` of versions 6 to 9.
pub type InitV6 = unsafe extern "C" fn(log: Option<Logger>) -> ResultCode;
/// `init` of version 10.
pub type InitV10 = unsafe extern "C" fn(log: Option<Logger>, prof: Option<ProfilerCallback>) -> ResultCode;
/// `init` of versions 11 and 12, called for each communicator.
pub type InitV11 = unsafe extern "C" fn(
    ctx: *mut *mut c_void,
    comm_id: u64,
    config: *mut CommConfig,
    log: Option<Logger>,
    prof: Option<ProfilerCallback>,
) -> ResultCode;
/// `devices`.
pub type Devices = unsafe extern "C" fn(ndev: *mut c_int) -> ResultCode;
/// `getProperties`; `P` is the properties type of the version.
pub type GetProperties<P> = unsafe extern "C" fn(dev: c_int, props: *mut P) -> ResultCode;
/// `listen` of versions 6 to 10.
pub type ListenV6 =
    unsafe extern "C" fn(dev: c_int, handle: *mut c_void, listen_comm: *mut *mut c_void) -> ResultCode;
/// `listen` of versions 11 and 12.
pub type ListenV11 = unsafe extern "C" fn(
    ctx: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> ResultCode;
/// `connect` of version 6.
pub type ConnectV6 =
    unsafe extern "C" fn(dev: c_int, handle: *mut c_void, send_comm: *mut *mut c_void) -> ResultCode;
/// `connect` of versions 7 to 9.
pub type ConnectV7 = unsafe extern "C" fn(
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    send_dev_comm: *mut *mut DeviceHandle,
) -> ResultCode;
/// `connect` of version 10.
pub type ConnectV10 = unsafe extern "C" fn(
    dev: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    send_dev_comm: *mut *mut DeviceHandle,
) -> ResultCode;
/// `connect` of versions 11 and 12.
pub type ConnectV11 = unsafe extern "C" fn(
    ctx: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    send_dev_comm: *mut *mut DeviceHandle,
) -> ResultCode;
/// `accept` of version 6.
pub type AcceptV6 = unsafe extern "C" fn(listen_comm: *mut c_void, recv_comm: *mut *mut c_void) -> ResultCode;
/// `accept` of versions 7 to 12.
pub type AcceptV7 = unsafe extern "C" fn(
    listen_comm: *mut c_void,
    recv_comm: *mut *mut c_void,
    recv_dev_comm: *mut *mut DeviceHandle,
) -> ResultCode;
/// `regMr` of versions 6 and 7.
pub type RegMrV6 = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode;
/// `regMr` of versions 8 to 12.
pub type RegMrV8 = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode;
/// `regMrDmaBuf`.
pub type RegMrDmaBuf = unsafe extern "C" fn(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    mhandle: *mut *mut c_void,
) -> ResultCode;
/// `deregMr`.
pub type DeregMr = unsafe extern "C" fn(comm: *mut c_void, mhandle: *mut c_void) -> ResultCode;
/// `isend` of versions 6 to 8.
pub type IsendV6 = unsafe extern "C" fn(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// `isend` of version 9.
pub type IsendV9 = unsafe extern "C" fn(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// `isend` of versions 10 to 12.
pub type IsendV10 = unsafe extern "C" fn(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    phandle: *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// `irecv` of versions 6 to 8.
pub type IrecvV6 = unsafe extern "C" fn(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// `irecv` of version 9.
pub type IrecvV9 = unsafe extern "C" fn(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// `irecv` of versions 10 to 12.
pub type IrecvV10 = unsafe extern "C" fn(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    phandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// `iflush`.
pub type Iflush = unsafe extern "C" fn(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ResultCode;
/// `test`.
pub type Test = unsafe extern "C" fn(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> ResultCode;
/// `closeSend`, `closeRecv` and `closeListen`.
pub type Close = unsafe extern "C" fn(comm: *mut c_void) -> ResultCode;
/// `getDeviceMr`.
pub type GetDeviceMr = unsafe extern "C" fn(
    comm: *mut c_void,
    mhandle: *mut c_void,
    dptr_mhandle: *mut *mut c_void,
) -> ResultCode;
/// `irecvConsumed`.
pub type IrecvConsumed =
    unsafe extern "C" fn(recv_comm: *mut c_void, n: c_int, request: *mut c_void) -> ResultCode;
/// `makeVDevice`; `V` is the fused-NIC properties type of the version.
pub type MakeVDevice<V> = unsafe extern "C" fn(dev: *mut c_int, props: *mut V) -> ResultCode;
/// `finalize`.
pub type Finalize = unsafe extern "C" fn(ctx: *mut c_void) -> ResultCode;
/// `setNetAttr`.
pub type SetNetAttr = unsafe extern "C" fn(ctx: *mut c_void, attr: *mut NetAttr) -> ResultCode;

const _: () = assert!(size_of::<ResultCode>() == 4);
const _: () = assert!(size_of::<DeviceHandle>() == 32);
const _: () = assert!(offset_of!(DeviceHandle, handle) == 8);
const _: () = assert!(offset_of!(DeviceHandle, needs_proxy_progress) == 24);
const _: () = assert!(size_of::<CommConfig>() == 4);
const _: () = assert!(size_of::<VDeviceProps4>() == 20);
const _: () = assert!(size_of::<VDeviceProps8>() == 36);
const _: () = assert!(size_of::<CommAttr>() == 16);
const _: () = assert!(size_of::<NetAttr>() == 44);
const _: () = assert!(size_of::<Option<Logger>>() == 8);
