//! A table with a place for each buffer that may be outstanding, by the slot that its token names. The places of first
//! buffers come first: most comms never have others, and make no room for them. Used by the receiving side here and by
//! the engine for what it knows of each buffer.

use alloc::vec::Vec;

use crate::limits::{RECVS_MAX, TOKENS_MAX};

/// The slot of buffer `index` of the receive with place `receive`.
#[inline]
#[must_use]
pub const fn slot_of_buffer(receive: usize, index: usize) -> usize {
    index * RECVS_MAX + receive
}

/// From the slot of a buffer to that of the next one of its receive.
pub const STEP: usize = RECVS_MAX;

/// The place of the receive that a slot belongs to.
#[inline]
#[must_use]
pub const fn receive_of_slot(slot: usize) -> usize {
    slot % RECVS_MAX
}

/// Which buffer of its receive a slot is for.
#[inline]
#[must_use]
pub const fn index(slot: usize) -> usize {
    slot / RECVS_MAX
}

/// The table.
#[derive(Debug)]
pub struct BufferTable<T>(Vec<T>);

impl<T> BufferTable<T> {
    /// With room for first buffers; `make` gives what is in a slot at first.
    #[must_use]
    pub fn new(make: impl FnMut(usize) -> T) -> Self {
        Self((0..RECVS_MAX).map(make).collect())
    }

    /// Makes room for receives of `count` buffers.
    #[inline]
    pub fn make_room(&mut self, count: usize, make: impl FnMut(usize) -> T) {
        if count > 1 && self.0.len() < TOKENS_MAX {
            self.grow_to_tokens(make);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow_to_tokens(&mut self, make: impl FnMut(usize) -> T) {
        self.0.extend((self.0.len()..TOKENS_MAX).map(make));
    }

    /// What is in a slot; `None` if there was never a receive of so many buffers.
    #[inline]
    #[must_use]
    pub fn get(&self, slot: usize) -> Option<&T> {
        self.0.get(slot)
    }

    /// All there is, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl<T> core::ops::Index<usize> for BufferTable<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: usize) -> &T {
        &self.0[slot]
    }
}

impl<T> core::ops::IndexMut<usize> for BufferTable<T> {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut T {
        &mut self.0[slot]
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::RECV_BUFFERS_MAX;

    use super::*;

    #[test]
    fn each_buffer_has_a_slot_of_its_own() {
        let all = (0..RECV_BUFFERS_MAX).flat_map(|index| (0..RECVS_MAX).map(move |place| (place, index)));
        for (expected, (place, index)) in all.enumerate() {
            assert_eq!((slot_of_buffer(place, index), receive_of_slot(expected)), (expected, place));
        }
    }

    #[test]
    fn there_is_room_for_what_was_asked_for() {
        let mut table = BufferTable::new(|slot| slot);
        table.make_room(1, |slot| slot);
        assert_eq!((table.get(RECVS_MAX - 1), table.get(RECVS_MAX)), (Some(&(RECVS_MAX - 1)), None));
        table[3] = 1000;
        table.make_room(2, |slot| slot);
        table.make_room(RECV_BUFFERS_MAX, |_| 0);
        assert_eq!((table[3], table[TOKENS_MAX - 1]), (1000, TOKENS_MAX - 1));
        assert_eq!((table.iter().count(), table.get(TOKENS_MAX)), (TOKENS_MAX, None));
        table[RECVS_MAX] = 7;
        assert_eq!(table[RECVS_MAX], 7);
    }
}
