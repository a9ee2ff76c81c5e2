//! Version 12 of the plugin interface seen as the newest. Rails, planes, and fused NICs of up to 8 devices.
//!
//! Called through `abi::NetAbi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v12::{NetV12, PropertiesV12, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr, VDeviceProps8};

use super::{NetAbi, PluginCallError, RecvArgs};
use crate::properties::NetProperties;

/// A copy of the plugin's table.
struct Table(NetV12);

find_table!(NetV12, SYMBOL);

impl NetAbi for Table {
    shared_calls!(12, PropertiesV12);
    context_calls!();
    accept_v7!();
    reg_mr_v8!();
    messages_v10!();
    v_device!(VDeviceProps8);
}
