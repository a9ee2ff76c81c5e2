//! Queue pairs: their creation attributes, the attributes of each state, and the table of extended queue pairs.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};

use super::{
    Context, Cq, Gid, Pd, PthreadCond, PthreadMutex, WrAtomicCmpSwp, WrAtomicFetchAdd, WrComplete, WrRdma,
    WrRdmaWriteImm, WrSend, WrSendImm, WrSetInlineData, WrSetSgeList,
};

/// `IBV_QPT_RC`: reliable connected.
pub const QPT_RC: c_uint = 2;
/// `IBV_QP_INIT_ATTR_PD`.
pub const INIT_ATTR_PD: u32 = 1;
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
pub const INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

/// `enum ibv_qp_create_send_ops_flags`.
pub mod send_ops {
    /// `IBV_QP_EX_WITH_RDMA_WRITE`.
    pub const RDMA_WRITE: u64 = 1;
    /// `IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM`.
    pub const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    /// `IBV_QP_EX_WITH_SEND`.
    pub const SEND: u64 = 1 << 2;
    /// `IBV_QP_EX_WITH_SEND_WITH_IMM`.
    pub const SEND_WITH_IMM: u64 = 1 << 3;
    /// `IBV_QP_EX_WITH_RDMA_READ`.
    pub const RDMA_READ: u64 = 1 << 4;
    /// `IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP`.
    pub const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    /// `IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD`.
    pub const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
}

/// `enum ibv_qp_state`.
pub mod qp_state {
    /// `IBV_QPS_RESET`.
    pub const RESET: u32 = 0;
    /// `IBV_QPS_INIT`.
    pub const INIT: u32 = 1;
    /// `IBV_QPS_RTR`.
    pub const RTR: u32 = 2;
    /// `IBV_QPS_RTS`.
    pub const RTS: u32 = 3;
    /// `IBV_QPS_ERR`.
    pub const ERR: u32 = 6;
}

/// `enum ibv_qp_attr_mask`.
pub mod qp_mask {
    /// `IBV_QP_STATE`.
    pub const STATE: i32 = 1;
    /// `IBV_QP_ACCESS_FLAGS`.
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    /// `IBV_QP_PKEY_INDEX`.
    pub const PKEY_INDEX: i32 = 1 << 4;
    /// `IBV_QP_PORT`.
    pub const PORT: i32 = 1 << 5;
    /// `IBV_QP_AV`.
    pub const AV: i32 = 1 << 7;
    /// `IBV_QP_PATH_MTU`.
    pub const PATH_MTU: i32 = 1 << 8;
    /// `IBV_QP_TIMEOUT`.
    pub const TIMEOUT: i32 = 1 << 9;
    /// `IBV_QP_RETRY_CNT`.
    pub const RETRY_CNT: i32 = 1 << 10;
    /// `IBV_QP_RNR_RETRY`.
    pub const RNR_RETRY: i32 = 1 << 11;
    /// `IBV_QP_RQ_PSN`.
    pub const RQ_PSN: i32 = 1 << 12;
    /// `IBV_QP_MAX_QP_RD_ATOMIC`.
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    /// `IBV_QP_MIN_RNR_TIMER`.
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    /// `IBV_QP_SQ_PSN`.
    pub const SQ_PSN: i32 = 1 << 16;
    /// `IBV_QP_MAX_DEST_RD_ATOMIC`.
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    /// `IBV_QP_DEST_QPN`.
    pub const DEST_QPN: i32 = 1 << 20;
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct QpCap {
    /// Most work requests in the send queue.
    pub max_send_wr: u32,
    /// Most receives in the receive queue.
    pub max_recv_wr: u32,
    /// Most scatter/gather entries per send.
    pub max_send_sge: u32,
    /// Most scatter/gather entries per receive.
    pub max_recv_sge: u32,
    /// Most inline bytes.
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QpInitAttr {
    /// Context of the application.
    pub qp_context: *mut c_void,
    /// Completion queue of sends.
    pub send_cq: *mut Cq,
    /// Completion queue of receives.
    pub recv_cq: *mut Cq,
    /// A shared receive queue, or NULL.
    pub srq: *mut c_void,
    /// Requested sizes; the library writes back the actual ones.
    pub cap: QpCap,
    /// `QPT_RC`.
    pub qp_type: c_uint,
    /// Whether all sends are signalled.
    pub sq_sig_all: c_int,
}

/// `struct ibv_rx_hash_conf`, not used by Trunkline.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RxHashConf {
    /// `enum ibv_rx_hash_function_flags`.
    pub rx_hash_function: u8,
    /// Bytes of the key.
    pub rx_hash_key_len: u8,
    /// The key.
    pub rx_hash_key: *mut u8,
    /// `enum ibv_rx_hash_fields`.
    pub rx_hash_fields_mask: u64,
}

/// `struct ibv_qp_init_attr_ex`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QpInitAttrEx {
    /// Context of the application.
    pub qp_context: *mut c_void,
    /// Completion queue of sends.
    pub send_cq: *mut Cq,
    /// Completion queue of receives.
    pub recv_cq: *mut Cq,
    /// A shared receive queue, or NULL.
    pub srq: *mut c_void,
    /// Requested sizes; the library writes back the actual ones.
    pub cap: QpCap,
    /// `QPT_RC`.
    pub qp_type: c_uint,
    /// Whether all sends are signalled.
    pub sq_sig_all: c_int,
    /// Which of the following fields are valid.
    pub comp_mask: u32,
    /// The protection domain.
    pub pd: *mut Pd,
    /// For XRC (shared connections).
    pub xrcd: *mut c_void,
    /// `enum ibv_qp_create_flags`.
    pub create_flags: u32,
    /// For segmented sends (TSO).
    pub max_tso_header: u16,
    /// For receive-side scaling.
    pub rwq_ind_tbl: *mut c_void,
    /// For receive-side scaling.
    pub rx_hash_conf: RxHashConf,
    /// Requested number of the source queue pair.
    pub source_qpn: u32,
    /// Extended calls that the queue pair must support: `send_ops`.
    pub send_ops_flags: u64,
}

