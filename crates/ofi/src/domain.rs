//! An open domain, which is one NIC. Opened once per NIC and shared by all objects created on it; closed with the last of them.

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

/// Objects that the provider refused to close. None are expected unless this crate or the provider has a bug, because the users of an object
/// keep it alive. They stay open until the process ends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CloseFailures {
    /// Their number.
    pub count: u64,
    /// The last error.
    pub last: Option<OfiErrno>,
}

/// An open domain, and its fabric.
pub struct OfiDomain {
    // In the order of closing, because fi_close of a fabric fails with FI_EBUSY while a domain is open (fi_fabric(3)).
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
        // A copy, so that the attributes are available while the domain is open.
        let info = info.duplicate_info().map_err(OfiOpenStep::Info.to_error())?;
        let granted = ProviderGrant::from_info(&info);
        // Decided before the first call on the domain, because the lock must protect all of them.
        let exclusion = ProviderProfile::from_provider(&info.names()[0]).call_exclusion(&granted);
        let shared = DomainShared::new(DomainLock::new(exclusion));
        // The fabric is opened first, because the domain is created by a function of its table (fi_domain(3)).
        let open = info.library().calls().fabric;
        let attr = info.raw_fabric_attr();
        let fabric = OwnedFid::open_with(&shared, |to| {
            // SAFETY: the attributes belong to a valid `fi_info`, which lives during the call.
            unsafe { open(attr, to, std::ptr::null_mut()) }
        });
        let fabric: OwnedFid<FidFabric> = fabric.map_err(OfiOpenStep::Fabric.to_error())?;
        // SAFETY: the fabric is open.
        let ops = unsafe { (*fabric.as_raw()).ops };
        // SAFETY: the table belongs to an open fabric.
        let open =
            unsafe { (*ops).domain }.ok_or(OfiErrno::NO_SYS).map_err(OfiOpenStep::Domain.to_error())?;
        let fid = OwnedFid::open_with(&shared, |to| {
            // SAFETY: the fabric is open, and the info is of the same fabric.
            unsafe { open(fabric.as_raw(), info.as_raw(), to, std::ptr::null_mut()) }
        });
        let fid = fid.map_err(OfiOpenStep::Domain.to_error())?;
        // One set per domain, because keys must be distinct within a domain only (fi_mr(3)).
        let leases = KeyLeases::new(granted.key_bits);
        Ok(Arc::new(Self { fid, fabric, leases, shared, granted, exclusion, info }))
    }

    /// Returns the provider's grant.
    #[must_use]
    pub fn provider_grant(&self) -> &ProviderGrant {
        &self.granted
    }

    /// Returns the info with which the domain was opened.
    #[must_use]
    pub fn info(&self) -> &OfiInfo {
        &self.info
    }

    /// Returns the keys in use, where the application chooses keys.
    #[must_use]
    pub fn key_leases(&self) -> &Arc<KeyLeases> {
        &self.leases
    }

    /// Returns the close failures so far, of all objects created on the domain.
    #[must_use]
    pub fn close_failures(&self) -> CloseFailures {
        self.shared.close_failures()
    }

    /// Returns a function that reports [`OfiDomain::close_failures`] even after the domain is closed, including its own close.
    pub fn watch_close_failures(&self) -> impl Fn() -> CloseFailures + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.close_failures()
    }

    /// Returns which calls on the domain exclude each other.
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
