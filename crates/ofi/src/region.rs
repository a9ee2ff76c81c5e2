//! Registered memory, with its state as a type: [`MrDisabled`], which has neither key nor descriptor; [`MrBound`], which is bound to one
//! endpoint; [`MrEnabled`], which endpoints of its role can use.
//!
//! A registration holds everything that it needs: its memory, its key, and the endpoint to which it is bound. It is closed before any of them
//! is released.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use trunkline_fabric::{AccessRights, ExportedDmaBuf};
use trunkline_mem::{MemoryKind, MemoryRange, OutOfBounds};
use trunkline_sys::ofi::{FidMr, Iovec, KEY_NOTAVAIL, MR_DMABUF, MrAttr, MrDmabuf, hmem};

use crate::domain::OfiDomain;
use crate::endpoint::EndpointAnchor;
use crate::errno::OfiErrno;
use crate::fid::OwnedFid;
use crate::lease::{KeyLease, LeaseError};
use crate::pages;
use crate::rights::MemoryDuty;
use crate::role::{ControlTraffic, EndpointRole, PayloadTraffic};

/// Words that later versions read behind the attributes of a registration; all zeros.
const BEHIND: usize = 8;

/// A step of a registration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegisterStep {
    /// `fi_mr_regattr`.
    Regattr,
    /// `fi_mr_bind`.
    Bind,
    /// `fi_mr_enable`.
    Enable,
    /// `fi_mr_key`, which returned no key.
    Key,
}

/// Memory could not be registered. Completed steps are undone.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OfiRegisterError {
    /// The provider failed.
    #[error("registering {duty} for {role}: {step:?}: {errno}")]
    Provider {
        /// The failed step.
        step: RegisterStep,
        /// The role of the endpoint.
        role: &'static str,
        /// The purpose of the memory.
        duty: MemoryDuty,
        /// The provider's error.
        errno: OfiErrno,
    },
    /// No key is available.
    #[error("registering {duty}: {source}")]
    Keys {
        /// The purpose of the memory.
        duty: MemoryDuty,
        /// The reason.
        source: LeaseError,
    },
    /// The provider's keys do not fit 64 bits.
    #[error(
        "cannot register memory: the provider's keys are longer than 64 bits (FI_MR_RAW), which is not supported"
    )]
    RawKeys,
    /// The system has no memory for the registration.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] trunkline_mem::OutOfMemory),
    /// The provider does not accept memory of devices, or the request does not match the kind of memory.
    #[error("the provider does not accept this memory: {0}")]
    Reach(&'static str),
}

/// The kind of memory, as passed to the provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryIface {
    /// Memory of the host.
    Host,
    /// Of an NVIDIA GPU, by CUDA's number of the device.
    Cuda(u32),
    /// Of an AMD GPU, by HIP's number of the device.
    Rocr(u32),
}

/// A registration request.
#[derive(Clone, Copy, Debug)]
pub struct MrRequest<'a> {
    /// The memory.
    pub memory: &'a MemoryRange,
    /// Its kind.
    pub iface: MemoryIface,
    /// The same memory as a dma-buf, if it is to be registered by it.
    pub dmabuf: Option<ExportedDmaBuf<'a>>,
    /// Its purpose, which determines the access rights.
    pub duty: MemoryDuty,
}

impl<'a> MrRequest<'a> {
    /// Requests a registration of memory of the host.
    #[must_use]
    pub fn for_host(memory: &'a MemoryRange, duty: MemoryDuty) -> Self {
        Self { memory, iface: MemoryIface::Host, dmabuf: None, duty }
    }
}

/// Where memory is registered for endpoints of a role. Decided once, when the endpoint is opened:
/// [`OfiEndpoint::mr_scope`](crate::typed::OfiEndpoint::mr_scope).
pub enum MrScope<R: EndpointRole> {
    /// With the domain: every endpoint of the role can use it.
    Domain,
    /// With one endpoint.
    Endpoint(EndpointAnchor<R>),
}

impl<R: EndpointRole> Clone for MrScope<R> {
    fn clone(&self) -> Self {
        match self {
            Self::Domain => Self::Domain,
            Self::Endpoint(anchor) => Self::Endpoint(anchor.clone()),
        }
    }
}

/// Registers memory for endpoints of a role, in all steps.
///
/// # Errors
/// [`OfiRegisterError`]; completed steps are undone.
pub fn register_memory<R: EndpointRole>(
    domain: &Arc<OfiDomain>,
    model: &MrScope<R>,
    wanted: &MrRequest<'_>,
) -> Result<MrEnabled<R>, OfiRegisterError> {
    let disabled = MrDisabled::make_disabled(domain, R::NAME, wanted)?;
    match model {
        MrScope::Domain => disabled.settle_in_domain(),
        MrScope::Endpoint(anchor) => disabled.bind_endpoint(anchor)?.enable(),
    }
}

