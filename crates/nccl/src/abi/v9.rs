//! Version 9 of the net plugin interface. Sends and receives take `size_t`; fused NICs of up to 4 members.

use core::ffi::c_int;

use trunkline_sys::nccl_net::v9::{NetV9, PropertiesV9};
use trunkline_sys::nccl_net::{NET_DEVICE_HOST, ResultCode, VDeviceProps4};

use super::calls::{
    NAME, accept_v7, close, close_listen, connect_v9, dereg_mr, devices_v9, iflush, init_v6, irecv_v9,
    isend_v9, listen_v9, reg_mr_dma_buf, reg_mr_v8, test,
};
use crate::devices::KnownDevices;
use crate::plugin::DeviceProperties;

fn to_layout(p: DeviceProperties) -> PropertiesV9 {
    PropertiesV9 {
        name: p.name.cast_mut(),
        pci_path: p.pci_path.cast_mut(),
        guid: p.guid,
        ptr_support: p.ptr_support,
        reg_is_global: p.reg_is_global,
        force_flush: p.force_flush,
        speed: p.speed,
        port: p.port,
        latency: p.latency,
        max_comms: p.max_comms,
        max_recvs: p.max_recvs,
        net_device_type: NET_DEVICE_HOST,
        net_device_version: 0,
        v_props: VDeviceProps4 { ndevs: p.members.0, devs: p.members.1 },
        max_p2p_bytes: p.max_bytes,
        max_coll_bytes: p.max_bytes,
    }
}

unsafe extern "C" fn get_properties(dev: c_int, out: *mut PropertiesV9) -> ResultCode {
    // SAFETY: the caller passes a place for this version's properties.
    unsafe { super::calls::properties(dev, out, to_layout, KnownDevices::All) }
}

unsafe extern "C" fn make_v_device(dev: *mut c_int, members: *mut VDeviceProps4) -> ResultCode {
    let room = trunkline_sys::nccl_net::DEVS_PER_NIC_V11;
    let (count, devs) = if members.is_null() {
        (core::ptr::null(), core::ptr::null())
    } else {
        // SAFETY: not null, and NCCL passes this version's structure.
        let count = unsafe { &raw const (*members).ndevs };
        // SAFETY: as above.
        let devs = unsafe { &raw const (*members).devs };
        (count, devs.cast())
    };
    // SAFETY: both point into the structure, whose array has `room` members.
    unsafe { super::calls::make_v_device(dev, count, devs, room) }
}

/// The function table that NCCL finds by this name.
// SAFETY: the name belongs to the plugin interface of NCCL; no code of the process defines it for another purpose.
#[unsafe(no_mangle)]
static ncclNetPlugin_v9: NetV9 = NetV9 {
    name: NAME.as_ptr(),
    init: Some(init_v6),
    devices: Some(devices_v9),
    get_properties: Some(get_properties),
    listen: Some(listen_v9),
    connect: Some(connect_v9),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v8),
    reg_mr_dma_buf: Some(reg_mr_dma_buf),
    dereg_mr: Some(dereg_mr),
    isend: Some(isend_v9),
    irecv: Some(irecv_v9),
    iflush: Some(iflush),
    test: Some(test),
    close_send: Some(close),
    close_recv: Some(close),
    close_listen: Some(close_listen),
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: Some(make_v_device),
};
