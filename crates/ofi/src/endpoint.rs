//! Endpoints of a role: opened on a queue, each with an address vector of its own. [`crate::post`] posts operations on them.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::Arc;

use trunkline_sys::ofi::{ADDR_NOTAVAIL, Addr, AvAttr, FidAv, FidEp, OPT_ENDPOINT, av_type, caps};

use crate::contexts::OpSlot;
use crate::domain::OfiDomain;
use crate::errno::OfiErrno;
use crate::fid::OwnedFid;
use crate::info::OfiInfo;
use crate::queue::{HeldQueue, OfiQueue};
use crate::region::MrScope;
use crate::role::{ControlTraffic, EndpointRole, PayloadTraffic};

/// The maximum length of an address, in bytes.
const NAME_MAX: usize = 512;

/// A step of opening a NIC, a queue or an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum OfiOpenStep {
    /// Copying the info.
    Info,
    /// `fi_fabric`.
    Fabric,
    /// `fi_domain`.
    Domain,
    /// Memory for the tables of a NIC or a queue.
    Tables,
    /// `fi_cq_open`.
    Queue,
    /// `fi_av_open`.
    Vector,
    /// `fi_endpoint`.
    Endpoint,
    /// `fi_ep_bind` to the queue.
    BindQueue,
    /// `fi_ep_bind` to the vector.
    BindVector,
    /// `fi_setopt`, with the number of the option.
    Option(i32),
    /// `fi_enable`.
    Enable,
}

impl OfiOpenStep {
    /// Returns the error of this step.
    pub(crate) fn to_error(self) -> impl FnOnce(OfiErrno) -> OfiOpenError {
        move |errno| OfiOpenError { step: self, errno, role: None }
    }
}

/// An object could not be opened. Objects opened before it are closed again.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}{step:?}: {errno}", .role.map_or_else(|| "opening: ".to_owned(), |role| format!("opening the {role} endpoint: ")))]
pub struct OfiOpenError {
    /// The failed step.
    pub step: OfiOpenStep,
    /// The provider's error.
    pub errno: OfiErrno,
    /// The endpoint's role, if one was being opened.
    pub role: Option<&'static str>,
}

/// A peer of an endpoint, valid until it is removed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EndpointPeer<R: EndpointRole> {
    addr: Addr,
    role: PhantomData<fn() -> R>,
}

impl<R: EndpointRole> EndpointPeer<R> {
    /// Returns its number, as [`CompletionEntry::source`](crate::typed::CompletionEntry::source) reports it for messages received on this endpoint.
    #[must_use]
    pub fn peer_number(self) -> u64 {
        self.addr
    }

    #[inline]
    pub(crate) fn raw_addr(self) -> Addr {
        self.addr
    }
}

/// An endpoint option, set before the endpoint is enabled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EndpointOption {
    name: c_int,
    value: [u8; 8],
    len: usize,
}

impl EndpointOption {
    /// Creates an option with an `int` value.
    #[must_use]
    pub fn from_int(name: i32, value: i32) -> Self {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&value.to_ne_bytes());
        Self { name, value: bytes, len: 4 }
    }

    /// Creates an option with a `size_t` value.
    #[must_use]
    pub fn from_size(name: i32, value: usize) -> Self {
        Self { name, value: (value as u64).to_ne_bytes(), len: 8 }
    }

    /// Creates an option with a `bool` value.
    #[must_use]
    pub fn from_flag(name: i32, value: bool) -> Self {
        Self { name, value: [value.into(), 0, 0, 0, 0, 0, 0, 0], len: 1 }
    }
}

/// An open endpoint, as held by its users.
pub(crate) struct HeldEndpoint {
    // In the order of closing, because fi_close of a vector or queue fails with FI_EBUSY while an endpoint is bound to it.
    pub(crate) fid: OwnedFid<FidEp>,
    vector: OwnedFid<FidAv>,
    pub(crate) queue: Arc<HeldQueue>,
}

/// Keeps an endpoint open. Registrations bound to an endpoint hold one, so that the endpoint is closed after them.
pub struct EndpointAnchor<R: EndpointRole>(pub(crate) Arc<HeldEndpoint>, PhantomData<R>);

