//! Version 11 of the plugin interface seen as the newest. A context for each communicator.
//!
//! Called through `abi::NetAbi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v11::{NetV11, PropertiesV11, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr, VDeviceProps4};

use super::{NetAbi, PluginCallError, RecvArgs};
use crate::properties::NetProperties;

/// A copy of the plugin's table.
struct Table(NetV11);

find_table!(NetV11, SYMBOL);

impl NetAbi for Table {
    shared_calls!(11, PropertiesV11);
    context_calls!();
    accept_v7!();
    reg_mr_v8!();
    messages_v10!();
    v_device!(VDeviceProps4);
}
