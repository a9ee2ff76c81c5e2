//! Owned objects of libfabric: each is closed once, when its owner is dropped.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use trunkline_sys::ofi::{Fid, FidAv, FidCq, FidDomain, FidEp, FidFabric, FidMr, control};

use crate::domain::CloseFailures;
use crate::domain_lock::DomainLock;
use crate::errno::OfiErrno;

/// Attempts to enable an object before its NIC is considered full.
const ENABLE_TRIES: u32 = 4096;

/// State shared by all objects of a domain.
pub(crate) struct DomainShared {
    /// The lock for calls on the domain.
    pub(crate) guard: DomainLock,
    refused: AtomicU64,
    last: AtomicI32,
}

impl DomainShared {
    /// Creates the state of a new domain.
    pub(crate) fn new(guard: DomainLock) -> Arc<Self> {
        Arc::new(Self { guard, refused: AtomicU64::new(0), last: AtomicI32::new(0) })
    }

    /// Returns the objects that could not be closed.
    pub(crate) fn close_failures(&self) -> CloseFailures {
        let last = self.last.load(Ordering::Relaxed);
        CloseFailures {
            count: self.refused.load(Ordering::Relaxed),
            last: (last != 0).then(|| OfiErrno::new(last)),
        }
    }

    fn note_failure(&self, errno: OfiErrno) {
        // Relaxed, because the counters are diagnostics and order nothing.
        self.last.store(errno.number(), Ordering::Relaxed);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// An object that begins with a [`Fid`].
///
/// # Safety
/// The first field of the type is a [`Fid`].
pub(crate) unsafe trait FidObject {}
// SAFETY: the first field of `fid_fabric` is a `fid` (rdma/fabric.h).
unsafe impl FidObject for FidFabric {}
// SAFETY: the first field of `fid_domain` is a `fid` (rdma/fi_domain.h).
unsafe impl FidObject for FidDomain {}
// SAFETY: the first field of `fid_cq` is a `fid` (rdma/fi_eq.h).
unsafe impl FidObject for FidCq {}
// SAFETY: the first field of `fid_av` is a `fid` (rdma/fi_domain.h).
unsafe impl FidObject for FidAv {}
// SAFETY: the first field of `fid_ep` is a `fid` (rdma/fi_endpoint.h).
unsafe impl FidObject for FidEp {}
// SAFETY: the first field of `fid_mr` is a `fid` (rdma/fi_domain.h).
unsafe impl FidObject for FidMr {}

/// An open object.
pub(crate) struct OwnedFid<T: FidObject> {
    raw: NonNull<T>,
    shared: Arc<DomainShared>,
}

// SAFETY: an object belongs to no thread; the lock, and the owners of queue and endpoints, exclude concurrent calls where the provider
// requires it.
unsafe impl<T: FidObject> Send for OwnedFid<T> {}
// SAFETY: as above.
unsafe impl<T: FidObject> Sync for OwnedFid<T> {}

impl<T: FidObject> OwnedFid<T> {
    /// Opens an object by `open`, under the lock.
    ///
    /// # Errors
    /// The error of `open`; [`OfiErrno::INVALID`] if it returned success without an object.
    pub(crate) fn open_with(
        shared: &Arc<DomainShared>,
        open: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self, OfiErrno> {
        let mut raw = std::ptr::null_mut();
        {
            let _inside = shared.guard.lock_set_up();
            OfiErrno::check_code(open(&raw mut raw))?;
        }
        // A provider that reports success without an object must not lead to a null dereference.
        let raw = NonNull::new(raw).ok_or(OfiErrno::INVALID)?;
        Ok(Self { raw, shared: Arc::clone(shared) })
    }

    /// Returns the object.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Returns the object as a [`Fid`], its first field.
    #[inline]
    pub(crate) fn as_fid(&self) -> *mut Fid {
        self.raw.as_ptr().cast()
    }

    /// Returns the state shared with the other objects of its domain.
    #[inline]
    pub(crate) fn domain_shared(&self) -> &Arc<DomainShared> {
        &self.shared
    }

    /// Binds the object to another one.
    pub(crate) fn bind_to<U: FidObject>(&self, to: &OwnedFid<U>, flags: u64) -> Result<(), OfiErrno> {
        let ops = self.fid_ops().ok_or(OfiErrno::NO_SYS)?;
        // SAFETY: the table belongs to an open object.
        let bind = unsafe { (*ops.as_ptr()).bind }.ok_or(OfiErrno::NO_SYS)?;
        let _inside = self.shared.guard.lock_set_up();
        // SAFETY: both objects are open.
        OfiErrno::check_code(unsafe { bind(self.as_fid(), to.as_fid(), flags) })
    }

    /// Calls `fi_control`.
    ///
    /// # Safety
    /// `arg` is the argument that the command requires.
    pub(crate) unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result<(), OfiErrno> {
        let ops = self.fid_ops().ok_or(OfiErrno::NO_SYS)?;
        // SAFETY: the table belongs to an open object.
        let control = unsafe { (*ops.as_ptr()).control }.ok_or(OfiErrno::NO_SYS)?;
        let _inside = self.shared.guard.lock_set_up();
        // SAFETY: the object is open; the caller guarantees the argument.
        OfiErrno::check_code(unsafe { control(self.as_fid(), command, arg) })
    }

    /// Enables the object. This takes a resource of the NIC that may be unavailable for a moment, so `FI_EAGAIN` is retried a bounded number of
    /// times.
    pub(crate) fn enable(&self) -> Result<(), OfiErrno> {
        for _ in 1..ENABLE_TRIES {
            // SAFETY: the command takes no argument.
            match unsafe { self.control(control::ENABLE, std::ptr::null_mut()) } {
                Err(OfiErrno::AGAIN) => std::thread::yield_now(),
                done => return done,
            }
        }
        // SAFETY: the command takes no argument.
        unsafe { self.control(control::ENABLE, std::ptr::null_mut()) }
    }

    fn fid_ops(&self) -> Option<NonNull<trunkline_sys::ofi::Ops>> {
        // SAFETY: the object is open.
        NonNull::new(unsafe { (*self.as_fid()).ops })
    }
}

impl<T: FidObject> Drop for OwnedFid<T> {
    fn drop(&mut self) {
        // Drop cannot return an error, so failures are counted in the shared state.
        let Some(ops) = self.fid_ops() else { return self.shared.note_failure(OfiErrno::NO_SYS) };
        // SAFETY: the table belongs to an open object.
        let Some(close) = (unsafe { (*ops.as_ptr()).close }) else {
            return self.shared.note_failure(OfiErrno::NO_SYS);
        };
        let _inside = self.shared.guard.lock_set_up();
        // SAFETY: the object is open, and this is its last use.
        if let Err(errno) = OfiErrno::check_code(unsafe { close(self.as_fid()) }) {
            // The object stays open, which is a leak but harms no other object.
            self.shared.note_failure(errno);
        }
    }
}
