//! A lock for an executor that several threads use: one thread at a time drives it, and no thread waits. A thread that finds it
//! locked sets a flag, and leaves its work to the holder. The holder checks the flag after it has unlocked. `tests/model.rs`
//! compiles this a second time, over a model that tries every order of events.

use crate::lane::OwnerLock;
use crate::sync::{AtomicBool, Guard, Ordering};

/// State that is driven in passes.
#[derive(Debug)]
pub struct ExecutorLock<T> {
    state: OwnerLock<T>,
    /// A thread has left work to the holder, or waits for a pass.
    wanted: AtomicBool,
}

impl<T> ExecutorLock<T> {
    /// Creates the executor of a state, idle at first.
    pub fn new(state: T) -> Self {
        Self { state: OwnerLock::new(state), wanted: AtomicBool::new(false) }
    }

    /// Runs set-up under the lock, before other waiters. Afterwards it drives work that threads have left meanwhile, as
    /// [`drive_passes`](Self::drive_passes) does.
    pub fn with_setup<R>(
        &self,
        f: impl FnOnce(&mut T) -> R,
        most: u32,
        turn: impl FnMut(&mut T) -> bool,
    ) -> R {
        let result = f(&mut self.lock());
        if self.take_wanted() {
            self.drive_passes(most, turn);
        }
        result
    }

    /// Locks the state and waits for it, for set-up in competition with threads that drive it again and again.
    pub fn lock(&self) -> Guard<'_, T> {
        self.state.lock()
    }

    /// Locks the state, unless another thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.try_lock()
    }

    /// Returns whether a pass is requested.
    #[inline]
    pub fn is_wanted(&self, order: Ordering) -> bool {
        self.wanted.load(order)
    }

    /// Requests a pass.
    #[inline]
    pub fn request_pass(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// Returns whether a pass was requested since the last call, and clears the request. Called after the state is unlocked.
    #[inline]
    pub fn take_wanted(&self) -> bool {
        // Both sides exchange the flag, and one exchange is the later one. So either the requester finds the state unlocked, or
        // the holder finds the request here.
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// Drives passes on the calling thread while `turn` returns true, at most `most` of them, and further ones while other
    /// threads request them. If another thread holds the state, that thread makes the pass instead.
    #[inline]
    pub fn drive_passes(&self, most: u32, turn: impl FnMut(&mut T) -> bool) {
        let Some(state) = self.state.try_lock().or_else(|| self.leave_to_owner()) else { return };
        self.drive_from(state, most, turn);
    }

    /// As [`Self::drive_passes`], for a thread that polls again anyway. If another thread holds the state, no pass is
    /// requested, because the next poll makes one.
    #[inline]
    pub fn drive_if_free(&self, most: u32, turn: impl FnMut(&mut T) -> bool) {
        let Some(state) = self.state.try_lock() else { return };
        self.drive_from(state, most, turn);
    }

    #[inline]
    fn drive_from<'a>(&'a self, first: Guard<'a, T>, most: u32, mut turn: impl FnMut(&mut T) -> bool) {
        let mut state = first;
        let mut turns = 0;
        loop {
            let goes_on = turn(&mut state);
            drop(state);
            turns += 1;
            let has_more = goes_on && turns < most;
            if !self.take_wanted() && !has_more {
                return;
            }
            let Some(again) = self.state.try_lock().or_else(|| self.leave_to_owner()) else { return };
            state = again;
        }
    }

    /// Requests another pass of the holder, unless the holder has just unlocked: then returns the lock.
    #[cold]
    fn leave_to_owner(&self) -> Option<Guard<'_, T>> {
        self.wanted.swap(true, Ordering::AcqRel);
        let state = self.state.try_lock()?;
        // This thread's own pass serves all requests.
        self.take_wanted();
        Some(state)
    }
}
