//! Registrations that several requests share. For registrars of fabrics where the end of a link, and not of a
//! registration, keeps a peer's late writes out: the key of a shared registration stays valid for its other users.
//!
//! A lock around [`RegionMap`], which decides. The lock is held for a call of the map and never while a NIC registers
//! or closes. A thread that requests bytes that another thread is registering waits, for a bounded time, and then
//! repeats its request. No registration is kept without a user, because no driver reports when memory is freed. A
//! registration serves new requests only while one of its users holds all of its memory, because other parts may have
//! been freed and remapped.

#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trunkline_proto::intervals::ByteSpan;
pub use trunkline_proto::registrations::RegistrationGrant;
use trunkline_proto::registrations::key::{MemorySpace, RegistrationKey, RegistrationScope};
use trunkline_proto::registrations::{EntryId, RegionMap, RegistrationError, RegistrationLookup};

/// Registrations `M`. Each is open until its last user releases it; dropping one closes it.
pub struct RegistrationCache<M> {
    map: Mutex<RegionMap<M>>,
    /// Notified when a registration was made, failed, was closed or is no longer listed.
    changed: Condvar,
    /// Held while a registration is closed under its users, so that the next thread that revokes it finds it closed.
    revoking: Mutex<()>,
    /// How often a thread has waited.
    #[cfg(test)]
    waits: AtomicUsize,
}

/// The cache has no registration for a request, and has kept nothing of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError<E> {
    /// It could not be made.
    #[error("{0}")]
    Make(E),
    /// Another thread did not finish in time to register or close the memory that this one needs.
    #[error(
        "registration timed out: another thread still registers this memory, or closes an entry of the full cache"
    )]
    Late,
    /// The cache refuses the request; the memory may be registered without the cache.
    #[error(transparent)]
    Refused(#[from] RegistrationError),
    /// The cache has lost the registration, which is a bug of Trunkline.
    #[error(
        "the registration cache has no entry for a listed registration, which is a bug of Trunkline; please report it"
    )]
    Lost,
}

/// Reports that no registration was made, unless one was.
struct RegisterGuard<'a, M> {
    cache: &'a RegistrationCache<M>,
    id: EntryId,
    is_made: bool,
}

impl<M> Drop for RegisterGuard<'_, M> {
    fn drop(&mut self) {
        if !self.is_made {
            self.cache.lock_map().on_failed(self.id);
            self.cache.changed.notify_all();
        }
    }
}

