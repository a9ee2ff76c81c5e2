//! A table with a place for each buffer that may be outstanding, by the slot of its token. The first places are those of first buffers:
//! most comms never have other buffers, and allocate no room for them. The receiving side uses it here, and the engine uses it for its
//! own state of each buffer.

use alloc::vec::Vec;

use crate::limits::{RECVS_MAX, TOKENS_MAX};

/// The slot of buffer `index` of the receive with place `receive`.
#[inline]
#[must_use]
pub const fn slot_of_buffer(receive: usize, index: usize) -> usize {
    index * RECVS_MAX + receive
}

/// The distance from the slot of a buffer to that of the next buffer of its receive.
pub const STEP: usize = RECVS_MAX;

/// The place of the receive that a slot belongs to.
#[inline]
#[must_use]
pub const fn receive_of_slot(slot: usize) -> usize {
    slot % RECVS_MAX
}

/// The index of a slot's buffer in its receive.
#[inline]
#[must_use]
pub const fn index(slot: usize) -> usize {
    slot / RECVS_MAX
}

/// A table with one value per slot.
#[derive(Debug)]
pub struct BufferTable<T>(Vec<T>);

impl<T> BufferTable<T> {
    /// Returns a table with room for first buffers; `make` returns the initial value of a slot.
    #[must_use]
    pub fn new(make: impl FnMut(usize) -> T) -> Self {
        Self((0..RECVS_MAX).map(make).collect())
    }

    /// Makes room for receives of `count` buffers. Allocates only for the first receive of several buffers.
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

    /// The value of a slot; `None` if the slot is of a further buffer and no receive had several.
    #[inline]
    #[must_use]
    pub fn get(&self, slot: usize) -> Option<&T> {
        self.0.get(slot)
    }

    /// All values, by slot.
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
    fn each_buffer_has_its_own_slot() {
        let all = (0..RECV_BUFFERS_MAX).flat_map(|index| (0..RECVS_MAX).map(move |place| (place, index)));
        for (expected, (place, index)) in all.enumerate() {
            assert_eq!((slot_of_buffer(place, index), receive_of_slot(expected)), (expected, place));
        }
    }

    #[test]
    fn table_has_the_requested_capacity() {
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
