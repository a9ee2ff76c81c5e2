//! The scopes of a cache: which are open, and what is left of those that have ended. Never gives a number twice.

use alloc::collections::BTreeMap;
use core::num::NonZeroU64;
use core::ops::Bound;

use super::key::RegistrationScope;
use crate::limits::REGISTRATION_SCOPES_MAX;

/// All scopes that are open or have registrations left.
#[derive(Clone, Debug)]
pub(super) struct ScopeTable {
    last: u64,
    held: BTreeMap<RegistrationScope, HeldScope>,
}

#[derive(Clone, Copy, Debug)]
struct HeldScope {
    open: bool,
    entries: u32,
}

impl ScopeTable {
    pub(super) const fn new() -> Self {
        Self { last: 0, held: BTreeMap::new() }
    }

    /// The next one; `None` if there are as many as there may be.
    pub(super) fn open_scope(&mut self) -> Option<RegistrationScope> {
        if self.held.len() >= REGISTRATION_SCOPES_MAX {
            return None;
        }
        self.last += 1;
        let scope = RegistrationScope(NonZeroU64::new(self.last)?);
        self.held.insert(scope, HeldScope { open: true, entries: 0 });
        Some(scope)
    }

    pub(super) fn is_open(&self, scope: RegistrationScope) -> bool {
        self.held.get(&scope).is_some_and(|held| held.open)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self, scope: RegistrationScope) -> bool {
        !self.held.contains_key(&scope)
    }

    /// Ends one; `false` if it is not open.
    pub(super) fn close_scope(&mut self, scope: RegistrationScope) -> bool {
        let Some(held) = self.held.get_mut(&scope).filter(|held| held.open) else { return false };
        held.open = false;
        self.remove_if_empty(scope);
        true
    }

    /// A registration comes.
    pub(super) fn add_entry(&mut self, scope: RegistrationScope) {
        if let Some(held) = self.held.get_mut(&scope) {
            held.entries += 1;
        }
    }

    /// A registration is gone.
    pub(super) fn remove_entry(&mut self, scope: RegistrationScope) {
        if let Some(held) = self.held.get_mut(&scope) {
            held.entries = held.entries.saturating_sub(1);
        }
        self.remove_if_empty(scope);
    }

    fn remove_if_empty(&mut self, scope: RegistrationScope) {
        if self.held.get(&scope).is_some_and(|held| !held.open && held.entries == 0) {
            self.held.remove(&scope);
        }
    }

    /// The first one, or the one behind that one.
    pub(super) fn next(&self, behind: Option<RegistrationScope>) -> Option<RegistrationScope> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.held.range((from, Bound::Unbounded)).next().map(|(&scope, _)| scope)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}
