//! What an application asks for and a provider offers: `fi_info` and the attributes in it. Made and freed by the library
//! alone (`fi_dupinfo`, `fi_freeinfo`), because its newer versions have more at the end of some.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::size_of;

use super::{Fid, FidDomain, FidFabric, FidNic};

/// `enum fi_av_type`.
pub type AvType = c_uint;
/// `enum fi_threading`.
pub type Threading = c_uint;
/// `enum fi_progress`.
pub type Progress = c_uint;
/// `enum fi_resource_mgmt`.
pub type ResourceMgmt = c_uint;
/// `enum fi_ep_type`.
pub type EpType = c_uint;

/// `struct fi_info`: one way to communicate: of hints what is wanted, else what is there.
#[repr(C)]
pub struct Info {
    /// The next one, or NULL.
    pub next: *mut Self,
    /// What endpoints can do: [`caps`](super::caps).
    pub caps: u64,
    /// What they ask of their caller: [`mode`](super::mode).
    pub mode: u64,
    /// How addresses look: [`addr_format`].
    pub addr_format: u32,
    /// Bytes of the own address.
    pub src_addrlen: usize,
    /// Bytes of the peer's.
    pub dest_addrlen: usize,
    /// The own address, or NULL.
    pub src_addr: *mut c_void,
    /// The peer's, or NULL.
    pub dest_addr: *mut c_void,
    /// A connection request, or NULL.
    pub handle: *mut Fid,
    /// Of sending.
    pub tx_attr: *mut TxAttr,
    /// Of receiving.
    pub rx_attr: *mut RxAttr,
    /// Of endpoints.
    pub ep_attr: *mut EpAttr,
    /// Of the domain.
    pub domain_attr: *mut DomainAttr,
    /// Of the fabric.
    pub fabric_attr: *mut FabricAttr,
    /// The device, or NULL.
    pub nic: *mut FidNic,
}

/// `struct fi_tx_attr`: how an endpoint sends.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TxAttr {
    /// As in [`Info`].
    pub caps: u64,
    /// As in [`Info`].
    pub mode: u64,
    /// Flags of operations that are given none.
    pub op_flags: u64,
    /// What arrives in the order of its posting: [`order`].
    pub msg_order: u64,
    /// What completes in it.
    pub comp_order: u64,
    /// Most bytes of an injected operation.
    pub inject_size: usize,
    /// Operations that an endpoint takes at once.
    pub size: usize,
    /// Local ranges of an operation.
    pub iov_limit: usize,
    /// Remote ranges of an operation.
    pub rma_iov_limit: usize,
    /// Traffic class: [`tclass`].
    pub tclass: u32,
}

/// `struct fi_rx_attr`: how an endpoint receives.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RxAttr {
    /// As in [`Info`].
    pub caps: u64,
    /// As in [`Info`].
    pub mode: u64,
    /// Flags of operations that are given none.
    pub op_flags: u64,
    /// What is taken in the order of its posting: [`order`].
    pub msg_order: u64,
    /// What completes in it.
    pub comp_order: u64,
    /// Bytes of messages that wait for a receive; deprecated.
    pub total_buffered_recv: usize,
    /// Receives that an endpoint takes at once.
    pub size: usize,
    /// Ranges of a receive.
    pub iov_limit: usize,
}

/// `struct fi_ep_attr`: what an endpoint is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpAttr {
    /// Its kind: [`ep_type`].
    pub r#type: EpType,
    /// Its protocol, which both ends share.
    pub protocol: u32,
    /// The protocol's version.
    pub protocol_version: u32,
    /// Most bytes of an operation.
    pub max_msg_size: usize,
    /// Bytes to leave before messages.
    pub msg_prefix_size: usize,
    /// Bytes up to which reads come after writes.
    pub max_order_raw_size: usize,
    /// Bytes up to which writes come after reads.
    pub max_order_war_size: usize,
    /// Bytes up to which writes come after writes.
    pub max_order_waw_size: usize,
    /// Bits of a tag that count, as a mask of fields.
    pub mem_tag_format: u64,
    /// Sending contexts.
    pub tx_ctx_cnt: usize,
    /// Receiving contexts.
    pub rx_ctx_cnt: usize,
    /// Bytes of the key of a job.
    pub auth_key_size: usize,
    /// The key of a job, or NULL.
    pub auth_key: *mut u8,
}

