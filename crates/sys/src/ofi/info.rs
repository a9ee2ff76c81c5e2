//! `fi_info` and its attributes: the hints of an application and the offers of a provider. They are allocated and
//! freed only by the library (`fi_dupinfo`, `fi_freeinfo`), because its newer versions append fields to some of them.

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

/// `struct fi_info`: as hints, the requirements of an application; otherwise one offer of a provider.
#[repr(C)]
pub struct Info {
    /// The next one, or NULL.
    pub next: *mut Self,
    /// Capabilities of endpoints: [`caps`](super::caps).
    pub caps: u64,
    /// Requirements of the provider to its caller: [`mode`](super::mode).
    pub mode: u64,
    /// Format of addresses: [`addr_format`].
    pub addr_format: u32,
    /// Bytes of the own address.
    pub src_addrlen: usize,
    /// Bytes of the peer's address.
    pub dest_addrlen: usize,
    /// The own address, or NULL.
    pub src_addr: *mut c_void,
    /// The peer's address, or NULL.
    pub dest_addr: *mut c_void,
    /// A connection request, or NULL.
    pub handle: *mut Fid,
    /// Attributes of sending.
    pub tx_attr: *mut TxAttr,
    /// Attributes of receiving.
    pub rx_attr: *mut RxAttr,
    /// Attributes of endpoints.
    pub ep_attr: *mut EpAttr,
    /// Attributes of the domain.
    pub domain_attr: *mut DomainAttr,
    /// Attributes of the fabric.
    pub fabric_attr: *mut FabricAttr,
    /// The device, or NULL.
    pub nic: *mut FidNic,
}

/// `struct fi_tx_attr`: attributes of sending.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TxAttr {
    /// See [`Info`].
    pub caps: u64,
    /// See [`Info`].
    pub mode: u64,
    /// Flags of operations that specify none.
    pub op_flags: u64,
    /// Operations that are executed in the order of posting: [`order`].
    pub msg_order: u64,
    /// Operations that complete in the order of posting.
    pub comp_order: u64,
    /// Most bytes of an injected operation.
    pub inject_size: usize,
    /// Operations that an endpoint can hold at one time.
    pub size: usize,
    /// Most local ranges per operation.
    pub iov_limit: usize,
    /// Most remote ranges per operation.
    pub rma_iov_limit: usize,
    /// Traffic class: [`tclass`].
    pub tclass: u32,
}

/// `struct fi_rx_attr`: attributes of receiving.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RxAttr {
    /// See [`Info`].
    pub caps: u64,
    /// See [`Info`].
    pub mode: u64,
    /// Flags of operations that specify none.
    pub op_flags: u64,
    /// Messages that are received in the order of posting: [`order`].
    pub msg_order: u64,
    /// Receives that complete in the order of posting.
    pub comp_order: u64,
    /// Bytes of unexpected messages that are buffered; deprecated.
    pub total_buffered_recv: usize,
    /// Receives that an endpoint can hold at one time.
    pub size: usize,
    /// Most ranges per receive.
    pub iov_limit: usize,
}

/// `struct fi_ep_attr`: attributes of an endpoint.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpAttr {
    /// Its kind: [`ep_type`].
    pub r#type: EpType,
    /// Its protocol, which must be equal at both ends.
    pub protocol: u32,
    /// The protocol's version.
    pub protocol_version: u32,
    /// Most bytes of an operation.
    pub max_msg_size: usize,
    /// Bytes that buffers reserve before messages.
    pub msg_prefix_size: usize,
    /// Largest size for which a read is ordered after earlier writes.
    pub max_order_raw_size: usize,
    /// Largest size for which a write is ordered after earlier reads.
    pub max_order_war_size: usize,
    /// Largest size for which a write is ordered after earlier writes.
    pub max_order_waw_size: usize,
    /// Bits of a tag that are compared, as a mask of fields.
    pub mem_tag_format: u64,
    /// Number of transmit contexts.
    pub tx_ctx_cnt: usize,
    /// Number of receive contexts.
    pub rx_ctx_cnt: usize,
    /// Bytes of the job's authorization key.
    pub auth_key_size: usize,
    /// The job's authorization key, or NULL.
    pub auth_key: *mut u8,
}

