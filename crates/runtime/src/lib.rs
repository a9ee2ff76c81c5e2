//! Which fabric a front end runs over, with which settings, and how its process is reached: what the environment of the process
//! says, and what this host has.
//!
//! Called once by each front end (`nccl`, `trunkline`, `shmem`, `nvshmem`) when it starts, and by `trunkline info`, which shows the same. It opens
//! what is chosen. For front ends with symmetric memory it also joins the job ([`JobMember`]); the links are made by the engine.
#![forbid(unsafe_code)]

mod banner;
mod cause;
mod config;
mod error;
mod fabric_job;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gpudirect;
mod inventory;
mod member;
mod one_sided;
mod queues;
mod rank_nics;
mod unused;

pub use banner::{COMMIT, FrontEnd, ProcessBanner, VERSION};
pub use config::{near_fabric, ofi_config, soft_config, verbs_config};
pub use error::{ChooseError, MembershipError};
pub use fabric_job::JobCarrier;
pub use gpudirect::{GpuNote, meet_ofi, meet_verbs};
pub use member::JobMember;
pub use one_sided::{
    CheckTimer, ContextCalls, CopyFrom, CopyInto, FetchSink, OneSided, OneSidedContext, StageLayout,
    watch_memory,
};
pub use queues::DeviceQueueContext;
pub use rank_nics::{NicChoice, RankNics};
pub use unused::{UnusedDevice, UnusedDevices, UsedFabric};

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;

use trunkline_engine::host::ControlReach;
use trunkline_engine::{EngineParams, FabricName};
use trunkline_fabric::{Fabric as _, LogLevel, NicPort};
use trunkline_mem::gpu::VendorDrivers;
use trunkline_ofi::{AutoSelection, OfiFabric};
use trunkline_softnic::SoftFabric;
use trunkline_topo::InterfaceChoice;
use trunkline_verbs::VerbsFabric;

/// Whether this process has warned of devices that are not used.
static WARNED: AtomicBool = AtomicBool::new(false);

/// A fabric that somebody else's library drives, if one is to be used.
pub enum HardwareFabric {
    /// None, as this host has no device for one, or as users say: the software NIC is used.
    None,
    /// None, although this host has devices that should be used. A front end whose caller has another network offers no NIC; the others use the
    /// software NIC.
    PassedOver,
    /// RDMA devices.
    Verbs(VerbsFabric),
    /// What libfabric has a provider for.
    Ofi(OfiFabric),
}

impl HardwareFabric {
    /// Opens the fabric that these parameters name, or else the fabric of this host. `log` gets one line on the choice, one at level INFO on
    /// devices that are not used, and once per process a warning of those that should be.
    ///
    /// # Errors
    /// [`ChooseError::Verbs`], [`ChooseError::NoDevice`], [`ChooseError::NoOfi`]: the named fabric or device does not exist. [`ChooseError::NoNic`]: a NIC is
    /// required, and none is used.
    pub fn open(params: &EngineParams, log: impl Fn(LogLevel, &str)) -> Result<Self, ChooseError> {
        match params.fabric {
            FabricName::Verbs => {
                let fabric = VerbsFabric::new(verbs_config(params)?)?;
                fabric.grant_notes().iter().for_each(|line| log(LogLevel::Info, line));
                let nics: Vec<String> = fabric.nics().iter().map(|nic| nic.name.clone()).collect();
                let used = UsedFabric { name: "verbs", nics: &nics };
                UnusedDevices::find_unused(params, Some(used), None, trunkline_verbs::device_names)?
                    .log_unused(&WARNED, log);
                Ok(Self::Verbs(fabric))
            }
            FabricName::Ofi => Ok(Self::Ofi(OfiFabric::new(&ofi_config(params)?)?)),
            FabricName::Auto => Self::open_best(params, log),
            FabricName::Soft | FabricName::SoftShm | FabricName::SoftTcp if params.require_nic => {
                Err(ChooseError::NoNic("TRUNKLINE_FABRIC names the software NIC".to_owned()))
            }
            FabricName::Soft | FabricName::SoftShm | FabricName::SoftTcp => Ok(Self::None),
        }
    }

