//! Work requests.

use core::ffi::{c_int, c_uint};
use core::mem::{offset_of, size_of};

/// `IBV_SEND_FENCE`: starts after earlier reads and atomics have completed.
pub const SEND_FENCE: c_uint = 1;
/// `IBV_SEND_SIGNALED`: also success generates a completion.
pub const SEND_SIGNALED: c_uint = 1 << 1;
/// `IBV_SEND_INLINE`: the bytes are copied at posting.
pub const SEND_INLINE: c_uint = 1 << 3;

/// `enum ibv_wr_opcode`.
pub mod wr_opcode {
    /// `IBV_WR_RDMA_WRITE`.
    pub const RDMA_WRITE: u32 = 0;
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`.
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    /// `IBV_WR_SEND`.
    pub const SEND: u32 = 2;
    /// `IBV_WR_SEND_WITH_IMM`.
    pub const SEND_WITH_IMM: u32 = 3;
    /// `IBV_WR_RDMA_READ`.
    pub const RDMA_READ: u32 = 4;
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`.
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`.
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
}

/// `struct ibv_sge`: a registered range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Sge {
    /// First byte, as an address of the registration.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The lkey of the registration.
    pub lkey: u32,
}

impl Sge {
    /// An empty range.
    pub const ZERO: Self = Self { addr: 0, length: 0, lkey: 0 };
}

/// `wr.rdma` of `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rdma {
    /// Address at the peer.
    pub remote_addr: u64,
    /// The peer's rkey.
    pub rkey: u32,
}

/// `wr.atomic` of `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Atomic {
    /// Address of the word at the peer.
    pub remote_addr: u64,
    /// The expected value, or the addend.
    pub compare_add: u64,
    /// The new value.
    pub swap: u64,
    /// The peer's rkey.
    pub rkey: u32,
}

/// `wr` of `struct ibv_send_wr`; the opcode selects the member.
#[derive(Clone, Copy)]
#[repr(C)]
pub union SendWrTarget {
    /// For reads and writes.
    pub rdma: Rdma,
    /// For atomics.
    pub atomic: Atomic,
}

/// `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The next request of a list.
    pub next: *mut Self,
    /// Ranges to send or to read into.
    pub sg_list: *mut Sge,
    /// Number of entries of the list.
    pub num_sge: c_int,
    /// `enum ibv_wr_opcode`.
    pub opcode: c_uint,
    /// `SEND_FENCE`, `SEND_SIGNALED`, `SEND_INLINE`.
    pub send_flags: c_uint,
    /// Immediate, in network byte order.
    pub imm_data: u32,
    /// The peer's memory.
    pub wr: SendWrTarget,
    /// For other kinds of queue pairs.
    pub qp_type: u32,
    /// For memory windows and segmented sends.
    pub bind_mw: [u64; 6],
}

impl SendWr {
    /// An empty request.
    pub const ZERO: Self = Self {
        wr_id: 0,
        next: core::ptr::null_mut(),
        sg_list: core::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: SendWrTarget { atomic: Atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        qp_type: 0,
        bind_mw: [0; 6],
    };
}

/// `struct ibv_recv_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The next request of a list.
    pub next: *mut Self,
    /// Ranges to receive into.
    pub sg_list: *mut Sge,
    /// Number of entries of the list.
    pub num_sge: c_int,
}

impl RecvWr {
    /// An empty request.
    pub const ZERO: Self =
        Self { wr_id: 0, next: core::ptr::null_mut(), sg_list: core::ptr::null_mut(), num_sge: 0 };
}

const _: () = {
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendWr>() == 128);
    assert!(offset_of!(SendWr, imm_data) == 36);
    assert!(offset_of!(SendWr, wr) == 40);
    assert!(size_of::<RecvWr>() == 32);
};
