//! Version 10 of the plugin interface seen as the newest. Adds the profiler and the traffic class.
//!
//! Called through `abi::NetAbi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v10::{NetV10, PropertiesV10, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr, VDeviceProps4};

use super::{NetAbi, PluginCallError, RecvArgs};
use crate::properties::NetProperties;

/// A copy of the plugin's table.
struct Table(NetV10);

find_table!(NetV10, SYMBOL);

impl NetAbi for Table {
    shared_calls!(10, PropertiesV10);
    no_context_calls!();
    accept_v7!();
    reg_mr_v8!();
    messages_v10!();
    v_device!(VDeviceProps4);

    unsafe fn init(&self, _comm_id: u64, _config: *mut CommConfig) -> Result<*mut c_void, PluginCallError> {
        call!(self.0, init, "init", (Some(crate::log::plugin_logger()), Some(crate::log::plugin_profiler())))
            .map(|()| std::ptr::null_mut())
    }

    unsafe fn connect(
        &self,
        _ctx: *mut c_void,
        dev: c_int,
        config: *mut CommConfig,
        handle: *mut c_void,
    ) -> Result<*mut c_void, PluginCallError> {
        call_out!(self.0, connect, "connect", |out| (dev, config, handle, out, std::ptr::null_mut()))
    }
}
