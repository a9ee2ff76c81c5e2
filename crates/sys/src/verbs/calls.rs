//! The functions of libibverbs: exported functions and those of its tables. Each type describes the symbol version in
//! [`VERSIONS`].

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Gid, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr,
    QpEx, QpInitAttr, QpInitAttrEx, RecvWr, SendWr, Sge, Wc,
};

/// Name of the library.
pub const LIBRARY: &CStr = c"libibverbs.so.1";

/// `ibv_get_device_list`.
pub type GetDeviceList = unsafe extern "C" fn(count: *mut c_int) -> *mut *mut Device;
/// `ibv_free_device_list`.
pub type FreeDeviceList = unsafe extern "C" fn(list: *mut *mut Device);
/// `ibv_get_device_name`.
pub type GetDeviceName = unsafe extern "C" fn(device: *mut Device) -> *const c_char;
/// `ibv_open_device`.
pub type OpenDevice = unsafe extern "C" fn(device: *mut Device) -> *mut Context;
/// `ibv_close_device`.
pub type CloseDevice = unsafe extern "C" fn(context: *mut Context) -> c_int;
/// `ibv_query_device`.
pub type QueryDevice = unsafe extern "C" fn(context: *mut Context, attr: *mut DeviceAttr) -> c_int;
/// `ibv_query_port`, which writes only the beginning of the attributes.
pub type QueryPort =
    unsafe extern "C" fn(context: *mut Context, port: u8, attr: *mut CompatPortAttr) -> c_int;
