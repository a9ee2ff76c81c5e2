//! Registered memory, as types that say how far it is: [`MrDisabled`], which has neither key nor descriptor; [`MrBound`], which
//! belongs to one endpoint; [`Mr`], which can be used, by endpoints of its role alone.
//!
//! A registration holds what it needs: its memory, its key, and the endpoint that it is bound to. It is closed before any of
//! them goes.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use trunkline_fabric::{Access, Exported};
use trunkline_mem::{Kind, Memory, OutOfBounds};
use trunkline_sys::ofi::{FidMr, Iovec, KEY_NOTAVAIL, MR_DMABUF, MrAttr, MrDmabuf, hmem};

use crate::domain::Domain;
use crate::endpoint::Anchor;
use crate::errno::Errno;
use crate::fid::Owned;
use crate::lease::{Lease, LeaseError};
use crate::mutant::Planted;
use crate::pages;
use crate::rights::Duty;
use crate::role::{Ctrl, Data, Role};

/// Words that later versions read behind the attributes of a registration; all zeros.
const BEHIND: usize = 8;

/// A step of registering.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegisterStep {
    /// `fi_mr_regattr`.
    Regattr,
    /// `fi_mr_bind`.
    Bind,
    /// `fi_mr_enable`.
    Enable,
    /// `fi_mr_key`, which had none.
    Key,
}

/// Memory could not be registered. Nothing is left of it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The provider said no.
    #[error("registering {duty} for {role}: {step:?}: {errno}")]
    Provider {
        /// What failed.
        step: RegisterStep,
        /// Role of the endpoint.
        role: &'static str,
        /// What the memory is there for.
        duty: Duty,
        /// Why.
        errno: Errno,
    },
    /// There is no key left.
    #[error("registering {duty}: {source}")]
    Keys {
        /// What the memory is there for.
        duty: Duty,
        /// Why.
        source: LeaseError,
    },
    /// The provider's keys do not fit 64 bits.
    #[error("the provider's keys are longer than 64 bits")]
    RawKeys,
    /// The system has no memory for the registration.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] trunkline_mem::OutOfMemory),
    /// It does not take memory of devices, or what it is told of the memory does not agree with what it is.
    #[error("the provider does not take this memory: {0}")]
    Reach(&'static str),
}

/// Whose memory it is, as the provider is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Iface {
    /// The host's.
    Host,
    /// Of an NVIDIA GPU, by CUDA's number of the device.
    Cuda(u32),
    /// Of an AMD GPU, by HIP's number of the device.
    Rocr(u32),
}

/// What is to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The memory.
    pub memory: &'a Memory,
    /// Whose it is.
    pub iface: Iface,
    /// The same as a dma-buf, where it is to go in that way.
    pub dmabuf: Option<Exported<'a>>,
    /// What it is there for, which says what may be done with it.
    pub duty: Duty,
}

impl<'a> Wanted<'a> {
    /// Memory of the host.
    #[must_use]
    pub fn host(memory: &'a Memory, duty: Duty) -> Self {
        Self { memory, iface: Iface::Host, dmabuf: None, duty }
    }
}

/// How memory is registered for endpoints of a role. Decided once, when the endpoint is opened:
/// [`Endpoint::model`](crate::typed::Endpoint::model).
pub enum Model<R: Role> {
    /// With the domain: every endpoint of the role can use it.
    Domain,
    /// With one endpoint.
    Endpoint(Anchor<R>),
}

impl<R: Role> Clone for Model<R> {
    fn clone(&self) -> Self {
        match self {
            Self::Domain => Self::Domain,
            Self::Endpoint(anchor) => Self::Endpoint(anchor.clone()),
        }
    }
}

/// Registers memory for endpoints of a role, all steps of it.
///
/// # Errors
/// [`RegisterError`]; what was done before is undone.
pub fn register<R: Role>(
    domain: &Arc<Domain>,
    model: &Model<R>,
    wanted: &Wanted<'_>,
) -> Result<Mr<R>, RegisterError> {
    let disabled = MrDisabled::make(domain, R::NAME, wanted)?;
    match model {
        Model::Domain => disabled.settle(),
        Model::Endpoint(anchor) => disabled.bind(anchor)?.enable(),
    }
}

