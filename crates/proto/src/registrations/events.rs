//! News of registrations: made, failed, used no more, closed; and what is to be closed next.

use super::PinDownCache;
use super::entry::{EntryId, RegistrationPhase, RegistrationPin};
use super::key::RegistrationKey;
use crate::intervals::ByteSpan;

/// A registration that can be used.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub struct ReadyRegistration {
    /// For who carried it out.
    pub pin: RegistrationPin,
    /// How many are to be told that it is there: they ask [`PinDownCache::settle_wait`].
    pub waiting: u32,
}

/// Close this, without the cache's lock; then say [`PinDownCache::on_closed`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeregisterCommand {
    /// Which.
    pub id: EntryId,
    /// Where, whose bytes, and what for.
    pub key: RegistrationKey,
    /// What was registered.
    pub span: ByteSpan,
}

/// News that cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RegistrationEventError {
    /// There is no such registration any more.
    #[error("no registration has that name")]
    NoEntry,
    /// It stands elsewhere.
    #[error("the registration is {0:?}")]
    State(RegistrationPhase),
}

impl PinDownCache {
    /// It was registered, just the bytes of [`RegisterCommand::span`](super::RegisterCommand::span).
    ///
    /// # Errors
    /// [`RegistrationEventError`] if nobody is registering it.
    pub fn on_registered(&mut self, id: EntryId) -> Result<ReadyRegistration, RegistrationEventError> {
        self.must_be(id, RegistrationPhase::Registering)?;
        let entry = self.entries.get_mut(id.0).ok_or(RegistrationEventError::NoEntry)?;
        entry.state = RegistrationPhase::Ready;
        let key = entry.key;
        let span = entry.span;
        let listed = entry.listed;
        let waiting = entry.waiting;
        if listed {
            self.coming.remove(&key, span);
            self.ready.insert(key, span, id);
        }
        Ok(ReadyRegistration { pin: RegistrationPin(id), waiting })
    }

    /// It could not be registered; nothing of it is left at the NIC. Who asks from now on begins anew. How many are to be told,
    /// who ask [`PinDownCache::settle_wait`].
    ///
    /// # Errors
    /// [`RegistrationEventError`] if nobody is registering it.
    pub fn on_failed(&mut self, id: EntryId) -> Result<u32, RegistrationEventError> {
        self.must_be(id, RegistrationPhase::Registering)?;
        self.unlist_entry(id);
        let entry = self.entries.get_mut(id.0).ok_or(RegistrationEventError::NoEntry)?;
        entry.state = RegistrationPhase::Failed;
        let waiting = entry.waiting;
        self.let_go(id);
        Ok(waiting)
    }

    /// One uses it no more. If it was the last, the registration is to be closed, or kept as idle.
    ///
    /// # Errors
    /// [`RegistrationEventError`] if the pin is of another cache.
    pub fn release_pin(&mut self, pin: RegistrationPin) -> Result<(), RegistrationEventError> {
        let entry = self.entries.get(pin.0.0).ok_or(RegistrationEventError::NoEntry)?;
        if entry.state != RegistrationPhase::Ready || entry.pins == 0 {
            return Err(RegistrationEventError::State(entry.state));
        }
        self.let_go(pin.0);
        Ok(())
    }

    /// What is to be closed next. To be asked after any other call, until there is nothing.
    pub fn poll(&mut self) -> Option<DeregisterCommand> {
        let id = EntryId(self.leaving.front()?);
        self.leaving.unlink_entry(&mut self.entries, id.0);
        let entry = self.entries.get_mut(id.0)?;
        entry.state = RegistrationPhase::Closing;
        Some(DeregisterCommand { id, key: entry.key, span: entry.span })
    }

    /// The NIC has closed it. Until then it counts, as the NIC has it; a close that failed is to be repeated by the caller.
    ///
    /// # Errors
    /// [`RegistrationEventError`] if nobody was told to close it.
    pub fn on_closed(&mut self, id: EntryId) -> Result<(), RegistrationEventError> {
        self.must_be(id, RegistrationPhase::Closing)?;
        self.closing -= 1;
        self.remove(id);
        Ok(())
    }

    fn must_be(&self, id: EntryId, state: RegistrationPhase) -> Result<(), RegistrationEventError> {
        match self.entries.get(id.0) {
            None => Err(RegistrationEventError::NoEntry),
            Some(entry) if entry.state != state => Err(RegistrationEventError::State(entry.state)),
            Some(_) => Ok(()),
        }
    }

    /// A pin is given back. The last one of those who wait for what failed takes the entry along.
    pub(super) fn let_go(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        entry.pins = entry.pins.saturating_sub(1);
        match (entry.pins, entry.state) {
            (0, RegistrationPhase::Ready) => self.make_idle(id),
            (0, RegistrationPhase::Failed) => self.remove(id),
            _ => {}
        }
    }

    fn remove(&mut self, id: EntryId) {
        self.unlist_entry(id);
        if let Some(entry) = self.entries.remove(id.0) {
            self.scopes.remove_entry(entry.key.scope);
        }
    }

    /// Nobody finds it any more.
    pub(super) fn unlist_entry(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        if !core::mem::take(&mut entry.listed) {
            return;
        }
        let key = entry.key;
        let span = entry.span;
        let state = entry.state;
        let index = if state == RegistrationPhase::Registering { &mut self.coming } else { &mut self.ready };
        index.remove(&key, span);
    }
}
