//! The fabrics of this host, and which of them the plugin would use. Called by `info`; opens devices and connects none.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;
use trunkline_engine::{EngineParams, FabricName};
use trunkline_fabric::{Fabric, NicPort, RailOpenError};
use trunkline_ofi::{AutoSelection, NoNic, OfiFabric, OfiLibrary};
use trunkline_runtime::{
    ChooseError, ProcessSettings, UnusedDevice, UnusedDevices, UsedFabric, ofi_config, soft_config,
    verbs_config,
};
use trunkline_settings::SettingErrors;
use trunkline_softnic::SoftFabric;
use trunkline_verbs::{VerbsFabric, VerbsUnavailable};

use super::gpus::{self, GpuMemoryRow};
use super::grants::{self, GrantRow};

/// The requested fabric cannot be used.
#[derive(Debug, Error)]
pub(crate) enum FabricError {
    /// The software NIC cannot be opened.
    #[error("cannot open fabric soft: {0}")]
    Soft(#[from] RailOpenError),
    /// Settings of the network have invalid values.
    #[error(transparent)]
    Settings(#[from] SettingErrors),
    /// No RDMA device is available.
    #[error("cannot open fabric verbs: {0}")]
    Verbs(#[from] VerbsUnavailable),
    /// The unused devices cannot be determined.
    #[error(transparent)]
    Unused(#[from] ChooseError),
    /// No NIC is available through libfabric.
    #[error("cannot open fabric ofi: {0}")]
    Ofi(#[from] NoNic),
}

/// A fabric, available or not.
#[derive(Debug, Serialize)]
pub(super) struct FabricRow {
    pub(super) name: &'static str,
    /// `None`: not checked.
    present: Option<bool>,
    chosen: bool,
    pub(super) note: String,
}

impl FabricRow {
    pub(super) fn state_word(&self) -> &'static str {
        match (self.present, self.chosen) {
            (None, _) => "unknown",
            (Some(false), _) => "missing",
            (Some(true), false) => "present",
            (Some(true), true) => "in use",
        }
    }
}

/// libfabric, and the NICs of the requested provider.
struct OfiProvider {
    library: Arc<OfiLibrary>,
    fabric: OfiFabric,
}

impl OfiProvider {
    fn open(settings: &ProcessSettings) -> Result<Self, FabricError> {
        let config = ofi_config(settings)?;
        let library = Arc::new(OfiLibrary::open(config.library.as_deref()).map_err(NoNic::from)?);
        let fabric = OfiFabric::with_library(&library, &config)?;
        Ok(Self { library, fabric })
    }

    /// Opens the provider that the plugin uses with `auto`, if this host has a device for it. Also returns why `auto`
    /// chose libfabric or not, and why a detected device could not be opened.
    fn open_auto(settings: &ProcessSettings) -> Result<(Option<Self>, FabricChoice), FabricError> {
        let mut opened = None;
        let auto =
            AutoSelection::detect_devices(&settings.params.host_root, &ofi_config(settings)?, |config| {
                let library = Arc::new(OfiLibrary::open(config.library.as_deref())?);
                let fabric = OfiFabric::with_library(&library, config);
                opened = Some(library);
                fabric
            });
        let ofi = auto.fabric.zip(opened).map(|(fabric, library)| Self { library, fabric });
        let failure = auto.failure.map(|failure| failure.to_string());
        Ok((ofi, FabricChoice { line: auto.line, failure }))
    }

    fn provider_note(&self, asked: Option<&str>) -> String {
        let major = self.library.library_version() >> 16;
        let minor = self.library.library_version() & 0xffff;
        let file = self.library.file_path().map_or_else(String::new, |file| format!(", {}", file.display()));
        let provider = self.fabric.provider_name();
        let means = match asked {
            Some(asked) if asked != provider => format!("; {asked} selects {provider} here"),
            _ => String::new(),
        };
        format!("provider {provider} of libfabric {major}.{minor}{file}{means}")
    }
}

/// How `auto` chose the fabric.
#[derive(Default)]
struct FabricChoice {
    /// Why libfabric was chosen or not; `None` if no EFA or Slingshot device was detected.
    line: Option<String>,
    /// Why libfabric could not open the detected device.
    failure: Option<String>,
}

/// The fabrics of this host.
pub(super) struct HostFabrics {
    soft: SoftFabric,
    verbs: Result<VerbsFabric, VerbsUnavailable>,
    /// Opened only with `ofi`, or if `auto` detects a device for it, because opening the library takes longer than
    /// everything else here.
    ofi: Option<OfiProvider>,
    /// The requested fabric. `auto` uses EFA or Slingshot if this host has such a device, else the software NIC; all
    /// others must be requested by name.
    asked: FabricName,
    /// The requested provider of libfabric.
    provider: Option<String>,
    /// See [`FabricChoice::line`].
    auto: Option<String>,
    /// Which NICs access GPU memory, and which GPU drivers are available.
    gpus: Vec<GpuMemoryRow>,
    /// Devices that are not used.
    unused: UnusedDevices,
}

impl HostFabrics {
    pub(super) fn new(settings: &ProcessSettings, addresses: Vec<IpAddr>) -> Result<Self, FabricError> {
        let params = &settings.params;
        let soft = SoftFabric::new(soft_config(params, addresses))?;
        let asked = params.fabric;
        let (ofi, auto) = match asked {
            FabricName::Ofi => (Some(OfiProvider::open(settings)?), FabricChoice::default()),
            FabricName::Auto => OfiProvider::open_auto(settings)?,
            _ => (None, FabricChoice::default()),
        };
        let provider = params.ofi.provider.clone();
        let config = verbs_config(settings)?;
        let verbs = VerbsFabric::new(config);
        let auto_line = auto.line;
        let used = match (&ofi, &verbs) {
            (Some(ofi), _) => Some((format!("ofi:{}", ofi.fabric.provider_name()), ofi.fabric.nics())),
            (None, Ok(verbs)) if asked == FabricName::Verbs => Some(("verbs".to_owned(), verbs.nics())),
            _ => None,
        };
        let unused = find_unused(settings, used, auto.failure.as_deref())?;
        let auto = auto_line;
        match verbs {
            Err(missing) if asked == FabricName::Verbs => Err(missing.into()),
            Ok(verbs) if asked == FabricName::Verbs => {
                let (verbs, gpus) = gpus::limit_verbs_memory(verbs);
                Ok(Self { soft, verbs: Ok(verbs), ofi, asked, provider, auto, gpus, unused })
            }
            verbs => {
                let (ofi, gpus) = match ofi {
                    Some(OfiProvider { library, fabric }) => {
                        let (fabric, gpus) = gpus::limit_ofi_memory(fabric);
                        (Some(OfiProvider { library, fabric }), gpus)
                    }
                    None => (None, gpus::of_none(soft.fabric_name())),
                };
                Ok(Self { soft, verbs, ofi, asked, provider, auto, gpus, unused })
            }
        }
    }

    /// The fabric in use, and its NICs.
    pub(super) fn chosen_fabric(&self) -> (&'static str, &[NicPort]) {
        match (&self.verbs, &self.ofi) {
            (_, Some(ofi)) => (ofi.fabric.fabric_name(), ofi.fabric.nics()),
            (Ok(verbs), _) if self.asked == FabricName::Verbs => (verbs.fabric_name(), verbs.nics()),
            _ => (self.soft.fabric_name(), self.soft.nics()),
        }
    }

    /// Whether the software NIC is in use.
    pub(super) fn is_soft(&self) -> bool {
        self.ofi.is_none() && self.asked != FabricName::Verbs
    }

    /// Devices that are not used, and why.
    pub(super) fn unused_devices(&self) -> &[UnusedDevice] {
        self.unused.as_slice()
    }

    /// The warning that programs fail on this host, if `TRUNKLINE_REQUIRE_NIC` makes them fail.
    pub(super) fn requirement_warning(&self, params: &EngineParams) -> Option<String> {
        let fails = params.require_nic && self.is_soft();
        fails.then(|| "TRUNKLINE_REQUIRE_NIC=1: programs fail here, because no NIC is used".to_owned())
    }

    /// Whether the NCCL plugin offers no device, so that NCCL's own transport can use the devices that Trunkline does
    /// not use.
    pub(super) fn leaves_nics(&self) -> bool {
        self.is_soft() && self.unused.is_missed()
    }

    /// Takes the rows about GPU memory: which NICs access it, why the others do not, and the GPU drivers.
    pub(super) fn take_gpu_rows(&mut self) -> Vec<GpuMemoryRow> {
        std::mem::take(&mut self.gpus)
    }

    /// Returns the modes and limits that the libfabric provider grants on each NIC, such as `mr_mode` bits, progress and
    /// threading. Empty if libfabric is not in use.
    pub(super) fn grant_rows(&self) -> Vec<GrantRow> {
        self.ofi.as_ref().map_or_else(Vec::new, |ofi| grants::grant_rows(&ofi.fabric))
    }

    /// Most bytes that the software NIC carries inside a work request.
    pub(super) fn soft_inline(&self) -> u64 {
        self.soft.nics().first().map_or(0, |nic| nic.caps.inline_max.into())
    }

    /// All fabrics and their states.
    pub(super) fn fabric_rows(&self) -> Vec<FabricRow> {
        let asked = self.chosen_fabric().0;
        let row = |name, present, note| FabricRow { name, present, chosen: name == asked, note };
        let names =
            |nics: &[NicPort]| nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>().join(", ");
        let verbs = match &self.verbs {
            Ok(_) if self.asked == FabricName::Verbs => "InfiniBand and RoCE".to_owned(),
            Ok(found) => format!("{}; used only with TRUNKLINE_FABRIC=verbs", names(found.nics())),
            Err(missing) => format!("InfiniBand and RoCE: {missing}"),
        };
        let ofi = match &self.ofi {
            Some(found) => match &self.auto {
                Some(why) => format!("{}; {why}", found.provider_note(None)),
                None => found.provider_note(self.provider.as_deref()),
            },
            None if self.auto.is_some() => self.auto.clone().unwrap_or_default(),
            None if self.asked == FabricName::Auto => {
                "NICs through libfabric: no EFA or Slingshot device here; others need TRUNKLINE_FABRIC=ofi:PROVIDER"
                    .to_owned()
            }
            None => {
                "NICs through libfabric (EFA, Slingshot, others): searched only with TRUNKLINE_FABRIC=ofi or auto"
                    .to_owned()
            }
        };
        let soft = match self.leaves_nics() {
            true => {
                "the software NIC; the NCCL plugin offers no device, because the host has NICs that are not used"
            }
            false => "the software NIC",
        };
        vec![
            row("soft", Some(true), soft.to_owned()),
            row("verbs", Some(self.verbs.is_ok()), verbs),
            row("ofi", self.ofi.as_ref().map(|_| true), ofi),
        ]
    }
}

/// Finds the devices of this host that are not used. Returns none with `soft` and `ofi`, because the user has then
/// chosen to leave other devices unused.
fn find_unused(
    settings: &ProcessSettings,
    used: Option<(String, &[NicPort])>,
    failure: Option<&str>,
) -> Result<UnusedDevices, ChooseError> {
    if !matches!(settings.params.fabric, FabricName::Auto | FabricName::Verbs) {
        return Ok(UnusedDevices::default());
    }
    let (name, nics) = used.unzip();
    let nics: Vec<String> = nics.unwrap_or_default().iter().map(|nic| nic.name.clone()).collect();
    let used = name.as_deref().map(|name| UsedFabric { name, nics: &nics });
    UnusedDevices::find_unused(settings, used, failure, trunkline_verbs::device_names)
}

/// The requested fabric in the syntax of `TRUNKLINE_FABRIC`.
pub(super) fn requested_fabric(params: &EngineParams) -> String {
    let of = |name: &str, part: &Option<String>| match part {
        Some(part) => format!("{name}:{part}"),
        None => name.to_owned(),
    };
    match params.fabric {
        FabricName::Auto => "auto".to_owned(),
        FabricName::Soft => "soft".to_owned(),
        FabricName::SoftShm => "soft:shm".to_owned(),
        FabricName::SoftTcp => "soft:tcp".to_owned(),
        FabricName::Verbs => of("verbs", &params.device),
        FabricName::Ofi => of("ofi", &params.ofi.provider),
    }
}
