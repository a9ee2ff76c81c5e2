//! Who drives an executor that several threads use: one of them at a time, and nobody waits for another. Whoever finds it taken leaves what he came for to whoever has it, who looks
//! for that once he has given it back. `tests/model.rs` compiles this a second time, over a model that tries every order of events.

use crate::lane::OwnerLock;
use crate::sync::{AtomicBool, Guard, Ordering};

/// State that is driven by turns.
#[derive(Debug)]
pub struct ExecutorLock<T> {
    state: OwnerLock<T>,
    /// Somebody has left something to whoever has the state, or waits.
    wanted: AtomicBool,
}

impl<T> ExecutorLock<T> {
    /// Makes the executor of that state, idle at first.
    pub fn new(state: T) -> Self {
        Self { state: OwnerLock::new(state), wanted: AtomicBool::new(false) }
    }

    /// Set-up, which is let in first. What others leave meanwhile is driven then, as by [`drive_passes`](Self::drive_passes).
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

    /// The state, for set-up where a thread takes turns again and again.
    pub fn lock(&self) -> Guard<'_, T> {
        self.state.lock()
    }

    /// The state, unless somebody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.try_lock()
    }

    /// Whether somebody waits.
    #[inline]
    pub fn is_wanted(&self, order: Ordering) -> bool {
        self.wanted.load(order)
    }

    /// Somebody waits.
    #[inline]
    pub fn request_pass(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// Whether anything was left since the last time. Asked by whoever has given the state back.
    #[inline]
    pub fn take_wanted(&self) -> bool {
        // Of two exchanges one is the later one: who comes with that sees the state free, or is seen here.
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// Turns by the thread that calls, as long as `turn` says that there is more to do, and `most` of these; and as long as others leave theirs here. None
    /// if another thread has the state, which goes on for it.
    #[inline]
    pub fn drive_passes(&self, most: u32, turn: impl FnMut(&mut T) -> bool) {
        let Some(state) = self.state.try_lock().or_else(|| self.leave_to_owner()) else { return };
        self.drive_from(state, most, turn);
    }

    /// The same by a thread that looks again anyway: if another one has the state, nothing is left to it.
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

    /// Has whoever is at it make another turn, unless he has just ended.
    #[cold]
    fn leave_to_owner(&self) -> Option<Guard<'_, T>> {
        self.wanted.swap(true, Ordering::AcqRel);
        let state = self.state.try_lock()?;
        // It is this thread's own turn that serves whoever has left something.
        self.take_wanted();
        Some(state)
    }
}
