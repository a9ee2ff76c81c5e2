//! Which fabrics there are on this host, and which one the plugin would take. Asked by `info`; opens devices, connects nothing.

use std::net::IpAddr;

use serde::Serialize;
use thiserror::Error;
use trunkline_engine::{FabricName, Params, SoftCopy};
use trunkline_fabric::{Fabric, Nic, OpenError};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, WireMode};
use trunkline_verbs::{ConfigError, HcaFilter, Missing, VerbsConfig, VerbsFabric};

use super::gpus::{self, GpuRow};

/// The fabric that was asked for cannot be used.
#[derive(Debug, Error)]
pub(crate) enum FabricError {
    /// The software NIC.
    #[error("fabric soft: {0}")]
    Soft(#[from] OpenError),
    /// A variable that chooses RDMA devices has a bad value.
    #[error(transparent)]
    Choice(#[from] ConfigError),
    /// There is no RDMA device.
    #[error("fabric verbs: {0}")]
    Verbs(#[from] Missing),
}

/// A fabric, present or not.
#[derive(Debug, Serialize)]
pub(super) struct FabricRow {
    pub(super) name: &'static str,
    present: bool,
    chosen: bool,
    pub(super) note: String,
}

impl FabricRow {
    pub(super) fn state(&self) -> &'static str {
        match (self.present, self.chosen) {
            (false, _) => "missing",
            (true, false) => "present",
            (true, true) => "in use",
        }
    }
}

/// The fabrics of this host.
pub(super) struct Found {
    soft: SoftFabric,
    verbs: Result<VerbsFabric, Missing>,
    /// Whether it is asked for by name, as it must be.
    asked: bool,
    /// Memory of GPUs.
    gpus: Vec<GpuRow>,
}

impl Found {
    pub(super) fn new(params: &Params, addresses: Vec<IpAddr>) -> Result<Self, FabricError> {
        let soft = SoftFabric::new(soft_config(params, addresses))?;
        let asked = params.fabric == FabricName::Verbs;
        let mut config = VerbsConfig::read(|name| std::env::var(name).ok())?;
        if let Some(device) = &params.device {
            config.hca = HcaFilter::parse(&format!("={device}"))?;
        }
        match VerbsFabric::new(config) {
            Err(missing) if asked => Err(missing.into()),
            Ok(verbs) if asked => {
                let (verbs, gpus) = gpus::meet(verbs);
                Ok(Self { soft, verbs: Ok(verbs), asked, gpus })
            }
            verbs => Ok(Self { soft, verbs, asked, gpus: gpus::in_software() }),
        }
    }

    /// The one in use, and its NICs.
    pub(super) fn chosen(&self) -> (&'static str, &[Nic]) {
        match &self.verbs {
            Ok(verbs) if self.asked => (verbs.name(), verbs.nics()),
            _ => (self.soft.name(), self.soft.nics()),
        }
    }

    /// Who reaches memory of GPUs, and why others do not.
    pub(super) fn gpus(&mut self) -> Vec<GpuRow> {
        std::mem::take(&mut self.gpus)
    }

    /// Most bytes that go inside a request of the software NIC.
    pub(super) fn soft_inline(&self) -> u64 {
        self.soft.nics().first().map_or(0, |nic| nic.caps.inline_max.into())
    }

    /// All of them, and what is known of them.
    pub(super) fn rows(&self) -> Vec<FabricRow> {
        let row = |name, present, chosen, note| FabricRow { name, present, chosen, note };
        let names = |nics: &[Nic]| nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>().join(", ");
        let verbs = match &self.verbs {
            Ok(_) if self.asked => "InfiniBand and RoCE".to_owned(),
            Ok(found) => format!("{}; taken by name: TRUNKLINE_FABRIC=verbs", names(found.nics())),
            Err(missing) => format!("InfiniBand and RoCE: {missing}"),
        };
        vec![
            row("soft", true, !self.asked, "the software NIC".to_owned()),
            row("verbs", self.verbs.is_ok(), self.asked, verbs),
            row(
                "ofi",
                false,
                false,
                "EFA, Slingshot and others by libfabric: not in this version".to_owned(),
            ),
        ]
    }
}

/// The software NIC as the plugin would make it: the same settings, the same limits. A test compares the two.
fn soft_config(params: &Params, addresses: Vec<IpAddr>) -> SoftConfig {
    let (soft, usual) = (&params.soft, SoftConfig::default());
    let or = |asked: u32, usual: u32| if asked > 0 { asked } else { usual };
    SoftConfig {
        nics: if soft.nics > 0 { soft.nics as usize } else { addresses.len().max(1) },
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
            FabricName::Auto | FabricName::Soft | FabricName::Verbs => WireMode::Auto,
            FabricName::SoftShm => WireMode::Shm,
            FabricName::SoftTcp => WireMode::Tcp,
        },
        delayed_visibility: soft.delayed,
        ..usual
    }
}
