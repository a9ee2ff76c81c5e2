//! Which fabric a front end runs over, with which settings, and how its process is reached: what the environment of the process
//! says, and what this host has.
//!
//! Called once by each front end (`nccl`, `trunkline`, `shmem`) when it starts, and by `trunkline info`, which shows the same. It opens
//! what is chosen. For front ends with symmetric memory it also joins the job ([`Member`]); the links are made by the engine.
#![forbid(unsafe_code)]

mod config;
mod error;
mod gpudirect;
mod member;
mod queues;
mod running;
mod wait;

pub use config::{near, ofi_config, soft_config, verbs_config};
pub use error::{ChooseError, JobError};
pub use gpudirect::{GpuNote, meet_ofi, meet_verbs};
pub use member::Member;
pub use queues::Carrying;
pub use running::{Carrier, Running};

use std::net::IpAddr;
use std::path::Path;

use trunkline_engine::host::Reach;
use trunkline_engine::{FabricName, Params};
use trunkline_fabric::{Fabric as _, Level, Nic};
use trunkline_mem::gpu::Gpus;
use trunkline_ofi::{Auto, OfiFabric};
use trunkline_softnic::SoftFabric;
use trunkline_topo::Choice;
use trunkline_verbs::VerbsFabric;

/// A fabric that somebody else's library drives, if one is to be used.
pub enum Hardware {
    /// None: the software NIC is.
    None,
    /// RDMA devices.
    Verbs(VerbsFabric),
    /// What libfabric has a provider for.
    Ofi(OfiFabric),
}

impl Hardware {
    /// Opens what these parameters name, or what this host has where they name nothing; `log` is told about a choice.
    ///
    /// # Errors
    /// [`ChooseError::Verbs`], [`ChooseError::NoDevice`], [`ChooseError::NoOfi`]: what is named is not there.
    pub fn open(params: &Params, log: impl Fn(Level, &str)) -> Result<Self, ChooseError> {
        Ok(match params.fabric {
            FabricName::Verbs => Self::Verbs(VerbsFabric::new(verbs_config(params)?)?),
            FabricName::Ofi => Self::Ofi(OfiFabric::new(&ofi_config(params)?)?),
            FabricName::Auto => {
                let Auto { fabric, line } = Auto::look(Path::new("/"), &ofi_config(params)?, OfiFabric::new);
                if let Some(line) = line {
                    log(Level::Info, &line);
                }
                fabric.map_or(Self::None, Self::Ofi)
            }
            FabricName::Soft | FabricName::SoftShm | FabricName::SoftTcp => Self::None,
        })
    }

    /// The same with the drivers of GPUs whose memory its NICs are to reach, where they can.
    #[must_use]
    pub fn with_gpus(self, gpus: &Gpus) -> Self {
        match self {
            Self::None => Self::None,
            Self::Verbs(fabric) => Self::Verbs(fabric.with_gpus(gpus)),
            Self::Ofi(fabric) => Self::Ofi(fabric.with_gpus(gpus)),
        }
    }

    /// The NICs that there are, by their places in the fabric's list, for a front end that chooses before it opens any.
    ///
    /// # Errors
    /// [`ChooseError`]: the software NIC cannot be made.
    pub fn nics(&self, params: &Params) -> Result<Vec<Nic>, ChooseError> {
        Ok(match self {
            Self::None => SoftFabric::new(soft_config(params, addresses(params)?))?.nics().to_vec(),
            Self::Verbs(fabric) => fabric.nics().to_vec(),
            Self::Ofi(fabric) => fabric.nics().to_vec(),
        })
    }

    /// Whether a NIC may reach memory of GPUs.
    #[must_use]
    pub fn reaches_devices(&self) -> bool {
        match self {
            Self::None => false,
            Self::Verbs(fabric) => fabric.reaches_devices(),
            Self::Ofi(fabric) => fabric.reaches_devices(),
        }
    }
}

/// The parameters that the environment sets.
///
/// # Errors
/// [`ChooseError::Params`] names the variable.
pub fn params() -> Result<Params, ChooseError> {
    params_or(&[])
}

/// The same, for a front end with defaults of its own: pairs of a parameter and its value.
///
/// # Errors
/// As [`params`].
pub fn params_or(defaults: &[(&str, &str)]) -> Result<Params, ChooseError> {
    let default = |name: &str| defaults.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).into());
    #[cfg_attr(not(feature = "mutants"), expect(unused_mut, reason = "changed only to plant a bug"))]
    let mut params = Params::read(|name| std::env::var_os(name).or_else(|| default(name)))?;
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        params.mutant = trunkline_engine::Mutant::named(name.leak());
    }
    Ok(params)
}

/// The addresses by which other hosts reach this one, if they are to.
///
/// # Errors
/// [`ChooseError::Choice`], [`ChooseError::Interfaces`].
pub fn addresses(params: &Params) -> Result<Vec<IpAddr>, ChooseError> {
    if params.fabric == FabricName::SoftShm {
        return Ok(Vec::new());
    }
    let choice = Choice::read(|name| std::env::var_os(name))?;
    let all = trunkline_topo::interfaces().map_err(ChooseError::Interfaces)?;
    let chosen = choice.of(&all)?;
    Ok(chosen.into_iter().map(|(_, address)| address).collect())
}

/// How control streams reach this process.
#[must_use]
pub fn reach(params: &Params, addresses: &[IpAddr]) -> Reach {
    Reach {
        local: params.fabric != FabricName::SoftTcp,
        addresses: addresses.to_vec(),
        silence: params.peer_time,
        mutant: params.mutant,
    }
}
