//! Version 9 of the plugin interface seen as the newest. Messages have `size_t` sizes.
//!
//! Called through `abi::NetAbi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v9::{NetV9, PropertiesV9, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr, VDeviceProps4};

use super::{NetAbi, PluginCallError, RecvArgs};
use crate::properties::NetProperties;

/// A copy of the plugin's table.
struct Table(NetV9);

find_table!(NetV9, SYMBOL);

impl NetAbi for Table {
    shared_calls!(9, PropertiesV9);
    init_plain!();
    no_context_calls!();
    connect_v7!();
    accept_v7!();
    reg_mr_v8!();
    v_device!(VDeviceProps4);

    unsafe fn isend(
        &self,
        comm: *mut c_void,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Result<(), PluginCallError> {
        call!(self.0, isend, "isend", (comm, data, size, tag, mhandle, request))
    }

    unsafe fn irecv(
        &self,
        comm: *mut c_void,
        args: RecvArgs,
        request: *mut *mut c_void,
    ) -> Result<(), PluginCallError> {
        let RecvArgs { n, data, sizes, tags, mhandles, phandles: _ } = args;
        call!(self.0, irecv, "irecv", (comm, n, data, sizes, tags, mhandles, request))
    }
}
