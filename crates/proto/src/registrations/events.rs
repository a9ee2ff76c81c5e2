//! News of registrations: made, failed, used no more, closed; and what is to be closed next.

use super::Registrations;
use super::entry::{EntryId, Pin, State};
use super::key::Key;
use crate::intervals::{Page, Span};
use crate::limits::WIDEN_PAGE_MAX;

/// A registration that can be used.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub struct Registered {
    /// For who carried it out.
    pub pin: Pin,
    /// How many are to be told that it is there: they ask [`Registrations::settle`].
    pub waiting: u32,
}

/// Close this, without the cache's lock; then say [`Registrations::closed`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Close {
    /// Which.
    pub id: EntryId,
    /// Where, whose bytes, and what for.
    pub key: Key,
    /// What was registered.
    pub span: Span,
}

/// News that cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NewsError {
    /// There is no such registration any more.
    #[error("no registration has that name")]
    NoEntry,
    /// It stands elsewhere.
    #[error("the registration is {0:?}")]
    State(State),
}

impl Registrations {
    /// It was registered, just the bytes of [`Register::span`](super::Register::span).
    ///
    /// # Errors
    /// [`NewsError`] if nobody is registering it.
    pub fn registered(&mut self, id: EntryId) -> Result<Registered, NewsError> {
        self.must_be(id, State::Registering)?;
        let entry = self.entries.get_mut(id.0).ok_or(NewsError::NoEntry)?;
        entry.state = State::Ready;
        if self.mutant.is("registrations-forget-waiters") {
            entry.pins = 1;
        }
        let key = entry.key;
        let span = entry.span;
        let listed = entry.listed;
        let waiting = entry.waiting;
        if listed {
            let span = self.listed_span(span);
            self.coming.remove(&key, span);
            self.ready.insert(key, span, id);
        }
        Ok(Registered { pin: Pin(id), waiting })
    }

    /// It could not be registered; nothing of it is left at the NIC. Who asks from now on begins anew. How many are to be told,
    /// who ask [`Registrations::settle`].
    ///
    /// # Errors
    /// [`NewsError`] if nobody is registering it.
    pub fn failed(&mut self, id: EntryId) -> Result<u32, NewsError> {
        self.must_be(id, State::Registering)?;
        self.unlist(id);
        let entry = self.entries.get_mut(id.0).ok_or(NewsError::NoEntry)?;
        entry.state = State::Failed;
        if self.mutant.is("registrations-forget-who-waits-in-vain") {
            entry.pins = 1;
        }
        let waiting = entry.waiting;
        self.let_go(id);
        Ok(waiting)
    }

    /// One uses it no more. If it was the last, the registration is to be closed, or kept as idle.
    ///
    /// # Errors
    /// [`NewsError`] if the pin is of another cache.
    pub fn unpin(&mut self, pin: Pin) -> Result<(), NewsError> {
        let entry = self.entries.get(pin.0.0).ok_or(NewsError::NoEntry)?;
        if entry.state != State::Ready || entry.pins == 0 {
            return Err(NewsError::State(entry.state));
        }
        self.let_go(pin.0);
        Ok(())
    }

    /// What is to be closed next. To be asked after any other call, until there is nothing.
    pub fn poll(&mut self) -> Option<Close> {
        let id = EntryId(self.leaving.front()?);
        self.leaving.take(&mut self.entries, id.0);
        let entry = self.entries.get_mut(id.0)?;
        entry.state = State::Closing;
        Some(Close { id, key: entry.key, span: entry.span })
    }

    /// The NIC has closed it. Until then it counts, as the NIC has it; a close that failed is to be repeated by the caller.
    ///
    /// # Errors
    /// [`NewsError`] if nobody was told to close it.
    pub fn closed(&mut self, id: EntryId) -> Result<(), NewsError> {
        self.must_be(id, State::Closing)?;
        self.closing -= 1;
        self.remove(id);
        Ok(())
    }

    fn must_be(&self, id: EntryId, state: State) -> Result<(), NewsError> {
        match self.entries.get(id.0) {
            None => Err(NewsError::NoEntry),
            Some(entry) if entry.state != state => Err(NewsError::State(entry.state)),
            Some(_) => Ok(()),
        }
    }

    /// A pin is given back. The last one of those who wait for what failed takes the entry along.
    pub(super) fn let_go(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        entry.pins = entry.pins.saturating_sub(1);
        match (entry.pins, entry.state) {
            (0, State::Ready) => self.rest(id),
            (0, State::Failed) => self.remove(id),
            _ => {}
        }
    }

    fn remove(&mut self, id: EntryId) {
        self.unlist(id);
        if let Some(entry) = self.entries.remove(id.0) {
            self.scopes.leave(entry.key.scope);
        }
    }

    /// Nobody finds it any more.
    pub(super) fn unlist(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        if !core::mem::take(&mut entry.listed) {
            return;
        }
        let key = entry.key;
        let span = entry.span;
        let state = entry.state;
        let span = self.listed_span(span);
        let index = if state == State::Registering { &mut self.coming } else { &mut self.ready };
        index.remove(&key, span);
    }

    /// What of a registration is found: all of it, and no byte more, unless a planted bug thinks in pages.
    pub(super) fn listed_span(&self, span: Span) -> Span {
        match Page::new(WIDEN_PAGE_MAX) {
            Some(page) if self.mutant.is("registrations-think-in-pages") => span.widened(page),
            _ => span,
        }
    }
}