/// `struct fi_domain_attr`: attributes of a domain. Usually a domain is one NIC.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DomainAttr {
    /// The open domain, or NULL.
    pub domain: *mut FidDomain,
    /// Its name.
    pub name: *mut c_char,
    /// Permitted concurrency of calls: [`threading`].
    pub threading: Threading,
    /// Whether set-up progresses by itself or by calls: [`progress`].
    pub control_progress: Progress,
    /// Whether operations progress by themselves or by calls.
    pub data_progress: Progress,
    /// Whether the provider protects its queues against overruns.
    pub resource_mgmt: ResourceMgmt,
    /// How peers are numbered: [`av_type`].
    pub av_type: AvType,
    /// Requirements for registrations: [`mr_mode`](super::mr_mode).
    pub mr_mode: c_int,
    /// Bytes of a key of a registration.
    pub mr_key_size: usize,
    /// Bytes of remote CQ data.
    pub cq_data_size: usize,
    /// Recommended number of completion queues.
    pub cq_cnt: usize,
    /// Recommended number of endpoints.
    pub ep_cnt: usize,
    /// Transmit contexts of all endpoints together.
    pub tx_ctx_cnt: usize,
    /// Receive contexts of all endpoints together.
    pub rx_ctx_cnt: usize,
    /// Most transmit contexts per endpoint.
    pub max_ep_tx_ctx: usize,
    /// Most receive contexts per endpoint.
    pub max_ep_rx_ctx: usize,
    /// Most endpoints per shared transmit context.
    pub max_ep_stx_ctx: usize,
    /// Most endpoints per shared receive context.
    pub max_ep_srx_ctx: usize,
    /// Number of counters.
    pub cntr_cnt: usize,
    /// Most ranges per registration.
    pub mr_iov_limit: usize,
    /// See [`Info`]; those of the domain.
    pub caps: u64,
    /// See [`Info`]; those of the domain.
    pub mode: u64,
    /// The job's authorization key, or NULL.
    pub auth_key: *mut u8,
    /// Bytes of the job's authorization key.
    pub auth_key_size: usize,
    /// Most bytes of provider data per error entry.
    pub max_err_data: usize,
    /// Recommended number of registrations.
    pub mr_cnt: usize,
    /// Traffic class: [`tclass`].
    pub tclass: u32,
}

/// `struct fi_fabric_attr`: attributes of a fabric, the set of ports that can reach each other.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FabricAttr {
    /// The open fabric, or NULL.
    pub fabric: *mut FidFabric,
    /// Its name.
    pub name: *mut c_char,
    /// Names of the provider and of the providers layered above and below it.
    pub prov_name: *mut c_char,
    /// The provider's version.
    pub prov_version: u32,
    /// The version that the application requires.
    pub api_version: u32,
}

/// Formats of addresses: `FI_SOCKADDR` and its successors. Contains those that callers use.
pub mod addr_format {
    /// `FI_FORMAT_UNSPEC`: the provider chooses.
    pub const UNSPEC: u32 = 0;
    /// `FI_SOCKADDR`.
    pub const SOCKADDR: u32 = 1;
    /// `FI_SOCKADDR_IN`.
    pub const SOCKADDR_IN: u32 = 2;
    /// `FI_SOCKADDR_IN6`.
    pub const SOCKADDR_IN6: u32 = 3;
    /// `FI_SOCKADDR_IB`.
    pub const SOCKADDR_IB: u32 = 4;
    /// `FI_ADDR_STR`: zero-terminated text.
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
    /// `FI_EP_RDM`: reliable datagrams, not connected.
    pub const RDM: u32 = 3;
}

/// `enum fi_av_type`.
pub mod av_type {
    /// `FI_AV_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_AV_MAP`: peers are identified by values that the provider chooses.
    pub const MAP: u32 = 1;
    /// `FI_AV_TABLE`: peers are numbered in the order of their insertion.
    pub const TABLE: u32 = 2;
}

/// `enum fi_threading`.
pub mod threading {
    /// `FI_THREAD_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_THREAD_SAFE`: all calls may run concurrently.
    pub const SAFE: u32 = 1;
    /// `FI_THREAD_FID`: one thread at a time per object.
    pub const FID: u32 = 2;
    /// `FI_THREAD_DOMAIN`: one thread at a time per domain and all its objects.
    pub const DOMAIN: u32 = 3;
    /// `FI_THREAD_COMPLETION`: one thread at a time for all objects that share a completion queue or counter.
    pub const COMPLETION: u32 = 4;
    /// `FI_THREAD_ENDPOINT`: one thread at a time per endpoint.
    pub const ENDPOINT: u32 = 5;
}

/// `enum fi_progress`.
pub mod progress {
    /// `FI_PROGRESS_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_PROGRESS_AUTO`: progress without calls of the application.
    pub const AUTO: u32 = 1;
    /// `FI_PROGRESS_MANUAL`: progress only during calls of the application.
    pub const MANUAL: u32 = 2;
}

/// `enum fi_resource_mgmt`.
pub mod resource_mgmt {
    /// `FI_RM_UNSPEC`.
    pub const UNSPEC: u32 = 0;
    /// `FI_RM_DISABLED`: the application avoids overruns of queues.
    pub const DISABLED: u32 = 1;
    /// `FI_RM_ENABLED`: the provider avoids overruns of queues.
    pub const ENABLED: u32 = 2;
}

/// Ordering guarantees. R is a read, W a write, S a send; `RAW` orders a read after an earlier write.
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
    /// `FI_ORDER_STRICT`: completions in the order of posting.
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
    /// `FI_ORDER_DATA`: a completion implies that all earlier bytes of the operation have been written.
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
