//! A table of fixed capacity whose entries are identified by slot and generation, so that the id of a removed entry matches no
//! other. The engine and this crate use it for regions of comms, connection attempts, members of shared groups and the like. It never
//! grows beyond its capacity.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::reserve::{OutOfMemory, try_grow};

/// The id of an entry. Never zero as a number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SlotId {
    /// The entry's place in the table.
    pub slot: u32,
    /// The number of the entry's use of that place, from 1.
    pub generation: u32,
}

impl SlotId {
    /// Returns the id as one number, for handles that cross a C boundary.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// Returns the id with that number.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A table with room for a fixed number of entries.
#[derive(Clone, Debug, Hash)]
pub struct SlotTable<T> {
    entries: Vec<SlotEntry<T>>,
    free: VecDeque<u32>,
    capacity: usize,
    /// Places that stay empty before one of them is reused; 0: the place that was freed last is reused at once.
    quarantine: usize,
}

#[derive(Clone, Debug, Hash)]
struct SlotEntry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> SlotTable<T> {
    /// Returns an empty table for at most `capacity` entries. It allocates as it fills.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self::with_quarantine(capacity, 0)
    }

    /// Returns an empty table of `capacity` places. A place is reused only while more than `quarantine` places are free; the place that was
    /// freed first is reused first. So the table is full with `quarantine` places empty. For ids that the network may deliver late.
    #[must_use]
    pub const fn with_quarantine(capacity: usize, quarantine: usize) -> Self {
        Self { entries: Vec::new(), free: VecDeque::new(), capacity, quarantine }
    }

    /// Sets the capacity; existing entries stay. Allocates the memory for all of it.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the capacity is unchanged.
    pub fn set_capacity(&mut self, capacity: usize) -> Result<(), OutOfMemory> {
        let more = capacity.saturating_sub(self.entries.len());
        try_grow(&mut self.entries, more)?;
        let bytes = capacity.saturating_mul(size_of::<u32>());
        let more = capacity.saturating_sub(self.free.len());
        self.free.try_reserve(more).map_err(|_| OutOfMemory { bytes })?;
        self.capacity = capacity;
        Ok(())
    }

    /// The most entries that the table can have.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Inserts `value`.
    ///
    /// # Errors
    /// The value, if the table is full or the system has no memory for a further place.
    pub fn insert(&mut self, value: T) -> Result<SlotId, T> {
        if let Some(slot) = self.take_reusable() {
            let entry = &mut self.entries[slot as usize];
            entry.value = Some(value);
            return Ok(SlotId { slot, generation: entry.generation });
        }
        // Reserves the place's entry in the free list too, so that `remove` never allocates.
        let more = (self.entries.len() + 1).saturating_sub(self.free.len());
        let is_full = self.entries.len() >= self.capacity;
        if is_full || self.entries.try_reserve(1).is_err() || self.free.try_reserve(more).is_err() {
            return Err(value);
        }
        let slot = self.entries.len() as u32;
        self.entries.push(SlotEntry { generation: 1, value: Some(value) });
        Ok(SlotId { slot, generation: 1 })
    }

    /// Removes and returns the free place to reuse, if one may be reused.
    fn take_reusable(&mut self) -> Option<u32> {
        if self.quarantine == 0 {
            return self.free.pop_back();
        }
        if self.free.len() > self.quarantine { self.free.pop_front() } else { None }
    }

    /// Number of places that were ever used: the size of the table.
    #[must_use]
    pub fn used_places(&self) -> usize {
        self.entries.len()
    }

    /// The entry in that place, and its id.
    #[inline]
    #[must_use]
    pub fn entry_at(&self, slot: u32) -> Option<(SlotId, &T)> {
        let entry = self.entries.get(slot as usize)?;
        Some((SlotId { slot, generation: entry.generation }, entry.value.as_ref()?))
    }

    /// The entry in that place, mutable.
    #[inline]
    pub fn entry_at_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.value.as_mut()
    }

    /// The entry with that id.
    #[inline]
    #[must_use]
    pub fn get(&self, id: SlotId) -> Option<&T> {
        let entry = self.entries.get(id.slot as usize)?;
        if entry.generation == id.generation { entry.value.as_ref() } else { None }
    }

    /// The entry with that id, mutable.
    #[inline]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation == id.generation { entry.value.as_mut() } else { None }
    }

    /// Removes and returns an entry; its id recurs only after 2^32 - 1 further uses of the place.
    pub fn remove(&mut self, id: SlotId) -> Option<T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        self.free.push_back(id.slot);
        Some(value)
    }

    /// All entries with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| {
            let value = entry.value.as_ref()?;
            Some((SlotId { slot: slot as u32, generation: entry.generation }, value))
        })
    }

    /// All entries with their ids, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlotId, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(slot, entry)| {
            let value = entry.value.as_mut()?;
            Some((SlotId { slot: slot as u32, generation: entry.generation }, value))
        })
    }

    /// Number of entries for which no further allocation is necessary.
    #[cfg(test)]
    pub(crate) const fn room(&self) -> usize {
        self.entries.capacity()
    }

    /// Makes the next use of that place the last one before its generation wraps.
    #[cfg(test)]
    pub(crate) fn wear_out(&mut self, slot: u32) {
        self.entries[slot as usize].generation = u32::MAX;
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_id_finds_no_entry() {
        let mut slots = SlotTable::new(1);
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.insert('b'), Err('b'), "the table is full");
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('c').unwrap();
        assert_eq!(second.slot, first.slot);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&'c'));
        assert_eq!(SlotId::from_bits(second.to_bits()), second);
    }

    #[test]
    fn table_grows_and_shrinks_on_request() {
        let mut slots = SlotTable::new(1);
        let first = slots.insert('a').unwrap();
        slots.set_capacity(2).unwrap();
        let room = slots.entries.capacity();
        let second = slots.insert('b').unwrap();
        assert_eq!((slots.insert('c'), slots.entries.capacity()), (Err('c'), room));
        slots.set_capacity(0).unwrap();
        assert_eq!((slots.get(first), slots.get(second)), (Some(&'a'), Some(&'b')));
        assert_eq!(slots.insert('c'), Err('c'));
    }

    #[test]
    fn generations_wrap_past_zero() {
        let mut slots = SlotTable::new(1);
        let id = slots.insert(1).unwrap();
        slots.entries[0].generation = u32::MAX;
        assert!(slots.remove(id).is_none());
        let last = SlotId { slot: 0, generation: u32::MAX };
        assert_eq!(slots.remove(last), Some(1));
        assert_eq!(slots.insert(2).unwrap().generation, 1);
    }

    #[test]
    fn slot_in_quarantine_is_reused_after_the_others() {
        let mut slots = SlotTable::with_quarantine(6, 3);
        let names: Vec<_> = (0..6).map(|n| slots.insert(n).unwrap()).collect();
        assert_eq!(slots.insert(9), Err(9));
        for at in [4, 1, 5] {
            assert_eq!(slots.remove(names[at]), Some(at));
            assert_eq!(slots.insert(9), Err(9), "too few slots are empty");
        }
        slots.remove(names[0]).unwrap();
        let again = slots.insert(7).unwrap();
        assert_eq!(
            (again.slot, again.generation),
            (4, 2),
            "the slot that was empty for the longest time is reused"
        );
        assert_eq!(slots.insert(8), Err(8));
        assert_eq!((slots.entry_at(4), slots.entry_at(1), slots.used_places()), (Some((again, &7)), None, 6));
    }
}
