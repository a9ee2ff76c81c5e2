//! Queues of table entries that are linked through the entries themselves, so that an insertion, or a removal from the middle, allocates
//! nothing. The tag matcher and the memory exporter use them; an entry is in at most one queue.

use crate::slots::{SlotId, SlotTable};

/// An entry that can be in a queue.
pub(crate) trait LinkedEntry {
    /// The entry's links.
    fn queue_links(&mut self) -> &mut QueueLinks;
}

/// The neighbours of an entry in its queue.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(crate) struct QueueLinks {
    before: Option<SlotId>,
    behind: Option<SlotId>,
}

/// The ends of a queue.
#[derive(Clone, Debug, Hash)]
pub(crate) struct LinkedQueue {
    front: Option<SlotId>,
    back: Option<SlotId>,
    len: usize,
}

impl QueueLinks {
    /// The links of an entry that is in no queue.
    pub(crate) const NONE: Self = Self { before: None, behind: None };

    /// The entry after this one.
    pub(crate) const fn next_entry(self) -> Option<SlotId> {
        self.behind
    }
}

impl LinkedQueue {
    pub(crate) const fn new() -> Self {
        Self { front: None, back: None, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn front(&self) -> Option<SlotId> {
        self.front
    }

    /// Appends an entry, which must be in no queue.
    pub(crate) fn push<T: LinkedEntry>(&mut self, entries: &mut SlotTable<T>, id: SlotId) {
        if let Some(entry) = entries.get_mut(id) {
            *entry.queue_links() = QueueLinks { before: self.back, behind: None };
        }
        match self.back.and_then(|last| entries.get_mut(last)) {
            Some(last) => last.queue_links().behind = Some(id),
            None => self.front = Some(id),
        }
        self.back = Some(id);
        self.len += 1;
    }

    /// Removes an entry, which must be in this queue.
    pub(crate) fn unlink_entry<T: LinkedEntry>(&mut self, entries: &mut SlotTable<T>, id: SlotId) {
        let Some(entry) = entries.get_mut(id) else { return };
        let QueueLinks { before, behind } = core::mem::take(entry.queue_links());
        match before.and_then(|id| entries.get_mut(id)) {
            Some(entry) => entry.queue_links().behind = behind,
            None => self.front = behind,
        }
        match behind.and_then(|id| entries.get_mut(id)) {
            Some(entry) => entry.queue_links().before = before,
            None => self.back = before,
        }
        self.len -= 1;
    }
}
