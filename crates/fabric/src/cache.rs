//! Registrations that several requests share. For registrars of fabrics where the end of a link, and not of a registration, is
//! what keeps a peer's late writes out: the key of a shared registration stays good for its other users.
//!
//! A lock around the machine of [`trunkline_proto::registrations`], held for a call of that and never while a NIC registers or
//! closes. Who asks for what another thread is registering waits for that thread, for a bounded time. Nothing is kept that nobody
//! uses, as nobody tells when memory is freed; and a registration serves new requests only as long as one of its users holds all
//! of its memory: of the rest some may have been freed and mapped anew.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::registrations::key::{RegistrationKey, RegistrationScope};
use trunkline_proto::registrations::{
    EntryId, IdleLimit, PinDownCache, ReadyRegistration, RegistrationConfig, RegistrationCounts,
    RegistrationError, RegistrationEventError, RegistrationLookup, RegistrationOutcome, RegistrationPin,
    RegistrationWait, TooManyScopes,
};

/// Registrations `M`, each open as long as somebody uses it; to drop one is to close it.
pub struct RegistrationCache<M> {
    held: Mutex<CacheTables<M>>,
    /// Something was registered or closed, or could not be.
    news: Condvar,
    /// Who closes a registration under others has this, so that the next one finds it closed.
    revoking: Mutex<()>,
}

struct CacheTables<M> {
    machine: PinDownCache,
    open: HashMap<EntryId, OpenRegistration<M>>,
}

struct OpenRegistration<M> {
    /// Nothing, once it was closed under its users.
    registration: Option<M>,
    span: ByteSpan,
    /// Users that asked for all of it.
    whole: u32,
}

/// The right to use a registration, to be given back to its cache.
#[derive(Debug)]
#[must_use = "a grant that is not given back keeps its registration for ever"]
pub struct RegistrationGrant {
    pin: RegistrationPin,
    span: ByteSpan,
    inset: u64,
    whole: bool,
}

impl RegistrationGrant {
    /// Which registration it is.
    #[must_use]
    pub fn entry_id(&self) -> EntryId {
        self.pin.entry_id()
    }

    /// How far into the registration the bytes begin that were asked for.
    #[must_use]
    pub fn start_offset(&self) -> u64 {
        self.inset
    }

    /// The bytes that were asked for.
    #[must_use]
    pub fn granted_span(&self) -> ByteSpan {
        self.span
    }
}

/// There is no registration for a request. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError<E> {
    /// It could not be made.
    #[error("{0}")]
    Make(E),
    /// Another thread did not finish in time to register or close what this one needs.
    #[error(
        "another thread is registering the same memory, or closing what there is to be room for it, and takes too long"
    )]
    Late,
    /// The cache does not take it; it may be registered without.
    #[error(transparent)]
    Refused(#[from] RegistrationError),
    /// The cache is not in the state that it must be in.
    #[error(transparent)]
    Lost(#[from] RegistrationEventError),
}

/// What is to be closed, and then said to be.
type PendingCloses<M> = Vec<(EntryId, Option<M>)>;

/// Says that nothing was registered, should whoever was to do it not come back.
struct RegisterGuard<'a, M> {
    cache: &'a RegistrationCache<M>,
    id: EntryId,
    done: bool,
}

impl<M> Drop for RegisterGuard<'_, M> {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.cache.lock_tables().machine.on_failed(self.id);
            self.cache.news.notify_all();
        }
    }
}

