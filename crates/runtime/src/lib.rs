//! The start of a front end: which fabric it uses, with which settings, and how its process is reached; and one-sided calls that wait.
//!
//! Each front end (`nccl`, `trunkline`, `shmem`, `nvshmem`) calls it once when it starts, and `trunkline info` shows the same result. It reads the environment
//! and the devices of this host, and opens the selected fabric. For front ends with symmetric memory it also joins the job ([`JobMember`]), and has their
//! calls ([`OneSided`]). The engine makes the links. It knows no teams, no symmetric objects and no C.
//!
//! # Files, in reading order
//!
//! - `process_settings.rs`, `settings_file.rs`: the environment and the configuration file of this process.
//! - `lib.rs`, `config.rs`, `inventory.rs`, `unused.rs`, `rank_nics.rs`, `gpudirect.rs`: settings, the fabric, warnings about unused devices, the NICs of a
//!   rank.
//! - `member.rs`, `job_meeting.rs`, `start_agreement.rs`, `banner.rs`: the process in its job; how its ranks agree on their settings; the first line of its
//!   log.
//! - `fabric_job.rs`: one match per call on the selected fabric. `queues.rs`: a context for device queues.
//! - `one_sided/`: `mod.rs` the job, `context.rs` the calls, `transfer.rs` puts and gets, `stage.rs` staging, `wait.rs` waits.
//!
//! # One put, from the call to the remote word
//!
//! ```text
//!   trunkline   shmem   nvshmem      symmetric objects, PEs, memory handles; memory that is mapped
//!        └────────┼────────┘
//!        OneSided, ContextCalls      waits, stages, pieces                  one_sided
//!                 │
//!            FabricJob               one match per call on the fabric       fabric_job.rs
//!                 │
//!              RmaJob                contexts, links, order, completion     engine/src/rma
//! ```
//!
//! 1. The front end calls [`OneSided::calls_on`] and then, for example, [`ContextCalls::put_copied`] with a heap number and an offset. A short put is copied
//!    into the request itself; longer ones are copied through a part of the context's stage, in pieces.
//! 2. The engine's call never waits. If it has no room it returns at once, and `wait_until` tries again by `WaitPolicy::CALL`. After each fruitless try it
//!    delivers values of earlier atomics to the front end's [`FetchSink`], so that the engine has room for others. The wait rests only while no work for other
//!    members moves.
//! 3. `RmaContext` in the engine selects a path and posts one write per piece. The write carries a tag if the stream counts it.
//! 4. The bytes land in the member's heap. Its service thread, or its next call, applies signals that follow. A quiet ends when all operations of the context
//!    have completed and the last acknowledgements have arrived.
//!
//! # Rules
//!
//! - *Stage.* Bytes that are not registered are copied through the stage of the context (`stage.rs`), a part of a heap of this process. Several threads may
//!   use one stage; no lock is held during a wait.
//! - *A watch* ([`watch_memory`]) is how a front end waits for a change of its own memory. It serves other members meanwhile, and every 50 ms the front end
//!   checks that the members that make the change live. A change before their end still counts.
//! - *Errors.* The loss of a member is an error of each call that needs it. The failure of an earlier operation is an error of one quiet.
//! - Device queues do not use it: their executor begins operations and collects their ends (`trunkline_device`, `network.rs`).
#![forbid(unsafe_code)]

mod banner;
mod cause;
mod config;
mod environment_names;
mod error;
mod fabric_job;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gpudirect;
mod inventory;
mod job_meeting;
mod member;
mod one_sided;
mod process_settings;
mod queues;
mod rank_nics;
mod settings_file;
mod start_agreement;
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
pub use process_settings::{ProcessSettings, read_values};
pub use queues::DeviceQueueContext;
pub use rank_nics::{NicChoice, RankNics};
pub use settings_file::SettingsFileError;
pub use trunkline_settings::FrontEndKind;
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

