//! A map of the registrations of memory: an interval map of reference-counted registrations. It decides which
//! registration serves a request, which caller makes a new one, and when one is closed. `trunkline_fabric::cache` calls
//! it, behind a lock that it releases while a NIC registers or closes. The map itself never registers, closes or waits,
//! and it keeps no registration without a user.
//!
//! ```text
//!            on_made           the last release            on_closed
//!   Making ──────────► Open ─────────────────────► Closing ──────────► removed
//!     │                 └── revoke ► Revoked ─────────┘
//!     └── on_failed ► removed
//! ```
//!
//! A request finds a registration only while it is *listed*. These remove it from the index: `revoke_registration`,
//! `forget_memory`, `end_scope`, and the release of its last user that requested all of its bytes. After the latter the
//! remaining bytes may have been freed and remapped, because no user keeps them allocated.
//!
//! A request takes a number of steps that grows with the logarithm of the number of registrations, for at most four sets of
//! rights. Only [`RegionMap::open_scope`] and a request for a new registration allocate, before they change anything.

pub mod key;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::num::NonZeroU64;

use self::key::{MemorySpace, RegistrationKey, RegistrationRights, RegistrationScope};
use crate::intervals::{ByteSpan, IntervalTree};
use crate::limits::{REGISTRATION_SCOPES_MAX, REGISTRATION_USERS_MAX, REGISTRATIONS_MAX};
use crate::reserve::{OutOfMemory, try_grow};
use crate::slots::{SlotId, SlotTable};

/// The name of a registration in a map. No later registration has the same name.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EntryId(pub SlotId);

/// One use of a registration, which stays open until this is given to [`RegionMap::release_grant`].
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a grant that is not released keeps its registration open for ever"]
pub struct RegistrationGrant {
    id: EntryId,
    span: ByteSpan,
    start_offset: u64,
}

impl RegistrationGrant {
    /// Returns the name of the registration.
    #[must_use]
    pub const fn entry_id(&self) -> EntryId {
        self.id
    }

    /// Returns how many bytes into the registration the requested bytes begin.
    #[must_use]
    pub const fn start_offset(&self) -> u64 {
        self.start_offset
    }

    /// Returns the bytes that were requested.
    #[must_use]
    pub const fn granted_span(&self) -> ByteSpan {
        self.span
    }
}

/// How a request is served.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub enum RegistrationLookup {
    /// An open registration contains the bytes.
    Hit(RegistrationGrant),
    /// Another caller is making a registration that contains the bytes. Repeat the request once it is made or has
    /// failed.
    Making,
    /// The caller registers exactly the requested bytes, without the lock, and then calls [`RegionMap::on_made`] or
    /// [`RegionMap::on_failed`].
    Make(EntryId),
    /// The map is full, and a registration is being closed. Repeat the request once it is closed.
    Later,
}

/// The map does not serve a request; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RegistrationError {
    /// The endpoint or domain of the request has ended.
    #[error("the scope of the registration has ended")]
    Ended(RegistrationScope),
    /// The map contains its maximum number of registrations, and all of them are in use.
    #[error("all {0} registrations are in use; register without the cache, or deregister other memory first")]
    Full(usize),
    /// The registration that contains the bytes has its maximum number of users.
    #[error("a registration has {0} users, which is the limit; register without the cache")]
    Users(u32),
    /// The maximum number of scopes is open.
    #[error(
        "{REGISTRATION_SCOPES_MAX} scopes of registrations are open, which is the limit; register without the cache"
    )]
    Scopes,
    /// The system has no memory for one more registration or scope.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

/// The registrations `M`, by key and span.
#[derive(Clone, Debug)]
pub struct RegionMap<M> {
    /// The listed registrations. Those being made are groups of their own, because an open one is preferred.
    spans: IntervalTree<SpanGroup, EntryId>,
    entries: SlotTable<MapEntry<M>>,
    limit: usize,
    /// Entries that are [`RegistrationPhase::Closing`].
    closing: usize,
    /// The open scopes, in ascending order.
    scopes: Vec<RegistrationScope>,
    last_scope: u64,
}

/// Whether the registrations are still being made, and their key.
type SpanGroup = (bool, RegistrationKey);

#[derive(Clone, Debug)]
struct MapEntry<M> {
    key: RegistrationKey,
    /// The registered bytes, exactly.
    span: ByteSpan,
    state: RegistrationPhase<M>,
    listed: bool,
    users: u32,
    /// Users that requested all of `span`.
    whole: u32,
}

#[derive(Clone, Debug)]
enum RegistrationPhase<M> {
    Making,
    Open(M),
    /// It was closed while it still had users.
    Revoked,
    Closing,
}