impl<M> RegistrationCache<M> {
    /// Creates an empty cache of at most `entries` registrations, those that are being made or closed included.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self {
            map: Mutex::new(RegionMap::new(entries)),
            changed: Condvar::new(),
            revoking: Mutex::default(),
            #[cfg(test)]
            waits: AtomicUsize::new(0),
        }
    }

    fn lock_map(&self) -> MutexGuard<'_, RegionMap<M>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the scope of a domain or an endpoint. No scope has been given before.
    ///
    /// # Errors
    /// [`RegistrationError::Scopes`] and [`RegistrationError::Memory`].
    pub fn open_scope(&self) -> Result<RegistrationScope, RegistrationError> {
        self.lock_map().open_scope()
    }

    /// Ends the scope of a domain or an endpoint: no request finds its registrations any more. Each is closed with its last user.
    pub fn end_scope(&self, scope: RegistrationScope) {
        self.lock_map().end_scope(scope);
        self.changed.notify_all();
    }

    /// Forgets memory that is freed or remapped: no request, in any scope, finds a registration that has a byte of
    /// `span`. Each is closed with its last user.
    pub fn forget_memory(&self, memory: MemorySpace, span: ByteSpan) {
        self.lock_map().forget_memory(memory, span);
        self.changed.notify_all();
    }

    /// Returns the number of registrations that the NIC has, or is making or closing.
    #[must_use]
    pub fn registration_count(&self) -> usize {
        self.lock_map().registration_count()
    }

    /// Returns a use of a registration that contains `span` and allows at least the rights of `key`, and the result
    /// of `look` on it. The registration is an open one, or a new one of exactly these bytes, from `make`. While
    /// another thread makes a registration that contains them, this one waits, at most `bound`. `look` is called with
    /// the lock held.
    ///
    /// # Errors
    /// [`AcquireError`]; the next request starts over.
    pub fn acquire<T, E>(
        &self,
        key: &RegistrationKey,
        span: ByteSpan,
        bound: Duration,
        make: impl FnOnce() -> Result<M, E>,
        look: impl Fn(&M) -> T,
    ) -> Result<(RegistrationGrant, T), AcquireError<E>> {
        let end = Instant::now() + bound;
        let mut map = self.lock_map();
        loop {
            match map.request_registration(key, span)? {
                RegistrationLookup::Hit(grant) => return see_grant(&map, grant, look),
                RegistrationLookup::Make(id) => {
                    drop(map);
                    return self.make_registration(id, make, look);
                }
                RegistrationLookup::Making | RegistrationLookup::Later => {
                    map = self.wait_for_change(map, end).ok_or(AcquireError::Late)?;
                }
            }
        }
    }

    /// Waits until the map has changed; may also wake without a change. Returns nothing once `end` has passed.
    fn wait_for_change<'a>(
        &'a self,
        map: MutexGuard<'a, RegionMap<M>>,
        end: Instant,
    ) -> Option<MutexGuard<'a, RegionMap<M>>> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        #[cfg(test)]
        self.waits.fetch_add(1, Ordering::SeqCst);
        Some(self.changed.wait_timeout(map, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Registers, without the lock.
    fn make_registration<T, E>(
        &self,
        id: EntryId,
        make: impl FnOnce() -> Result<M, E>,
        look: impl Fn(&M) -> T,
    ) -> Result<(RegistrationGrant, T), AcquireError<E>> {
        let mut guard = RegisterGuard { cache: self, id, is_made: false };
        let made = make().map_err(AcquireError::Make)?;
        let mut map = self.lock_map();
        let grant = map.on_made(id, made);
        guard.is_made = true;
        let seen = match grant {
            Ok(grant) => see_grant(&map, grant, look),
            Err(_) => Err(AcquireError::Lost),
        };
        drop(map);
        self.changed.notify_all();
        seen
    }

    /// Ends a use of a registration. The last one closes it before this returns.
    pub fn release(&self, grant: RegistrationGrant) {
        let close = self.lock_map().release_grant(grant);
        if let Some((id, registration)) = close {
            drop(registration);
            self.lock_map().on_closed(id);
            self.changed.notify_all();
        }
    }

    /// Ends a use of a registration and closes it before this returns, although it has other users. `before` is
    /// called with its name once it is no longer [valid](RegistrationCache::is_valid), and before it is closed. It
    /// can thus prevent later operations from using it.
    pub fn revoke(&self, grant: RegistrationGrant, before: impl FnOnce(EntryId)) {
        let _one = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
        let id = grant.entry_id();
        let registration = self.lock_map().revoke_registration(id);
        before(id);
        drop(registration);
        self.release(grant);
    }

    /// Returns whether a registration that has users is still open, so [`RegistrationCache::revoke`] has not closed
    /// it.
    #[must_use]
    pub fn is_valid(&self, id: EntryId) -> bool {
        self.lock_map().get(id).is_some()
    }
}

/// Returns a grant with the result of `look` on its registration.
fn see_grant<M, T, E>(
    map: &RegionMap<M>,
    grant: RegistrationGrant,
    look: impl Fn(&M) -> T,
) -> Result<(RegistrationGrant, T), AcquireError<E>> {
    // A listed registration is open, so the map has it.
    let seen = map.get(grant.entry_id()).map(look).ok_or(AcquireError::Lost)?;
    Ok((grant, seen))
}

impl<M> std::fmt::Debug for RegistrationCache<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({} registrations)", self.registration_count())
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