/// A registration and what it holds.
struct Registered {
    // The order of fields is the order in which they end: the key is free, and the memory may go, once it is closed.
    fid: Owned<FidMr>,
    lease: Option<Lease>,
    memory: Memory,
    domain: Arc<Domain>,
    duty: Duty,
    frees_key_first: Planted,
}

impl Registered {
    fn error(&self, step: RegisterStep, role: &'static str, errno: Errno) -> RegisterError {
        RegisterError::Provider { step, role, duty: self.duty, errno }
    }

    /// The key, which is there once it is enabled; none of memory that no peer may reach, for which some providers have one
    /// and others do not.
    fn key(&self) -> Result<Option<u64>, Errno> {
        if self.duty.rights().remote == Access::LOCAL {
            return Ok(None);
        }
        // SAFETY: the registration is open.
        let key = unsafe { (*self.fid.raw()).key };
        let takes_none = Planted::named("ofi-takes-no-key-for-one").is_on();
        if key == KEY_NOTAVAIL && !takes_none { Err(Errno::NO_KEY) } else { Ok(Some(key)) }
    }

    fn desc(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        unsafe { (*self.fid.raw()).mem_desc }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.frees_key_first.is_on() {
            self.lease = None;
        }
    }
}

/// A registration that cannot be used yet.
pub struct MrDisabled(Registered);

impl MrDisabled {
    /// Asks the provider for it. `role` is what an error names.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn make(
        domain: &Arc<Domain>,
        role: &'static str,
        wanted: &Wanted<'_>,
    ) -> Result<Self, RegisterError> {
        let duty = wanted.duty;
        check(domain, wanted)?;
        let granted = domain.granted();
        let lease = if granted.prov_key { Ok(None) } else { domain.leases().take().map(Some) };
        let lease = lease.map_err(|source| RegisterError::Keys { duty, source })?;
        if granted.allocated {
            pages::populate(wanted.memory);
        }
        let fid = regattr(domain, wanted, lease.as_ref().map_or(0, Lease::key));
        let failed = |errno| RegisterError::Provider { step: RegisterStep::Regattr, role, duty, errno };
        Ok(Self(Registered {
            fid: fid.map_err(failed)?,
            lease,
            memory: wanted.memory.clone(),
            domain: Arc::clone(domain),
            duty,
            frees_key_first: Planted::named("ofi-frees-keys-first"),
        }))
    }

    /// Binds it to an endpoint, for good.
    ///
    /// # Errors
    /// [`RegisterStep::Bind`]; the registration is gone.
    pub fn bind<R: Role>(self, anchor: &Anchor<R>) -> Result<MrBound<R>, RegisterError> {
        let bound = self.0.fid.bind(&anchor.0.fid, 0);
        bound.map_err(|errno| self.0.error(RegisterStep::Bind, R::NAME, errno))?;
        Ok(MrBound { registered: self.0, anchor: anchor.clone() })
    }

    /// It is enabled by itself, where registrations belong to the domain.
    fn settle<R: Role>(self) -> Result<Mr<R>, RegisterError> {
        let takes_any = Planted::named("ofi-settles-anything").is_on();
        if self.0.domain.granted().endpoint_scoped && !takes_any {
            return Err(self.0.error(RegisterStep::Bind, R::NAME, Errno::INVALID));
        }
        Mr::of(self.0, None)
    }
}

/// A registration that belongs to an endpoint and cannot be used yet.
pub struct MrBound<R: Role> {
    // The order of fields is the order in which they end.
    registered: Registered,
    anchor: Anchor<R>,
}