/// A registration and the objects that it holds.
struct HeldRegistration {
    // In the order of closing: the key may be reused, and the memory freed, only after the registration is closed.
    fid: OwnedFid<FidMr>,
    _lease: Option<KeyLease>,
    memory: MemoryRange,
    domain: Arc<OfiDomain>,
    duty: MemoryDuty,
}

impl HeldRegistration {
    fn step_error(&self, step: RegisterStep, role: &'static str, errno: OfiErrno) -> OfiRegisterError {
        OfiRegisterError::Provider { step, role, duty: self.duty, errno }
    }

    /// Returns the key, which exists once the registration is enabled. `None` for memory that no peer may access, for which only some providers
    /// create a key.
    fn read_key(&self) -> Result<Option<u64>, OfiErrno> {
        if self.duty.required_rights().remote == AccessRights::LOCAL {
            return Ok(None);
        }
        // SAFETY: the registration is open.
        let key = unsafe { (*self.fid.as_raw()).key };
        if key == KEY_NOTAVAIL { Err(OfiErrno::NO_KEY) } else { Ok(Some(key)) }
    }

    fn read_desc(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        unsafe { (*self.fid.as_raw()).mem_desc }
    }
}

/// A registration that cannot be used yet.
pub struct MrDisabled(HeldRegistration);

impl MrDisabled {
    /// Requests a registration from the provider. `role` is named in errors.
    ///
    /// # Errors
    /// [`OfiRegisterError`].
    pub fn make_disabled(
        domain: &Arc<OfiDomain>,
        role: &'static str,
        wanted: &MrRequest<'_>,
    ) -> Result<Self, OfiRegisterError> {
        let duty = wanted.duty;
        check_memory(domain, wanted)?;
        let granted = domain.provider_grant();
        // With FI_MR_PROV_KEY the provider chooses the key, so none is leased (fi_mr(3)).
        let lease = if granted.prov_key { Ok(None) } else { domain.key_leases().take_lease().map(Some) };
        let lease = lease.map_err(|source| OfiRegisterError::Keys { duty, source })?;
        // Some providers fail if the pages do not exist at registration (`FI_MR_ALLOCATED`, fi_mr(3)).
        if granted.allocated {
            pages::populate_pages(wanted.memory);
        }
        let fid = call_regattr(domain, wanted, lease.as_ref().map_or(0, KeyLease::leased_key));
        let failed = |errno| OfiRegisterError::Provider { step: RegisterStep::Regattr, role, duty, errno };
        Ok(Self(HeldRegistration {
            fid: fid.map_err(failed)?,
            _lease: lease,
            // Held, so that the memory stays mapped while the NIC can access it.
            memory: wanted.memory.clone(),
            domain: Arc::clone(domain),
            duty,
        }))
    }

    /// Binds the registration to an endpoint, permanently.
    ///
    /// # Errors
    /// [`RegisterStep::Bind`]; the registration is closed.
    pub fn bind_endpoint<R: EndpointRole>(
        self,
        anchor: &EndpointAnchor<R>,
    ) -> Result<MrBound<R>, OfiRegisterError> {
        // With FI_MR_ENDPOINT, a registration must be bound before it can be enabled (fi_mr(3)).
        let bound = self.0.fid.bind_to(&anchor.0.fid, 0);
        bound.map_err(|errno| self.0.step_error(RegisterStep::Bind, R::NAME, errno))?;
        Ok(MrBound { registered: self.0, anchor: anchor.clone() })
    }

    /// Converts a registration of the domain, which is enabled by itself.
    fn settle_in_domain<R: EndpointRole>(self) -> Result<MrEnabled<R>, OfiRegisterError> {
        // With `FI_MR_ENDPOINT` an unbound registration would never become usable.
        if self.0.domain.provider_grant().endpoint_scoped {
            return Err(self.0.step_error(RegisterStep::Bind, R::NAME, OfiErrno::INVALID));
        }
        MrEnabled::from_registered(self.0, None)
    }
}

/// A registration that is bound to an endpoint and cannot be used yet.
pub struct MrBound<R: EndpointRole> {
    // In the order of closing.
    registered: HeldRegistration,
    anchor: EndpointAnchor<R>,
}

