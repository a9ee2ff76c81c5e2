//! Requests: who asks for a registration, who is to make one, and who waits for it.

use super::entry::{Entry, EntryId, Pin, State, Wait};
use super::key::{Key, Memory, Scope};
use super::{NewsError, Registrations};
use crate::intervals::Span;
use crate::limits::REGISTRATION_PINS_MAX;

/// What becomes of a request.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub enum Asked {
    /// Here is one.
    Hit(Pin),
    /// Another one is making one; ask [`Registrations::settle`] when told so.
    Pending(Wait),
    /// Carry this out, without the cache's lock; then say [`Registrations::registered`] or [`Registrations::failed`], one of
    /// the two for certain: others may wait.
    Register(Register),
    /// Room is being made: carry out what [`Registrations::poll`] says, or let others do, and ask again.
    Later,
}

/// What is to be registered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Register {
    /// What the registration will be called.
    pub id: EntryId,
    /// Where, whose bytes, and what for.
    pub key: Key,
    /// Exactly these, no more and no fewer: they are what hits are measured by.
    pub span: Span,
}

/// A request cannot be served.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AskError {
    /// Its endpoint or domain has ended.
    #[error("the scope of the registration has ended")]
    Ended(Scope),
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
pub enum Settled {
    /// Here it is.
    Ready(Pin),
    /// It could not be made.
    Failed,
    /// Nothing yet.
    NotYet(Wait),
}

impl Registrations {
    /// Asks for a registration of these bytes. Among those that serve the request one that stands is preferred to one that
    /// is being made, then one with just the rights asked for, then the one that begins last and is the shortest.
    ///
    /// # Errors
    /// [`AskError`]; nothing was changed.
    pub fn ask(&mut self, key: &Key, span: Span) -> Result<Asked, AskError> {
        if !self.scopes.is_open(key.scope) {
            return Err(AskError::Ended(key.scope));
        }
        if let Some(id) = self.ready.find(key, span) {
            if !self.mutant.is("registrations-forget-hits") {
                self.pin(id)?;
            }
            self.counts.hits += 1;
            return Ok(Asked::Hit(Pin(id)));
        }
        if let Some(id) = self.coming.find(key, span) {
            self.pin(id)?;
            if let Some(entry) = self.entries.get_mut(id.0) {
                entry.waiting += 1;
            }
            self.counts.joined += 1;
            return Ok(Asked::Pending(Wait(id)));
        }
        self.begin(key, span)
    }

    /// One more uses it.
    fn pin(&mut self, id: EntryId) -> Result<(), AskError> {
        let Some(entry) = self.entries.get_mut(id.0) else { return Ok(()) };
        if entry.pins >= REGISTRATION_PINS_MAX {
            return Err(AskError::Pins(entry.pins));
        }
        entry.pins += 1;
        if entry.pins == 1 {
            self.unrest(id);
        }
        Ok(())
    }

    fn begin(&mut self, key: &Key, span: Span) -> Result<Asked, AskError> {
        let past = if self.mutant.is("registrations-count-nothing-closing") { self.closing } else { 0 };
        if self.entries.len() - past >= self.limit() {
            return self.make_room();
        }
        let span = match (key.memory, self.config.widen) {
            (Memory::Host, Some(page)) => span.widened(page),
            _ => span,
        };
        let entry = Entry::new(*key, span);
        let id = EntryId(self.entries.insert(entry).map_err(|_| AskError::Full(self.limit()))?);
        self.coming.insert(*key, self.listed_span(span), id);
        self.scopes.enter(key.scope);
        self.counts.misses += 1;
        Ok(Asked::Register(Register { id, key: *key, span }))
    }

    /// What has become of a registration that was waited for.
    ///
    /// # Errors
    /// [`NewsError`] if the token is of another cache.
    pub fn settle(&mut self, wait: Wait) -> Result<Settled, NewsError> {
        let id = wait.0;
        let entry = self.entries.get_mut(id.0).filter(|entry| entry.waiting > 0).ok_or(NewsError::NoEntry)?;
        match entry.state {
            State::Registering => Ok(Settled::NotYet(wait)),
            State::Ready => {
                entry.waiting -= 1;
                Ok(Settled::Ready(Pin(id)))
            }
            State::Failed => {
                entry.waiting -= 1;
                self.let_go(id);
                Ok(Settled::Failed)
            }
            state => Err(NewsError::State(state)),
        }
    }

    /// Waits no more.
    ///
    /// # Errors
    /// [`NewsError`] if the token is of another cache.
    pub fn give_up(&mut self, wait: Wait) -> Result<(), NewsError> {
        let entry =
            self.entries.get_mut(wait.0.0).filter(|entry| entry.waiting > 0).ok_or(NewsError::NoEntry)?;
        entry.waiting -= 1;
        self.let_go(wait.0);
        Ok(())
    }
}