impl<R: Role> MrBound<R> {
    /// Makes it usable.
    ///
    /// # Errors
    /// [`RegisterStep::Enable`], or [`RegisterStep::Key`] if it has no key even now; the registration is gone.
    pub fn enable(self) -> Result<Mr<R>, RegisterError> {
        if Planted::named("ofi-reads-keys-early").is_on() {
            let early = self.registered.key();
            early.map_err(|errno| self.registered.error(RegisterStep::Key, R::NAME, errno))?;
        }
        if !Planted::named("ofi-forgets-to-enable").is_on() {
            let enabled = self.registered.fid.enable();
            enabled.map_err(|errno| self.registered.error(RegisterStep::Enable, R::NAME, errno))?;
        }
        let forgets = Planted::named("ofi-forgets-endpoints").is_on();
        Mr::of(self.registered, (!forgets).then_some(self.anchor))
    }
}

/// Memory that can be used, by endpoints of its role.
pub struct Mr<R: Role> {
    // The order of fields is the order in which they end: a registration is closed before its endpoint.
    registered: Registered,
    /// The endpoint that it belongs to, if it does not belong to the domain.
    _anchor: Option<Anchor<R>>,
    key: Option<u64>,
    desc: Desc,
    remote_base: u64,
    skips_bounds: Planted,
}

/// What local operations are given.
#[derive(Clone, Copy, Debug)]
struct Desc(*mut c_void);

// SAFETY: it is only handed on to the provider.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

impl<R: Role> Mr<R> {
    fn of(registered: Registered, anchor: Option<Anchor<R>>) -> Result<Self, RegisterError> {
        let key = registered.key().map_err(|errno| registered.error(RegisterStep::Key, R::NAME, errno))?;
        let desc = Desc(registered.desc());
        let remote_base = registered.domain.granted().remote_base(registered.memory.addr());
        let skips_bounds = Planted::named("ofi-skips-local-bounds");
        Ok(Self { registered, _anchor: anchor, key, desc, remote_base, skips_bounds })
    }

    /// What lets peers reach it; none if its duty gives them no right.
    #[must_use]
    pub fn key(&self) -> Option<RKey<R>> {
        self.key.map(RKey::new)
    }

    /// What peers add their offset to.
    #[must_use]
    pub fn remote_base(&self) -> u64 {
        self.remote_base
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.registered.memory
    }

    /// Where it is.
    pub(crate) fn place(&self) -> Place<R> {
        let memory = &self.registered.memory;
        Place { addr: memory.addr(), len: memory.len() as u64, desc: self.desc.0, of: PhantomData }
    }

    /// Some of its bytes, for operations of this end.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they are not all inside.
    #[inline]
    pub fn local(&self, offset: u64, len: u64) -> Result<Local<'_, R>, OutOfBounds> {
        let memory = &self.registered.memory;
        let addr = match memory.checked(offset, len) {
            Err(_) if self.skips_bounds.is_on() => memory.addr().wrapping_add(offset as usize),
            checked => checked?,
        };
        Ok(Local { addr, len: len as usize, desc: self.desc, of: PhantomData })
    }
}

/// Where a registration is, for who keeps it himself while operations use it: a value that can stand in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<R: Role> {
    pub(crate) addr: usize,
    pub(crate) len: u64,
    pub(crate) desc: *mut c_void,
    of: PhantomData<fn() -> R>,
}

impl<R: Role> Place<R> {
    /// One of these parts, which came from [`Mr::place`].
    pub(crate) fn from_parts(addr: usize, len: u64, desc: *mut c_void) -> Self {
        Self { addr, len, desc, of: PhantomData }
    }

    /// Some of its bytes; nothing if they are not all inside.
    #[inline]
    pub(crate) fn local(self, offset: u64, len: u64) -> Option<Local<'static, R>> {
        let addr = self.addr.wrapping_add(offset as usize);
        let inside = offset.checked_add(len)? <= self.len;
        inside.then_some(Local { addr, len: len as usize, desc: Desc(self.desc), of: PhantomData })
    }
}

/// Bytes of registered memory, for operations on endpoints of its role.
#[derive(Clone, Copy, Debug)]
pub struct Local<'m, R: Role> {
    addr: usize,
    len: usize,
    desc: Desc,
    of: PhantomData<&'m Mr<R>>,
}

impl<R: Role> Local<'_, R> {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As libfabric takes it.
    #[inline]
    pub(crate) fn parts(self) -> (Iovec, *mut c_void) {
        let iov_base = std::ptr::with_exposed_provenance_mut(self.addr);
        (Iovec { iov_base, iov_len: self.len }, self.desc.0)
    }
}