impl<R: EndpointRole> MrBound<R> {
    /// Enables the registration.
    ///
    /// # Errors
    /// [`RegisterStep::Enable`], or [`RegisterStep::Key`] if it still has no key; the registration is closed.
    pub fn enable(self) -> Result<MrEnabled<R>, OfiRegisterError> {
        let enabled = self.registered.fid.enable();
        enabled.map_err(|errno| self.registered.step_error(RegisterStep::Enable, R::NAME, errno))?;
        MrEnabled::from_registered(self.registered, Some(self.anchor))
    }
}

/// Memory that endpoints of its role can use.
pub struct MrEnabled<R: EndpointRole> {
    // In the order of closing: a registration is closed before its endpoint.
    registered: HeldRegistration,
    /// The endpoint to which it is bound, unless it belongs to the domain.
    _anchor: Option<EndpointAnchor<R>>,
    key: Option<u64>,
    desc: MrDesc,
    remote_base: u64,
}

/// The descriptor passed to local operations.
#[derive(Clone, Copy, Debug)]
struct MrDesc(*mut c_void);

// SAFETY: the pointer is only passed to the provider, and never dereferenced here.
unsafe impl Send for MrDesc {}
// SAFETY: as above.
unsafe impl Sync for MrDesc {}

impl<R: EndpointRole> MrEnabled<R> {
    fn from_registered(
        registered: HeldRegistration,
        anchor: Option<EndpointAnchor<R>>,
    ) -> Result<Self, OfiRegisterError> {
        let key = registered
            .read_key()
            .map_err(|errno| registered.step_error(RegisterStep::Key, R::NAME, errno))?;
        let desc = MrDesc(registered.read_desc());
        let remote_base = registered.domain.provider_grant().remote_base(registered.memory.addr());
        Ok(Self { registered, _anchor: anchor, key, desc, remote_base })
    }

    /// Returns the key for peers; `None` if its purpose gives them no right.
    #[must_use]
    pub fn key(&self) -> Option<RKey<R>> {
        self.key.map(RKey::new)
    }

    /// Returns the address to which peers add their offset.
    #[must_use]
    pub fn remote_base(&self) -> u64 {
        self.remote_base
    }

    /// Returns the memory.
    #[must_use]
    pub fn memory(&self) -> &MemoryRange {
        &self.registered.memory
    }

    /// Returns the extent of the registration.
    pub(crate) fn whole_extent(&self) -> MrExtent<R> {
        let memory = &self.registered.memory;
        MrExtent { addr: memory.addr(), len: memory.len() as u64, desc: self.desc.0, of: PhantomData }
    }

    /// Returns some of its bytes, for local operations.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they are not all inside.
    #[inline]
    pub fn local_slice(&self, offset: u64, len: u64) -> Result<LocalSlice<'_, R>, OutOfBounds> {
        let memory = &self.registered.memory;
        let addr = memory.checked_address(offset, len)?;
        Ok(LocalSlice { addr, len: len as usize, desc: self.desc, of: PhantomData })
    }
}

/// The extent of a registration whose owner keeps it open while operations use it: a plain value that can be stored in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrExtent<R: EndpointRole> {
    pub(crate) addr: usize,
    pub(crate) len: u64,
    pub(crate) desc: *mut c_void,
    of: PhantomData<fn() -> R>,
}

impl<R: EndpointRole> MrExtent<R> {
    /// Creates an extent from the parts of [`MrEnabled::whole_extent`].
    pub(crate) fn from_parts(addr: usize, len: u64, desc: *mut c_void) -> Self {
        Self { addr, len, desc, of: PhantomData }
    }

    /// Returns some of its bytes; `None` if they are not all inside.
    #[inline]
    pub(crate) fn local_slice(self, offset: u64, len: u64) -> Option<LocalSlice<'static, R>> {
        let addr = self.addr.wrapping_add(offset as usize);
        let inside = offset.checked_add(len)? <= self.len;
        inside.then_some(LocalSlice { addr, len: len as usize, desc: MrDesc(self.desc), of: PhantomData })
    }
}

/// Bytes of registered memory, for operations on endpoints of its role.
#[derive(Clone, Copy, Debug)]
pub struct LocalSlice<'m, R: EndpointRole> {
    addr: usize,
    len: usize,
    desc: MrDesc,
    of: PhantomData<&'m MrEnabled<R>>,
}

impl<R: EndpointRole> LocalSlice<'_, R> {
    /// Returns the length, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Converts it to libfabric's form.
    #[inline]
    pub(crate) fn iovec_parts(self) -> (Iovec, *mut c_void) {
        let iov_base = std::ptr::with_exposed_provenance_mut(self.addr);
        (Iovec { iov_base, iov_len: self.len }, self.desc.0)
    }
}