    /// Opens EFA or Slingshot, if this host has it, and tells of all devices that are not used.
    fn open_best(params: &EngineParams, log: impl Fn(LogLevel, &str)) -> Result<Self, ChooseError> {
        let AutoSelection { fabric, line, failure } =
            AutoSelection::detect_devices(&params.host_root, &ofi_config(params)?, OfiFabric::new);
        if let (Some(line), Some(_)) = (line, &fabric) {
            log(LogLevel::Info, &line);
        }
        let why = failure.map(|failure| failure.to_string());
        let provider = fabric.as_ref().map(|fabric| format!("ofi:{}", fabric.provider_name()));
        let nics: Vec<String> = fabric.iter().flat_map(OfiFabric::nics).map(|nic| nic.name.clone()).collect();
        let used = provider.as_deref().map(|name| UsedFabric { name, nics: &nics });
        let unused = UnusedDevices::find_unused(params, used, why.as_deref(), trunkline_verbs::device_names)?;
        if fabric.is_none() && params.require_nic {
            return Err(ChooseError::NoNic(unused.as_reason()));
        }
        unused.log_unused(&WARNED, log);
        Ok(match fabric {
            Some(fabric) => Self::Ofi(fabric),
            None if unused.is_missed() => Self::PassedOver,
            None => Self::None,
        })
    }

    /// The same with the drivers of GPUs whose memory its NICs are to reach, where they can; also the memory that each NIC reaches.
    #[must_use]
    pub fn with_gpus(self, gpus: &VendorDrivers) -> (Self, Vec<GpuNote>) {
        match self {
            none @ (Self::None | Self::PassedOver) => (none, Vec::new()),
            Self::Verbs(fabric) => {
                let (fabric, notes) = meet_verbs(fabric, gpus);
                (Self::Verbs(fabric), notes)
            }
            Self::Ofi(fabric) => {
                let (fabric, notes) = meet_ofi(fabric, gpus);
                (Self::Ofi(fabric), notes)
            }
        }
    }

    /// The NICs that there are, by their places in the fabric's list, for a front end that chooses before it opens any.
    ///
    /// # Errors
    /// [`ChooseError`]: the software NIC cannot be made.
    pub fn list_nics(&self, params: &EngineParams) -> Result<Vec<NicPort>, ChooseError> {
        Ok(match self {
            Self::None | Self::PassedOver => {
                SoftFabric::new(soft_config(params, host_addresses(params)?))?.nics().to_vec()
            }
            Self::Verbs(fabric) => fabric.nics().to_vec(),
            Self::Ofi(fabric) => fabric.nics().to_vec(),
        })
    }

    /// Whether a NIC may reach memory of GPUs.
    #[must_use]
    pub fn reaches_devices(&self) -> bool {
        match self {
            Self::None | Self::PassedOver => false,
            Self::Verbs(fabric) => fabric.reaches_devices(),
            Self::Ofi(fabric) => fabric.reaches_devices(),
        }
    }
}

/// The parameters that the environment sets.
///
/// # Errors
/// [`ChooseError::Params`] names the variable.
pub fn read_params() -> Result<EngineParams, ChooseError> {
    params_or(&[])
}

/// The same, for a front end with defaults of its own: pairs of a parameter and its value.
///
/// # Errors
/// As [`read_params`].
pub fn params_or(defaults: &[(&str, &str)]) -> Result<EngineParams, ChooseError> {
    let default = |name: &str| defaults.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).into());
    Ok(EngineParams::from_lookup(|name| std::env::var_os(name).or_else(|| default(name)))?)
}

/// The addresses by which other hosts reach this one, if they are to.
///
/// # Errors
/// [`ChooseError::Choice`], [`ChooseError::Interfaces`].
pub fn host_addresses(params: &EngineParams) -> Result<Vec<IpAddr>, ChooseError> {
    if params.fabric == FabricName::SoftShm {
        return Ok(Vec::new());
    }
    let choice = InterfaceChoice::from_environment(|name| std::env::var_os(name))?;
    let all = trunkline_topo::list_interfaces().map_err(ChooseError::Interfaces)?;
    let chosen = choice.select_interfaces(&all)?;
    Ok(chosen.into_iter().map(|(_, address)| address).collect())
}

/// How control streams reach this process.
#[must_use]
pub fn control_reach(params: &EngineParams, addresses: &[IpAddr]) -> ControlReach {
    ControlReach {
        local: params.fabric != FabricName::SoftTcp,
        users: params.local_users,
        addresses: addresses.to_vec(),
        silence: params.peer_time,
    }
}
