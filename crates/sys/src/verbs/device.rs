//! Devices, their ports and the ports' addresses. Read once when a fabric is opened.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};

/// `IBV_TRANSPORT_IB`: InfiniBand and RoCE.
pub const TRANSPORT_IB: c_int = 0;
/// `IBV_PORT_ACTIVE`.
pub const PORT_ACTIVE: c_uint = 4;
/// `IBV_LINK_LAYER_INFINIBAND`.
pub const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
pub const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_ATOMIC_NONE`: the device supports no atomics.
pub const ATOMIC_NONE: c_uint = 0;
/// `IBV_ATOMIC_GLOB`: the device's atomics are also atomic with respect to the CPU's.
pub const ATOMIC_GLOB: c_uint = 2;
/// `IBV_GID_TYPE_IB`.
pub const GID_TYPE_IB: u32 = 0;
/// `IBV_GID_TYPE_ROCE_V1`.
pub const GID_TYPE_ROCE_V1: u32 = 1;
/// `IBV_GID_TYPE_ROCE_V2`.
pub const GID_TYPE_ROCE_V2: u32 = 2;

/// `struct ibv_device`.
#[repr(C)]
pub struct Device {
    /// Two unused pointers.
    pub _ops: [*mut c_void; 2],
    /// `enum ibv_node_type`.
    pub node_type: c_int,
    /// `enum ibv_transport_type`.
    pub transport_type: c_int,
    /// Name of the device, zero-terminated, as `mlx5_0`.
    pub name: [c_char; 64],
    /// Name of the uverbs device.
    pub dev_name: [c_char; 64],
    /// Path of the uverbs device in sysfs.
    pub dev_path: [c_char; 256],
    /// Path of the RDMA device in sysfs.
    pub ibdev_path: [c_char; 256],
}

/// `struct ibv_device_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceAttr {
    /// Version of the firmware.
    pub fw_ver: [c_char; 64],
    /// Identity of the device, network byte order.
    pub node_guid: u64,
    /// Identity of the card, network byte order.
    pub sys_image_guid: u64,
    /// Largest region, bytes.
    pub max_mr_size: u64,
    /// Supported page sizes, one bit each.
    pub page_size_cap: u64,
    /// IEEE number of the vendor.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// Version of the hardware.
    pub hw_ver: u32,
    /// Most queue pairs.
    pub max_qp: c_int,
    /// Most work requests per queue.
    pub max_qp_wr: c_int,
    /// `enum ibv_device_cap_flags`.
    pub device_cap_flags: c_uint,
    /// Most entries of a scatter/gather list.
    pub max_sge: c_int,
    /// Most scatter/gather entries of a read.
    pub max_sge_rd: c_int,
    /// Most completion queues.
    pub max_cq: c_int,
    /// Most completions per queue.
    pub max_cqe: c_int,
    /// Most regions.
    pub max_mr: c_int,
    /// Most protection domains.
    pub max_pd: c_int,
    /// Most incoming reads and atomics per queue pair.
    pub max_qp_rd_atom: c_int,
    /// For reliable datagrams, like all fields named `ee` or `rdd`.
    pub max_ee_rd_atom: c_int,
    /// Most incoming reads and atomics of all queue pairs together.
    pub max_res_rd_atom: c_int,
    /// Most outgoing reads and atomics per queue pair.
    pub max_qp_init_rd_atom: c_int,
    /// For reliable datagrams.
    pub max_ee_init_rd_atom: c_int,
    /// `enum ibv_atomic_cap`.
    pub atomic_cap: c_uint,
    /// For reliable datagrams.
    pub max_ee: c_int,
    /// For reliable datagrams.
    pub max_rdd: c_int,
    /// Most memory windows.
    pub max_mw: c_int,
    /// Most raw IPv6 queue pairs.
    pub max_raw_ipv6_qp: c_int,
    /// Most raw Ethertype queue pairs.
    pub max_raw_ethy_qp: c_int,
    /// Most multicast groups.
    pub max_mcast_grp: c_int,
    /// Most queue pairs per multicast group.
    pub max_mcast_qp_attach: c_int,
    /// Most attached queue pairs of all multicast groups together.
    pub max_total_mcast_qp_attach: c_int,
    /// Most address handles.
    pub max_ah: c_int,
    /// Most fast memory regions.
    pub max_fmr: c_int,
    /// Most mappings per fast memory region.
    pub max_map_per_fmr: c_int,
    /// Most shared receive queues.
    pub max_srq: c_int,
    /// Most requests per shared receive queue.
    pub max_srq_wr: c_int,
    /// Most scatter/gather entries per shared receive request.
    pub max_srq_sge: c_int,
    /// Most partitions.
    pub max_pkeys: u16,
    /// Acknowledgement delay, as an exponent.
    pub local_ca_ack_delay: u8,
    /// Number of ports.
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PortAttr {
    /// `enum ibv_port_state`.
    pub state: c_uint,
    /// Largest MTU, as `enum ibv_mtu`: 1 for 256 bytes to 5 for 4096.
    pub max_mtu: c_uint,
    /// MTU in use.
    pub active_mtu: c_uint,
    /// Entries of the GID table.
    pub gid_tbl_len: c_int,
    /// `enum ibv_port_cap_flags`.
    pub port_cap_flags: u32,
    /// Largest message, bytes.
    pub max_msg_sz: u32,
    /// Counter of invalid partition keys.
    pub bad_pkey_cntr: u32,
    /// Counter of invalid queue keys.
    pub qkey_viol_cntr: u32,
    /// Entries of the partition key table.
    pub pkey_tbl_len: u16,
    /// LID; 0 on Ethernet.
    pub lid: u16,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// Number of low bits of the LID that select a path.
    pub lmc: u8,
    /// Most virtual lanes.
    pub max_vl_num: u8,
    /// Service level to the subnet manager.
    pub sm_sl: u8,
    /// Subnet timeout, as an exponent.
    pub subnet_timeout: u8,
    /// Initialisation type, as reported by the subnet manager.
    pub init_type_reply: u8,
    /// Number of lanes, as one bit: 1, 4, 8, 12, 2.
    pub active_width: u8,
    /// Speed of a lane, as one bit.
    pub active_speed: u8,
    /// Physical state of the port.
    pub phys_state: u8,
    /// `LINK_LAYER_INFINIBAND` or `LINK_LAYER_ETHERNET`.
    pub link_layer: u8,
    /// `IBV_QPF_GRH_REQUIRED` and others.
    pub flags: u8,
    /// Further capabilities.
    pub port_cap_flags2: u16,
}

/// `struct ibv_port_attr` of newer versions of rdma-core, which append a field. An older library writes only the
/// fields that it has, so the caller zeroes the structure first.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PortAttrEx {
    /// The attributes of older versions.
    pub attr: PortAttr,
    /// Speed of a lane, as one bit, if `active_speed` cannot represent it (XDR is 256). Otherwise 0.
    pub active_speed_ex: u32,
}

// The field directly follows the older attributes, as a C compiler places it.
const _: () = assert!(
    core::mem::offset_of!(PortAttrEx, active_speed_ex) == 52 && core::mem::size_of::<PortAttrEx>() == 56
);

/// `union ibv_gid`: sixteen bytes in network byte order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C, align(8))]
pub struct Gid {
    /// An IPv6 address, or a subnet prefix and an interface identifier.
    pub raw: [u8; 16],
}

/// `struct ibv_gid_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Index in the GID table.
    pub gid_index: u32,
    /// Number of the port.
    pub port_num: u32,
    /// `GID_TYPE_IB`, `GID_TYPE_ROCE_V1`, `GID_TYPE_ROCE_V2`.
    pub gid_type: u32,
    /// Index of the network interface that it belongs to.
    pub ndev_ifindex: u32,
}

const _: () = {
    assert!(size_of::<Device>() == 664);
    assert!(offset_of!(Device, name) == 24);
    assert!(size_of::<DeviceAttr>() == 232);
    assert!(offset_of!(DeviceAttr, max_qp) == 108);
    assert!(size_of::<PortAttr>() == 52);
    assert!(offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<GidEntry>() == 32);
};