impl<R: EndpointRole> Clone for EndpointAnchor<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

/// An endpoint for one purpose. Its owner posts on it; it is not `Send`, like [`OfiQueue`]. It is closed when it and all registrations bound to
/// it are dropped.
pub struct OfiEndpoint<R: EndpointRole> {
    held: Arc<HeldEndpoint>,
    /// The maximum length of injected operations, in bytes.
    pub(crate) inject: usize,
    /// The strongest completion level that the provider grants.
    pub(crate) reach: u64,
    /// Usable bits of remote CQ data and of tags.
    pub(crate) data_bits: u64,
    pub(crate) tag_bits: u64,
    role: PhantomData<R>,
    one_thread: PhantomData<*mut ()>,
}

impl OfiEndpoint<PayloadTraffic> {
    /// Returns the same endpoint for records, so that payload and records stay in order. Returns `None` where a registration is bound to one
    /// endpoint, and with it to one role.
    #[must_use]
    pub fn also_records(&self) -> Option<OfiEndpoint<ControlTraffic>> {
        if self.domain().provider_grant().endpoint_scoped {
            return None;
        }
        Some(OfiEndpoint {
            held: Arc::clone(&self.held),
            inject: self.inject,
            reach: self.reach,
            data_bits: self.data_bits,
            tag_bits: self.tag_bits,
            role: PhantomData,
            one_thread: PhantomData,
        })
    }
}

impl<R: EndpointRole> OfiEndpoint<R> {
    /// Opens an endpoint. Creates it, binds it to the queue for both directions and to an address vector of its own, sets the options, and enables
    /// it. The info `info` is of the queue's domain, and may request more than the domain was opened with, such as a traffic class.
    ///
    /// # Errors
    /// [`OfiOpenError`], which names the step; no object stays open.
    pub fn open(info: &OfiInfo, queue: &OfiQueue, options: &[EndpointOption]) -> Result<Self, OfiOpenError> {
        let named = |error: OfiOpenError| OfiOpenError { role: Some(R::NAME), ..error };
        Self::make_endpoint(info, queue, options).map_err(named)
    }

    fn make_endpoint(
        info: &OfiInfo,
        queue: &OfiQueue,
        options: &[EndpointOption],
    ) -> Result<Self, OfiOpenError> {
        let domain = queue.domain();
        // One address vector per endpoint, so that a peer of one role cannot be addressed on an endpoint of the other.
        let vector = open_vector(domain, info).map_err(OfiOpenStep::Vector.to_error())?;
        let raw = domain.domain_fid().as_raw();
        // SAFETY: the domain is open.
        let ops = unsafe { (*raw).ops };
        // SAFETY: the table belongs to an open domain.
        let open =
            unsafe { (*ops).endpoint }.ok_or(OfiErrno::NO_SYS).map_err(OfiOpenStep::Endpoint.to_error())?;
        let fid: Result<OwnedFid<FidEp>, OfiErrno> =
            OwnedFid::open_with(domain.domain_fid().domain_shared(), |to| {
                // SAFETY: the domain is open, and the info is of its provider.
                unsafe { open(raw, info.as_raw(), to, std::ptr::null_mut()) }
            });
        let fid = fid.map_err(OfiOpenStep::Endpoint.to_error())?;
        // Selective, so that quiet operations produce no entry in the queue; failures always do (fi_endpoint(3)).
        let directions = caps::TRANSMIT | caps::RECV | caps::SELECTIVE_COMPLETION;
        fid.bind_to(&queue.held_queue().fid, directions).map_err(OfiOpenStep::BindQueue.to_error())?;
        fid.bind_to(&vector, 0).map_err(OfiOpenStep::BindVector.to_error())?;
        // Before the endpoint is enabled, because providers choose their protocols then and reject later changes (fi_endpoint(3)).
        for option in options {
            set_option(&fid, option).map_err(OfiOpenStep::Option(option.name).to_error())?;
        }
        fid.enable().map_err(OfiOpenStep::Enable.to_error())?;
        let granted = crate::provider_grant::ProviderGrant::from_info(info);
        Ok(Self {
            held: Arc::new(HeldEndpoint { fid, vector, queue: Arc::clone(queue.held_queue()) }),
            inject: granted.sizes.inject,
            reach: granted.reach,
            data_bits: low_bits(u32::try_from(granted.cq_data_bytes.saturating_mul(8)).unwrap_or(u64::BITS)),
            tag_bits: low_bits(granted.tag_bits),
            role: PhantomData,
            one_thread: PhantomData,
        })
    }

