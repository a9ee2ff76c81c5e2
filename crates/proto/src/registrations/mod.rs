//! Which registration of memory serves a request, when one is made, and when one is closed.
//!
//! For whoever registers memory with a NIC, one cache a domain or process, behind a lock of the caller's that is held for a
//! call and never while a NIC registers or closes. Nothing here registers, closes, waits or wakes: what is to be done comes
//! back as a value, is carried out without the lock, and is then told.
//!
//! - [`PinDownCache::request_registration`]: a registration that contains the bytes asked for and allows what is asked for is pinned
//!   ([`RegistrationLookup::Hit`]), or one that another is making is waited for ([`RegistrationLookup::Pending`]), or the caller is to make one
//!   ([`RegistrationLookup::Register`], then [`PinDownCache::on_registered`] or [`PinDownCache::on_failed`]). What a NIC has registered is what
//!   is compared, to the byte: nothing is rounded, so a hit is never outside of what was registered.
//! - [`PinDownCache::release_pin`]: a registration that nobody uses is closed, or kept for later as far as [`IdleLimit`] allows; the one
//!   that was used least recently goes first. One in use is never closed.
//! - [`PinDownCache::poll`], after any call: what is to be closed now; then [`PinDownCache::on_closed`].
//! - [`PinDownCache::close_scope`]: an endpoint or domain goes. Nothing of it is found again, and [`PinDownCache::is_gone`] says when
//!   all its registrations are closed, before which it must not be.
//! - [`PinDownCache::forget_memory`]: memory is freed or mapped anew. Who keeps idle registrations must say so.
//! - [`PinDownCache::hide_entry`]: one registration is found no more. For who knows that only parts of its memory are still held.
//!
//! A hit changes the number of pins and whether an entry counts as idle, and nothing else: nothing is closed by it, and it
//! allocates nothing. It takes as many steps as the logarithm of the number of registrations, for each set of rights that
//! serves the request and is in use (usually one, at most 16).
//!
//! News of a registration that is gone, or that do not fit where it stands, are refused and change nothing.

mod entry;
mod events;
mod eviction;
mod index;
pub mod key;
mod lookup;
mod scopes;
#[cfg(test)]
mod tests;

pub use entry::{EntryId, RegistrationPhase, RegistrationPin, RegistrationWait};
pub use events::{DeregisterCommand, ReadyRegistration, RegistrationEventError};
pub use eviction::IdleLimit;
pub use lookup::{RegisterCommand, RegistrationError, RegistrationLookup, RegistrationOutcome};

use self::entry::RegistrationEntry;
use self::index::RegistrationIndex;
use self::key::{MemorySpace, RegistrationScope};
use self::scopes::ScopeTable;
use crate::intervals::{ByteSpan, PageSize};
use crate::limits::{REGISTRATION_SCOPES_MAX, REGISTRATIONS_MAX};
use crate::queue::LinkedQueue;
use crate::slots::SlotTable;

/// What a cache may hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegistrationConfig {
    /// Registrations at once, of any state; more than [`REGISTRATIONS_MAX`] is as much as that.
    pub entries: usize,
    /// Of them, those that nobody uses.
    pub idle: IdleLimit,
    /// Registrations of memory of the host are of whole pages of that size, for a kernel whose forks would take pages away
    /// from a NIC that has parts of them; `None`: of the bytes that are asked for. Other memory is never widened.
    pub widen: Option<PageSize>,
}

/// A cache of registrations.
#[derive(Clone, Debug)]
pub struct PinDownCache {
    config: RegistrationConfig,
    entries: SlotTable<RegistrationEntry>,
    ready: RegistrationIndex,
    /// Those that are being made.
    coming: RegistrationIndex,
    scopes: ScopeTable,
    /// Those that are ready and have no pins, the least recently used in front.
    idle: LinkedQueue,
    idle_bytes: u64,
    /// Those to be closed that nobody has been told of.
    leaving: LinkedQueue,
    /// Those to be closed, whether or not somebody has been told.
    closing: usize,
    counts: RegistrationCounts,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RegistrationCounts {
    /// Requests that a registration served.
    pub hits: u64,
    /// Requests that waited for one.
    pub joined: u64,
    /// Requests that one was made for.
    pub misses: u64,
    /// Idle ones that were closed to keep to a limit.
    pub evicted: u64,
}

/// What there is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RegistrationUsage {
    /// Registrations of any state: those being made and closed, and failed ones that somebody has to be told of, included.
    pub entries: usize,
    /// Of them, those that can be found.
    pub listed: usize,
    /// Those that are ready and that nobody uses.
    pub idle: usize,
    /// Their bytes.
    pub idle_bytes: u64,
    /// Those to be closed, or being closed.
    pub closing: usize,
    /// Scopes that are open or have registrations left.
    pub scopes: usize,
}