/// `struct fi_domain_attr`: what a domain is: as a rule a NIC.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DomainAttr {
    /// The open domain, or NULL.
    pub domain: *mut FidDomain,
    /// Its name.
    pub name: *mut c_char,
    /// Which threads may call at once: [`threading`].
    pub threading: Threading,
    /// Who makes progress of set-up: [`progress`].
    pub control_progress: Progress,
    /// Who makes progress of operations.
    pub data_progress: Progress,
    /// Whether the provider guards its queues against overruns.
    pub resource_mgmt: ResourceMgmt,
    /// How addresses are told: [`av_type`].
    pub av_type: AvType,
    /// What registrations ask of their caller: [`mr_mode`](super::mr_mode).
    pub mr_mode: c_int,
    /// Bytes of a key.
    pub mr_key_size: usize,
    /// Bytes of remote CQ data.
    pub cq_data_size: usize,
    /// Completion queues that are good to have.
    pub cq_cnt: usize,
    /// Endpoints that are good to have.
    pub ep_cnt: usize,
    /// Sending contexts of all endpoints.
    pub tx_ctx_cnt: usize,
    /// Receiving contexts of all endpoints.
    pub rx_ctx_cnt: usize,
    /// Sending contexts of an endpoint.
    pub max_ep_tx_ctx: usize,
    /// Receiving contexts of an endpoint.
    pub max_ep_rx_ctx: usize,
    /// Endpoints on one sending context.
    pub max_ep_stx_ctx: usize,
    /// Endpoints on one receiving context.
    pub max_ep_srx_ctx: usize,
    /// Counters.
    pub cntr_cnt: usize,
    /// Ranges of a registration.
    pub mr_iov_limit: usize,
    /// Of the domain, as in [`Info`].
    pub caps: u64,
    /// Of the domain, as in [`Info`].
    pub mode: u64,
    /// The key of a job, or NULL.
    pub auth_key: *mut u8,
    /// Bytes of the key of a job.
    pub auth_key_size: usize,
    /// Bytes that may stand behind an error entry.
    pub max_err_data: usize,
    /// Registrations that are good to have.
    pub mr_cnt: usize,
    /// Traffic class: [`tclass`].
    pub tclass: u32,
}

/// `struct fi_fabric_attr`: what a fabric is: what can reach each other.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FabricAttr {
    /// The open fabric, or NULL.
    pub fabric: *mut FidFabric,
    /// Its name.
    pub name: *mut c_char,
    /// The provider's, with those above and below it.
    pub prov_name: *mut c_char,
    /// The provider's version.
    pub prov_version: u32,
    /// The version that the application was written for.
    pub api_version: u32,
}

/// How addresses look: `FI_SOCKADDR` and those after it, of which a caller needs to know some.
pub mod addr_format {
    /// `FI_FORMAT_UNSPEC`: as the provider likes.
    pub const UNSPEC: u32 = 0;
    /// `FI_SOCKADDR`.
    pub const SOCKADDR: u32 = 1;
    /// `FI_SOCKADDR_IN`.
    pub const SOCKADDR_IN: u32 = 2;
    /// `FI_SOCKADDR_IN6`.
    pub const SOCKADDR_IN6: u32 = 3;
    /// `FI_SOCKADDR_IB`.
    pub const SOCKADDR_IB: u32 = 4;
    /// `FI_ADDR_STR`: text that ends with zero.
    pub const STR: u32 = 9;
    /// `FI_ADDR_EFA`.
    pub const EFA: u32 = 12;
    /// `FI_ADDR_PSMX3`.
    pub const PSMX3: u32 = 13;
    /// `FI_ADDR_OPX`.
    pub const OPX: u32 = 14;
    /// `FI_ADDR_CXI`.
    pub const CXI: u32 = 15;
}

/// `enum fi_ep_type`.
pub mod ep_type {
    /// `FI_EP_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_EP_MSG`: connected.
    pub const MSG: u32 = 1;
    /// `FI_EP_DGRAM`: datagrams.
    pub const DGRAM: u32 = 2;
    /// `FI_EP_RDM`: reliable, not connected.
    pub const RDM: u32 = 3;
}

/// `enum fi_av_type`.
pub mod av_type {
    /// `FI_AV_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_AV_MAP`: addresses are told by values of the provider's.
    pub const MAP: u32 = 1;
    /// `FI_AV_TABLE`: by the order of their insertion.
    pub const TABLE: u32 = 2;
}