/// The key by which endpoints of a role access memory of a peer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RKey<R: EndpointRole> {
    number: u64,
    role: PhantomData<fn() -> R>,
}

impl<R: EndpointRole> RKey<R> {
    /// Wraps the key that a peer sent, for this role.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self { number, role: PhantomData }
    }

    /// Returns the key in the form in which peers receive it.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }
}

/// A place in memory of a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemotePlace<R: EndpointRole> {
    key: RKey<R>,
    addr: u64,
}

impl<R: EndpointRole> RemotePlace<R> {
    /// Creates a place: the peer's [`MrEnabled::remote_base`] plus the offset, with its key.
    #[must_use]
    pub fn new(key: RKey<R>, addr: u64) -> Self {
        Self { key, addr }
    }

    #[inline]
    pub(crate) fn key(self) -> RKey<R> {
        self.key
    }

    #[inline]
    pub(crate) fn addr(self) -> u64 {
        self.addr
    }
}

/// Registrars may be used by any thread, and shared.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<MrEnabled<PayloadTraffic>>();
    shared::<MrScope<ControlTraffic>>();
};

/// Checks that the provider accepts the memory.
fn check_memory(domain: &OfiDomain, wanted: &MrRequest<'_>) -> Result<(), OfiRegisterError> {
    let granted = domain.provider_grant();
    // Messages of the control path carry keys of 64 bits only.
    if granted.raw_keys {
        return Err(OfiRegisterError::RawKeys);
    }
    // A wrong interface would make the provider access memory of a device by the CPU.
    let is_touched = matches!(wanted.memory.kind(), MemoryKind::Host | MemoryKind::Mapped);
    if is_touched != (wanted.iface == MemoryIface::Host) {
        return Err(OfiRegisterError::Reach(
            "the interface in the request does not match the kind of the memory (host or device)",
        ));
    }
    if wanted.iface != MemoryIface::Host && !granted.hmem {
        return Err(OfiRegisterError::Reach("the provider did not grant memory of devices (FI_HMEM)"));
    }
    if wanted.dmabuf.is_some() && !granted.dmabuf {
        return Err(OfiRegisterError::Reach("dma-bufs need version 1.20 of the interface"));
    }
    Ok(())
}

/// Attributes, followed by zeros for fields of later versions.
#[repr(C)]
struct PaddedMrAttr {
    attr: MrAttr,
    behind: [u64; BEHIND],
}

/// Calls `fi_mr_regattr`.
fn call_regattr(domain: &OfiDomain, wanted: &MrRequest<'_>, key: u64) -> Result<OwnedFid<FidMr>, OfiErrno> {
    let memory = wanted.memory;
    let base: *mut c_void = std::ptr::with_exposed_provenance_mut(memory.addr());
    let iov = Iovec { iov_base: base, iov_len: memory.len() };
    let part = wanted.dmabuf.map(|exported| MrDmabuf {
        fd: exported.fd.as_raw_fd(),
        offset: exported.offset,
        len: memory.len(),
        // libfabric computes the address as base plus offset, so the base lies before the memory.
        base_addr: base.wrapping_byte_sub(exported.offset as usize),
    });
    let (iface, device) = match wanted.iface {
        MemoryIface::Host => (hmem::SYSTEM, 0),
        MemoryIface::Cuda(device) => (hmem::CUDA, device.into()),
        MemoryIface::Rocr(device) => (hmem::ROCR, device.into()),
    };
    let attributes = PaddedMrAttr {
        attr: MrAttr {
            mr_iov: part.as_ref().map_or(&raw const iov, |part| std::ptr::from_ref(part).cast()),
            iov_count: 1,
            access: wanted.duty.required_rights().access_bits(),
            requested_key: key,
            iface,
            device,
            ..MrAttr::ZERO
        },
        // Zeros, so that later versions find defaults.
        behind: [0; BEHIND],
    };
    let flags = if part.is_some() { MR_DMABUF } else { 0 };
    let raw = domain.domain_fid().as_raw();
    // SAFETY: the domain is open.
    let ops = unsafe { (*raw).mr };
    // SAFETY: the pointer is null, or the table of an open domain.
    let regattr = unsafe { ops.as_ref() }.and_then(|ops| ops.regattr).ok_or(OfiErrno::NO_SYS)?;
    OwnedFid::open_with(domain.domain_fid().domain_shared(), |to| {
        // SAFETY: the domain is open; the attributes and the data that they point to live during the call. The registration holds the memory, so it
        // stays mapped until the registration is closed.
        unsafe { regattr(domain.domain_fid().as_fid(), (&raw const attributes).cast(), flags, to) }
    })
}
