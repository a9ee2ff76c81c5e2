//! Properties of a device, in the shape of the newest version of the interface.
//!
//! Built by `abi` from the plugin's properties; fields that an older version lacks get the values that NCCL uses.

use std::ffi::{CStr, c_char};

use trunkline_sys::nccl_net::v6::PropertiesV6;
use trunkline_sys::nccl_net::v7::PropertiesV7;
use trunkline_sys::nccl_net::v8::PropertiesV8;
use trunkline_sys::nccl_net::v9::PropertiesV9;
use trunkline_sys::nccl_net::v10::PropertiesV10;
use trunkline_sys::nccl_net::v11::PropertiesV11;
use trunkline_sys::nccl_net::v12::PropertiesV12;
use trunkline_sys::nccl_net::{NET_DEVICE_HOST, NET_ID_UNDEF, NET_SIZE_BYTES_V8};

/// The properties of one device.
#[derive(Clone, Debug)]
pub struct NetProperties {
    /// Name of the device.
    pub name: String,
    /// Directory in sysfs, if the device has one.
    pub pci_path: Option<String>,
    /// Identity of the NIC chip.
    pub guid: u64,
    /// Bits of the memory kinds that can be registered.
    pub ptr_support: i32,
    /// Whether a registration is valid for every communicator.
    pub reg_is_global: bool,
    /// Whether every receive needs a flush.
    pub force_flush: bool,
    /// Port speed in Mbit/s.
    pub speed: i32,
    /// Port number.
    pub port: i32,
    /// Latency in microseconds, 0 for the default.
    pub latency: f32,
    /// Communicators, at most.
    pub max_comms: i32,
    /// Grouped receives, at most.
    pub max_recvs: i32,
    /// Kind of device offload.
    pub net_device_type: i32,
    /// Version of that offload.
    pub net_device_version: i32,
    /// Member devices.
    pub members: Vec<i32>,
    /// Largest message of point-to-point operations.
    pub max_p2p_bytes: usize,
    /// Largest message of collective operations.
    pub max_coll_bytes: usize,
    /// Requests of one multi-request, at most.
    pub max_multi_request_size: i32,
    /// Rail, -1 for none.
    pub rail_id: i16,
    /// Plane, -1 for none.
    pub plane_id: i16,
}

impl Default for NetProperties {
    fn default() -> Self {
        Self {
            name: String::new(),
            pci_path: None,
            guid: 0,
            ptr_support: 0,
            reg_is_global: false,
            force_flush: false,
            speed: 0,
            port: 0,
            latency: 0.0,
            max_comms: 0,
            max_recvs: 1,
            net_device_type: NET_DEVICE_HOST,
            net_device_version: 0,
            members: Vec::new(),
            max_p2p_bytes: NET_SIZE_BYTES_V8,
            max_coll_bytes: NET_SIZE_BYTES_V8,
            max_multi_request_size: 1,
            rail_id: NET_ID_UNDEF,
            plane_id: NET_ID_UNDEF,
        }
    }
}

/// Copies a C string of the plugin; NULL becomes `None`.
fn copy_text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: by the contract of getProperties, strings are NUL-terminated and valid while the plugin is loaded.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// Returns the members of a fused NIC that are in use.
fn used_members(ndevs: i32, devs: &[i32]) -> Vec<i32> {
    let count = usize::try_from(ndevs).unwrap_or(0).min(devs.len());
    devs.iter().copied().take(count).collect()
}

impl From<&PropertiesV6> for NetProperties {
    fn from(p: &PropertiesV6) -> Self {
        Self {
            name: copy_text(p.name).unwrap_or_default(),
            pci_path: copy_text(p.pci_path),
            guid: p.guid,
            ptr_support: p.ptr_support,
            speed: p.speed,
            port: p.port,
            latency: p.latency,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            ..Self::default()
        }
    }
}

