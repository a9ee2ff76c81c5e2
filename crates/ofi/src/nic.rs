//! A NIC of the fabric: its domain, opened with the first rail, the regions registered there, and what is in use of it.
//! Shared by the rails on it and by whoever registers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use trunkline_proto::wire::status::Usage;

use crate::cache::Registrations;
use crate::domain::Domain;
use crate::endpoint::{OpenError, OpenStep};
use crate::errno::Errno;
use crate::info::Info;
use crate::profile::Profile;
use crate::reach::Devices;
use crate::remains::Remains;
use crate::table::{Region, Table};

/// A NIC that was found.
pub(crate) struct Port {
    pub(crate) info: Info,
    pub(crate) profile: Profile,
    /// The offer that takes memory of devices in, if there is one.
    pub(crate) wider: Option<Info>,
    /// What it does with memory of devices, once that was tried.
    pub(crate) devices: Devices,
    open: Mutex<Vec<Weak<Opened>>>,
}

/// A NIC that is open.
pub(crate) struct Opened {
    // What still uses registrations ends before them, and they before their domain.
    pub(crate) remains: Remains,
    pub(crate) table: Table,
    pub(crate) registrations: Registrations,
    pub(crate) domain: Arc<Domain>,
    pub(crate) devices: Devices,
    pub(crate) endpoints: AtomicU32,
    pub(crate) queues: AtomicU32,
}

impl Opened {
    /// Closes a region, or leaves it to those who use the same registration.
    pub(crate) fn close(&self, region: Region) {
        match region {
            Region::Shared(shared) => self.registrations.release(shared),
            own => drop(own),
        }
    }

    /// So many endpoints were closed.
    pub(crate) fn closed_endpoints(&self, count: u32) {
        self.endpoints.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Port {
    /// One that an offer of the library stands for.
    pub(crate) fn new(info: Info, wider: Option<Info>, profile: Profile) -> Self {
        Self { info, profile, wider, devices: Devices::default(), open: Mutex::new(Vec::new()) }
    }

    /// Opens it; where rails share a domain, only unless it is open.
    ///
    /// # Errors
    /// As [`Domain::open`].
    pub(crate) fn open(&self) -> Result<Arc<Opened>, OpenError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|opened| opened.strong_count() > 0);
        if let Some(opened) = open.first().and_then(Weak::upgrade).filter(|_| !self.profile.domain_each) {
            opened.look_at_remains();
            return Ok(opened);
        }
        let opened = Arc::new(Opened {
            remains: Remains::default(),
            table: Table::new().map_err(|_| OpenStep::Tables.failed()(Errno::NO_MEMORY))?,
            registrations: Registrations::new(),
            domain: Domain::open(&self.info)?,
            devices: self.devices.clone(),
            endpoints: AtomicU32::new(0),
            queues: AtomicU32::new(0),
        });
        open.push(Arc::downgrade(&opened));
        Ok(opened)
    }

    /// What is in use of it. An endpoint counts as a queue pair.
    pub(crate) fn usage(&self) -> Usage {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let none = Usage {
            queue_pairs_max: 2 * crate::connect::LINKS_MAX,
            regions_max: crate::table::REGIONS_MAX as u32,
            ..Usage::default()
        };
        open.iter().filter_map(Weak::upgrade).fold(none, |all, open| Usage {
            queue_pairs: all.queue_pairs + open.endpoints.load(Ordering::Relaxed),
            completion_queues: all.completion_queues + open.queues.load(Ordering::Relaxed),
            regions: all.regions + (open.table.len() + open.registrations.len()) as u32,
            ..all
        })
    }
}
