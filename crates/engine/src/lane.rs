//! One owner at a time: the claim on a comm's lane.
//!
//! Calls of the data path try once and go away; calls that set up, register or close wait their turn, and are let in
//! first.

use crate::sync::{AtomicU32, Guard, Lock, Ordering, yield_now};

/// State that one thread at a time may use.
#[derive(Debug)]
pub(crate) struct OwnerLock<T> {
    /// Threads that wait for their turn.
    waiting: AtomicU32,
    state: Lock<T>,
}

impl<T> OwnerLock<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { waiting: AtomicU32::new(0), state: Lock::new(state) }
    }

    /// The state, unless somebody has it or waits for it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.state.try_lock()
    }

    /// Threads that wait for their turn.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The state, when it is free.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if let Some(guard) = self.state.try_lock() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        loop {
            if let Some(guard) = self.state.try_lock() {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return guard;
            }
            yield_now();
        }
    }
}
