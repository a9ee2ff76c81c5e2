//! Version 9 of the NCCL network plugin interface. Adds `size_t` messages, fused NICs and `forceFlush`.
//!
//! Read by the plugin that exports the table and by the host that loads it; calls no function.

use core::ffi::{CStr, c_char, c_int};
use core::mem::{offset_of, size_of};

use super::{
    AcceptV7, Close, ConnectV7, DeregMr, Devices, GetDeviceMr, GetProperties, Iflush, InitV6, IrecvConsumed,
    IrecvV9, IsendV9, ListenV6, MakeVDevice, RegMrDmaBuf, RegMrV8, Test, VDeviceProps4,
};

/// Name of the exported table.
pub const SYMBOL: &CStr = c"ncclNetPlugin_v9";

/// `ncclNetProperties_v9_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PropertiesV9 {
    /// Name of the device, mostly for logs.
    pub name: *mut c_char,
    /// Its directory in sysfs, NULL for a virtual device.
    pub pci_path: *mut c_char,
    /// Identity of the NIC chip; equal for the functions of one card.
    pub guid: u64,
    /// Memory kinds: bits `PTR_HOST`, `PTR_CUDA`, `PTR_DMABUF`.
    pub ptr_support: c_int,
    /// Whether a registration holds for every communicator.
    pub reg_is_global: c_int,
    /// Whether every receive needs a flush.
    pub force_flush: c_int,
    /// Port speed in Mbit/s.
    pub speed: c_int,
    /// Port number.
    pub port: c_int,
    /// Network latency in microseconds, 0 for the default.
    pub latency: f32,
    /// Most communicators on this device.
    pub max_comms: c_int,
    /// Most grouped receives.
    pub max_recvs: c_int,
    /// Kind of device offload, `NET_DEVICE_HOST` for none.
    pub net_device_type: c_int,
    /// Version of that offload.
    pub net_device_version: c_int,
    /// Members, when the device is a fused NIC.
    pub v_props: VDeviceProps4,
    /// Largest message of point-to-point operations.
    pub max_p2p_bytes: usize,
    /// Largest message of collective operations.
    pub max_coll_bytes: usize,
}

/// `ncclNet_v9_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetV9 {
    /// Name of the network, for logs and `NCCL_NET`.
    pub name: *const c_char,
    /// Starts the network.
    pub init: Option<InitV6>,
    /// Counts the devices.
    pub devices: Option<Devices>,
    /// Describes a device.
    pub get_properties: Option<GetProperties<PropertiesV9>>,
    /// Creates a listening object and the handle to connect to it.
    pub listen: Option<ListenV6>,
    /// Creates a sending communicator; NULL means call again.
    pub connect: Option<ConnectV7>,
    /// Creates a receiving communicator; NULL means call again.
    pub accept: Option<AcceptV7>,
    /// Registers memory.
    pub reg_mr: Option<RegMrV8>,
    /// Registers memory by its dma-buf descriptor.
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    /// Ends a registration.
    pub dereg_mr: Option<DeregMr>,
    /// Starts a send; a NULL request means call again.
    pub isend: Option<IsendV9>,
    /// Starts a receive; a NULL request means call again.
    pub irecv: Option<IrecvV9>,
    /// Starts a flush of received data; a NULL request means that no flush is needed.
    pub iflush: Option<Iflush>,
    /// Tests whether a request is complete.
    pub test: Option<Test>,
    /// Frees a sending communicator.
    pub close_send: Option<Close>,
    /// Frees a receiving communicator.
    pub close_recv: Option<Close>,
    /// Frees a listening object.
    pub close_listen: Option<Close>,
    /// Returns the device's handle of a registration; may be NULL.
    pub get_device_mr: Option<GetDeviceMr>,
    /// Marks a receive as consumed by the device; may be NULL.
    pub irecv_consumed: Option<IrecvConsumed>,
    /// Creates a fused NIC; may be NULL.
    pub make_v_device: Option<MakeVDevice<VDeviceProps4>>,
}

// SAFETY: a table is initialised before its symbol is visible, and only read afterwards; the name that it points
// to is a constant of the library that holds the table.
unsafe impl Send for NetV9 {}
// SAFETY: as above; concurrent readers need no lock, because there is no writer.
unsafe impl Sync for NetV9 {}

const _: () = assert!(size_of::<PropertiesV9>() == 104);
const _: () = assert!(size_of::<NetV9>() == 160);
const _: () = assert!(offset_of!(PropertiesV9, force_flush) == 32);
const _: () = assert!(offset_of!(PropertiesV9, v_props) == 64);
const _: () = assert!(offset_of!(PropertiesV9, max_p2p_bytes) == 88);
const _: () = assert!(offset_of!(PropertiesV9, max_coll_bytes) == 96);
const _: () = assert!(offset_of!(NetV9, isend) == 80);
