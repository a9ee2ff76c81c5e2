//! The fabric: the NICs of one provider, found once when it is created.

use std::ffi::CString;
use std::sync::Arc;

use trunkline_fabric::{Caps, ExportedDmaBuf, Fabric, LogLevel, NicPort, RailConfig, RailOpenError};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::VendorDrivers;
use trunkline_proto::wire::status::NicUsage;
use trunkline_sys::ofi::{caps as bits, threading};

use crate::errno::OfiErrno;
use crate::gpudirect::DeviceSupport;
use crate::info::{OfiHints, OfiInfo, query_infos};
use crate::nic::FoundNic;
use crate::profile::ProviderProfile;
use crate::provider_grant::ProviderGrant;
use crate::rail::COPIED_MAX;
use crate::trial::WriteDataSupport;
use crate::{OfiLibrary, OfiRail, OfiUnavailable, caps};

/// Assumed speed of a NIC that does not report one, in Mb/s.
const SPEED_UNKNOWN: u32 = 10_000;
/// The maximum number of NICs that one NIC may be presented as.
pub const COPIES_MAX: u32 = 8;

/// CQ data requested with a write, in bytes: the immediate, and the mark that identifies the link where links share a queue.
const DATA_BYTES: usize = 8;
/// The immediate alone, for rails with one link.
const DATA_BYTES_MIN: usize = 4;

/// The user's settings.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OfiConfig {
    /// The provider; `None` for a hardware provider.
    pub provider: Option<String>,
    /// A library to open instead of `libfabric.so.1`.
    pub library: Option<std::ffi::OsString>,
    /// How often each NIC is presented, for tests of several NICs on a host with one. 0 counts as 1.
    pub copies: u32,
    /// The only domain to use: `eth0`, `lo`, `mlx5_0`.
    pub domain: Option<String>,
    /// Whether flushes after receives into memory of GPUs are skipped.
    pub skips_flushes: bool,
}

/// Why no NIC can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoNic {
    /// The library cannot be opened.
    #[error(transparent)]
    Library(#[from] OfiUnavailable),
    /// A query of the library failed.
    #[error("the query of libfabric's providers failed: {0}")]
    Query(OfiErrno),
    /// No provider has a usable NIC.
    #[error(
        "libfabric has no usable provider {wanted} here (required: messages with tags, remote writes with \
         {DATA_BYTES_MIN} bytes of data); list the providers with `fi_info`"
    )]
    Nothing {
        /// The requested provider.
        wanted: String,
    },
    /// No NIC of the provider has the requested domain.
    #[error(
        "libfabric's provider {provider} has no domain {wanted} here, but {there}; set TRUNKLINE_OFI_DOMAIN to one of them, or \
         unset it"
    )]
    Domain {
        /// The provider.
        provider: String,
        /// The requested domain.
        wanted: String,
        /// The available domains.
        there: String,
    },
}

/// NICs through libfabric.
pub struct OfiFabric {
    ports: Vec<FoundNic>,
    nics: Vec<NicPort>,
    about: Box<ProviderTraits>,
}

/// Properties and settings common to all NICs.
#[derive(Default)]
struct ProviderTraits {
    /// Notes for the user, one line each.
    notes: Vec<(LogLevel, String)>,
    skips_flushes: bool,
    /// The provider's name, identical on ranks with different versions of libfabric.
    family: String,
}

/// Returns the providers to query for a user's name, best first. The providers over TCP depend on the version: `tcp` has reliable
/// connectionless endpoints from 2.0 on; before, that provider was called `net`.
fn provider_candidates(wanted: Option<&str>) -> Vec<String> {
    let all: &[&str] = match wanted {
        None => &["efa", "cxi"],
        Some("tcp") => &["tcp", "net", "tcp;ofi_rxm"],
        Some(one) => return vec![one.to_owned()],
    };
    all.iter().map(|&name| name.to_owned()).collect()
}

