//! Mutual exclusion on a domain, as far as the provider's threading model requires it (`FI_THREAD_*` in fi_domain(3)). Decided once, when the
//! domain is opened; every call of the provider acquires one of the two guards here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::provider_grant::CallExclusion;

/// A lock that is acquired only where necessary. It is held during one call of the provider, and never while waiting for another lock.
pub(crate) struct DomainLock {
    lock: Mutex<()>,
    posts: bool,
    sets_up: bool,
}

impl DomainLock {
    /// Creates the lock that a domain needs.
    pub(crate) fn new(exclusion: CallExclusion) -> Self {
        Self {
            lock: Mutex::new(()),
            posts: exclusion == CallExclusion::All,
            sets_up: exclusion != CallExclusion::Nothing,
        }
    }

    /// Acquires the lock, if needed, for a call that posts operations or reads a queue.
    #[inline]
    pub(crate) fn lock_post(&self) -> Option<MutexGuard<'_, ()>> {
        if self.posts { Some(self.acquire_lock()) } else { None }
    }

    /// Acquires the lock, if needed, for a call that creates, changes or closes an object.
    pub(crate) fn lock_set_up(&self) -> Option<MutexGuard<'_, ()>> {
        self.sets_up.then(|| self.acquire_lock())
    }

    fn acquire_lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_locked_only_as_required() {
        let doors = |exclusion| {
            let guard = DomainLock::new(exclusion);
            let post = guard.lock_post().is_some();
            (post, guard.lock_set_up().is_some())
        };
        assert_eq!(doors(CallExclusion::Nothing), (false, false));
        assert_eq!(doors(CallExclusion::SetUp), (false, true));
        assert_eq!(doors(CallExclusion::All), (true, true));
    }
}
