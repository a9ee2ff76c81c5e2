//! An open domain, which is one NIC. Opened once a NIC and shared by all that is made on it; closed with the last of that.

use std::sync::Arc;

use trunkline_sys::ofi::FidDomain;
use trunkline_sys::ofi::FidFabric;

use crate::domain_lock::DomainLock;
use crate::endpoint::{OfiOpenError, OfiOpenStep};
use crate::errno::OfiErrno;
use crate::fid::{DomainShared, OwnedFid};
use crate::info::OfiInfo;
use crate::lease::KeyLeases;
use crate::profile::ProviderProfile;
use crate::provider_grant::{CallExclusion, ProviderGrant};

/// Objects that the provider would not close. There are none unless something is wrong in this crate or in the provider:
/// whatever uses an object holds it. They stay open until the process ends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CloseFailures {
    /// How many.
    pub count: u64,
    /// Why, the last time.
    pub last: Option<OfiErrno>,
}

/// An open domain, and the fabric it is of.
pub struct OfiDomain {
    // The order of fields is the order in which they are closed.
    fid: OwnedFid<FidDomain>,
    fabric: OwnedFid<FidFabric>,
    leases: Arc<KeyLeases>,
    shared: Arc<DomainShared>,
    granted: ProviderGrant,
    exclusion: CallExclusion,
    info: OfiInfo,
}

impl OfiDomain {
    /// Opens the NIC of an `info`.
    ///
    /// # Errors
    /// [`OfiOpenError`], which names the step.
    pub fn open(info: &OfiInfo) -> Result<Arc<Self>, OfiOpenError> {
        let info = info.duplicate_info().map_err(OfiOpenStep::Info.to_error())?;
        let granted = ProviderGrant::from_info(&info);
        let exclusion = ProviderProfile::from_provider(&info.names()[0]).call_exclusion(&granted);
        let shared = DomainShared::new(DomainLock::new(exclusion));
        let open = info.library().calls().fabric;
        let attr = info.raw_fabric_attr();
        let fabric = OwnedFid::open_with(&shared, |to| {
            // SAFETY: the attributes are whole.
            unsafe { open(attr, to, std::ptr::null_mut()) }
        });
        let fabric: OwnedFid<FidFabric> = fabric.map_err(OfiOpenStep::Fabric.to_error())?;
        // SAFETY: the fabric is open.
        let ops = unsafe { (*fabric.as_raw()).ops };
        // SAFETY: the table of an open fabric.
        let open =
            unsafe { (*ops).domain }.ok_or(OfiErrno::NO_SYS).map_err(OfiOpenStep::Domain.to_error())?;
        let fid = OwnedFid::open_with(&shared, |to| {
            // SAFETY: the fabric is open, and the info is of it.
            unsafe { open(fabric.as_raw(), info.as_raw(), to, std::ptr::null_mut()) }
        });
        let fid = fid.map_err(OfiOpenStep::Domain.to_error())?;
        let leases = KeyLeases::new(granted.key_bits);
        Ok(Arc::new(Self { fid, fabric, leases, shared, granted, exclusion, info }))
    }

    /// What the provider granted.
    #[must_use]
    pub fn provider_grant(&self) -> &ProviderGrant {
        &self.granted
    }

    /// What it was opened with.
    #[must_use]
    pub fn info(&self) -> &OfiInfo {
        &self.info
    }

    /// The keys that are in use, where the application chooses them.
    #[must_use]
    pub fn key_leases(&self) -> &Arc<KeyLeases> {
        &self.leases
    }

    /// What could not be closed so far, of all that was made on it.
    #[must_use]
    pub fn close_failures(&self) -> CloseFailures {
        self.shared.close_failures()
    }

    /// What it has others ask after it is gone: the same as [`OfiDomain::close_failures`], with its own end.
    pub fn watch_close_failures(&self) -> impl Fn() -> CloseFailures + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.close_failures()
    }

    /// Which calls are kept apart on it.
    #[must_use]
    pub fn call_exclusion(&self) -> CallExclusion {
        self.exclusion
    }

    pub(crate) fn domain_fid(&self) -> &OwnedFid<FidDomain> {
        &self.fid
    }

    pub(crate) fn fabric_fid(&self) -> &OwnedFid<FidFabric> {
        &self.fabric
    }
}