/// The fabric of a third-party library, if one is to be used.
pub enum HardwareFabric {
    /// None, as this host has no device for one, or as the settings require: the software NIC is used.
    None,
    /// None, although this host has devices that should be used. A front end whose caller has another network offers no NIC; the others use the
    /// software NIC.
    PassedOver,
    /// RDMA devices.
    Verbs(VerbsFabric),
    /// A provider of libfabric.
    Ofi(OfiFabric),
}

impl HardwareFabric {
    /// Opens the fabric that these parameters name, or else the fabric of this host. Passes to `log` one line on the choice and, at level INFO, one
    /// on unused devices. Once per process, it also passes a warning of unused devices that should be used.
    ///
    /// # Errors
    /// [`ChooseError::Verbs`], [`ChooseError::NoDevice`], [`ChooseError::NoOfi`]: the named fabric or device does not exist. [`ChooseError::NoNic`]: a NIC is
    /// required, and none is used.
    pub fn open(settings: &ProcessSettings, log: impl Fn(LogLevel, &str)) -> Result<Self, ChooseError> {
        let params = &settings.params;
        match params.fabric {
            FabricName::Verbs => {
                let fabric = VerbsFabric::new(verbs_config(settings)?)?;
                fabric.grant_notes().iter().for_each(|line| log(LogLevel::Info, line));
                let nics: Vec<String> = fabric.nics().iter().map(|nic| nic.name.clone()).collect();
                let used = UsedFabric { name: "verbs", nics: &nics };
                UnusedDevices::find_unused(settings, Some(used), None, trunkline_verbs::device_names)?
                    .log_unused(&WARNED, log);
                Ok(Self::Verbs(fabric))
            }
            FabricName::Ofi => Ok(Self::Ofi(OfiFabric::new(&ofi_config(settings)?)?)),
            FabricName::Auto => Self::open_best(settings, log),
            FabricName::Soft | FabricName::SoftShm | FabricName::SoftTcp if params.require_nic => {
                Err(ChooseError::NoNic("TRUNKLINE_FABRIC names the software NIC".to_owned()))
            }
            FabricName::Soft | FabricName::SoftShm | FabricName::SoftTcp => Ok(Self::None),
        }
    }

    /// Opens EFA or Slingshot, if this host has it, and reports all devices that are not used.
    fn open_best(settings: &ProcessSettings, log: impl Fn(LogLevel, &str)) -> Result<Self, ChooseError> {
        let params = &settings.params;
        let AutoSelection { fabric, line, failure } =
            AutoSelection::detect_devices(&params.host_root, &ofi_config(settings)?, OfiFabric::new);
        if let (Some(line), Some(_)) = (line, &fabric) {
            log(LogLevel::Info, &line);
        }
        let why = failure.map(|failure| failure.to_string());
        let provider = fabric.as_ref().map(|fabric| format!("ofi:{}", fabric.provider_name()));
        let nics: Vec<String> = fabric.iter().flat_map(OfiFabric::nics).map(|nic| nic.name.clone()).collect();
        let used = provider.as_deref().map(|name| UsedFabric { name, nics: &nics });
        let unused =
            UnusedDevices::find_unused(settings, used, why.as_deref(), trunkline_verbs::device_names)?;
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
    pub fn list_nics(&self, settings: &ProcessSettings) -> Result<Vec<NicPort>, ChooseError> {
        Ok(match self {
            Self::None | Self::PassedOver => {
                SoftFabric::new(soft_config(&settings.params, host_addresses(settings)?))?.nics().to_vec()
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

/// The addresses by which other hosts reach this one, if they are to.
///
/// # Errors
/// [`ChooseError::Settings`], [`ChooseError::Choice`], [`ChooseError::Interfaces`].
pub fn host_addresses(settings: &ProcessSettings) -> Result<Vec<IpAddr>, ChooseError> {
    if settings.params.fabric == FabricName::SoftShm {
        return Ok(Vec::new());
    }
    let choice = InterfaceChoice::from_settings(settings.setting_values())?;
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