    /// Returns whether both are the same endpoint, for different roles.
    pub(crate) fn is_also<S: EndpointRole>(&self, other: &OfiEndpoint<S>) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }

    /// Returns an anchor that keeps the endpoint open.
    #[must_use]
    pub fn make_anchor(&self) -> EndpointAnchor<R> {
        EndpointAnchor(Arc::clone(&self.held), PhantomData)
    }

    /// Returns how memory is registered for it: with the domain, or with this endpoint where the provider demands it (`FI_MR_ENDPOINT`).
    #[must_use]
    pub fn mr_scope(&self) -> MrScope<R> {
        if self.domain().provider_grant().endpoint_scoped {
            MrScope::Endpoint(self.make_anchor())
        } else {
            MrScope::Domain
        }
    }

    /// Returns the endpoint's domain.
    #[must_use]
    pub fn domain(&self) -> &Arc<OfiDomain> {
        &self.held.queue.domain
    }

    #[inline]
    pub(crate) fn held_endpoint(&self) -> &HeldEndpoint {
        &self.held
    }

    /// Returns the endpoint's own address, in the form that peers insert.
    ///
    /// # Errors
    /// The provider's error.
    pub fn local_name(&self) -> Result<Vec<u8>, OfiErrno> {
        let fid = &self.held.fid;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*fid.as_raw()).cm };
        // SAFETY: the pointer is null, or the table of an open endpoint.
        let getname = unsafe { ops.as_ref() }.and_then(|ops| ops.getname).ok_or(OfiErrno::NO_SYS)?;
        let mut name = vec![0_u8; NAME_MAX];
        let mut len = name.len();
        {
            let _inside = fid.domain_shared().guard.lock_set_up();
            // SAFETY: the endpoint is open, and `len` is the length of `name`.
            OfiErrno::check_code(unsafe { getname(fid.as_fid(), name.as_mut_ptr().cast(), &raw mut len) })?;
        }
        name.truncate(len);
        Ok(name)
    }

    /// Inserts a peer by its address.
    ///
    /// # Errors
    /// The provider's error, or [`OfiErrno::INVALID`] if it inserted no peer.
    pub fn insert(&mut self, name: &[u8]) -> Result<EndpointPeer<R>, OfiErrno> {
        let insert = self.vector_ops().and_then(|ops| ops.insert).ok_or(OfiErrno::NO_SYS)?;
        let vector = &self.held.vector;
        // Copied to a larger buffer, because providers read the full length of their address format, even if the peer sent fewer bytes.
        let mut room = [0_u8; NAME_MAX];
        room.get_mut(..name.len()).ok_or(OfiErrno::INVALID)?.copy_from_slice(name);
        let mut addr = ADDR_NOTAVAIL;
        let _inside = vector.domain_shared().guard.lock_set_up();
        let from = room.as_ptr().cast();
        // SAFETY: the vector is open; one address and room for one peer are passed.
        let count = unsafe { insert(vector.as_raw(), from, 1, &raw mut addr, 0, std::ptr::null_mut()) };
        match count {
            1 if addr != ADDR_NOTAVAIL => Ok(EndpointPeer { addr, role: PhantomData }),
            // fi_av_insert(3) returns the number of inserted addresses, and marks rejected ones as FI_ADDR_NOTAVAIL.
            0 | 1 => Err(OfiErrno::INVALID),
            error => Err(OfiErrno::new(error)),
        }
    }

    /// Removes a peer. Operations to it must have completed.
    ///
    /// # Errors
    /// The provider's error.
    pub fn remove(&mut self, peer: EndpointPeer<R>) -> Result<(), OfiErrno> {
        let remove = self.vector_ops().and_then(|ops| ops.remove).ok_or(OfiErrno::NO_SYS)?;
        let vector = &self.held.vector;
        let mut addr = peer.addr;
        let _inside = vector.domain_shared().guard.lock_set_up();
        // SAFETY: the vector is open, and one peer is passed.
        OfiErrno::check_code(unsafe { remove(vector.as_raw(), &raw mut addr, 1, 0) })
    }

    fn vector_ops(&self) -> Option<&trunkline_sys::ofi::OpsAv> {
        // SAFETY: the vector is open.
        let ops = unsafe { (*self.held.vector.as_raw()).ops };
        // SAFETY: the pointer is null, or the table of an open vector.
        unsafe { ops.as_ref() }
    }

    /// Cancels an operation in flight: it then fails with [`OfiErrno::CANCELED`], unless it has already completed.
    ///
    /// # Errors
    /// The provider's error; [`OfiErrno::INVALID`] if the slot does not exist.
    pub fn cancel(&mut self, slot: OpSlot) -> Result<(), OfiErrno> {
        let at = self.held.queue.contexts.context_ptr(slot).ok_or(OfiErrno::INVALID)?;
        let fid = &self.held.fid;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*fid.as_raw()).ops };
        // SAFETY: the pointer is null, or the table of an open endpoint.
        let cancel = unsafe { ops.as_ref() }.and_then(|ops| ops.cancel).ok_or(OfiErrno::NO_SYS)?;
        // Locked like a post, because the call accesses the queues of the endpoint.
        let _inside = fid.domain_shared().guard.lock_post();
        // SAFETY: the endpoint is open. The provider only compares the address.
        OfiErrno::check_count(unsafe { cancel(fid.as_fid(), at) }).map(drop)
    }
}

