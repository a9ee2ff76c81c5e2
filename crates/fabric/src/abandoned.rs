//! Registrations that could not be ended when their owners dropped them, because a peer was stopped inside a copy. Their owners no longer have the
//! keys, so the NIC's registrar keeps these and tries again. Registrars call it; it knows nothing of regions but keys.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{DeregisterError, LocalKey};

/// Most registrations that are kept. Beyond that the latest one stays registered until its NIC is closed.
pub const ABANDONED_MAX: usize = 4096;

/// Registrations that one call retries, which bounds the time of a call.
const TRIES: usize = 4;

/// The abandoned keys of one NIC, oldest first.
#[derive(Debug, Default)]
pub struct AbandonedKeys {
    some: AtomicBool,
    keys: Mutex<VecDeque<LocalKey>>,
}

impl AbandonedKeys {
    /// Keeps a registration that cannot be ended now. Returns false if [`ABANDONED_MAX`] are kept already, or if there is no memory for one more.
    pub fn keep_key(&self, key: LocalKey) -> bool {
        let mut keys = self.lock_keys();
        let room = keys.len() < ABANDONED_MAX && keys.try_reserve(1).is_ok();
        if room {
            keys.push_back(key);
            self.some.store(true, Ordering::Release);
        }
        room
    }

    /// Retries a few with `end`, which must not wait. Costs one load if none are kept.
    pub fn try_some(&self, end: impl Fn(LocalKey) -> Result<(), DeregisterError>) {
        self.try_again(TRIES, end);
    }

    /// Retries all of them with `end`.
    pub fn try_all(&self, end: impl Fn(LocalKey) -> Result<(), DeregisterError>) {
        self.try_again(ABANDONED_MAX, end);
    }

    fn try_again(&self, most: usize, end: impl Fn(LocalKey) -> Result<(), DeregisterError>) {
        if !self.some.load(Ordering::Acquire) {
            return;
        }
        let mut keys = self.lock_keys();
        for _ in 0..most.min(keys.len()) {
            let Some(key) = keys.pop_front() else { break };
            if let Err(DeregisterError::InUse { .. } | DeregisterError::Draining) = end(key) {
                keys.push_back(key);
            }
        }
        self.some.store(!keys.is_empty(), Ordering::Release);
    }

    /// Returns how many are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock_keys().len()
    }

    /// Whether none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock_keys(&self) -> MutexGuard<'_, VecDeque<LocalKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn keys_are_retried_in_turn_until_ended() {
        let abandoned = AbandonedKeys::default();
        assert!((1..=6).all(|key| abandoned.keep_key(LocalKey(key))));
        let tried = RefCell::new(Vec::new());
        let busy = |key: LocalKey| {
            tried.borrow_mut().push(key.0);
            Err(DeregisterError::InUse { peer: 7 })
        };
        abandoned.try_some(busy);
        abandoned.try_some(busy);
        assert_eq!(*tried.borrow(), [1, 2, 3, 4, 5, 6, 1, 2]);
        // A key that has become unknown needs no further attempt.
        abandoned.try_some(|key| if key.0 == 4 { Err(DeregisterError::Unknown) } else { Ok(()) });
        assert_eq!(abandoned.len(), 2);
        abandoned.try_all(|_| Ok(()));
        assert!(abandoned.is_empty());
        abandoned.try_some(|_| unreachable!());
    }

    #[test]
    fn keep_key_refuses_keys_beyond_the_limit() {
        let abandoned = AbandonedKeys::default();
        let kept = (0..ABANDONED_MAX as u64 + 1).filter(|&key| abandoned.keep_key(LocalKey(key))).count();
        assert_eq!((kept, abandoned.len()), (ABANDONED_MAX, ABANDONED_MAX));
        let late = |key: LocalKey| match key.0 % 2 {
            0 => Err(DeregisterError::InUse { peer: 0 }),
            _ => Err(DeregisterError::Draining),
        };
        abandoned.try_all(|key| if key.0 == 0 { Ok(()) } else { late(key) });
        assert_eq!(abandoned.len(), ABANDONED_MAX - 1);
        assert!(abandoned.keep_key(LocalKey(9)));
    }
}