/// `ibv_query_gid`.
pub type QueryGid =
    unsafe extern "C" fn(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
/// `_ibv_query_gid_ex`.
pub type QueryGidEx = unsafe extern "C" fn(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    bytes: usize,
) -> c_int;
/// `ibv_alloc_pd`.
pub type AllocPd = unsafe extern "C" fn(context: *mut Context) -> *mut Pd;
/// `ibv_dealloc_pd`.
pub type DeallocPd = unsafe extern "C" fn(pd: *mut Pd) -> c_int;
/// `ibv_reg_mr`.
pub type RegMr = unsafe extern "C" fn(pd: *mut Pd, addr: *mut c_void, len: usize, access: c_int) -> *mut Mr;
/// `ibv_reg_mr_iova2`.
pub type RegMrIova2 =
    unsafe extern "C" fn(pd: *mut Pd, addr: *mut c_void, len: usize, iova: u64, access: c_uint) -> *mut Mr;
/// `ibv_reg_dmabuf_mr`.
pub type RegDmabufMr = unsafe extern "C" fn(
    pd: *mut Pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr;
/// `ibv_dereg_mr`.
pub type DeregMr = unsafe extern "C" fn(mr: *mut Mr) -> c_int;
/// `ibv_create_comp_channel`.
pub type CreateCompChannel = unsafe extern "C" fn(context: *mut Context) -> *mut CompChannel;
/// `ibv_destroy_comp_channel`.
pub type DestroyCompChannel = unsafe extern "C" fn(channel: *mut CompChannel) -> c_int;
/// `ibv_create_cq`.
pub type CreateCq = unsafe extern "C" fn(
    context: *mut Context,
    cqe: c_int,
    user: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq;
/// `ibv_destroy_cq`.
pub type DestroyCq = unsafe extern "C" fn(cq: *mut Cq) -> c_int;
/// `ibv_get_cq_event`.
pub type GetCqEvent =
    unsafe extern "C" fn(channel: *mut CompChannel, cq: *mut *mut Cq, user: *mut *mut c_void) -> c_int;
/// `ibv_ack_cq_events`.
pub type AckCqEvents = unsafe extern "C" fn(cq: *mut Cq, count: c_uint);
/// `ibv_create_qp`.
pub type CreateQp = unsafe extern "C" fn(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
/// `ibv_qp_to_qp_ex`.
pub type QpToQpEx = unsafe extern "C" fn(qp: *mut Qp) -> *mut QpEx;
/// `ibv_modify_qp`.
pub type ModifyQp = unsafe extern "C" fn(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
/// `ibv_destroy_qp`.
pub type DestroyQp = unsafe extern "C" fn(qp: *mut Qp) -> c_int;
/// `ibv_get_async_event`.
pub type GetAsyncEvent = unsafe extern "C" fn(context: *mut Context, event: *mut AsyncEvent) -> c_int;
/// `ibv_ack_async_event`.
pub type AckAsyncEvent = unsafe extern "C" fn(event: *mut AsyncEvent);

/// `poll_cq` of [`ContextOps`](super::ContextOps).
pub type PollCq = unsafe extern "C" fn(cq: *mut Cq, entries: c_int, wc: *mut Wc) -> c_int;
/// `req_notify_cq` of [`ContextOps`](super::ContextOps).
pub type ReqNotifyCq = unsafe extern "C" fn(cq: *mut Cq, solicited_only: c_int) -> c_int;
/// `post_send` of [`ContextOps`](super::ContextOps).
pub type PostSend = unsafe extern "C" fn(qp: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int;
/// `post_recv` of [`ContextOps`](super::ContextOps).
pub type PostRecv = unsafe extern "C" fn(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int;
/// `query_port` of [`VerbsContext`](super::VerbsContext).
pub type QueryPortEx =
    unsafe extern "C" fn(context: *mut Context, port: u8, attr: *mut PortAttr, bytes: usize) -> c_int;
/// `create_qp_ex` of [`VerbsContext`](super::VerbsContext).
pub type CreateQpEx = unsafe extern "C" fn(context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp;

/// `wr_atomic_cmp_swp` of [`QpEx`].
pub type WrAtomicCmpSwp =
    unsafe extern "C" fn(qp: *mut QpEx, rkey: u32, remote_addr: u64, compare: u64, swap: u64);
/// `wr_atomic_fetch_add` of [`QpEx`].
pub type WrAtomicFetchAdd = unsafe extern "C" fn(qp: *mut QpEx, rkey: u32, remote_addr: u64, add: u64);
/// `wr_rdma_read` and `wr_rdma_write` of [`QpEx`].
pub type WrRdma = unsafe extern "C" fn(qp: *mut QpEx, rkey: u32, remote_addr: u64);
/// `wr_rdma_write_imm` of [`QpEx`]; the immediate in network byte order.
pub type WrRdmaWriteImm = unsafe extern "C" fn(qp: *mut QpEx, rkey: u32, remote_addr: u64, imm: u32);
/// `wr_send`, `wr_start` and `wr_abort` of [`QpEx`].
pub type WrSend = unsafe extern "C" fn(qp: *mut QpEx);
/// `wr_send_imm` of [`QpEx`]; the immediate in network byte order.
pub type WrSendImm = unsafe extern "C" fn(qp: *mut QpEx, imm: u32);
/// `wr_set_inline_data` of [`QpEx`].
pub type WrSetInlineData = unsafe extern "C" fn(qp: *mut QpEx, addr: *mut c_void, len: usize);
/// `wr_set_sge_list` of [`QpEx`].
pub type WrSetSgeList = unsafe extern "C" fn(qp: *mut QpEx, count: usize, list: *const Sge);
/// `wr_complete` of [`QpEx`].
pub type WrComplete = unsafe extern "C" fn(qp: *mut QpEx) -> c_int;

/// `struct _compat_ibv_port_attr`: the beginning of [`PortAttr`], with the length of an old version. Callers pass a
/// zeroed [`PortAttr`] instead.
#[repr(C)]
pub struct CompatPortAttr {
    _private: [u8; 0],
}

/// `struct ibv_ece`: vendor options that the devices of both ends may use beyond the standard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Ece {
    /// Vendor of the device, by its number on the network.
    pub vendor_id: u32,
    /// Options that the provider supports or requires.
    pub options: u32,
    /// Which further fields are valid.
    pub comp_mask: u32,
}

/// `ibv_set_ece`.
pub type SetEce = unsafe extern "C" fn(qp: *mut Qp, ece: *mut Ece) -> c_int;
/// `ibv_query_ece`.
pub type QueryEce = unsafe extern "C" fn(qp: *mut Qp, ece: *mut Ece) -> c_int;

/// The exported functions. The name of a field is the function's, without `ibv_`. An [`Option`] marks a function that
/// some supported versions lack.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Returns the devices as a list that ends with NULL.
    pub get_device_list: GetDeviceList,
    /// Frees the list; open devices remain open.
    pub free_device_list: FreeDeviceList,
    /// Returns the name of a device.
    pub get_device_name: GetDeviceName,
    /// Opens a device.
    pub open_device: OpenDevice,
    /// Closes a device after all its objects have been destroyed.
    pub close_device: CloseDevice,
    /// Returns the limits of a device.
    pub query_device: QueryDevice,
    /// Returns the attributes of a port, for contexts without the newer function.
    pub query_port: QueryPort,
    /// Returns a GID of a port.
    pub query_gid: QueryGid,
    /// Returns a GID with its type.
    pub query_gid_ex: Option<QueryGidEx>,
    /// Allocates a protection domain.
    pub alloc_pd: AllocPd,
    /// Frees a protection domain.
    pub dealloc_pd: DeallocPd,
    /// Registers memory.
    pub reg_mr: RegMr,
    /// Registers memory with a chosen address for peers; optional flags may be ignored.
    pub reg_mr_iova2: Option<RegMrIova2>,
    /// Registers a dma-buf, see [`RegDmabufMr`].
    pub reg_dmabuf_mr: Option<RegDmabufMr>,
    /// Ends a registration.
    pub dereg_mr: DeregMr,
    /// Creates a channel for completion events.
    pub create_comp_channel: CreateCompChannel,
    /// Destroys such a channel.
    pub destroy_comp_channel: DestroyCompChannel,
    /// Creates a completion queue.
    pub create_cq: CreateCq,
    /// Destroys a completion queue.
    pub destroy_cq: DestroyCq,
    /// Reads a completion event.
    pub get_cq_event: GetCqEvent,
    /// Acknowledges completion events.
    pub ack_cq_events: AckCqEvents,
    /// Creates a queue pair.
    pub create_qp: CreateQp,
    /// Returns a queue pair's table of extended calls, or NULL.
    pub qp_to_qp_ex: Option<QpToQpEx>,
    /// Changes the state of a queue pair; returns an error number, or 0.
    pub modify_qp: ModifyQp,
    /// Destroys a queue pair after all its events have been acknowledged.
    pub destroy_qp: DestroyQp,
    /// Sets the vendor options of a queue pair, before its change to RTR.
    pub set_ece: Option<SetEce>,
    /// Returns the vendor options that the provider supports; after [`set_ece`](Self::set_ece) and the change to RTR,
    /// those in use.
    pub query_ece: Option<QueryEce>,
    /// Reads an asynchronous event.
    pub get_async_event: GetAsyncEvent,
    /// Acknowledges an asynchronous event.
    pub ack_async_event: AckAsyncEvent,
}

/// The symbol of each function, and its version.
pub const VERSIONS: &[(&CStr, &CStr)] = &[
    (c"ibv_get_device_list", c"IBVERBS_1.1"),
    (c"ibv_free_device_list", c"IBVERBS_1.1"),
    (c"ibv_get_device_name", c"IBVERBS_1.1"),
    (c"ibv_open_device", c"IBVERBS_1.1"),
    (c"ibv_close_device", c"IBVERBS_1.1"),
    (c"ibv_query_device", c"IBVERBS_1.1"),
    (c"ibv_query_port", c"IBVERBS_1.1"),
    (c"ibv_query_gid", c"IBVERBS_1.1"),
    (c"_ibv_query_gid_ex", c"IBVERBS_1.11"),
    (c"ibv_alloc_pd", c"IBVERBS_1.1"),
    (c"ibv_dealloc_pd", c"IBVERBS_1.1"),
    (c"ibv_reg_mr", c"IBVERBS_1.1"),
    (c"ibv_reg_mr_iova2", c"IBVERBS_1.8"),
    (c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12"),
    (c"ibv_dereg_mr", c"IBVERBS_1.1"),
    (c"ibv_create_comp_channel", c"IBVERBS_1.0"),
    (c"ibv_destroy_comp_channel", c"IBVERBS_1.0"),
    (c"ibv_create_cq", c"IBVERBS_1.1"),
    (c"ibv_destroy_cq", c"IBVERBS_1.1"),
    (c"ibv_get_cq_event", c"IBVERBS_1.1"),
    (c"ibv_ack_cq_events", c"IBVERBS_1.1"),
    (c"ibv_create_qp", c"IBVERBS_1.1"),
    (c"ibv_qp_to_qp_ex", c"IBVERBS_1.6"),
    (c"ibv_modify_qp", c"IBVERBS_1.1"),
    (c"ibv_destroy_qp", c"IBVERBS_1.1"),
    (c"ibv_set_ece", c"IBVERBS_1.10"),
    (c"ibv_query_ece", c"IBVERBS_1.10"),
    (c"ibv_get_async_event", c"IBVERBS_1.1"),
    (c"ibv_ack_async_event", c"IBVERBS_1.1"),
];