/// Returns a mask of the `count` lowest bits.
fn low_bits(count: u32) -> u64 {
    // checked_shr, because a shift by all 64 bits overflows for a count of 0.
    u64::MAX.checked_shr(u64::BITS.saturating_sub(count)).unwrap_or(0)
}

/// Opens an address vector for an endpoint.
fn open_vector(domain: &Arc<OfiDomain>, info: &OfiInfo) -> Result<OwnedFid<FidAv>, OfiErrno> {
    // Some providers leave the type unspecified; a table makes peer numbers small and dense.
    let r#type = match info.domain_attr().av_type {
        av_type::UNSPEC => av_type::TABLE,
        named => named,
    };
    let mut attr = AvAttr { r#type, ..AvAttr::ZERO };
    let raw = domain.domain_fid().as_raw();
    // SAFETY: the domain is open.
    let ops = unsafe { (*raw).ops };
    // SAFETY: the table belongs to an open domain.
    let open = unsafe { (*ops).av_open }.ok_or(OfiErrno::NO_SYS)?;
    OwnedFid::open_with(domain.domain_fid().domain_shared(), |to| {
        // SAFETY: the domain is open, and the attributes are complete.
        unsafe { open(raw, &raw mut attr, to, std::ptr::null_mut()) }
    })
}

/// Sets an endpoint option.
fn set_option(fid: &OwnedFid<FidEp>, option: &EndpointOption) -> Result<(), OfiErrno> {
    // SAFETY: the endpoint is open.
    let ops = unsafe { (*fid.as_raw()).ops };
    // SAFETY: the pointer is null, or the table of an open endpoint.
    let setopt = unsafe { ops.as_ref() }.and_then(|ops| ops.setopt).ok_or(OfiErrno::NO_SYS)?;
    let value = option.value.as_ptr().cast();
    let _inside = fid.domain_shared().guard.lock_set_up();
    // SAFETY: the endpoint is open, and `option.len` bytes of the value are initialised.
    OfiErrno::check_code(unsafe { setopt(fid.as_fid(), OPT_ENDPOINT, option.name, value, option.len) })
}

/// Checks that neither queue nor endpoint is `Send`: if one were, `of` would be ambiguous between two traits.
const _: fn() = || {
    trait NotSend<T> {
        fn of() {}
    }
    struct Sends;
    impl<T> NotSend<()> for T {}
    impl<T: Send> NotSend<Sends> for T {}
    let _ = <OfiQueue as NotSend<_>>::of;
    let _ = <OfiEndpoint<PayloadTraffic> as NotSend<_>>::of;
};
