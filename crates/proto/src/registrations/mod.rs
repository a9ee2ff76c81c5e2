//! Which registration of memory serves a request, when one is made, and when one is closed.
//!
//! For whoever registers memory with a NIC, one cache a domain or process, behind a lock of the caller's that is held for a
//! call and never while a NIC registers or closes. Nothing here registers, closes, waits or wakes: what is to be done comes
//! back as a value, is carried out without the lock, and is then told.
//!
//! - [`Registrations::ask`]: a registration that contains the bytes asked for and allows what is asked for is pinned
//!   ([`Asked::Hit`]), or one that another is making is waited for ([`Asked::Pending`]), or the caller is to make one
//!   ([`Asked::Register`], then [`Registrations::registered`] or [`Registrations::failed`]). What a NIC has registered is what
//!   is compared, to the byte: nothing is rounded, so a hit is never outside of what was registered.
//! - [`Registrations::unpin`]: a registration that nobody uses is closed, or kept for later as far as [`Idle`] allows; the one
//!   that was used least recently goes first. One in use is never closed.
//! - [`Registrations::poll`], after any call: what is to be closed now; then [`Registrations::closed`].
//! - [`Registrations::end`]: an endpoint or domain goes. Nothing of it is found again, and [`Registrations::is_gone`] says when
//!   all its registrations are closed, before which it must not be.
//! - [`Registrations::forget`]: memory is freed or mapped anew. Who keeps idle registrations must say so.
//! - [`Registrations::hide`]: one registration is found no more. For who knows that only parts of its memory are still held.
//!
//! A hit changes the number of pins and whether an entry counts as idle, and nothing else: nothing is closed by it, and it
//! allocates nothing. It takes as many steps as the logarithm of the number of registrations, for each set of rights that
//! serves the request and is in use (usually one, at most 16).
//!
//! News of a registration that is gone, or that do not fit where it stands, are refused and change nothing.

mod ask;
mod entry;
mod events;
mod index;
mod keep;
pub mod key;
mod scopes;
#[cfg(test)]
mod tests;

pub use ask::{AskError, Asked, Register, Settled};
pub use entry::{EntryId, Pin, State, Wait};
pub use events::{Close, NewsError, Registered};
pub use keep::Idle;

use self::entry::Entry;
use self::index::Index;
use self::key::{Memory, Scope};
use self::scopes::Scopes;
use crate::intervals::{Page, Span};
use crate::limits::{REGISTRATION_SCOPES_MAX, REGISTRATIONS_MAX};
use crate::mutant::Mutant;
use crate::queue::Queue;
use crate::slots::Slots;

/// What a cache may hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Registrations at once, of any state; more than [`REGISTRATIONS_MAX`] is as much as that.
    pub entries: usize,
    /// Of them, those that nobody uses.
    pub idle: Idle,
    /// Registrations of memory of the host are of whole pages of that size, for a kernel whose forks would take pages away
    /// from a NIC that has parts of them; `None`: of the bytes that are asked for. Other memory is never widened.
    pub widen: Option<Page>,
}

/// A cache of registrations.
#[derive(Clone, Debug)]
pub struct Registrations {
    config: Config,
    entries: Slots<Entry>,
    ready: Index,
    /// Those that are being made.
    coming: Index,
    scopes: Scopes,
    /// Those that are ready and have no pins, the least recently used in front.
    idle: Queue,
    idle_bytes: u64,
    /// Those to be closed that nobody has been told of.
    leaving: Queue,
    /// Those to be closed, whether or not somebody has been told.
    closing: usize,
    counts: Counts,
    mutant: Mutant,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
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
pub struct Usage {
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

impl Registrations {
    /// An empty cache.
    #[must_use]
    pub const fn new(config: Config, mutant: Mutant) -> Self {
        Self {
            config,
            entries: Slots::new(REGISTRATIONS_MAX),
            ready: Index::new(mutant),
            coming: Index::new(mutant),
            scopes: Scopes::new(mutant),
            idle: Queue::new(),
            idle_bytes: 0,
            leaving: Queue::new(),
            closing: 0,
            counts: Counts { hits: 0, joined: 0, misses: 0, evicted: 0 },
            mutant,
        }
    }

    /// A domain or an endpoint begins. No other has ever had its scope.
    ///
    /// # Errors
    /// [`TooManyScopes`].
    pub fn open(&mut self) -> Result<Scope, TooManyScopes> {
        self.scopes.open().ok_or(TooManyScopes)
    }

    /// A domain or an endpoint ends: its idle registrations are to be closed, those in use as soon as they are not, and none
    /// is found any more. Takes a look at each of them. Who waits for one is still told, and has its pin.
    ///
    /// # Errors
    /// [`NoScope`].
    pub fn end(&mut self, scope: Scope) -> Result<(), NoScope> {
        if !self.scopes.end(scope) {
            return Err(NoScope);
        }
        let pinned_stay = self.mutant.is("registrations-find-the-ended");
        while let Some(id) = self.ready.any_of(scope).or_else(|| self.coming.any_of(scope)) {
            if pinned_stay && self.entries.get(id.0).is_some_and(|entry| entry.pins > 0) {
                break;
            }
            self.disown(id);
        }
        Ok(())
    }

    /// Whether nothing is left of a scope that was ended: only then may its endpoint or domain be closed.
    #[must_use]
    pub fn is_gone(&self, scope: Scope) -> bool {
        self.scopes.is_gone(scope)
    }

    /// Those bytes are freed, or are others from now on: no registration that has any of them is found any more; idle ones are
    /// to be closed, those in use as soon as they are not. Of all scopes; takes a look at each.
    pub fn forget(&mut self, memory: Memory, span: Span) {
        let mut at = self.scopes.next(None);
        while let Some(scope) = at {
            while let Some(id) = self.touching(scope, memory, span) {
                self.disown(id);
            }
            at = self.scopes.next(Some(scope));
        }
    }

    fn touching(&self, scope: Scope, memory: Memory, span: Span) -> Option<EntryId> {
        self.ready.touching(scope, memory, span).or_else(|| self.coming.touching(scope, memory, span))
    }

    /// One registration is of no more use to who comes now: part of its memory may be gone, or its NIC closes it under those who
    /// use it. Nobody finds it any more; it is closed as soon as nobody uses it. Nothing, where there is none of that name.
    pub fn hide(&mut self, id: EntryId) {
        if !self.mutant.is("registrations-show-the-hidden") {
            self.disown(id);
        }
    }

    /// Nobody finds it any more; it is closed as soon as nobody uses it.
    fn disown(&mut self, id: EntryId) {
        self.unlist(id);
        let is_idle = |entry: &Entry| entry.state == State::Ready && entry.pins == 0;
        if self.entries.get(id.0).is_some_and(is_idle) {
            self.unrest(id);
            self.leave(id);
        }
    }

    /// How this cache is limited.
    #[must_use]
    pub const fn config(&self) -> Config {
        self.config
    }

    /// What happened so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// What there is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
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
    pub fn get(&self, id: EntryId) -> Option<(Span, State)> {
        self.entries.get(id.0).map(|entry| (entry.span, entry.state))
    }

    /// Those who use it, will or wait for it.
    #[must_use]
    pub fn pins(&self, id: EntryId) -> Option<u32> {
        self.entries.get(id.0).map(|entry| entry.pins)
    }
}
