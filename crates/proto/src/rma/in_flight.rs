//! Pending operations, identified by slot and generation. The id travels with the operation to the NIC and returns with its completion; an id that
//! returns twice names no operation the second time. The engine calls it for each operation. Only [`InFlightTable::grow_capacity`] allocates.

use alloc::vec::Vec;

use crate::reserve::{OutOfMemory, try_grow};
use crate::slots::SlotId;

/// The end of the list of free slots.
const NONE: u32 = u32::MAX;

/// Pending operations, each with the caller's note.
#[derive(Debug)]
pub struct InFlightTable<T> {
    entries: Vec<InFlightEntry<T>>,
    free: u32,
    flying: u32,
}

#[derive(Debug)]
struct InFlightEntry<T> {
    generation: u32,
    /// The free slot after this one, while it is free.
    next: u32,
    note: Option<T>,
}

impl<T> InFlightTable<T> {
    /// Creates a table without room.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new(), free: NONE, flying: 0 }
    }

    /// Makes room for `more` operations. Allocates.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the room is then unchanged.
    pub fn grow_capacity(&mut self, more: u32) -> Result<(), OutOfMemory> {
        let from = self.entries.len() as u32;
        let until = from.saturating_add(more);
        try_grow(&mut self.entries, (until - from) as usize)?;
        for at in from..until {
            self.entries.push(InFlightEntry { generation: 1, next: self.free, note: None });
            self.free = at;
        }
        Ok(())
    }

    /// Returns whether there is room for one more operation.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.free != NONE
    }

    /// Begins an operation and returns its id.
    ///
    /// # Errors
    /// The note, if there is no room.
    #[inline]
    pub fn begin_operation(&mut self, note: T) -> Result<SlotId, T> {
        let slot = self.free;
        let Some(entry) = self.entries.get_mut(slot as usize) else { return Err(note) };
        self.free = entry.next;
        entry.note = Some(note);
        self.flying += 1;
        Ok(SlotId { slot, generation: entry.generation })
    }

    /// Returns the note of a pending operation.
    #[must_use]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation == id.generation { entry.note.as_mut() } else { None }
    }

    /// Ends an operation and returns its note; `None` if no operation with that id is pending.
    #[inline]
    pub fn end_operation(&mut self, id: SlotId) -> Option<T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let note = entry.note.take()?;
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        entry.next = self.free;
        self.free = id.slot;
        self.flying -= 1;
        Some(note)
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the id of the operation in a slot, if there is one and `is` returns true for its note.
    #[must_use]
    pub fn id_at(&self, slot: u32, is: impl Fn(&T) -> bool) -> Option<SlotId> {
        let entry = self.entries.get(slot as usize)?;
        let generation = entry.generation;
        entry.note.as_ref().filter(|note| is(note)).map(|_| SlotId { slot, generation })
    }

    /// Iterates over the pending operations.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| {
            let note = entry.note.as_ref()?;
            Some((SlotId { slot: slot as u32, generation: entry.generation }, note))
        })
    }

    /// Returns the number of pending operations.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.flying
    }

    /// Returns whether no operation is pending.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.flying == 0
    }
}

impl<T> Default for InFlightTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_id_ends_once() {
        let mut flights = InFlightTable::new();
        assert_eq!(flights.begin_operation('x'), Err('x'), "an operation began before the table was grown");
        flights.grow_capacity(2).unwrap();
        let [one, two] = ['a', 'b'].map(|note| flights.begin_operation(note).unwrap());
        assert!(!flights.has_room());
        assert_eq!(flights.begin_operation('c'), Err('c'));
        assert_eq!(flights.end_operation(one), Some('a'));
        assert_eq!((flights.end_operation(one), flights.get_mut(one)), (None, None));
        let three = flights.begin_operation('d').unwrap();
        assert_eq!(
            (three.slot, flights.end_operation(one)),
            (one.slot, None),
            "an old name ended a newer operation"
        );
        assert_eq!(flights.iter().count(), 2);
        flights.grow_capacity(1).unwrap();
        assert!(flights.has_room());
        assert_eq!(
            (flights.end_operation(two), flights.end_operation(three), flights.len()),
            (Some('b'), Some('d'), 0)
        );
    }
}
