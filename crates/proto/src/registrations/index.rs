//! Registrations by what they are of: finds one that serves a request. The cache has two, of those that stand and of those
//! that are being made.

use super::entry::EntryId;
use super::key::{Key, Memory, Purpose, Rights, Scope};
use crate::intervals::{Intervals, Span};
use crate::mutant::Mutant;

/// Registrations of all scopes, memories and rights.
#[derive(Clone, Debug)]
pub(super) struct Index {
    spans: Intervals<Key, EntryId>,
    /// How many there are with each set of rights, so that nobody looks for sets that nobody has.
    by_rights: [u32; Rights::SETS],
    mutant: Mutant,
}

impl Index {
    pub(super) const fn new(mutant: Mutant) -> Self {
        Self { spans: Intervals::new(mutant), by_rights: [0; Rights::SETS], mutant }
    }

    /// A registration that contains all of `span` and allows what is asked for: of those that allow just that, if there is
    /// one, and then the one that [`Intervals::containing`] says.
    pub(super) fn find(&self, key: &Key, span: Span) -> Option<EntryId> {
        let find = |key: Key| Some(self.spans.containing(&key, span)?.1);
        if self.mutant.is("registrations-ignore-rights") {
            return Rights::LOCAL.covering().find_map(|rights| find(Key { rights, ..*key }));
        }
        if self.mutant.is("registrations-ignore-purpose") {
            let key = Key { purpose: Purpose::Payload, ..*key };
            return self.present(key.rights).find_map(|rights| find(Key { rights, ..key }));
        }
        self.present(key.rights).find_map(|rights| find(Key { rights, ..*key }))
    }

    /// A registration of that memory in that scope that has any byte of `span`.
    pub(super) fn touching(&self, scope: Scope, memory: Memory, span: Span) -> Option<EntryId> {
        let whole = self.mutant.is("registrations-forget-what-is-whole");
        self.present(Rights::LOCAL).find_map(|rights| {
            let keys = Purpose::BOTH.map(|purpose| Key { scope, memory, purpose, rights });
            let touches = |key| match whole {
                true => self.spans.containing(key, span),
                false => self.spans.overlapping(key, span),
            };
            Some(keys.iter().find_map(touches)?.1)
        })
    }

    /// Any registration of that scope.
    pub(super) fn any_of(&self, scope: Scope) -> Option<EntryId> {
        let (key, _, id) = self.spans.first_from(&Key::first_of(scope))?;
        (key.scope == scope).then_some(id)
    }

    pub(super) fn insert(&mut self, key: Key, span: Span, id: EntryId) {
        let new = self.spans.insert(key, span, id);
        debug_assert!(new, "{key:?} {span:?} twice");
        self.by_rights[key.rights.index()] += u32::from(new);
    }

    pub(super) fn remove(&mut self, key: &Key, span: Span) {
        let known = self.spans.remove(key, span);
        self.by_rights[key.rights.index()] -= u32::from(known);
    }

    pub(super) const fn len(&self) -> usize {
        self.spans.len()
    }

    /// The sets of rights that cover these and that any registration has.
    fn present(&self, rights: Rights) -> impl Iterator<Item = Rights> {
        rights.covering().filter(|rights| self.by_rights[rights.index()] > 0)
    }
}
