//! Registrations by what they are of: finds one that serves a request. The cache has two, of those that stand and of those
//! that are being made.

use super::entry::EntryId;
use super::key::{MemorySpace, RegistrationKey, RegistrationPurpose, RegistrationRights, RegistrationScope};
use crate::intervals::{ByteSpan, IntervalTree};

/// Registrations of all scopes, memories and rights.
#[derive(Clone, Debug)]
pub(super) struct RegistrationIndex {
    spans: IntervalTree<RegistrationKey, EntryId>,
    /// How many there are with each set of rights, so that nobody looks for sets that nobody has.
    by_rights: [u32; RegistrationRights::SETS],
}

impl RegistrationIndex {
    pub(super) const fn new() -> Self {
        Self { spans: IntervalTree::new(), by_rights: [0; RegistrationRights::SETS] }
    }

    /// A registration that contains all of `span` and allows what is asked for: of those that allow just that, if there is
    /// one, and then the one that [`IntervalTree::find_containing`] says.
    pub(super) fn find_serving(&self, key: &RegistrationKey, span: ByteSpan) -> Option<EntryId> {
        let find = |key: RegistrationKey| Some(self.spans.find_containing(&key, span)?.1);
        self.rights_in_use(key.rights).find_map(|rights| find(RegistrationKey { rights, ..*key }))
    }

    /// A registration of that memory in that scope that has any byte of `span`.
    pub(super) fn find_overlapping(
        &self,
        scope: RegistrationScope,
        memory: MemorySpace,
        span: ByteSpan,
    ) -> Option<EntryId> {
        self.rights_in_use(RegistrationRights::LOCAL).find_map(|rights| {
            let keys =
                RegistrationPurpose::BOTH.map(|purpose| RegistrationKey { scope, memory, purpose, rights });
            Some(keys.iter().find_map(|key| self.spans.find_overlapping(key, span))?.1)
        })
    }

    /// Any registration of that scope.
    pub(super) fn any_of(&self, scope: RegistrationScope) -> Option<EntryId> {
        let (key, _, id) = self.spans.first_from(&RegistrationKey::first_of(scope))?;
        (key.scope == scope).then_some(id)
    }

    pub(super) fn insert(&mut self, key: RegistrationKey, span: ByteSpan, id: EntryId) {
        let new = self.spans.insert(key, span, id);
        debug_assert!(new, "{key:?} {span:?} twice");
        self.by_rights[key.rights.index()] += u32::from(new);
    }

    pub(super) fn remove(&mut self, key: &RegistrationKey, span: ByteSpan) {
        let known = self.spans.remove(key, span);
        self.by_rights[key.rights.index()] -= u32::from(known);
    }

    pub(super) const fn len(&self) -> usize {
        self.spans.len()
    }

    /// The sets of rights that cover these and that any registration has.
    fn rights_in_use(&self, rights: RegistrationRights) -> impl Iterator<Item = RegistrationRights> {
        rights.covering_sets().filter(|rights| self.by_rights[rights.index()] > 0)
    }
}