impl<M> RegistrationCache<M> {
    /// An empty one of at most `entries` registrations, those being made and closed included.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let config = RegistrationConfig { entries, idle: IdleLimit::NONE, widen: None };
        let machine = PinDownCache::new(config);
        Self {
            held: Mutex::new(CacheTables { machine, open: HashMap::new() }),
            news: Condvar::new(),
            revoking: Mutex::default(),
        }
    }

    fn lock_tables(&self) -> MutexGuard<'_, CacheTables<M>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A domain or an endpoint begins; no other has had its scope.
    ///
    /// # Errors
    /// [`TooManyScopes`].
    pub fn open_scope(&self) -> Result<RegistrationScope, TooManyScopes> {
        self.lock_tables().machine.open_scope()
    }

    /// A domain or an endpoint ends: nothing of it is found any more. What is in use is closed as soon as it is not.
    pub fn end_scope(&self, scope: RegistrationScope) {
        let mut held = self.lock_tables();
        let _ = held.machine.close_scope(scope);
        let closes = held.take_closes();
        drop(held);
        self.close_registrations(closes);
    }

    /// Whether nothing is left of a scope that was ended.
    #[must_use]
    pub fn is_gone(&self, scope: RegistrationScope) -> bool {
        self.lock_tables().machine.is_gone(scope)
    }

    /// Registrations that the NIC has, or is making or closing.
    #[must_use]
    pub fn registration_count(&self) -> usize {
        self.lock_tables().machine.current_usage().entries
    }

    /// What happened so far.
    #[must_use]
    pub fn cache_counts(&self) -> RegistrationCounts {
        self.lock_tables().machine.event_counts()
    }

    /// A registration that contains `span` and allows as much as `key` says, and what `look` sees of it: one that stands, or one
    /// that another thread is making, for which this one waits at most `bound`, or else the one that `make` makes, of just these
    /// bytes. `look` is called with the lock.
    ///
    /// # Errors
    /// [`AcquireError`]; the next one that asks begins anew.
    pub fn acquire<T, E>(
        &self,
        key: &RegistrationKey,
        span: ByteSpan,
        bound: Duration,
        make: impl FnOnce() -> Result<M, E>,
        look: impl Fn(&M) -> T,
    ) -> Result<(RegistrationGrant, T), AcquireError<E>> {
        let end = Instant::now() + bound;
        let mut held = self.lock_tables();
        loop {
            let pin = match held.machine.request_registration(key, span)? {
                RegistrationLookup::Register(register) => {
                    drop(held);
                    return self.register_and_grant(register.id, span, make, &look);
                }
                RegistrationLookup::Hit(pin) => Some(pin),
                RegistrationLookup::Pending(wait) => {
                    let waited = self.wait_for_registration(held, wait, end);
                    held = waited.0;
                    waited.1?
                }
                RegistrationLookup::Later => {
                    held = self.wait_for_change(held, end).ok_or(AcquireError::Late)?;
                    None
                }
            };
            let Some(pin) = pin else { continue };
            match held.grant_pin(pin, span, &look) {
                Ok(granted) => return Ok(granted),
                Err(grant) => {
                    // It was closed under those who used it before this one did.
                    let closes = held.unpin_grant(grant);
                    drop(held);
                    self.close_registrations(closes);
                    held = self.lock_tables();
                }
            }
        }
    }

    /// Until there is news; nothing if there is none in time.
    fn wait_for_change<'a>(
        &'a self,
        held: MutexGuard<'a, CacheTables<M>>,
        end: Instant,
    ) -> Option<MutexGuard<'a, CacheTables<M>>> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let (held, _) = self.news.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner);
        Some(held)
    }

    /// Until another thread has registered; no pin if that could not.
    #[expect(clippy::type_complexity, reason = "the lock comes back whatever happens")]
    fn wait_for_registration<'a, E>(
        &'a self,
        mut held: MutexGuard<'a, CacheTables<M>>,
        mut wait: RegistrationWait,
        end: Instant,
    ) -> (MutexGuard<'a, CacheTables<M>>, Result<Option<RegistrationPin>, AcquireError<E>>) {
        loop {
            match held.machine.settle_wait(wait) {
                Err(error) => return (held, Err(error.into())),
                Ok(RegistrationOutcome::Ready(pin)) => return (held, Ok(Some(pin))),
                Ok(RegistrationOutcome::Failed) => return (held, Ok(None)),
                Ok(RegistrationOutcome::NotYet(again)) => wait = again,
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let given_up = held.machine.give_up(wait);
                return (held, given_up.map_err(AcquireError::from).and(Err(AcquireError::Late)));
            }
            held = self.news.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Registers, without the lock.
    fn register_and_grant<T, E>(
        &self,
        id: EntryId,
        span: ByteSpan,
        make: impl FnOnce() -> Result<M, E>,
        look: &impl Fn(&M) -> T,
    ) -> Result<(RegistrationGrant, T), AcquireError<E>> {
        let mut making = RegisterGuard { cache: self, id, done: false };
        let registration = make().map_err(AcquireError::Make)?;
        let mut held = self.lock_tables();
        let ReadyRegistration { pin, .. } = held.machine.on_registered(id)?;
        making.done = true;
        held.open.insert(id, OpenRegistration { registration: Some(registration), span, whole: 0 });
        let granted = held.grant_pin(pin, span, look);
        drop(held);
        self.news.notify_all();
        // It has just been put there.
        granted.map_err(|_| AcquireError::Lost(RegistrationEventError::NoEntry))
    }

    /// One uses its registration no more; with the last one it is closed before this returns.
    pub fn release(&self, grant: RegistrationGrant) {
        let closes = self.lock_tables().unpin_grant(grant);
        self.close_registrations(closes);
    }

    /// The same, and the registration is closed before this returns, whoever uses it. `before` is told which, when it does not
    /// [stand](RegistrationCache::is_valid) any more and is not closed yet, so that nobody names it.
    pub fn revoke(&self, grant: RegistrationGrant, before: impl FnOnce(EntryId)) {
        let _one = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
        let id = grant.entry_id();
        let registration = {
            let mut held = self.lock_tables();
            held.machine.hide_entry(id);
            held.open.get_mut(&id).and_then(|open| open.registration.take())
        };
        before(id);
        drop(registration);
        self.release(grant);
    }

    /// Whether a registration that somebody uses has not been closed under its users.
    #[must_use]
    pub fn is_valid(&self, id: EntryId) -> bool {
        self.lock_tables().open.get(&id).is_some_and(|open| open.registration.is_some())
    }

    /// Closes, without the lock.
    fn close_registrations(&self, closes: PendingCloses<M>) {
        for (id, registration) in closes {
            drop(registration);
            let _ = self.lock_tables().machine.on_closed(id);
            self.news.notify_all();
        }
    }
}

impl<M> CacheTables<M> {
    /// What a pin is good for; the grant alone, if its registration was closed.
    fn grant_pin<T>(
        &mut self,
        pin: RegistrationPin,
        span: ByteSpan,
        look: impl Fn(&M) -> T,
    ) -> Result<(RegistrationGrant, T), RegistrationGrant> {
        let open = self.open.get_mut(&pin.entry_id());
        let whole = open.as_ref().is_some_and(|open| open.span == span);
        let inset = open.as_ref().map_or(0, |open| span.start() - open.span.start());
        let grant = RegistrationGrant { pin, span, inset, whole };
        let Some(open) = open else { return Err(grant) };
        open.whole += u32::from(whole);
        match &open.registration {
            Some(registration) => Ok((grant, look(registration))),
            None => Err(grant),
        }
    }

    /// One uses it no more; what is to be closed for that.
    fn unpin_grant(&mut self, grant: RegistrationGrant) -> PendingCloses<M> {
        let id = grant.entry_id();
        let mut closes = PendingCloses::new();
        if let Some(open) = self.open.get_mut(&id) {
            open.whole -= u32::from(grant.whole);
            if open.whole == 0 {
                self.machine.hide_entry(id);
            }
        }
        // It is of this cache, as its grant is.
        let _ = self.machine.release_pin(grant.pin);
        closes.extend(self.take_closes());
        closes
    }

    /// All that is to be closed now: whoever brought that about does it, and knows then that it is done.
    fn take_closes(&mut self) -> PendingCloses<M> {
        let mut closes = PendingCloses::new();
        while let Some(close) = self.machine.poll() {
            closes.push((close.id, self.open.remove(&close.id).and_then(|open| open.registration)));
        }
        closes
    }
}

impl<M> std::fmt::Debug for RegistrationCache<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({} registrations)", self.registration_count())
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