/// There are as many scopes as there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("there are {REGISTRATION_SCOPES_MAX} scopes of registrations")]
pub struct TooManyScopes;

/// That scope has ended, or is of another cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the scope of the registration has ended")]
pub struct NoScope;

impl PinDownCache {
    /// An empty cache.
    #[must_use]
    pub const fn new(config: RegistrationConfig) -> Self {
        Self {
            config,
            entries: SlotTable::new(REGISTRATIONS_MAX),
            ready: RegistrationIndex::new(),
            coming: RegistrationIndex::new(),
            scopes: ScopeTable::new(),
            idle: LinkedQueue::new(),
            idle_bytes: 0,
            leaving: LinkedQueue::new(),
            closing: 0,
            counts: RegistrationCounts { hits: 0, joined: 0, misses: 0, evicted: 0 },
        }
    }

    /// A domain or an endpoint begins. No other has ever had its scope.
    ///
    /// # Errors
    /// [`TooManyScopes`].
    pub fn open_scope(&mut self) -> Result<RegistrationScope, TooManyScopes> {
        self.scopes.open_scope().ok_or(TooManyScopes)
    }

    /// A domain or an endpoint ends: its idle registrations are to be closed, those in use as soon as they are not, and none
    /// is found any more. Takes a look at each of them. Who waits for one is still told, and has its pin.
    ///
    /// # Errors
    /// [`NoScope`].
    pub fn close_scope(&mut self, scope: RegistrationScope) -> Result<(), NoScope> {
        if !self.scopes.close_scope(scope) {
            return Err(NoScope);
        }
        while let Some(id) = self.ready.any_of(scope).or_else(|| self.coming.any_of(scope)) {
            self.withdraw_entry(id);
        }
        Ok(())
    }

    /// Whether nothing is left of a scope that was ended: only then may its endpoint or domain be closed.
    #[must_use]
    pub fn is_gone(&self, scope: RegistrationScope) -> bool {
        self.scopes.is_gone(scope)
    }

    /// Those bytes are freed, or are others from now on: no registration that has any of them is found any more; idle ones are
    /// to be closed, those in use as soon as they are not. Of all scopes; takes a look at each.
    pub fn forget_memory(&mut self, memory: MemorySpace, span: ByteSpan) {
        let mut at = self.scopes.next(None);
        while let Some(scope) = at {
            while let Some(id) = self.find_overlapping(scope, memory, span) {
                self.withdraw_entry(id);
            }
            at = self.scopes.next(Some(scope));
        }
    }

    fn find_overlapping(
        &self,
        scope: RegistrationScope,
        memory: MemorySpace,
        span: ByteSpan,
    ) -> Option<EntryId> {
        self.ready
            .find_overlapping(scope, memory, span)
            .or_else(|| self.coming.find_overlapping(scope, memory, span))
    }

    /// One registration is of no more use to who comes now: part of its memory may be gone, or its NIC closes it under those who
    /// use it. Nobody finds it any more; it is closed as soon as nobody uses it. Nothing, where there is none of that name.
    pub fn hide_entry(&mut self, id: EntryId) {
        self.withdraw_entry(id);
    }

    /// Nobody finds it any more; it is closed as soon as nobody uses it.
    fn withdraw_entry(&mut self, id: EntryId) {
        self.unlist_entry(id);
        let is_idle = |entry: &RegistrationEntry| entry.state == RegistrationPhase::Ready && entry.pins == 0;
        if self.entries.get(id.0).is_some_and(is_idle) {
            self.remove_idle(id);
            self.queue_close(id);
        }
    }

    /// How this cache is limited.
    #[must_use]
    pub const fn config(&self) -> RegistrationConfig {
        self.config
    }

    /// What happened so far.
    #[must_use]
    pub const fn event_counts(&self) -> RegistrationCounts {
        self.counts
    }

    /// What there is.
    #[must_use]
    pub fn current_usage(&self) -> RegistrationUsage {
        RegistrationUsage {
            entries: self.entries.len(),
            listed: self.ready.len() + self.coming.len(),
            idle: self.idle.len(),
            idle_bytes: self.idle_bytes,
            closing: self.closing,
            scopes: self.scopes.len(),
        }
    }

    /// What is registered under that name, exactly, and where it stands.
    #[must_use]
    pub fn get(&self, id: EntryId) -> Option<(ByteSpan, RegistrationPhase)> {
        self.entries.get(id.0).map(|entry| (entry.span, entry.state))
    }

    /// Those who use it, will or wait for it.
    #[must_use]
    pub fn pin_count(&self, id: EntryId) -> Option<u32> {
        self.entries.get(id.0).map(|entry| entry.pins)
    }
}
