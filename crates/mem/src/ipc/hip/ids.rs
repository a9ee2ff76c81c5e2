//! Extends the 32-bit allocation ids of AMD's runtime, which wrap around, by an epoch in the upper 32 bits.
//!
//! The runtime numbers its allocations consecutively. An id less than 2^31 ahead of the newest known id is therefore newer; any other id is
//! older, and belongs to the epoch before if its number is greater. Nothing is stored per allocation. An allocation that outlives 2^31 others
//! gets a new extended id and is exported again, which does no harm. Two allocations share an extended id only after 2^32 allocations without a
//! query.

use std::sync::{Mutex, PoisonError};

/// The newest extended id.
#[derive(Debug, Default)]
pub(super) struct AllocationEpochs {
    newest: Mutex<Option<u64>>,
}

/// The initial epoch, 1, so that ids older than the first one get epoch 0.
const FIRST: u64 = 1 << 32;

impl AllocationEpochs {
    /// Returns the extended id of a runtime's id.
    pub(super) fn extend_id(&self, id: u32) -> u64 {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let before = newest.unwrap_or(FIRST | u64::from(id));
        let ahead = id.wrapping_sub(before as u32).cast_signed();
        let name = before.wrapping_add_signed(i64::from(ahead));
        *newest = Some(before.max(name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_wrap_begins_a_new_epoch() {
        let ids = AllocationEpochs::default();
        let before = ids.extend_id(u32::MAX - 1);
        let after = ids.extend_id(1);
        assert_eq!(after, before + 3);
        assert_eq!(ids.extend_id(u32::MAX - 1), before, "the older id must stay valid");
        assert_eq!((ids.extend_id(1), ids.extend_id(2)), (after, after + 1));
    }

    #[test]
    fn repeated_number_in_a_later_epoch_differs() {
        let ids = AllocationEpochs::default();
        let first = ids.extend_id(7);
        for id in [1 << 30, 2 << 30, 3 << 30] {
            ids.extend_id(id);
        }
        assert_eq!(ids.extend_id(7), first + (1 << 32));
        assert_eq!(ids.extend_id(6), first + (1 << 32) - 1);
    }
}
