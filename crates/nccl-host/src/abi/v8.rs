//! Version 8 of the plugin interface seen as the newest. Registrations have `size_t` sizes.
//!
//! Called through `abi::NetAbi` only.

use std::ffi::{c_int, c_void};

use trunkline_sys::nccl_net::v8::{NetV8, PropertiesV8, SYMBOL};
use trunkline_sys::nccl_net::{CommConfig, NetAttr};

use super::{NetAbi, PluginCallError, RecvArgs};
use crate::properties::NetProperties;

/// A copy of the plugin's table.
struct Table(NetV8);

find_table!(NetV8, SYMBOL);

impl NetAbi for Table {
    shared_calls!(8, PropertiesV8);
    init_plain!();
    no_context_calls!();
    connect_v7!();
    accept_v7!();
    reg_mr_v8!();
    messages_v6!();
    no_v_device!();
}
