//! The posted receives of a link (a queue pair), by slot: the caller's `wr_id`, the memory, and whether the device got
//! the receive. A write with immediate may consume any of them, so a completed receive is identified by its slot, and
//! not by the order of posting. Pure: knows no device.

use std::collections::VecDeque;

use trunkline_proto::reserve::{OutOfMemory, try_collect, try_deque, try_filled};
use trunkline_sys::verbs::Sge;

/// A posted receive.
#[derive(Clone, Copy)]
struct ReceiveEntry {
    /// The caller's number, which the completion returns.
    wr_id: u64,
    into: Sge,
    /// Whether the slot contains a receive that has not ended.
    used: bool,
}

/// The receives of a link.
pub(crate) struct PostedReceives {
    slots: Box<[ReceiveEntry]>,
    /// Free slots; the slot that was used last is on top.
    free: Vec<u32>,
    /// Slots of receives that the device never got, oldest first: it refused them, or the link had failed before they
    /// were submitted. They complete after all others.
    untaken: VecDeque<u32>,
}

impl PostedReceives {
    /// Creates a table with room for `most` receives.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(most: u32) -> Result<Self, OutOfMemory> {
        let none = ReceiveEntry { wr_id: 0, into: Sge::ZERO, used: false };
        Ok(Self {
            slots: try_filled(none, most as usize)?,
            free: try_collect((0..most).rev())?,
            untaken: try_deque(most as usize)?,
        })
    }

    /// Returns the number of receives that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a receive; returns its slot, if there is room.
    #[inline]
    pub(crate) fn take_slot(&mut self, wr_id: u64, into: Sge) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[slot as usize] = ReceiveEntry { wr_id, into, used: true };
        Some(slot)
    }

    /// Ends a receive; returns its `wr_id`, if the slot is in use.
    #[inline]
    pub(crate) fn end_receive(&mut self, slot: u32) -> Option<u64> {
        let found = self.slots.get_mut(slot as usize).filter(|found| found.used)?;
        found.used = false;
        self.free.push(slot);
        Some(found.wr_id)
    }

    /// Returns the memory of the receive in a slot, to post it again.
    #[inline]
    pub(crate) fn slot_memory(&self, slot: u32) -> Option<Sge> {
        self.slots.get(slot as usize).filter(|found| found.used).map(|found| found.into)
    }

    /// Records that the device never got the receive in this slot.
    pub(crate) fn keep_untaken(&mut self, slot: u32) {
        self.untaken.push_back(slot);
    }

    /// Ends the oldest receive that the device never got; returns its `wr_id`. Returns `None` as long as the device has
    /// other receives of the link, because those complete first.
    pub(crate) fn drop_oldest(&mut self) -> Option<u64> {
        if self.len() > self.untaken.len() {
            return None;
        }
        let slot = self.untaken.pop_front()?;
        self.end_receive(slot)
    }

    /// Whether the device got, or will get, all receives.
    pub(crate) fn are_with_device(&self) -> bool {
        self.untaken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(addr: u64) -> Sge {
        Sge { addr, length: 8, lkey: 1 }
    }

    #[test]
    fn receives_are_limited_to_the_room() {
        let mut receives = PostedReceives::new(3).unwrap();
        let slots: Vec<u32> = (0..3).filter_map(|wr_id| receives.take_slot(wr_id, place(wr_id))).collect();
        assert_eq!((slots.len(), receives.len(), receives.take_slot(9, place(9))), (3, 3, None));
        assert_eq!(receives.end_receive(slots[1]), Some(1));
        assert_eq!(receives.end_receive(slots[1]), None, "twice");
        assert_eq!(receives.end_receive(77), None, "there is no such slot");
        assert_eq!(receives.take_slot(9, place(9)), Some(slots[1]));
        assert_eq!(PostedReceives::new(0).unwrap().take_slot(1, place(1)), None);
    }

    #[test]
    fn reposted_receive_keeps_its_slot() {
        let mut receives = PostedReceives::new(2).unwrap();
        let slot = receives.take_slot(5, place(40)).unwrap();
        assert_eq!(receives.slot_memory(slot).map(|sge| sge.addr), Some(40));
        assert_eq!((receives.len(), receives.end_receive(slot)), (1, Some(5)));
        assert!(receives.slot_memory(slot).is_none(), "it has ended");
    }

    #[test]
    fn unsubmitted_receives_end_last_and_in_order() {
        let mut receives = PostedReceives::new(4).unwrap();
        let slots: Vec<u32> = (0..4).filter_map(|wr_id| receives.take_slot(wr_id, place(wr_id))).collect();
        receives.keep_untaken(slots[2]);
        receives.keep_untaken(slots[1]);
        assert_eq!(receives.drop_oldest(), None, "the device has two");
        assert_eq!((receives.end_receive(slots[0]), receives.end_receive(slots[3])), (Some(0), Some(3)));
        assert!(!receives.are_with_device());
        assert_eq!((receives.drop_oldest(), receives.drop_oldest()), (Some(2), Some(1)));
        assert_eq!((receives.drop_oldest(), receives.len()), (None, 0));
        assert!(receives.are_with_device());
    }
}