impl<M> MapEntry<M> {
    const fn span_group(&self) -> SpanGroup {
        (matches!(self.state, RegistrationPhase::Making), self.key)
    }
}

impl<M> RegionMap<M> {
    /// Creates an empty map for at most `limit` registrations, those that are being made or closed included.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        let limit = if limit < REGISTRATIONS_MAX { limit } else { REGISTRATIONS_MAX };
        Self {
            spans: IntervalTree::new(),
            entries: SlotTable::new(REGISTRATIONS_MAX),
            limit,
            closing: 0,
            scopes: Vec::new(),
            last_scope: 0,
        }
    }

    /// Opens the scope of a domain or an endpoint. No scope has ever been given before.
    ///
    /// # Errors
    /// [`RegistrationError::Scopes`] and [`RegistrationError::Memory`].
    pub fn open_scope(&mut self) -> Result<RegistrationScope, RegistrationError> {
        if self.scopes.len() >= REGISTRATION_SCOPES_MAX {
            return Err(RegistrationError::Scopes);
        }
        try_grow(&mut self.scopes, 1)?;
        let next =
            self.last_scope.checked_add(1).and_then(NonZeroU64::new).ok_or(RegistrationError::Scopes)?;
        self.last_scope = next.get();
        self.scopes.push(RegistrationScope(next));
        Ok(RegistrationScope(next))
    }

    /// Ends the scope of a domain or an endpoint: no request finds its registrations any more. Each is closed with its last user.
    pub fn end_scope(&mut self, scope: RegistrationScope) {
        if let Ok(at) = self.scopes.binary_search(&scope) {
            self.scopes.remove(at);
        }
        for is_making in [false, true] {
            let first = (is_making, RegistrationKey::first_of(scope));
            while let Some((group, span, id)) = self
                .spans
                .first_from(&first)
                .filter(|(group, ..)| (group.0, group.1.scope) == (is_making, scope))
            {
                self.unlist_span(&group, span, id);
            }
        }
    }

    /// Forgets memory that is freed or remapped: no request, in any scope, finds a registration that has a byte of
    /// `span`. Each is closed with its last user. Visits every scope that has a registration.
    pub fn forget_memory(&mut self, memory: MemorySpace, span: ByteSpan) {
        for is_making in [false, true] {
            let mut from = Some(RegistrationScope::FIRST);
            while let Some(((found, RegistrationKey { scope, .. }), ..)) =
                from.and_then(|scope| self.spans.first_from(&(is_making, RegistrationKey::first_of(scope))))
                && found == is_making
            {
                for rights in RegistrationRights::LOCAL.covering_sets() {
                    let group = (is_making, RegistrationKey { scope, memory, rights });
                    while let Some((part, id)) = self.spans.find_overlapping(&group, span) {
                        self.unlist_span(&group, part, id);
                    }
                }
                from = scope.next_scope();
            }
        }
    }

    /// Requests a registration of these bytes. Several may serve the request. An open one is preferred to one that is
    /// being made, then one with exactly the requested rights, then the result of [`IntervalTree::find_containing`].
    ///
    /// # Errors
    /// [`RegistrationError`]; nothing was changed.
    pub fn request_registration(
        &mut self,
        key: &RegistrationKey,
        span: ByteSpan,
    ) -> Result<RegistrationLookup, RegistrationError> {
        if self.scopes.binary_search(&key.scope).is_err() {
            return Err(RegistrationError::Ended(key.scope));
        }
        if let Some(id) = self.find_serving(false, key, span)
            && let Some(entry) = self.entries.get_mut(id.0)
        {
            if entry.users >= REGISTRATION_USERS_MAX {
                return Err(RegistrationError::Users(entry.users));
            }
            entry.users += 1;
            entry.whole += u32::from(entry.span == span);
            let start_offset = span.start() - entry.span.start();
            return Ok(RegistrationLookup::Hit(RegistrationGrant { id, span, start_offset }));
        }
        if self.find_serving(true, key, span).is_some() {
            return Ok(RegistrationLookup::Making);
        }
        if self.entries.len() >= self.limit {
            let is_closing = self.closing > 0;
            return if is_closing {
                Ok(RegistrationLookup::Later)
            } else {
                Err(RegistrationError::Full(self.limit))
            };
        }
        self.spans.reserve_nodes(self.spans.len() + 1)?;
        let entry =
            MapEntry { key: *key, span, state: RegistrationPhase::Making, listed: true, users: 0, whole: 0 };
        let group = entry.span_group();
        let bytes = (self.entries.len() + 1).saturating_mul(size_of::<MapEntry<M>>());
        let id = EntryId(self.entries.insert(entry).map_err(|_| OutOfMemory { bytes })?);
        let is_new = self.spans.insert(group, span, id);
        debug_assert!(is_new, "{group:?} {span:?} twice");
        Ok(RegistrationLookup::Make(id))
    }

    fn find_serving(&self, is_making: bool, key: &RegistrationKey, span: ByteSpan) -> Option<EntryId> {
        key.rights.covering_sets().find_map(|rights| {
            let group = (is_making, RegistrationKey { rights, ..*key });
            self.spans.find_containing(&group, span).map(|(_, id)| id)
        })
    }

    /// Opens the registration that the caller has made of the bytes of its request, and returns the caller's use of it.
    ///
    /// # Errors
    /// The registration, if no caller is making one of that name.
    pub fn on_made(&mut self, id: EntryId, made: M) -> Result<RegistrationGrant, M> {
        let Some(entry) =
            self.entries.get_mut(id.0).filter(|entry| matches!(entry.state, RegistrationPhase::Making))
        else {
            return Err(made);
        };
        let was = entry.span_group();
        entry.state = RegistrationPhase::Open(made);
        (entry.users, entry.whole) = (1, 1);
        let span = entry.span;
        if entry.listed {
            // Nothing is allocated, because the node that leaves the index is used again.
            let group = entry.span_group();
            self.spans.remove(&was, span);
            let is_new = self.spans.insert(group, span, id);
            debug_assert!(is_new, "{group:?} {span:?} twice");
        }
        Ok(RegistrationGrant { id, span, start_offset: 0 })
    }

    /// Removes an entry whose registration could not be made. Does nothing if no caller is making one of that name.
    pub fn on_failed(&mut self, id: EntryId) {
        if self.entries.get(id.0).is_some_and(|entry| matches!(entry.state, RegistrationPhase::Making)) {
            self.hide_entry(id);
            self.entries.remove(id.0);
        }
    }

    /// Returns the registration of that name, while it is open.
    #[must_use]
    pub fn get(&self, id: EntryId) -> Option<&M> {
        match &self.entries.get(id.0)?.state {
            RegistrationPhase::Open(registration) => Some(registration),
            _ => None,
        }
    }

    /// Ends a use. If it was the last one, returns the registration, which the caller closes without the lock and
    /// reports to [`RegionMap::on_closed`]. A revoked registration was closed before, so none is returned.
    #[must_use = "the registration counts until `on_closed` is called"]
    pub fn release_grant(&mut self, grant: RegistrationGrant) -> Option<(EntryId, Option<M>)> {
        let id = grant.id;
        let entry = self.entries.get_mut(id.0).filter(|entry| entry.users > 0)?;
        entry.users -= 1;
        entry.whole = entry.whole.saturating_sub(u32::from(entry.span == grant.span));
        let is_used = entry.users > 0;
        if entry.whole == 0 {
            self.hide_entry(id);
        }
        if is_used {
            return None;
        }
        self.closing += 1;
        Some((id, self.take_registration(id, RegistrationPhase::Closing)))
    }

    /// Removes an entry whose registration the NIC has closed; until then it counts. Does nothing if no entry of that
    /// name is being closed.
    pub fn on_closed(&mut self, id: EntryId) {
        if self.entries.get(id.0).is_some_and(|entry| matches!(entry.state, RegistrationPhase::Closing)) {
            self.entries.remove(id.0);
            self.closing -= 1;
        }
    }

    /// Revokes a registration from its users, and returns it to be closed at once. No request finds it any more.
    /// Returns `None` if it is not open.
    pub fn revoke_registration(&mut self, id: EntryId) -> Option<M> {
        self.get(id)?;
        self.hide_entry(id);
        self.take_registration(id, RegistrationPhase::Revoked)
    }

    fn take_registration(&mut self, id: EntryId, next: RegistrationPhase<M>) -> Option<M> {
        match core::mem::replace(&mut self.entries.get_mut(id.0)?.state, next) {
            RegistrationPhase::Open(registration) => Some(registration),
            _ => None,
        }
    }

    /// Removes a registration from the index, if it is listed.
    fn hide_entry(&mut self, id: EntryId) {
        if let Some(entry) = self.entries.get(id.0).filter(|entry| entry.listed) {
            self.unlist_span(&entry.span_group(), entry.span, id);
        }
    }

    fn unlist_span(&mut self, group: &SpanGroup, span: ByteSpan, id: EntryId) {
        self.spans.remove(group, span);
        if let Some(entry) = self.entries.get_mut(id.0) {
            entry.listed = false;
        }
    }

    /// Returns how many registrations the map has, those that are being made or closed included.
    #[must_use]
    pub fn registration_count(&self) -> usize {
        self.entries.len()
    }
}