/// Returns the common name of all [`provider_candidates`]: without the layers above a provider, and `tcp` for the provider once called `net`.
fn provider_family(provider: &str) -> &str {
    match provider.split(';').next() {
        Some("net") => "tcp",
        Some(lowest) => lowest,
        None => provider,
    }
}

/// The required capabilities.
const USUAL: u64 = bits::MSG | bits::TAGGED | bits::RMA;

/// Queries a provider for these capabilities, with the best terms that it offers.
fn query_provider(library: &Arc<OfiLibrary>, provider: &str, wanted: u64) -> Result<Vec<OfiInfo>, OfiErrno> {
    let name = CString::new(provider).map_err(|_| OfiErrno::INVALID)?;
    // Requested explicitly, because providers report delivery-complete semantics only for hints that ask for it (fi_getinfo(3)).
    let reach = if ProviderProfile::from_provider(provider).arrives { 0 } else { bits::DELIVERY_COMPLETE };
    let hints = |model, inject: usize, data| -> Result<OfiHints, OfiErrno> {
        let hints = OfiHints::new(library, wanted)?.with_provider(&name).with_threading(model);
        Ok(hints.with_inject(inject).with_cq_data(data).with_completion_flags(reach))
    };
    // Thread-safe first, because a domain is shared by rails of several threads and by registrars. Where a provider does not lock by itself, the
    // domain's lock does.
    let terms = [
        (threading::SAFE, COPIED_MAX, DATA_BYTES),
        (threading::SAFE, 0, DATA_BYTES),
        (threading::DOMAIN, 0, DATA_BYTES),
        (threading::SAFE, 0, DATA_BYTES_MIN),
        (threading::DOMAIN, 0, DATA_BYTES_MIN),
    ];
    for (model, inject, data) in terms {
        let found = query_infos(&hints(model, inject, data)?, None)?;
        // `fi_getinfo` may also return layered providers whose names contain the requested one, so the name is compared exactly.
        let found: Vec<OfiInfo> = found.into_iter().filter(|info| info.names()[0] == provider).collect();
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

impl OfiFabric {
    /// Opens libfabric and finds the NICs selected by `config`.
    ///
    /// # Errors
    /// [`NoNic`] names the missing part.
    pub fn new(config: &OfiConfig) -> Result<Self, NoNic> {
        let library = Arc::new(OfiLibrary::open(config.library.as_deref())?);
        Self::with_library(&library, config)
    }

    /// Finds NICs as [`OfiFabric::new`] does, with an open library.
    ///
    /// # Errors
    /// As [`OfiFabric::new`].
    pub fn with_library(library: &Arc<OfiLibrary>, config: &OfiConfig) -> Result<Self, NoNic> {
        // All NICs are of one provider, because endpoints of different providers cannot communicate.
        for provider in provider_candidates(config.provider.as_deref()) {
            let family = provider_family(&provider).to_owned();
            let about =
                ProviderTraits { skips_flushes: config.skips_flushes, family, ..ProviderTraits::default() };
            let mut found = Self { ports: Vec::new(), nics: Vec::new(), about: Box::new(about) };
            let all = query_provider(library, &provider, USUAL).map_err(NoNic::Query)?;
            let there: Vec<String> = all.iter().map(|info| info.names()[2].clone()).collect();
            let usable = select_offers(all, config.domain.as_deref());
            // Queried separately, because with `FI_HMEM` some providers offer less for memory of the host.
            let wider = if usable.is_empty() {
                Vec::new()
            } else {
                query_provider(library, &provider, USUAL | bits::HMEM).map_err(NoNic::Query)?
            };
            for info in usable {
                let wider = wider.iter().find(|wider| is_wider_offer(wider, &info));
                found.add_nics(&info, wider, config.copies.clamp(1, COPIES_MAX)).map_err(NoNic::Query)?;
            }
            if !found.ports.is_empty() {
                return Ok(found);
            }
            if let (Some(wanted), false) = (&config.domain, there.is_empty()) {
                let wanted = wanted.clone();
                let there = join_names(there);
                return Err(NoNic::Domain { provider, wanted, there });
            }
        }
        Err(NoNic::Nothing {
            wanted: config
                .provider
                .clone()
                .unwrap_or_else(|| "for hardware (efa, cxi; select others by name, as ofi:tcp)".to_owned()),
        })
    }

    fn add_nics(&mut self, info: &OfiInfo, wider: Option<&OfiInfo>, copies: u32) -> Result<(), OfiErrno> {
        let [provider, _, domain] = info.names();
        let granted = ProviderGrant::from_info(info);
        let profile =
            self.probe_profile(info, &domain, ProviderProfile::from_provider(&provider).with_grant(&granted));
        let nic = info.nic_attributes();
        let pci = nic.as_ref().and_then(|nic| nic.pci);
        let speed = nic.as_ref().map_or(0, |nic| u32::try_from(nic.speed / 1_000_000).unwrap_or(u32::MAX));
        for copy in 0..copies {
            self.nics.push(NicPort {
                name: if copy == 0 { domain.clone() } else { format!("{domain}.{copy}") },
                pci_path: pci.map(|(domain, bus, device, function)| {
                    format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.{function}")
                }),
                // Numbered, because libfabric reports no GUID.
                guid: self.nics.len() as u64 + 1,
                port: 1,
                speed_mbps: if speed == 0 { SPEED_UNKNOWN } else { speed },
                latency_us: 0.0,
                caps: caps::nic_caps(&granted, &profile),
            });
            let wider = wider.map(OfiInfo::duplicate_info).transpose()?;
            self.ports.push(FoundNic::new(info.duplicate_info()?, wider, profile));
        }
        Ok(())
    }

    /// Completes a profile with properties that only a trial can show.
    fn probe_profile(&mut self, info: &OfiInfo, domain: &str, profile: ProviderProfile) -> ProviderProfile {
        // Known providers are not probed, because a trial opens an endpoint and may take a second.
        let writes =
            if profile.known { WriteDataSupport::PROMISED } else { WriteDataSupport::probe_nic(info) };
        if let Some(why) = writes.why {
            let by = profile.write_data_by.map_or_else(String::new, |by| format!("; {by} changes that"));
            let note =
                format!("NIC {domain} cannot write with data ({why}): long messages end with a record{by}");
            self.about.notes.push((LogLevel::Warn, note));
        }
        ProviderProfile { write_data: writes.data, ..profile }
    }

    /// Returns notes for users of the NICs, one line each, with their severity.
    #[must_use]
    pub fn nic_notes(&self) -> &[(LogLevel, String)] {
        &self.about.notes
    }

    /// Returns whether a NIC may access memory of GPUs: the provider grants it, and [`OfiFabric::with_gpus`] verifies it.
    #[must_use]
    pub fn reaches_devices(&self) -> bool {
        self.ports.iter().any(|port| port.wider.is_some())
    }

    /// Probes how NICs access memory of these drivers: registers some of it and reads it back. Without this call no memory of GPUs is used.
    #[must_use]
    pub fn with_gpus(mut self, gpus: &VendorDrivers) -> Self {
        if gpus.open_drivers().is_empty() {
            return self;
        }
        for (nic, port) in self.nics.iter_mut().zip(&mut self.ports) {
            // Taken, so that a second call probes nothing.
            let Some(wider) = port.wider.take() else { continue };
            let found = DeviceSupport::probe_gpus(&wider, gpus, !self.about.skips_flushes);
            let lines = found.refused.iter().map(|why| (LogLevel::Info, format!("NIC {}: {why}", nic.name)));
            self.about.notes.extend(lines);
            // Kept only if some memory can be accessed, because some providers disable features for `FI_HMEM`.
            if found.reach.reaches_any() {
                let granted = ProviderGrant::from_info(&wider);
                // Kept from the first probe, because the wider offer is of the same NIC.
                let write_data = port.profile.write_data;
                port.profile = ProviderProfile {
                    write_data,
                    ..ProviderProfile::from_provider(&wider.names()[0]).with_grant(&granted)
                };
                nic.caps = Caps { devices: found.reach, ..caps::nic_caps(&granted, &port.profile) };
                (port.info, port.devices) = (wider, found);
            }
        }
        self
    }

    /// Returns a NIC's profile, as known or probed; `None` for an invalid index.
    #[must_use]
    pub fn provider_profile(&self, nic: usize) -> Option<ProviderProfile> {
        self.ports.get(nic).map(|port| port.profile)
    }

    /// Returns the name of the provider, as libfabric writes it.
    #[must_use]
    pub fn provider_name(&self) -> String {
        let [provider, ..] = self.ports.first().map(|port| port.info.names()).unwrap_or_default();
        provider
    }

    /// Returns the provider's grant for a NIC; `None` for an invalid index.
    #[must_use]
    pub fn provider_grant(&self, nic: usize) -> Option<ProviderGrant> {
        self.ports.get(nic).map(|port| ProviderGrant::from_info(&port.info))
    }

    /// Forgets memory that its owner frees or remaps. From now on, no rail receives a shared registration that contains a byte of it; a new
    /// registration is made for memory at these addresses. Registrations in use stay open until each user has deregistered them. With `exported`
    /// the memory is the part of that dma-buf, otherwise it is these addresses.
    pub fn forget_memory(&self, memory: &MemoryRange, exported: Option<&ExportedDmaBuf<'_>>) {
        self.ports.iter().for_each(|port| port.forget_memory(memory, exported));
    }
}

/// Joins names, without duplicates.
fn join_names(mut names: Vec<String>) -> String {
    names.sort();
    names.dedup();
    names.join(", ")
}

/// Returns whether `wider` is the offer `usual` with memory of devices.
fn is_wider_offer(wider: &OfiInfo, usual: &OfiInfo) -> bool {
    let granted = ProviderGrant::from_info(wider);
    wider.names()[2] == usual.names()[2] && granted.hmem && granted.cq_data_bytes >= DATA_BYTES_MIN
}

/// Returns one offer per domain; the loopback domain counts only if it is the only one.
fn select_offers(offers: Vec<OfiInfo>, domain: Option<&str>) -> Vec<OfiInfo> {
    let mut taken: Vec<OfiInfo> = Vec::new();
    for info in offers {
        let [_, _, name] = info.names();
        let fits = domain.is_none_or(|wanted| wanted == name);
        let granted = ProviderGrant::from_info(&info);
        // Without proof of arrival, the engine could not detect when payload is visible, so such offers are unusable.
        let proves = ProviderProfile::from_provider(&info.names()[0]).arrives
            || granted.reach == bits::DELIVERY_COMPLETE;
        if fits
            && proves
            && granted.cq_data_bytes >= DATA_BYTES_MIN
            && !taken.iter().any(|other| other.names()[2] == name)
        {
            taken.push(info);
        }
    }
    // Loopback reaches no other host, so it is a last resort for tests on one host.
    let is_local = |info: &OfiInfo| info.names()[2] == "lo";
    if taken.iter().any(|info| !is_local(info)) {
        taken.retain(|info| !is_local(info));
    }
    taken
}

impl Fabric for OfiFabric {
    type Rail = OfiRail;

    fn fabric_name(&self) -> &'static str {
        "ofi"
    }

    fn name_qualifier(&self) -> &str {
        &self.about.family
    }

    fn nics(&self) -> &[NicPort] {
        &self.nics
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        self.ports.get(nic).map_or(NicUsage::default(), |port| port.usage())
    }

    fn open_rail(&self, nic: usize, config: &RailConfig) -> Result<OfiRail, RailOpenError> {
        let (port, found) =
            self.ports.get(nic).zip(self.nics.get(nic)).ok_or(RailOpenError::NoSuchNic(nic))?;
        OfiRail::new(port, config, found.caps)
    }
}
