//! Entries one behind another, linked through themselves: to put one in or take one out of the middle allocates nothing.
//! The cache has two, of the idle ones and of those to be closed; an entry is in one of them at most.

use super::entry::{Entry, EntryId};
use crate::slots::Slots;

/// The ends of a queue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    front: Option<EntryId>,
    back: Option<EntryId>,
    len: usize,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { front: None, back: None, len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn front(&self) -> Option<EntryId> {
        self.front
    }

    pub(super) const fn back(&self) -> Option<EntryId> {
        self.back
    }

    /// Puts an entry, which is in no queue, at the end.
    pub(super) fn push(&mut self, entries: &mut Slots<Entry>, id: EntryId) {
        if let Some(entry) = entries.get_mut(id.0) {
            (entry.before, entry.behind) = (self.back, None);
        }
        match self.back.and_then(|last| entries.get_mut(last.0)) {
            Some(last) => last.behind = Some(id),
            None => self.front = Some(id),
        }
        self.back = Some(id);
        self.len += 1;
    }

    /// Takes out an entry, which is in this queue.
    pub(super) fn take(&mut self, entries: &mut Slots<Entry>, id: EntryId) {
        let Some(entry) = entries.get_mut(id.0) else { return };
        let (before, behind) = (entry.before.take(), entry.behind.take());
        match before.and_then(|id| entries.get_mut(id.0)) {
            Some(entry) => entry.behind = behind,
            None => self.front = behind,
        }
        match behind.and_then(|id| entries.get_mut(id.0)) {
            Some(entry) => entry.before = before,
            None => self.back = before,
        }
        self.len -= 1;
    }
}
