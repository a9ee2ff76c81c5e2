//! Version 10 of the plugin interface seen as the newest. Adds the profiler and the traffic class.
//!
//! Called through `abi::Abi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v10::{NetV10, PropertiesV10, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr, VDeviceProps4};

use super::{Abi, CallError, RecvArgs};
use crate::properties::Properties;

/// A copy of the plugin's table.
struct Table(NetV10);

find_table!(NetV10, SYMBOL);

impl Abi for Table {
    shared_calls!(10, PropertiesV10);
    no_context_calls!();
    accept_v7!();
    reg_mr_v8!();
    messages_v10!();
    v_device!(VDeviceProps4);

    unsafe fn init(&self, _comm_id: u64, _config: *mut CommConfig) -> Result<*mut c_void, CallError> {
        call!(self.0, init, "init", (Some(crate::log::logger()), Some(crate::log::profiler())))
            .map(|()| std::ptr::null_mut())
    }

    unsafe fn connect(
        &self,
        _ctx: *mut c_void,
        dev: c_int,
        config: *mut CommConfig,
        handle: *mut c_void,
    ) -> Result<*mut c_void, CallError> {
        call_out!(self.0, connect, "connect", |out| (dev, config, handle, out, std::ptr::null_mut()))
    }
}
