//! A provider's description of the device of an [`Info`](super::Info), by which callers find its place in the host.

use core::ffi::{c_char, c_uint, c_void};
use core::ptr;

use super::Fid;

/// `enum fi_bus_type`.
pub type BusType = c_uint;
/// `enum fi_link_state`.
pub type LinkState = c_uint;

/// `struct fid_nic`: a device. Unknown attributes are NULL.
#[repr(C)]
pub struct FidNic {
    /// The part that all objects share.
    pub fid: Fid,
    /// Attributes of the device.
    pub device_attr: *mut DeviceAttr,
    /// Its place on the bus.
    pub bus_attr: *mut BusAttr,
    /// Attributes of its link.
    pub link_attr: *mut LinkAttr,
    /// Private to the provider.
    pub prov_attr: *mut c_void,
}

/// `struct fi_device_attr`: attributes of a device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceAttr {
    /// Its name.
    pub name: *mut c_char,
    /// Its model.
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
    /// All fields zero or null.
    pub const ZERO: Self = Self {
        name: ptr::null_mut(),
        device_id: ptr::null_mut(),
        device_version: ptr::null_mut(),
        vendor_id: ptr::null_mut(),
        driver: ptr::null_mut(),
        firmware: ptr::null_mut(),
    };
}

/// `struct fi_pci_attr`: an address on the PCI bus.
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
    /// All fields zero or null.
    pub const ZERO: Self = Self { domain_id: 0, bus_id: 0, device_id: 0, function_id: 0 };
}

/// `struct fi_bus_attr`: the place of a device on its bus.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BusAttr {
    /// Kind of bus: [`BUS_PCI`], or 0 if unknown.
    pub bus_type: BusType,
    /// Address on the bus; a union with PCI as its only member.
    pub attr: PciAttr,
}

impl BusAttr {
    /// All fields zero or null.
    pub const ZERO: Self = Self { bus_type: 0, attr: PciAttr::ZERO };
}

/// `struct fi_link_attr`: attributes of a link.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LinkAttr {
    /// Its address, as text.
    pub address: *mut c_char,
    /// Bytes of a packet.
    pub mtu: usize,
    /// Bits per second.
    pub speed: usize,
    /// State of the link: [`LINK_UP`].
    pub state: LinkState,
    /// Kind of network.
    pub network_type: *mut c_char,
}

impl LinkAttr {
    /// All fields zero or null.
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
