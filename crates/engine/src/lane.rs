//! The lock of a comm's lane: one owner at a time.
//!
//! Calls of the data path try once and return; calls that set up, register or close wait, and acquire the lock first. Otherwise a
//! polling thread could starve them.

use crate::sync::{AtomicU32, Guard, Lock, Ordering, yield_now};

/// State that one thread at a time may use.
#[derive(Debug)]
pub(crate) struct OwnerLock<T> {
    /// Threads that wait for the lock.
    waiting: AtomicU32,
    state: Lock<T>,
}

impl<T> OwnerLock<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { waiting: AtomicU32::new(0), state: Lock::new(state) }
    }

    /// Locks the state, unless another thread holds it or waits for it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.state.try_lock()
    }

    /// Returns the number of threads that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Locks the state; waits for other holders.
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
