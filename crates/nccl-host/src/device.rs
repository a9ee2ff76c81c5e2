//! Selects the device of a rank: one of the plugin, or one that the plugin fuses of several.
//!
//! Called by `rank` after the first init of a process, as NCCL fuses NICs once per process. It fuses only on request.

use std::ffi::c_int;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::abi::PluginCallError;
use crate::comm::PluginContext;
use crate::properties::NetProperties;

/// The oldest version with `makeVDevice`.
const FUSES_SINCE: u8 = 9;

/// The device of a run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DeviceSelection {
    /// The device of this number.
    Number(i32),
    /// The devices of these numbers, fused to one by `makeVDevice`.
    Fused(Vec<i32>),
    /// All devices, fused to one.
    FusedAll,
}

/// The selected device does not exist, or cannot be made.
#[derive(Debug, Error)]
pub(crate) enum SelectDeviceError {
    #[error(
        "the plugin offers no device, and its log has the reason; Trunkline's uses the software NIC with TRUNKLINE_FABRIC=soft, RDMA devices with =verbs"
    )]
    None,
    #[error("device {device} does not exist: the plugin has {count}")]
    Missing { device: i32, count: i32 },
    #[error(
        "version {version} of the plugin interface cannot fuse devices; versions {FUSES_SINCE} to 12 can"
    )]
    Version { version: u8 },
    #[error("devices {} cannot be fused: {source}", format_numbers(.members))]
    Fuse { members: Vec<i32>, source: PluginCallError },
    #[error(transparent)]
    Call(#[from] PluginCallError),
}

/// Formats numbers for a message.
fn format_numbers(numbers: &[i32]) -> String {
    let texts: Vec<String> = numbers.iter().map(i32::to_string).collect();
    texts.join(", ")
}

/// Returns the number of the device to use, and its properties. A fused device is made here. The plugin must then
/// count one device more than before, or the same number if the device existed, and report the requested members.
pub(crate) fn choose_device(
    net: &PluginContext,
    device: &DeviceSelection,
) -> Result<(c_int, NetProperties), SelectDeviceError> {
    let plugin = net.plugin();
    let count = plugin.devices()?;
    if count == 0 {
        return Err(SelectDeviceError::None);
    }
    let members = match device {
        DeviceSelection::Number(number) => vec![*number],
        DeviceSelection::Fused(members) => members.clone(),
        DeviceSelection::FusedAll => (0..count).collect(),
    };
    if let Some(&missing) = members.iter().find(|member| !(0..count).contains(*member)) {
        return Err(SelectDeviceError::Missing { device: missing, count });
    }
    if let DeviceSelection::Number(number) = device {
        return Ok((*number, plugin.properties(*number)?));
    }
    if plugin.version() < FUSES_SINCE {
        return Err(SelectDeviceError::Version { version: plugin.version() });
    }
    match fuse_devices(net, &members) {
        Ok(made) => Ok(made),
        Err(source) => Err(SelectDeviceError::Fuse { members, source }),
    }
}

fn fuse_devices(net: &PluginContext, members: &[i32]) -> Result<(c_int, NetProperties), PluginCallError> {
    let plugin = net.plugin();
    let made = net.make_v_device(members)?;
    let broken = |what| Err(PluginCallError::Contract { call: "makeVDevice", what });
    if made < 0 || made >= plugin.devices()? {
        return broken("returned a number that is not below the count of devices");
    }
    let properties = plugin.properties(made)?;
    if properties.members != members {
        return broken("made a device whose properties have other members");
    }
    Ok((made, properties))
}
