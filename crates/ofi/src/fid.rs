//! Objects of libfabric that are owned here: each is closed once, when its owner goes.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use trunkline_sys::ofi::{Fid, FidAv, FidCq, FidDomain, FidEp, FidFabric, FidMr, control};

use crate::domain::CloseFailures;
use crate::domain_lock::DomainLock;
use crate::errno::OfiErrno;

/// How often an object is to be enabled before its NIC is taken for full.
const ENABLE_TRIES: u32 = 4096;

/// What all objects of a domain share.
pub(crate) struct DomainShared {
    /// Who may call when.
    pub(crate) guard: DomainLock,
    refused: AtomicU64,
    last: AtomicI32,
}

impl DomainShared {
    /// Of a new domain.
    pub(crate) fn new(guard: DomainLock) -> Arc<Self> {
        Arc::new(Self { guard, refused: AtomicU64::new(0), last: AtomicI32::new(0) })
    }

    /// Objects that could not be closed.
    pub(crate) fn close_failures(&self) -> CloseFailures {
        let last = self.last.load(Ordering::Relaxed);
        CloseFailures {
            count: self.refused.load(Ordering::Relaxed),
            last: (last != 0).then(|| OfiErrno::new(last)),
        }
    }

    fn note_failure(&self, errno: OfiErrno) {
        self.last.store(errno.number(), Ordering::Relaxed);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// What begins with a [`Fid`].
///
/// # Safety
/// It does.
pub(crate) unsafe trait FidObject {}
// SAFETY: its first field is one.
unsafe impl FidObject for FidFabric {}
// SAFETY: its first field is one.
unsafe impl FidObject for FidDomain {}
// SAFETY: its first field is one.
unsafe impl FidObject for FidCq {}
// SAFETY: its first field is one.
unsafe impl FidObject for FidAv {}
// SAFETY: its first field is one.
unsafe impl FidObject for FidEp {}
// SAFETY: its first field is one.
unsafe impl FidObject for FidMr {}

/// An object that is open.
pub(crate) struct OwnedFid<T: FidObject> {
    raw: NonNull<T>,
    shared: Arc<DomainShared>,
}

// SAFETY: an object belongs to no thread; who may call at the same time is what the guard and the owners of queue and
// endpoints see to.
unsafe impl<T: FidObject> Send for OwnedFid<T> {}
// SAFETY: as above.
unsafe impl<T: FidObject> Sync for OwnedFid<T> {}

impl<T: FidObject> OwnedFid<T> {
    /// Takes what `open` makes, under the guard.
    ///
    /// # Errors
    /// What it said; [`OfiErrno::INVALID`] if it said nothing and made nothing.
    pub(crate) fn open_with(
        shared: &Arc<DomainShared>,
        open: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self, OfiErrno> {
        let mut raw = std::ptr::null_mut();
        {
            let _inside = shared.guard.lock_set_up();
            OfiErrno::check_code(open(&raw mut raw))?;
        }
        let raw = NonNull::new(raw).ok_or(OfiErrno::INVALID)?;
        Ok(Self { raw, shared: Arc::clone(shared) })
    }

    /// The object.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Its beginning.
    #[inline]
    pub(crate) fn as_fid(&self) -> *mut Fid {
        self.raw.as_ptr().cast()
    }

    /// What it shares with the others of its domain.
    #[inline]
    pub(crate) fn domain_shared(&self) -> &Arc<DomainShared> {
        &self.shared
    }

    /// Joins it to another.
    pub(crate) fn bind_to<U: FidObject>(&self, to: &OwnedFid<U>, flags: u64) -> Result<(), OfiErrno> {
        let ops = self.fid_ops().ok_or(OfiErrno::NO_SYS)?;
        // SAFETY: the table of an open object.
        let bind = unsafe { (*ops.as_ptr()).bind }.ok_or(OfiErrno::NO_SYS)?;
        let _inside = self.shared.guard.lock_set_up();
        // SAFETY: both objects are open.
        OfiErrno::check_code(unsafe { bind(self.as_fid(), to.as_fid(), flags) })
    }

    /// Has it do a command.
    ///
    /// # Safety
    /// `arg` is what the command takes.
    pub(crate) unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result<(), OfiErrno> {
        let ops = self.fid_ops().ok_or(OfiErrno::NO_SYS)?;
        // SAFETY: the table of an open object.
        let control = unsafe { (*ops.as_ptr()).control }.ok_or(OfiErrno::NO_SYS)?;
        let _inside = self.shared.guard.lock_set_up();
        // SAFETY: the object is open; the rest is the caller's promise.
        OfiErrno::check_code(unsafe { control(self.as_fid(), command, arg) })
    }

    /// Enables it. That takes a place on the NIC, which may have none for a moment: it is asked for again, not for ever.
    pub(crate) fn enable(&self) -> Result<(), OfiErrno> {
        for _ in 1..ENABLE_TRIES {
            // SAFETY: the command takes nothing.
            match unsafe { self.control(control::ENABLE, std::ptr::null_mut()) } {
                Err(OfiErrno::AGAIN) => std::thread::yield_now(),
                done => return done,
            }
        }
        // SAFETY: as above.
        unsafe { self.control(control::ENABLE, std::ptr::null_mut()) }
    }

    fn fid_ops(&self) -> Option<NonNull<trunkline_sys::ofi::Ops>> {
        // SAFETY: the object is open.
        NonNull::new(unsafe { (*self.as_fid()).ops })
    }
}

impl<T: FidObject> Drop for OwnedFid<T> {
    fn drop(&mut self) {
        let Some(ops) = self.fid_ops() else { return self.shared.note_failure(OfiErrno::NO_SYS) };
        // SAFETY: the table of an open object.
        let Some(close) = (unsafe { (*ops.as_ptr()).close }) else {
            return self.shared.note_failure(OfiErrno::NO_SYS);
        };
        let _inside = self.shared.guard.lock_set_up();
        // SAFETY: the object is open, and nobody uses it after this.
        if let Err(errno) = OfiErrno::check_code(unsafe { close(self.as_fid()) }) {
            // It stays open, which leaks it and harms nobody.
            self.shared.note_failure(errno);
        }
    }
}
