//! Requests: who asks for a registration, who is to make one, and who waits for it.

use super::entry::{EntryId, RegistrationEntry, RegistrationPhase, RegistrationPin, RegistrationWait};
use super::key::{MemorySpace, RegistrationKey, RegistrationScope};
use super::{PinDownCache, RegistrationEventError};
use crate::intervals::ByteSpan;
use crate::limits::REGISTRATION_PINS_MAX;

/// What becomes of a request.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub enum RegistrationLookup {
    /// Here is one.
    Hit(RegistrationPin),
    /// Another one is making one; ask [`PinDownCache::settle_wait`] when told so.
    Pending(RegistrationWait),
    /// Carry this out, without the cache's lock; then say [`PinDownCache::on_registered`] or [`PinDownCache::on_failed`], one of
    /// the two for certain: others may wait.
    Register(RegisterCommand),
    /// Room is being made: carry out what [`PinDownCache::poll`] says, or let others do, and ask again.
    Later,
}

/// What is to be registered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegisterCommand {
    /// What the registration will be called.
    pub id: EntryId,
    /// Where, whose bytes, and what for.
    pub key: RegistrationKey,
    /// Exactly these, no more and no fewer: they are what hits are measured by.
    pub span: ByteSpan,
}

/// A request cannot be served.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RegistrationError {
    /// Its endpoint or domain has ended.
    #[error("the scope of the registration has ended")]
    Ended(RegistrationScope),
    /// There are as many registrations as there may be, and all are in use: register without the cache, or fail.
    #[error("all {0} registrations are in use")]
    Full(usize),
    /// The registration that serves it has as many users as there may be.
    #[error("a registration has {0} users")]
    Pins(u32),
}

/// What has become of a registration that was waited for.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub enum RegistrationOutcome {
    /// Here it is.
    Ready(RegistrationPin),
    /// It could not be made.
    Failed,
    /// Nothing yet.
    NotYet(RegistrationWait),
}

impl PinDownCache {
    /// Asks for a registration of these bytes. Among those that serve the request one that stands is preferred to one that
    /// is being made, then one with just the rights asked for, then the one that begins last and is the shortest.
    ///
    /// # Errors
    /// [`RegistrationError`]; nothing was changed.
    pub fn request_registration(
        &mut self,
        key: &RegistrationKey,
        span: ByteSpan,
    ) -> Result<RegistrationLookup, RegistrationError> {
        if !self.scopes.is_open(key.scope) {
            return Err(RegistrationError::Ended(key.scope));
        }
        if let Some(id) = self.ready.find_serving(key, span) {
            self.pin_entry(id)?;
            self.counts.hits += 1;
            return Ok(RegistrationLookup::Hit(RegistrationPin(id)));
        }
        if let Some(id) = self.coming.find_serving(key, span) {
            self.pin_entry(id)?;
            if let Some(entry) = self.entries.get_mut(id.0) {
                entry.waiting += 1;
            }
            self.counts.joined += 1;
            return Ok(RegistrationLookup::Pending(RegistrationWait(id)));
        }
        self.begin_registration(key, span)
    }

    /// One more uses it.
    fn pin_entry(&mut self, id: EntryId) -> Result<(), RegistrationError> {
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(()) };
        if entry.pins >= REGISTRATION_PINS_MAX {
            return Err(RegistrationError::Pins(entry.pins));
        }
        entry.pins += 1;
        if entry.pins == 1 {
            self.remove_idle(id);
        }
        Ok(())
    }

    fn begin_registration(
        &mut self,
        key: &RegistrationKey,
        span: ByteSpan,
    ) -> Result<RegistrationLookup, RegistrationError> {
        if self.entries.len() >= self.entry_limit() {
            return self.make_room();
        }
        let span = match (key.memory, self.config.widen) {
            (MemorySpace::Host, Some(page)) => span.widened_to(page),
            _ => span,
        };
        let entry = RegistrationEntry::new(*key, span);
        let id =
            EntryId(self.entries.insert(entry).map_err(|_| RegistrationError::Full(self.entry_limit()))?);
        self.coming.insert(*key, span, id);
        self.scopes.add_entry(key.scope);
        self.counts.misses += 1;
        Ok(RegistrationLookup::Register(RegisterCommand { id, key: *key, span }))
    }

    /// What has become of a registration that was waited for.
    ///
    /// # Errors
    /// [`RegistrationEventError`] if the token is of another cache.
    pub fn settle_wait(
        &mut self,
        wait: RegistrationWait,
    ) -> Result<RegistrationOutcome, RegistrationEventError> {
        let id = wait.0;
        let entry = self
            .entries
            .get_mut(id.0)
            .filter(|entry| entry.waiting > 0)
            .ok_or(RegistrationEventError::NoEntry)?;
        match entry.state {
            RegistrationPhase::Registering => Ok(RegistrationOutcome::NotYet(wait)),
            RegistrationPhase::Ready => {
                entry.waiting -= 1;
                Ok(RegistrationOutcome::Ready(RegistrationPin(id)))
            }
            RegistrationPhase::Failed => {
                entry.waiting -= 1;
                self.let_go(id);
                Ok(RegistrationOutcome::Failed)
            }
            state => Err(RegistrationEventError::State(state)),
        }
    }

    /// Waits no more.
    ///
    /// # Errors
    /// [`RegistrationEventError`] if the token is of another cache.
    pub fn give_up(&mut self, wait: RegistrationWait) -> Result<(), RegistrationEventError> {
        let entry = self
            .entries
            .get_mut(wait.0.0)
            .filter(|entry| entry.waiting > 0)
            .ok_or(RegistrationEventError::NoEntry)?;
        entry.waiting -= 1;
        self.let_go(wait.0);
        Ok(())
    }
}
