//! Version 7 of the net plugin interface. Adds device handles, which stay unused: the host drives the network.

use core::ffi::c_int;

use trunkline_sys::nccl_net::v7::{NetV7, PropertiesV7};
use trunkline_sys::nccl_net::{NET_DEVICE_HOST, ResultCode};

use super::calls::{
    NAME, accept_v7, close, close_listen, connect_v7, dereg_mr, devices_v6, iflush, init_v6, irecv_v6,
    isend_v6, listen_v6, reg_mr_dma_buf, reg_mr_v6, test,
};
use crate::devices::KnownDevices;
use crate::plugin::DeviceProperties;

fn to_layout(p: DeviceProperties) -> PropertiesV7 {
    PropertiesV7 {
        name: p.name.cast_mut(),
        pci_path: p.pci_path.cast_mut(),
        guid: p.guid,
        ptr_support: p.ptr_support,
        speed: p.speed,
        port: p.port,
        latency: p.latency,
        max_comms: p.max_comms,
        max_recvs: p.max_recvs,
        net_device_type: NET_DEVICE_HOST,
        net_device_version: 0,
    }
}

unsafe extern "C" fn get_properties(dev: c_int, out: *mut PropertiesV7) -> ResultCode {
    // SAFETY: the caller passes a place for this version's properties.
    unsafe { super::calls::properties(dev, out, to_layout, KnownDevices::Physical) }
}

/// The function table that NCCL finds by this name.
// SAFETY: the name belongs to the plugin interface of NCCL; no code of the process defines it for another purpose.
#[unsafe(no_mangle)]
static ncclNetPlugin_v7: NetV7 = NetV7 {
    name: NAME.as_ptr(),
    init: Some(init_v6),
    devices: Some(devices_v6),
    get_properties: Some(get_properties),
    listen: Some(listen_v6),
    connect: Some(connect_v7),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v6),
    reg_mr_dma_buf: Some(reg_mr_dma_buf),
    dereg_mr: Some(dereg_mr),
    isend: Some(isend_v6),
    irecv: Some(irecv_v6),
    iflush: Some(iflush),
    test: Some(test),
    close_send: Some(close),
    close_recv: Some(close),
    close_listen: Some(close_listen),
    get_device_mr: None,
    irecv_consumed: None,
};