/// `struct ibv_global_route`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GlobalRoute {
    /// GID of the peer.
    pub dgid: Gid,
    /// Field of the IPv6 header (GRH).
    pub flow_label: u32,
    /// Index of the own GID in its table.
    pub sgid_index: u8,
    /// Field of the IPv6 header (GRH).
    pub hop_limit: u8,
    /// Field of the IPv6 header (GRH).
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AhAttr {
    /// Route; valid if `is_global` is set.
    pub grh: GlobalRoute,
    /// LID of the peer, on InfiniBand.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the own LID.
    pub src_path_bits: u8,
    /// Speed limit.
    pub static_rate: u8,
    /// Whether `grh` is valid.
    pub is_global: u8,
    /// Number of the own port.
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QpAttr {
    /// The state to enter.
    pub qp_state: c_uint,
    /// The current state.
    pub cur_qp_state: c_uint,
    /// `enum ibv_mtu`.
    pub path_mtu: c_uint,
    /// For path migration.
    pub path_mig_state: c_uint,
    /// Queue key; for datagrams.
    pub qkey: u32,
    /// First packet number to expect.
    pub rq_psn: u32,
    /// First packet number to send.
    pub sq_psn: u32,
    /// Number of the peer's queue pair.
    pub dest_qp_num: u32,
    /// Accesses that the peer may make: `ACCESS_REMOTE_WRITE` and others.
    pub qp_access_flags: c_uint,
    /// Sizes.
    pub cap: QpCap,
    /// Path to the peer.
    pub ah_attr: AhAttr,
    /// For path migration.
    pub alt_ah_attr: AhAttr,
    /// Index in the partition key table.
    pub pkey_index: u16,
    /// For path migration.
    pub alt_pkey_index: u16,
    /// For draining the send queue.
    pub en_sqd_async_notify: u8,
    /// For draining the send queue.
    pub sq_draining: u8,
    /// Most outgoing reads and atomics.
    pub max_rd_atomic: u8,
    /// Most incoming reads and atomics.
    pub max_dest_rd_atomic: u8,
    /// Time that the peer must wait after an RNR NAK, as a number of the specification's table.
    pub min_rnr_timer: u8,
    /// Number of the own port.
    pub port_num: u8,
    /// Time to wait for an acknowledgement: 4.096 us times two to this power.
    pub timeout: u8,
    /// Number of retransmissions after such a timeout.
    pub retry_cnt: u8,
    /// Number of retransmissions after an RNR NAK; 7 is unlimited.
    pub rnr_retry: u8,
    /// For path migration.
    pub alt_port_num: u8,
    /// For path migration.
    pub alt_timeout: u8,
    /// Rate limit in kbit/s.
    pub rate_limit: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    /// Context of its device.
    pub context: *mut Context,
    /// Context of the application.
    pub qp_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut Pd,
    /// Completion queue of sends.
    pub send_cq: *mut Cq,
    /// Completion queue of receives.
    pub recv_cq: *mut Cq,
    /// A shared receive queue, or NULL.
    pub srq: *mut c_void,
    /// Handle in the kernel.
    pub handle: u32,
    /// Its number on the network, 24 bits.
    pub qp_num: u32,
    /// The state after the library's last change.
    pub state: c_uint,
    /// `QPT_RC`.
    pub qp_type: c_uint,
    /// Private to the library.
    pub mutex: PthreadMutex,
    /// Private to the library.
    pub cond: PthreadCond,
    /// Private to the library.
    pub events_completed: u32,
}

/// `struct ibv_qp_ex`: a queue pair with a table for building work requests in place.
#[repr(C)]
pub struct QpEx {
    /// The queue pair.
    pub qp_base: Qp,
    /// Reserved for later versions.
    pub comp_mask: u64,
    /// `wr_id` of the next request.
    pub wr_id: u64,
    /// Flags of the next request: `SEND_FENCE`, `SEND_SIGNALED`.
    pub wr_flags: c_uint,
    /// Begins a compare-and-swap.
    pub wr_atomic_cmp_swp: Option<WrAtomicCmpSwp>,
    /// Begins a fetch-and-add.
    pub wr_atomic_fetch_add: Option<WrAtomicFetchAdd>,
    /// For memory windows.
    pub wr_bind_mw: *mut c_void,
    /// For invalidating keys.
    pub wr_local_inv: *mut c_void,
    /// Begins a read.
    pub wr_rdma_read: Option<WrRdma>,
    /// Begins a write.
    pub wr_rdma_write: Option<WrRdma>,
    /// Begins a write with immediate.
    pub wr_rdma_write_imm: Option<WrRdmaWriteImm>,
    /// Begins a send.
    pub wr_send: Option<WrSend>,
    /// Begins a send with immediate.
    pub wr_send_imm: Option<WrSendImm>,
    /// For invalidating keys.
    pub wr_send_inv: *mut c_void,
    /// For segmented sends (TSO).
    pub wr_send_tso: *mut c_void,
    /// For datagrams.
    pub wr_set_ud_addr: *mut c_void,
    /// For XRC (shared connections).
    pub wr_set_xrc_srqn: *mut c_void,
    /// Completes a request: one range to copy inline.
    pub wr_set_inline_data: Option<WrSetInlineData>,
    /// Completes a request: several ranges to copy inline.
    pub wr_set_inline_data_list: *mut c_void,
    /// Completes a request: one registered range.
    pub wr_set_sge: *mut c_void,
    /// Completes a request: several registered ranges.
    pub wr_set_sge_list: Option<WrSetSgeList>,
    /// Begins a list of requests.
    pub wr_start: Option<WrSend>,
    /// Posts the list to the device.
    pub wr_complete: Option<WrComplete>,
    /// Discards the list.
    pub wr_abort: Option<WrSend>,
    /// For atomic writes.
    pub wr_atomic_write: *mut c_void,
}

const _: () = {
    assert!(size_of::<QpCap>() == 20);
    assert!(size_of::<QpInitAttr>() == 64);
    assert!(size_of::<QpInitAttrEx>() == 136);
    assert!(size_of::<AhAttr>() == 32);
    assert!(size_of::<QpAttr>() == 144);
    assert!(offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(Qp, qp_num) == 52);
};
#[cfg(not(target_arch = "aarch64"))]
const _: () = {
    assert!(size_of::<Qp>() == 160);
    assert!(offset_of!(QpEx, wr_start) == 320);
};
