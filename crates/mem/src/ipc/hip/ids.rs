//! Ids that come again, made such that do not: an epoch goes before the 32 bits of AMD's runtime.
//!
//! The runtime counts its allocations. So an id that is less than half of all numbers ahead of the newest that was seen is newer than that,
//! and one that is behind is older, and of the epoch before where it is the greater number. Nothing is kept of single allocations: one
//! that has lived for 2^31 others gets another name than before, and is exported anew; that does no harm. It would take 2^32
//! allocations of which not one is looked at for two to have one name.

use std::sync::{Mutex, PoisonError};

/// The newest id that was seen, with its epoch.
#[derive(Debug, Default)]
pub(super) struct AllocationEpochs {
    newest: Mutex<Option<u64>>,
}

/// The epoch that counting begins with: what is older than the first id that is seen has one before.
const FIRST: u64 = 1 << 32;

impl AllocationEpochs {
    /// The name of what the runtime calls that.
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
    fn a_wrap_begins_an_epoch_and_older_ids_keep_theirs() {
        let ids = AllocationEpochs::default();
        let before = ids.extend_id(u32::MAX - 1);
        let after = ids.extend_id(1);
        assert_eq!(after, before + 3);
        assert_eq!(ids.extend_id(u32::MAX - 1), before, "still there");
        assert_eq!((ids.extend_id(1), ids.extend_id(2)), (after, after + 1));
    }

    #[test]
    fn the_same_number_a_round_later_is_another_name() {
        let ids = AllocationEpochs::default();
        let first = ids.extend_id(7);
        for id in [1 << 30, 2 << 30, 3 << 30] {
            ids.extend_id(id);
        }
        assert_eq!(ids.extend_id(7), first + (1 << 32));
        assert_eq!(ids.extend_id(6), first + (1 << 32) - 1);
    }
}
