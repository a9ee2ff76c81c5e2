//! Mutual exclusion on a domain, as far as the provider's threading model asks for it. Decided once, when the domain is
//! opened; every call into the provider goes through one of the two doors here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::granted::Exclusion;
use crate::mutant::Planted;

/// A lock, taken only where it must be. It is held during one call of the provider and never while another is waited for.
pub(crate) struct Guard {
    lock: Mutex<()>,
    posts: bool,
    sets_up: bool,
}

impl Guard {
    /// What a domain needs.
    pub(crate) fn new(exclusion: Exclusion) -> Self {
        let never = Planted::named("ofi-never-locks").is_on();
        Self {
            lock: Mutex::new(()),
            posts: exclusion == Exclusion::All && !never,
            sets_up: exclusion != Exclusion::Nothing && !never,
        }
    }

    /// Before a call that posts, or reads a queue.
    #[inline]
    pub(crate) fn post(&self) -> Option<MutexGuard<'_, ()>> {
        if self.posts { Some(self.enter()) } else { None }
    }

    /// Before a call that makes, changes or ends something.
    pub(crate) fn set_up(&self) -> Option<MutexGuard<'_, ()>> {
        self.sets_up.then(|| self.enter())
    }

    fn enter(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_must_be_is_locked() {
        let doors = |exclusion| {
            let guard = Guard::new(exclusion);
            let post = guard.post().is_some();
            (post, guard.set_up().is_some())
        };
        assert_eq!(doors(Exclusion::Nothing), (false, false));
        assert_eq!(doors(Exclusion::SetUp), (false, true));
        assert_eq!(doors(Exclusion::All), (true, true));
    }
}
