//! Objects of libfabric that are owned here: each is closed once, when its owner goes.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use trunkline_sys::ofi::{Fid, FidAv, FidCq, FidDomain, FidEp, FidFabric, FidMr, control};

use crate::domain::Refused;
use crate::errno::Errno;
use crate::guard::Guard;
use crate::mutant::Planted;

/// How often an object is to be enabled before its NIC is taken for full.
const ENABLE_TRIES: u32 = 4096;

/// What all objects of a domain share.
pub(crate) struct Shared {
    /// Who may call when.
    pub(crate) guard: Guard,
    refused: AtomicU64,
    last: AtomicI32,
    hides_refusals: Planted,
    forgets_to_close: Planted,
}

impl Shared {
    /// Of a new domain.
    pub(crate) fn new(guard: Guard) -> Arc<Self> {
        Arc::new(Self {
            guard,
            refused: AtomicU64::new(0),
            last: AtomicI32::new(0),
            hides_refusals: Planted::named("ofi-hides-refused-closes"),
            forgets_to_close: Planted::named("ofi-forgets-to-close"),
        })
    }

    /// Objects that could not be closed.
    pub(crate) fn refused(&self) -> Refused {
        let last = self.last.load(Ordering::Relaxed);
        Refused { count: self.refused.load(Ordering::Relaxed), last: (last != 0).then(|| Errno::new(last)) }
    }

    fn note(&self, errno: Errno) {
        if self.hides_refusals.is_on() {
            return;
        }
        self.last.store(errno.number(), Ordering::Relaxed);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// What begins with a [`Fid`].
///
/// # Safety
/// It does.
pub(crate) unsafe trait Object {}
// SAFETY: its first field is one.
unsafe impl Object for FidFabric {}
// SAFETY: its first field is one.
unsafe impl Object for FidDomain {}
// SAFETY: its first field is one.
unsafe impl Object for FidCq {}
// SAFETY: its first field is one.
unsafe impl Object for FidAv {}
// SAFETY: its first field is one.
unsafe impl Object for FidEp {}
// SAFETY: its first field is one.
unsafe impl Object for FidMr {}

/// An object that is open.
pub(crate) struct Owned<T: Object> {
    raw: NonNull<T>,
    shared: Arc<Shared>,
}

// SAFETY: an object belongs to no thread; who may call at the same time is what the guard and the owners of queue and
// endpoints see to.
unsafe impl<T: Object> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Object> Sync for Owned<T> {}

impl<T: Object> Owned<T> {
    /// Takes what `open` makes, under the guard.
    ///
    /// # Errors
    /// What it said; [`Errno::INVALID`] if it said nothing and made nothing.
    pub(crate) fn open(shared: &Arc<Shared>, open: impl FnOnce(*mut *mut T) -> c_int) -> Result<Self, Errno> {
        let mut raw = std::ptr::null_mut();
        {
            let _inside = shared.guard.set_up();
            Errno::check(open(&raw mut raw))?;
        }
        let raw = NonNull::new(raw).ok_or(Errno::INVALID)?;
        Ok(Self { raw, shared: Arc::clone(shared) })
    }

    /// The object.
    #[inline]
    pub(crate) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Its beginning.
    #[inline]
    pub(crate) fn fid(&self) -> *mut Fid {
        self.raw.as_ptr().cast()
    }

    /// What it shares with the others of its domain.
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Joins it to another.
    pub(crate) fn bind<U: Object>(&self, to: &Owned<U>, flags: u64) -> Result<(), Errno> {
        let ops = self.ops().ok_or(Errno::NO_SYS)?;
        // SAFETY: the table of an open object.
        let bind = unsafe { (*ops.as_ptr()).bind }.ok_or(Errno::NO_SYS)?;
        let _inside = self.shared.guard.set_up();
        // SAFETY: both objects are open.
        Errno::check(unsafe { bind(self.fid(), to.fid(), flags) })
    }

    /// Has it do a command.
    ///
    /// # Safety
    /// `arg` is what the command takes.
    pub(crate) unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result<(), Errno> {
        let ops = self.ops().ok_or(Errno::NO_SYS)?;
        // SAFETY: the table of an open object.
        let control = unsafe { (*ops.as_ptr()).control }.ok_or(Errno::NO_SYS)?;
        let _inside = self.shared.guard.set_up();
        // SAFETY: the object is open; the rest is the caller's promise.
        Errno::check(unsafe { control(self.fid(), command, arg) })
    }

    /// Enables it. That takes a place on the NIC, which may have none for a moment: it is asked for again, not for ever.
    pub(crate) fn enable(&self) -> Result<(), Errno> {
        let tries = if Planted::named("ofi-enables-once").is_on() { 1 } else { ENABLE_TRIES };
        for _ in 1..tries {
            // SAFETY: the command takes nothing.
            match unsafe { self.control(control::ENABLE, std::ptr::null_mut()) } {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                done => return done,
            }
        }
        // SAFETY: as above.
        unsafe { self.control(control::ENABLE, std::ptr::null_mut()) }
    }

    fn ops(&self) -> Option<NonNull<trunkline_sys::ofi::Ops>> {
        // SAFETY: the object is open.
        NonNull::new(unsafe { (*self.fid()).ops })
    }
}

impl<T: Object> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.shared.forgets_to_close.is_on() {
            return;
        }
        let Some(ops) = self.ops() else { return self.shared.note(Errno::NO_SYS) };
        // SAFETY: the table of an open object.
        let Some(close) = (unsafe { (*ops.as_ptr()).close }) else { return self.shared.note(Errno::NO_SYS) };
        let _inside = self.shared.guard.set_up();
        // SAFETY: the object is open, and nobody uses it after this.
        if let Err(errno) = Errno::check(unsafe { close(self.fid()) }) {
            // It stays open, which leaks it and harms nobody.
            self.shared.note(errno);
        }
    }
}
