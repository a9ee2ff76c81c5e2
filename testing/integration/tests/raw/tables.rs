//! The table of each version, composed of shapes.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use libloading::os::unix::Library;
use trunkline_sys::nccl_net::{
    CommConfig, DeviceHandle, Logger, NetAttr, ResultCode, TRAFFIC_CLASS_UNDEF, VDeviceProps4, VDeviceProps8,
};
use trunkline_sys::nccl_net::{v6, v7, v8, v9, v10, v11, v12};

use super::{Group, Opaque, Props, Raw, places, table};

impl Raw for v6::NetV6 {
    same_shape!(6, v6::PropertiesV6, |p| {});
    init_shape!(plain);
    listen_shape!(plain);
    connect_shape!(|table, _ctx, dev, handle, comm, _device| through!(table, connect, dev, handle, comm));
    accept_shape!(plain);
    reg_shape!(c_int);
    message_shape!(c_int);
    members_shape!(none);
    end_shape!(none);
}

impl Raw for v7::NetV7 {
    same_shape!(7, v7::PropertiesV7, |p| { device_type: p.net_device_type });
    init_shape!(plain);
    listen_shape!(plain);
    connect_shape!(|table, _ctx, dev, handle, comm, device| through!(
        table, connect, dev, handle, comm, device
    ));
    accept_shape!(device);
    reg_shape!(c_int);
    message_shape!(c_int);
    members_shape!(none);
    end_shape!(none);
}

impl Raw for v8::NetV8 {
    same_shape!(8, v8::PropertiesV8, |p| {
        device_type: p.net_device_type,
        reg_is_global: p.reg_is_global,
    });
    init_shape!(plain);
    listen_shape!(plain);
    connect_shape!(|table, _ctx, dev, handle, comm, device| through!(
        table, connect, dev, handle, comm, device
    ));
    accept_shape!(device);
    reg_shape!(usize);
    message_shape!(c_int);
    members_shape!(none);
    end_shape!(none);
}

impl Raw for v9::NetV9 {
    same_shape!(9, v9::PropertiesV9, |p| {
        device_type: p.net_device_type,
        reg_is_global: p.reg_is_global,
        force_flush: p.force_flush,
        members: (p.v_props.ndevs, places(p.v_props.devs)),
        max_bytes: (p.max_p2p_bytes, p.max_coll_bytes),
    });
    init_shape!(plain);
    listen_shape!(plain);
    connect_shape!(|table, _ctx, dev, handle, comm, device| through!(
        table, connect, dev, handle, comm, device
    ));
    accept_shape!(device);
    reg_shape!(usize);
    message_shape!(usize);
    members_shape!(VDeviceProps4);
    end_shape!(none);
}

impl Raw for v10::NetV10 {
    same_shape!(10, v10::PropertiesV10, |p| {
        device_type: p.net_device_type,
        reg_is_global: p.reg_is_global,
        force_flush: p.force_flush,
        members: (p.v_props.ndevs, places(p.v_props.devs)),
        max_bytes: (p.max_p2p_bytes, p.max_coll_bytes),
    });
    init_shape!(profiled);
    listen_shape!(plain);
    connect_shape!(|table, _ctx, dev, handle, comm, device| through!(
        table,
        connect,
        dev,
        &mut CommConfig { traffic_class: TRAFFIC_CLASS_UNDEF },
        handle,
        comm,
        device
    ));
    accept_shape!(device);
    reg_shape!(usize);
    message_shape!(usize, null_mut());
    members_shape!(VDeviceProps4);
    end_shape!(none);
}

impl Raw for v11::NetV11 {
    same_shape!(11, v11::PropertiesV11, |p| {
        device_type: p.net_device_type,
        reg_is_global: p.reg_is_global,
        force_flush: p.force_flush,
        members: (p.v_props.ndevs, places(p.v_props.devs)),
        max_bytes: (p.max_p2p_bytes, p.max_coll_bytes),
        max_multi: p.max_multi_request_size,
    });
    init_shape!(context);
    listen_shape!(context);
    connect_shape!(|table, ctx, dev, handle, comm, device| through!(
        table, connect, ctx, dev, handle, comm, device
    ));
    accept_shape!(device);
    reg_shape!(usize);
    message_shape!(usize, null_mut());
    members_shape!(VDeviceProps4);
    end_shape!(context);
}

impl Raw for v12::NetV12 {
    same_shape!(12, v12::PropertiesV12, |p| {
        device_type: p.net_device_type,
        reg_is_global: p.reg_is_global,
        force_flush: p.force_flush,
        members: (p.v_props.ndevs, places(p.v_props.devs)),
        max_bytes: (p.max_p2p_bytes, p.max_coll_bytes),
        max_multi: p.max_multi_request_size,
    });
    init_shape!(context);
    listen_shape!(context);
    connect_shape!(|table, ctx, dev, handle, comm, device| through!(
        table, connect, ctx, dev, handle, comm, device
    ));
    accept_shape!(device);
    reg_shape!(usize);
    message_shape!(usize, null_mut());
    members_shape!(VDeviceProps8);
    end_shape!(context);
}

fn boxed<T: Raw + Copy + 'static>(library: &Library, symbol: &std::ffi::CStr) -> Option<Box<dyn Raw>> {
    // SAFETY: `find` pairs each symbol with its type.
    let found: T = unsafe { table(library, symbol) }?;
    Some(Box::new(found))
}

/// The table of a version.
pub(crate) fn find(library: &Library, version: u8) -> Option<Box<dyn Raw>> {
    match version {
        6 => boxed::<v6::NetV6>(library, v6::SYMBOL),
        7 => boxed::<v7::NetV7>(library, v7::SYMBOL),
        8 => boxed::<v8::NetV8>(library, v8::SYMBOL),
        9 => boxed::<v9::NetV9>(library, v9::SYMBOL),
        10 => boxed::<v10::NetV10>(library, v10::SYMBOL),
        11 => boxed::<v11::NetV11>(library, v11::SYMBOL),
        12 => boxed::<v12::NetV12>(library, v12::SYMBOL),
        _ => None,
    }
}
