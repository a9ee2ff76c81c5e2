//! The configurations of fabrics, from the parameters and from the variables that users of NCCL know. It opens
//! nothing.

use std::net::IpAddr;

use trunkline_engine::{EngineParams, FabricName, SoftCopy};
use trunkline_ofi::OfiConfig;
use trunkline_settings::SettingErrors;
use trunkline_settings::rows::{network, rdma};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, WireMode};
use trunkline_verbs::{HcaFilter, VerbsConfig};

use crate::{ChooseError, ProcessSettings};

/// Returns the choice of RDMA devices, from the settings that users of NCCL know, or the device that `TRUNKLINE_FABRIC` names.
///
/// # Errors
/// [`SettingErrors`]: all settings with invalid values.
pub fn verbs_config(settings: &ProcessSettings) -> Result<VerbsConfig, SettingErrors> {
    let params = &settings.params;
    let mut config = VerbsConfig::from_settings(settings.setting_values())?;
    if let Some(device) = &params.device {
        config.hca = HcaFilter::parse(&format!("={device}")).or_else(|error| {
            let mut reader = settings.setting_values().reader();
            reader.reject(&network::FABRIC, format!("verbs:DEVICE or verbs:DEVICE:PORT; {error}"));
            reader.finish(HcaFilter::default())
        })?;
    }
    // The depth covers the queues of shared connections. A device with a smaller limit is found here as well.
    let wanted = params.depth.saturating_mul(params.sharing.depth_multiplier.into());
    config.depth = config.depth.max(wanted);
    Ok(config)
}

/// Returns the configuration of libfabric.
///
/// # Errors
/// [`SettingErrors`]: all settings with invalid values.
pub fn ofi_config(settings: &ProcessSettings) -> Result<OfiConfig, SettingErrors> {
    let ofi = &settings.params.ofi;
    let mut reader = settings.setting_values().reader();
    let config = OfiConfig {
        // Of NCCL's InfiniBand variables only this one applies to every fabric.
        skips_flushes: reader.switch(&rdma::GDR_FLUSH_DISABLE),
        provider: ofi.provider.clone(),
        library: ofi.library.clone().map(Into::into),
        copies: ofi.nics,
        domain: ofi.domain.clone(),
    };
    reader.finish(config)
}

/// Returns the software NIC's configuration: one NIC per address, unless a number was requested.
#[must_use]
pub fn soft_config(params: &EngineParams, addresses: Vec<IpAddr>) -> SoftConfig {
    let soft = &params.soft;
    let usual = SoftConfig::default();
    let or = |asked: u32, usual: u32| if asked > 0 { asked } else { usual };
    let nics = if soft.nics > 0 { soft.nics as usize } else { addresses.len().max(1) };
    SoftConfig {
        nics,
        speeds_mbps: interface_speeds(&addresses, nics),
        addresses,
        max_qp: or(soft.max_qp, usual.max_qp),
        pipelines: or(soft.pipelines, usual.pipelines),
        max_mr: or(soft.max_mr, usual.max_mr),
        copy: match soft.copy {
            SoftCopy::Auto => CopyMode::Auto,
            SoftCopy::Staging => CopyMode::Staging,
            SoftCopy::Pull => CopyMode::Pull,
            SoftCopy::Share => CopyMode::Share,
        },
        wire: match params.fabric {
            FabricName::Auto | FabricName::Soft | FabricName::Verbs | FabricName::Ofi => WireMode::Auto,
            FabricName::SoftShm => WireMode::Shm,
            FabricName::SoftTcp => WireMode::Tcp,
        },
        delayed_visibility: soft.delayed,
        takes_dmabufs: soft.takes_dmabufs,
        ..usual
    }
}

/// Returns the speeds of software NICs: those of their interfaces. An interface that the kernel does not list any
/// more has an unknown speed.
fn interface_speeds(addresses: &[IpAddr], nics: usize) -> Vec<u32> {
    let all =
        if addresses.is_empty() { Vec::new() } else { trunkline_topo::list_interfaces().unwrap_or_default() };
    trunkline_topo::share_speeds(&all, addresses, nics)
}

/// Returns the software NIC that connects processes of this host, if it is requested beside another fabric.
///
/// # Errors
/// [`ChooseError::Soft`]; [`ChooseError::NearTcp`].
pub fn near_fabric(params: &EngineParams) -> Result<Option<SoftFabric>, ChooseError> {
    match params.fabric {
        _ if !params.near => Ok(None),
        FabricName::SoftTcp => Err(ChooseError::NearTcp),
        FabricName::Auto | FabricName::Soft | FabricName::SoftShm | FabricName::Verbs | FabricName::Ofi => {
            let config = SoftConfig { nics: 1, wire: WireMode::Auto, ..soft_config(params, Vec::new()) };
            Ok(Some(SoftFabric::new(config)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use trunkline_fabric::Fabric as _;

    use super::*;

    /// The loopback interface has no speed: its driver does not report one.
    #[test]
    fn soft_nics_divide_the_speed_of_their_interface() {
        let params = EngineParams::default();
        let reported = |nics: u32, addresses: Vec<IpAddr>| {
            let mut params = params.clone();
            params.soft.nics = nics;
            let fabric = SoftFabric::new(soft_config(&params, addresses)).unwrap();
            fabric.nics().iter().map(|nic| nic.speed_mbps).collect::<Vec<_>>()
        };
        let loopback = || vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
        assert_eq!(reported(0, loopback()), [10_000]);
        assert_eq!(reported(4, loopback()), [2_500; 4]);
        assert_eq!(reported(2, Vec::new()), [10_000; 2], "no interface limits memory of this host");
    }
}
