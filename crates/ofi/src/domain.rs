//! An open domain, which is one NIC. Opened once a NIC and shared by all that is made on it; closed with the last of that.

use std::sync::Arc;

use trunkline_sys::ofi::FidDomain;
use trunkline_sys::ofi::FidFabric;

use crate::endpoint::{OpenError, OpenStep};
use crate::errno::Errno;
use crate::fid::{Owned, Shared};
use crate::granted::{Exclusion, Granted};
use crate::guard::Guard;
use crate::info::Info;
use crate::lease::Leases;
use crate::profile::Profile;

/// Objects that the provider would not close. There are none unless something is wrong in this crate or in the provider:
/// whatever uses an object holds it. They stay open until the process ends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Refused {
    /// How many.
    pub count: u64,
    /// Why, the last time.
    pub last: Option<Errno>,
}

/// An open domain, and the fabric it is of.
pub struct Domain {
    // The order of fields is the order in which they are closed.
    fid: Owned<FidDomain>,
    fabric: Owned<FidFabric>,
    leases: Arc<Leases>,
    shared: Arc<Shared>,
    granted: Granted,
    exclusion: Exclusion,
    info: Info,
}

impl Domain {
    /// Opens the NIC of an `info`.
    ///
    /// # Errors
    /// [`OpenError`], which names the step.
    pub fn open(info: &Info) -> Result<Arc<Self>, OpenError> {
        let info = info.again().map_err(OpenStep::Info.failed())?;
        let granted = Granted::of(&info);
        let exclusion = Profile::of(&info.names()[0]).exclusion(&granted);
        let shared = Shared::new(Guard::new(exclusion));
        let open = info.library().calls().fabric;
        let attr = info.raw_fabric_attr();
        let fabric = Owned::open(&shared, |to| {
            // SAFETY: the attributes are whole.
            unsafe { open(attr, to, std::ptr::null_mut()) }
        });
        let fabric: Owned<FidFabric> = fabric.map_err(OpenStep::Fabric.failed())?;
        // SAFETY: the fabric is open.
        let ops = unsafe { (*fabric.raw()).ops };
        // SAFETY: the table of an open fabric.
        let open = unsafe { (*ops).domain }.ok_or(Errno::NO_SYS).map_err(OpenStep::Domain.failed())?;
        let fid = Owned::open(&shared, |to| {
            // SAFETY: the fabric is open, and the info is of it.
            unsafe { open(fabric.raw(), info.raw(), to, std::ptr::null_mut()) }
        });
        let fid = fid.map_err(OpenStep::Domain.failed())?;
        let leases = Leases::new(granted.key_bits);
        Ok(Arc::new(Self { fid, fabric, leases, shared, granted, exclusion, info }))
    }

    /// What the provider granted.
    #[must_use]
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// What it was opened with.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The keys that are in use, where the application chooses them.
    #[must_use]
    pub fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    /// What could not be closed so far, of all that was made on it.
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.shared.refused()
    }

    /// What it has others ask after it is gone: the same as [`Domain::refused`], with its own end.
    pub fn watch(&self) -> impl Fn() -> Refused + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.refused()
    }

    /// Which calls are kept apart on it.
    #[must_use]
    pub fn exclusion(&self) -> Exclusion {
        self.exclusion
    }

    pub(crate) fn fid(&self) -> &Owned<FidDomain> {
        &self.fid
    }

    pub(crate) fn fabric(&self) -> &Owned<FidFabric> {
        &self.fabric
    }
}
