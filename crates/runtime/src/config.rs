//! The configurations of fabrics, from the parameters and from the variables that users of NCCL know. It opens
//! nothing.

use std::net::IpAddr;

use trunkline_engine::{EngineParams, FabricName, SoftCopy};
use trunkline_ofi::OfiConfig;
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, WireMode};
use trunkline_verbs::{HcaFilter, VerbsConfig, VerbsConfigError};

use crate::ChooseError;

/// Returns the choice of RDMA devices, from the variables that users of NCCL know, or the device that a parameter
/// names.
///
/// # Errors
/// [`VerbsConfigError`] names the variable.
pub fn verbs_config(params: &EngineParams) -> Result<VerbsConfig, VerbsConfigError> {
    let mut config = VerbsConfig::read(|name| std::env::var(name).ok())?;
    if let Some(device) = &params.device {
        config.hca = HcaFilter::parse(&format!("={device}"))?;
    }
    // The depth covers the queues of shared connections. A device with a smaller limit is found here as well.
    let wanted = params.depth.saturating_mul(params.sharing.depth_multiplier.into());
    config.depth = config.depth.max(wanted);
    Ok(config)
}

/// Returns the configuration of libfabric.
///
/// # Errors
/// [`VerbsConfigError`] names the variable.
pub fn ofi_config(params: &EngineParams) -> Result<OfiConfig, VerbsConfigError> {
    let ofi = &params.ofi;
    // Of NCCL's InfiniBand variables only this one applies to every fabric.
    let flush = |name: &str| std::env::var(name).ok().filter(|_| name.ends_with("_GDR_FLUSH_DISABLE"));
    Ok(OfiConfig {
        skips_flushes: !VerbsConfig::read(flush)?.device_flush,
        provider: ofi.provider.clone(),
        library: ofi.library.clone().map(Into::into),
        copies: ofi.nics,
        domain: ofi.domain.clone(),
    })
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
        let params = crate::params_or(&[]).unwrap();
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
