//! Version 6 of the plugin interface seen as the newest. Like 7, without device handles.
//!
//! Called through `abi::NetAbi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v6::{NetV6, PropertiesV6, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr};

use super::{NetAbi, PluginCallError, RecvArgs};
use crate::properties::NetProperties;

/// A copy of the plugin's table.
struct Table(NetV6);

find_table!(NetV6, SYMBOL);

impl NetAbi for Table {
    shared_calls!(6, PropertiesV6);
    init_plain!();
    no_context_calls!();
    reg_mr_v6!();
    messages_v6!();
    no_v_device!();

    unsafe fn connect(
        &self,
        _ctx: *mut c_void,
        dev: c_int,
        _config: *mut CommConfig,
        handle: *mut c_void,
    ) -> Result<*mut c_void, PluginCallError> {
        call_out!(self.0, connect, "connect", |out| (dev, handle, out))
    }

    unsafe fn accept(&self, listen_comm: *mut c_void) -> Result<*mut c_void, PluginCallError> {
        call_out!(self.0, accept, "accept", |out| (listen_comm, out))
    }
}
