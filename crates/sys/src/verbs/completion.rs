//! Completion queues, their entries, and asynchronous events.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};

use super::{Context, PthreadCond, PthreadMutex};

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    /// Context of its device.
    pub context: *mut Context,
    /// Readable when a queue of the channel has an event.
    pub fd: c_int,
    /// Number of queues that use the channel.
    pub refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    /// Context of its device.
    pub context: *mut Context,
    /// Its channel, or NULL.
    pub channel: *mut CompChannel,
    /// Context of the application.
    pub cq_context: *mut c_void,
    /// Handle in the kernel.
    pub handle: u32,
    /// Most completions in the queue.
    pub cqe: c_int,
    /// Private to the library.
    pub mutex: PthreadMutex,
    /// Private to the library.
    pub cond: PthreadCond,
    /// Private to the library.
    pub comp_events_completed: u32,
    /// Private to the library.
    pub async_events_completed: u32,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Wc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: c_uint,
    /// `enum ibv_wc_opcode`; valid only if the status is success.
    pub opcode: c_uint,
    /// Error number of the vendor.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate, in network byte order; a union with the invalidated key.
    pub imm_data: u32,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// Number of the peer's queue pair; for datagrams.
    pub src_qp: u32,
    /// `enum ibv_wc_flags`.
    pub wc_flags: c_uint,
    /// Partition key index; for management datagrams.
    pub pkey_index: u16,
    /// LID of the peer; for datagrams.
    pub slid: u16,
    /// Service level; for datagrams.
    pub sl: u8,
    /// Path bits of the destination LID; for datagrams.
    pub dlid_path_bits: u8,
}

impl Wc {
    /// All fields zero.
    pub const ZERO: Self = Self {
        wr_id: 0,
        status: 0,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
}

/// `enum ibv_wc_status`.
pub mod wc_status {
    /// `IBV_WC_SUCCESS`.
    pub const SUCCESS: u32 = 0;
    /// `IBV_WC_LOC_LEN_ERR`.
    pub const LOC_LEN_ERR: u32 = 1;
    /// `IBV_WC_LOC_QP_OP_ERR`.
    pub const LOC_QP_OP_ERR: u32 = 2;
    /// `IBV_WC_LOC_PROT_ERR`.
    pub const LOC_PROT_ERR: u32 = 4;
    /// `IBV_WC_WR_FLUSH_ERR`.
    pub const WR_FLUSH_ERR: u32 = 5;
    /// `IBV_WC_LOC_ACCESS_ERR`.
    pub const LOC_ACCESS_ERR: u32 = 8;
    /// `IBV_WC_REM_INV_REQ_ERR`.
    pub const REM_INV_REQ_ERR: u32 = 9;
    /// `IBV_WC_REM_ACCESS_ERR`.
    pub const REM_ACCESS_ERR: u32 = 10;
    /// `IBV_WC_REM_OP_ERR`.
    pub const REM_OP_ERR: u32 = 11;
    /// `IBV_WC_RETRY_EXC_ERR`.
    pub const RETRY_EXC_ERR: u32 = 12;
    /// `IBV_WC_RNR_RETRY_EXC_ERR`.
    pub const RNR_RETRY_EXC_ERR: u32 = 13;
    /// `IBV_WC_FATAL_ERR`.
    pub const FATAL_ERR: u32 = 19;
    /// `IBV_WC_GENERAL_ERR`.
    pub const GENERAL_ERR: u32 = 21;
}

/// `enum ibv_wc_opcode`.
pub mod wc_opcode {
    /// `IBV_WC_RECV`.
    pub const RECV: u32 = 1 << 7;
    /// `IBV_WC_RECV_RDMA_WITH_IMM`.
    pub const RECV_RDMA_WITH_IMM: u32 = (1 << 7) + 1;
}

/// `IBV_WC_WITH_IMM`: `imm_data` is valid.
pub const WC_WITH_IMM: c_uint = 1 << 1;

/// `struct ibv_async_event`.
#[repr(C)]
pub struct AsyncEvent {
    /// The object of the event: a pointer to a queue pair or queue, or the number of a port in the low half.
    pub element: *mut c_void,
    /// `enum ibv_event_type`.
    pub event_type: c_uint,
}

/// `enum ibv_event_type`.
pub mod event {
    /// `IBV_EVENT_CQ_ERR`: a completion queue has failed.
    pub const CQ_ERR: u32 = 0;
    /// `IBV_EVENT_QP_FATAL`.
    pub const QP_FATAL: u32 = 1;
    /// `IBV_EVENT_QP_REQ_ERR`.
    pub const QP_REQ_ERR: u32 = 2;
    /// `IBV_EVENT_QP_ACCESS_ERR`.
    pub const QP_ACCESS_ERR: u32 = 3;
    /// `IBV_EVENT_COMM_EST`.
    pub const COMM_EST: u32 = 4;
    /// `IBV_EVENT_SQ_DRAINED`.
    pub const SQ_DRAINED: u32 = 5;
    /// `IBV_EVENT_PATH_MIG`.
    pub const PATH_MIG: u32 = 6;
    /// `IBV_EVENT_PATH_MIG_ERR`.
    pub const PATH_MIG_ERR: u32 = 7;
    /// `IBV_EVENT_DEVICE_FATAL`.
    pub const DEVICE_FATAL: u32 = 8;
    /// `IBV_EVENT_PORT_ACTIVE`.
    pub const PORT_ACTIVE: u32 = 9;
    /// `IBV_EVENT_PORT_ERR`.
    pub const PORT_ERR: u32 = 10;
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`.
    pub const QP_LAST_WQE_REACHED: u32 = 16;
}

const _: () = {
    assert!(size_of::<Wc>() == 48);
    assert!(offset_of!(Wc, imm_data) == 24);
    assert!(size_of::<AsyncEvent>() == 16);
    assert!(size_of::<CompChannel>() == 16);
};
#[cfg(not(target_arch = "aarch64"))]
const _: () = assert!(size_of::<Cq>() == 128);