/// Lets endpoints of a role reach memory of a peer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RKey<R: Role> {
    number: u64,
    role: PhantomData<fn() -> R>,
}

impl<R: Role> RKey<R> {
    /// What a peer said is its key, for this role.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self { number, role: PhantomData }
    }

    /// As peers are told.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }
}

/// A place in memory of a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote<R: Role> {
    key: RKey<R>,
    addr: u64,
}

impl<R: Role> Remote<R> {
    /// The peer's [`Mr::remote_base`] plus the offset, under its key.
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

/// What registers may be of any thread, and shared.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Mr<Data>>();
    shared::<Model<Ctrl>>();
};

/// Whether the provider takes such memory.
fn check(domain: &Domain, wanted: &Wanted<'_>) -> Result<(), RegisterError> {
    let granted = domain.granted();
    if Planted::named("ofi-takes-any-memory").is_on() {
        return Ok(());
    }
    if granted.raw_keys {
        return Err(RegisterError::RawKeys);
    }
    let is_touched = matches!(wanted.memory.kind(), Kind::Host | Kind::Mapped);
    if is_touched != (wanted.iface == Iface::Host) {
        return Err(RegisterError::Reach(
            "it is called the host's and is a device's, or the other way round",
        ));
    }
    if wanted.iface != Iface::Host && !granted.hmem {
        return Err(RegisterError::Reach("memory of devices was not granted"));
    }
    if wanted.dmabuf.is_some() && !granted.dmabuf {
        return Err(RegisterError::Reach("dma-bufs came with version 1.20 of the interface"));
    }
    Ok(())
}

/// Attributes with what later versions look for behind them.
#[repr(C)]
struct Attributes {
    attr: MrAttr,
    behind: [u64; BEHIND],
}

/// `fi_mr_regattr`.
fn regattr(domain: &Domain, wanted: &Wanted<'_>, key: u64) -> Result<Owned<FidMr>, Errno> {
    let memory = wanted.memory;
    let base: *mut c_void = std::ptr::with_exposed_provenance_mut(memory.addr());
    let iov = Iovec { iov_base: base, iov_len: memory.len() };
    let widened = Planted::named("ofi-widens-dmabufs").is_on();
    let page = rustix::param::page_size() as u64;
    let part = wanted.dmabuf.map(|exported| MrDmabuf {
        fd: exported.fd.as_raw_fd(),
        offset: if widened { exported.offset / page * page } else { exported.offset },
        len: if widened { memory.len().next_multiple_of(page as usize) } else { memory.len() },
        // So that offset and base make the address.
        base_addr: base.wrapping_byte_sub(exported.offset as usize),
    });
    let (iface, device) = match wanted.iface {
        Iface::Host => (hmem::SYSTEM, 0),
        Iface::Cuda(device) => (hmem::CUDA, device.into()),
        Iface::Rocr(device) => (hmem::ROCR, device.into()),
    };
    let attributes = Attributes {
        attr: MrAttr {
            mr_iov: part.as_ref().map_or(&raw const iov, |part| std::ptr::from_ref(part).cast()),
            iov_count: 1,
            access: wanted.duty.rights().bits(),
            requested_key: key,
            iface,
            device,
            ..MrAttr::ZERO
        },
        behind: [0; BEHIND],
    };
    let flags = if part.is_some() { MR_DMABUF } else { 0 };
    let raw = domain.fid().raw();
    // SAFETY: the domain is open.
    let ops = unsafe { (*raw).mr };
    // SAFETY: null, or the table of an open domain.
    let regattr = unsafe { ops.as_ref() }.and_then(|ops| ops.regattr).ok_or(Errno::NO_SYS)?;
    Owned::open(domain.fid().shared(), |to| {
        // SAFETY: the domain is open; the attributes and what they point to are whole while the call lasts. The memory stays
        // mapped until the registration is closed, because that holds it.
        unsafe { regattr(domain.fid().fid(), (&raw const attributes).cast(), flags, to) }
    })
}
