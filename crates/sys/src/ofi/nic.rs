//! What a provider tells of the device under an [`Info`](super::Info), so that its place can be found.

use core::ffi::{c_char, c_uint, c_void};
use core::ptr;

use super::Fid;

/// `enum fi_bus_type`.
pub type BusType = c_uint;
/// `enum fi_link_state`.
pub type LinkState = c_uint;

/// `struct fid_nic`: a device. What is not known is NULL.
#[repr(C)]
pub struct FidNic {
    /// As any object.
    pub fid: Fid,
    /// What it is.
    pub device_attr: *mut DeviceAttr,
    /// Where it sits.
    pub bus_attr: *mut BusAttr,
    /// Its cable.
    pub link_attr: *mut LinkAttr,
    /// The provider's own.
    pub prov_attr: *mut c_void,
}

/// `struct fi_device_attr`: what a device is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceAttr {
    /// Its name.
    pub name: *mut c_char,
    /// Its kind.
    pub device_id: *mut c_char,
    /// Version of its hardware.
    pub device_version: *mut c_char,
    /// Its vendor.
    pub vendor_id: *mut c_char,
    /// Its driver.
    pub driver: *mut c_char,
    /// Version of its firmware.
    pub firmware: *mut c_char,
}

impl DeviceAttr {
    /// Nothing.
    pub const ZERO: Self = Self {
        name: ptr::null_mut(),
        device_id: ptr::null_mut(),
        device_version: ptr::null_mut(),
        vendor_id: ptr::null_mut(),
        driver: ptr::null_mut(),
        firmware: ptr::null_mut(),
    };
}

/// `struct fi_pci_attr`: a place on the PCI bus.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PciAttr {
    /// Domain.
    pub domain_id: u16,
    /// Bus.
    pub bus_id: u8,
    /// Device.
    pub device_id: u8,
    /// Function.
    pub function_id: u8,
}

impl PciAttr {
    /// Nothing.
    pub const ZERO: Self = Self { domain_id: 0, bus_id: 0, device_id: 0, function_id: 0 };
}

/// `struct fi_bus_attr`: where a device sits.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BusAttr {
    /// Kind of bus: [`BUS_PCI`], or nothing is known.
    pub bus_type: BusType,
    /// Place on it; a union, of which PCI is the only member.
    pub attr: PciAttr,
}

impl BusAttr {
    /// Nothing.
    pub const ZERO: Self = Self { bus_type: 0, attr: PciAttr::ZERO };
}

/// `struct fi_link_attr`: a cable.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LinkAttr {
    /// Its address, as text.
    pub address: *mut c_char,
    /// Bytes of a packet.
    pub mtu: usize,
    /// Bits a second.
    pub speed: usize,
    /// Whether it is up: [`LINK_UP`].
    pub state: LinkState,
    /// Kind of network.
    pub network_type: *mut c_char,
}

impl LinkAttr {
    /// Nothing.
    pub const ZERO: Self =
        Self { address: ptr::null_mut(), mtu: 0, speed: 0, state: 0, network_type: ptr::null_mut() };
}

/// `FI_BUS_PCI`.
pub const BUS_PCI: BusType = 1;
/// `FI_LINK_UNKNOWN`.
pub const LINK_UNKNOWN: LinkState = 0;
/// `FI_LINK_DOWN`.
pub const LINK_DOWN: LinkState = 1;
/// `FI_LINK_UP`.
pub const LINK_UP: LinkState = 2;
