//! Version 6 of the NCCL network plugin interface, the oldest that is supported.
//!
//! Read by the plugin that exports the table and by the host that loads it; calls no function.

use core::ffi::{CStr, c_char, c_int};
use core::mem::{offset_of, size_of};

use super::{
    AcceptV6, Close, ConnectV6, DeregMr, Devices, GetProperties, Iflush, InitV6, IrecvV6, IsendV6, ListenV6,
    RegMrDmaBuf, RegMrV6, Test,
};

/// Name of the exported table.
pub const SYMBOL: &CStr = c"ncclNetPlugin_v6";

/// `ncclNetProperties_v6_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PropertiesV6 {
    /// Name of the device, mostly for logs.
    pub name: *mut c_char,
    /// Its directory in sysfs, NULL for a virtual device.
    pub pci_path: *mut c_char,
    /// Identity of the NIC chip; equal for the functions of one card.
    pub guid: u64,
    /// Memory kinds: bits `PTR_HOST`, `PTR_CUDA`, `PTR_DMABUF`.
    pub ptr_support: c_int,
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
}

/// `ncclNet_v6_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NetV6 {
    /// Name of the network, for logs and `NCCL_NET`.
    pub name: *const c_char,
    /// Starts the network.
    pub init: Option<InitV6>,
    /// Counts the devices.
    pub devices: Option<Devices>,
    /// Describes a device.
    pub get_properties: Option<GetProperties<PropertiesV6>>,
    /// Creates a listening object and the handle to connect to it.
    pub listen: Option<ListenV6>,
    /// Creates a sending communicator; NULL means call again.
    pub connect: Option<ConnectV6>,
    /// Creates a receiving communicator; NULL means call again.
    pub accept: Option<AcceptV6>,
    /// Registers memory.
    pub reg_mr: Option<RegMrV6>,
    /// Registers memory by its dma-buf descriptor.
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    /// Ends a registration.
    pub dereg_mr: Option<DeregMr>,
    /// Starts a send; a NULL request means call again.
    pub isend: Option<IsendV6>,
    /// Starts a receive; a NULL request means call again.
    pub irecv: Option<IrecvV6>,
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
}

// SAFETY: a table is initialised before its symbol is visible, and only read afterwards; the name that it points
// to is a constant of the library that holds the table.
unsafe impl Send for NetV6 {}
// SAFETY: as above; concurrent readers need no lock, because there is no writer.
unsafe impl Sync for NetV6 {}

const _: () = assert!(size_of::<PropertiesV6>() == 48);
const _: () = assert!(size_of::<NetV6>() == 136);
const _: () = assert!(offset_of!(PropertiesV6, ptr_support) == 24);
const _: () = assert!(offset_of!(PropertiesV6, latency) == 36);
const _: () = assert!(offset_of!(PropertiesV6, max_recvs) == 44);
const _: () = assert!(offset_of!(NetV6, isend) == 80);