impl From<&PropertiesV7> for NetProperties {
    fn from(p: &PropertiesV7) -> Self {
        Self {
            name: copy_text(p.name).unwrap_or_default(),
            pci_path: copy_text(p.pci_path),
            guid: p.guid,
            ptr_support: p.ptr_support,
            speed: p.speed,
            port: p.port,
            latency: p.latency,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            net_device_type: p.net_device_type,
            net_device_version: p.net_device_version,
            ..Self::default()
        }
    }
}

impl From<&PropertiesV8> for NetProperties {
    fn from(p: &PropertiesV8) -> Self {
        Self {
            name: copy_text(p.name).unwrap_or_default(),
            pci_path: copy_text(p.pci_path),
            guid: p.guid,
            ptr_support: p.ptr_support,
            reg_is_global: p.reg_is_global != 0,
            speed: p.speed,
            port: p.port,
            latency: p.latency,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            net_device_type: p.net_device_type,
            net_device_version: p.net_device_version,
            ..Self::default()
        }
    }
}

impl From<&PropertiesV9> for NetProperties {
    fn from(p: &PropertiesV9) -> Self {
        Self {
            name: copy_text(p.name).unwrap_or_default(),
            pci_path: copy_text(p.pci_path),
            guid: p.guid,
            ptr_support: p.ptr_support,
            reg_is_global: p.reg_is_global != 0,
            force_flush: p.force_flush != 0,
            speed: p.speed,
            port: p.port,
            latency: p.latency,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            net_device_type: p.net_device_type,
            net_device_version: p.net_device_version,
            members: used_members(p.v_props.ndevs, &p.v_props.devs),
            max_p2p_bytes: p.max_p2p_bytes,
            max_coll_bytes: p.max_coll_bytes,
            ..Self::default()
        }
    }
}

impl From<&PropertiesV10> for NetProperties {
    fn from(p: &PropertiesV10) -> Self {
        Self {
            name: copy_text(p.name).unwrap_or_default(),
            pci_path: copy_text(p.pci_path),
            guid: p.guid,
            ptr_support: p.ptr_support,
            reg_is_global: p.reg_is_global != 0,
            force_flush: p.force_flush != 0,
            speed: p.speed,
            port: p.port,
            latency: p.latency,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            net_device_type: p.net_device_type,
            net_device_version: p.net_device_version,
            members: used_members(p.v_props.ndevs, &p.v_props.devs),
            max_p2p_bytes: p.max_p2p_bytes,
            max_coll_bytes: p.max_coll_bytes,
            ..Self::default()
        }
    }
}

impl From<&PropertiesV11> for NetProperties {
    fn from(p: &PropertiesV11) -> Self {
        Self {
            name: copy_text(p.name).unwrap_or_default(),
            pci_path: copy_text(p.pci_path),
            guid: p.guid,
            ptr_support: p.ptr_support,
            reg_is_global: p.reg_is_global != 0,
            force_flush: p.force_flush != 0,
            speed: p.speed,
            port: p.port,
            latency: p.latency,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            net_device_type: p.net_device_type,
            net_device_version: p.net_device_version,
            members: used_members(p.v_props.ndevs, &p.v_props.devs),
            max_p2p_bytes: p.max_p2p_bytes,
            max_coll_bytes: p.max_coll_bytes,
            max_multi_request_size: p.max_multi_request_size,
            ..Self::default()
        }
    }
}

impl From<&PropertiesV12> for NetProperties {
    fn from(p: &PropertiesV12) -> Self {
        Self {
            name: copy_text(p.name).unwrap_or_default(),
            pci_path: copy_text(p.pci_path),
            guid: p.guid,
            ptr_support: p.ptr_support,
            reg_is_global: p.reg_is_global != 0,
            force_flush: p.force_flush != 0,
            speed: p.speed,
            port: p.port,
            latency: p.latency,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            net_device_type: p.net_device_type,
            net_device_version: p.net_device_version,
            members: used_members(p.v_props.ndevs, &p.v_props.devs),
            max_p2p_bytes: p.max_p2p_bytes,
            max_coll_bytes: p.max_coll_bytes,
            max_multi_request_size: p.max_multi_request_size,
            rail_id: p.rail_id,
            plane_id: p.plane_id,
        }
    }
}