/// `enum fi_threading`.
pub mod threading {
    /// `FI_THREAD_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_THREAD_SAFE`: anything at once.
    pub const SAFE: u32 = 1;
    /// `FI_THREAD_FID`: one thread at a time for each object.
    pub const FID: u32 = 2;
    /// `FI_THREAD_DOMAIN`: one thread at a time for a domain and all that is on it.
    pub const DOMAIN: u32 = 3;
    /// `FI_THREAD_COMPLETION`: one thread at a time for what shares a completion queue or counter.
    pub const COMPLETION: u32 = 4;
    /// `FI_THREAD_ENDPOINT`: one thread at a time for each endpoint.
    pub const ENDPOINT: u32 = 5;
}

/// `enum fi_progress`.
pub mod progress {
    /// `FI_PROGRESS_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_PROGRESS_AUTO`: without calls of the application.
    pub const AUTO: u32 = 1;
    /// `FI_PROGRESS_MANUAL`: inside of its calls.
    pub const MANUAL: u32 = 2;
}

/// `enum fi_resource_mgmt`.
pub mod resource_mgmt {
    /// `FI_RM_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_RM_DISABLED`: the application minds the queues.
    pub const DISABLED: u32 = 1;
    /// `FI_RM_ENABLED`: the provider does.
    pub const ENABLED: u32 = 2;
}

/// What comes in order: R a read, W a write, S a send; `RAW` is a read after a write.
pub mod order {
    /// `FI_ORDER_RAR`.
    pub const RAR: u64 = 1 << 0;
    /// `FI_ORDER_RAW`.
    pub const RAW: u64 = 1 << 1;
    /// `FI_ORDER_RAS`.
    pub const RAS: u64 = 1 << 2;
    /// `FI_ORDER_WAR`.
    pub const WAR: u64 = 1 << 3;
    /// `FI_ORDER_WAW`.
    pub const WAW: u64 = 1 << 4;
    /// `FI_ORDER_WAS`.
    pub const WAS: u64 = 1 << 5;
    /// `FI_ORDER_SAR`.
    pub const SAR: u64 = 1 << 6;
    /// `FI_ORDER_SAW`.
    pub const SAW: u64 = 1 << 7;
    /// `FI_ORDER_SAS`.
    pub const SAS: u64 = 1 << 8;
    /// `FI_ORDER_STRICT`: all of them, of completions.
    pub const STRICT: u64 = 0x1ff;
    /// `FI_ORDER_RMA_RAR`.
    pub const RMA_RAR: u64 = 1 << 32;
    /// `FI_ORDER_RMA_RAW`.
    pub const RMA_RAW: u64 = 1 << 33;
    /// `FI_ORDER_RMA_WAR`.
    pub const RMA_WAR: u64 = 1 << 34;
    /// `FI_ORDER_RMA_WAW`.
    pub const RMA_WAW: u64 = 1 << 35;
    /// `FI_ORDER_ATOMIC_RAR`.
    pub const ATOMIC_RAR: u64 = 1 << 36;
    /// `FI_ORDER_ATOMIC_RAW`.
    pub const ATOMIC_RAW: u64 = 1 << 37;
    /// `FI_ORDER_ATOMIC_WAR`.
    pub const ATOMIC_WAR: u64 = 1 << 38;
    /// `FI_ORDER_ATOMIC_WAW`.
    pub const ATOMIC_WAW: u64 = 1 << 39;
    /// `FI_ORDER_DATA`: completions tell that the bytes before are there.
    pub const DATA: u64 = 1 << 16;
}

/// Traffic classes.
pub mod tclass {
    /// `FI_TC_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_TC_DSCP`: the low byte is a code point of differentiated services.
    pub const DSCP: u32 = 0x100;
    /// `FI_TC_LABEL`: the first named class.
    pub const LABEL: u32 = 0x200;
    /// `FI_TC_BEST_EFFORT`.
    pub const BEST_EFFORT: u32 = 0x200;
    /// `FI_TC_LOW_LATENCY`.
    pub const LOW_LATENCY: u32 = 0x201;
    /// `FI_TC_DEDICATED_ACCESS`.
    pub const DEDICATED_ACCESS: u32 = 0x202;
    /// `FI_TC_BULK_DATA`.
    pub const BULK_DATA: u32 = 0x203;
    /// `FI_TC_SCAVENGER`.
    pub const SCAVENGER: u32 = 0x204;
    /// `FI_TC_NETWORK_CTRL`.
    pub const NETWORK_CTRL: u32 = 0x205;
}

const _: () = {
    assert!(size_of::<Info>() == 120);
    assert!(size_of::<TxAttr>() == 80);
    assert!(size_of::<RxAttr>() == 64);
    assert!(size_of::<FabricAttr>() == 32);
};
