//! Version 7 of the plugin interface seen as the newest. Sizes are `int` everywhere.
//!
//! Called through `abi::NetAbi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v7::{NetV7, PropertiesV7, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr};

use super::{NetAbi, PluginCallError, RecvArgs};
use crate::properties::NetProperties;

/// A copy of the plugin's table.
struct Table(NetV7);

find_table!(NetV7, SYMBOL);

impl NetAbi for Table {
    shared_calls!(7, PropertiesV7);
    init_plain!();
    no_context_calls!();
    connect_v7!();
    accept_v7!();
    reg_mr_v6!();
    messages_v6!();
    no_v_device!();
}
