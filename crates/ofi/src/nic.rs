//! A NIC of the fabric: its domain, opened with the first rail, the regions registered on it, and its usage. Shared by the rails on it and by
//! registrars.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use trunkline_fabric::ExportedDmaBuf;
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::status::NicUsage;

use crate::cache::NicRegistrations;
use crate::domain::OfiDomain;
use crate::endpoint::{OfiOpenError, OfiOpenStep};
use crate::errno::OfiErrno;
use crate::gpudirect::DeviceSupport;
use crate::info::OfiInfo;
use crate::lingering_ops::LingeringRails;
use crate::profile::ProviderProfile;
use crate::table::{OfiRegion, OfiRegionTable};

/// A NIC that was found.
pub(crate) struct FoundNic {
    pub(crate) info: OfiInfo,
    pub(crate) profile: ProviderProfile,
    /// The offer that includes memory of devices, if there is one.
    pub(crate) wider: Option<OfiInfo>,
    /// Its support for memory of devices, once probed.
    pub(crate) devices: DeviceSupport,
    open: Mutex<Vec<Weak<OpenNic>>>,
}

/// An open NIC.
pub(crate) struct OpenNic {
    // In the order of closing: users of registrations first, then registrations, then their domain.
    pub(crate) remains: LingeringRails,
    pub(crate) table: OfiRegionTable,
    pub(crate) registrations: NicRegistrations,
    pub(crate) domain: Arc<OfiDomain>,
    pub(crate) devices: DeviceSupport,
    pub(crate) endpoints: AtomicU32,
    pub(crate) queues: AtomicU32,
}

impl OpenNic {
    /// Closes a region, or its share of a registration.
    pub(crate) fn close_region(&self, region: OfiRegion) {
        match region {
            OfiRegion::Shared(shared) => self.registrations.release_registration(shared),
            own => drop(own),
        }
    }

    /// Subtracts closed endpoints from the usage.
    pub(crate) fn closed_endpoints(&self, count: u32) {
        self.endpoints.fetch_sub(count, Ordering::Relaxed);
    }
}

impl FoundNic {
    /// Wraps an offer of the library.
    pub(crate) fn new(info: OfiInfo, wider: Option<OfiInfo>, profile: ProviderProfile) -> Self {
        Self { info, profile, wider, devices: DeviceSupport::default(), open: Mutex::new(Vec::new()) }
    }

    /// Opens the NIC; reuses an open one where rails share a domain.
    ///
    /// # Errors
    /// As [`OfiDomain::open`].
    pub(crate) fn open(&self) -> Result<Arc<OpenNic>, OfiOpenError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Only weak references are kept here, so that a NIC closes with its last rail.
        open.retain(|opened| opened.strong_count() > 0);
        // Not shared over sockets, because those providers make progress for a whole domain at once and are not safe for several threads.
        if let Some(opened) = open.first().and_then(Weak::upgrade).filter(|_| !self.profile.domain_each) {
            // Frees endpoints of dropped rails first, because a NIC has a limited number of them.
            opened.look_at_remains();
            return Ok(opened);
        }
        let opened = Arc::new(OpenNic {
            remains: LingeringRails::default(),
            table: OfiRegionTable::new().map_err(|_| OfiOpenStep::Tables.to_error()(OfiErrno::NO_MEMORY))?,
            registrations: NicRegistrations::new(),
            domain: OfiDomain::open(&self.info)?,
            devices: self.devices.clone(),
            endpoints: AtomicU32::new(0),
            queues: AtomicU32::new(0),
        });
        open.push(Arc::downgrade(&opened));
        Ok(opened)
    }

    /// Forgets memory that is freed or remapped, in each open domain of the NIC.
    pub(crate) fn forget_memory(&self, memory: &MemoryRange, exported: Option<&ExportedDmaBuf<'_>>) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter()
            .filter_map(Weak::upgrade)
            .for_each(|open| open.registrations.forget_memory(memory, exported));
    }

    /// Returns the NIC's usage. An endpoint counts as a queue pair.
    pub(crate) fn usage(&self) -> NicUsage {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let none = NicUsage {
            queue_pairs_max: 2 * crate::connect::LINKS_MAX,
            regions_max: crate::table::REGIONS_MAX as u32,
            ..NicUsage::default()
        };
        open.iter().filter_map(Weak::upgrade).fold(none, |all, open| NicUsage {
            queue_pairs: all.queue_pairs + open.endpoints.load(Ordering::Relaxed),
            completion_queues: all.completion_queues + open.queues.load(Ordering::Relaxed),
            regions: all.regions + (open.table.len() + open.registrations.len()) as u32,
            ..all
        })
    }
}
