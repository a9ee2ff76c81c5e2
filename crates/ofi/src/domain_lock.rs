//! Mutual exclusion on a domain, as far as the provider's threading model asks for it. Decided once, when the domain is
//! opened; every call into the provider goes through one of the two doors here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::provider_grant::CallExclusion;

/// A lock, taken only where it must be. It is held during one call of the provider and never while another is waited for.
pub(crate) struct DomainLock {
    lock: Mutex<()>,
    posts: bool,
    sets_up: bool,
}

impl DomainLock {
    /// What a domain needs.
    pub(crate) fn new(exclusion: CallExclusion) -> Self {
        Self {
            lock: Mutex::new(()),
            posts: exclusion == CallExclusion::All,
            sets_up: exclusion != CallExclusion::Nothing,
        }
    }

    /// Before a call that posts, or reads a queue.
    #[inline]
    pub(crate) fn lock_post(&self) -> Option<MutexGuard<'_, ()>> {
        if self.posts { Some(self.acquire_lock()) } else { None }
    }

    /// Before a call that makes, changes or ends something.
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
    fn only_what_must_be_is_locked() {
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
