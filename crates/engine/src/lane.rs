//! One owner at a time: the claim on a comm's lane.
//!
//! Calls of the data path try once and go away; calls that set up, register or close wait their turn, and are let in
//! first.

use std::sync::atomic::{AtomicU32, Ordering};

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// State that one thread at a time may use.
#[derive(Debug)]
pub(crate) struct Lane<T> {
    /// Threads that wait for their turn.
    waiting: AtomicU32,
    state: SpinMutex<T>,
}

impl<T> Lane<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { waiting: AtomicU32::new(0), state: SpinMutex::new(state) }
    }

    /// The state, unless somebody has it or waits for it.
    #[inline]
    pub(crate) fn try_claim(&self) -> Option<SpinMutexGuard<'_, T>> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return None;
        }
        self.state.try_lock()
    }

    /// The state, when it is free.
    pub(crate) fn claim(&self) -> SpinMutexGuard<'_, T> {
        if let Some(guard) = self.state.try_lock() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        loop {
            if let Some(guard) = self.state.try_lock() {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return guard;
            }
            std::thread::yield_now();
        }
    }
}
