//! Reserves room for all entries that a table may contain, so that no later insertion allocates. Called where a table grows. A failed
//! allocation is an [`OutOfMemory`] error and never ends the process.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::reserve::OutOfMemory;

/// Ensures that a vector has room for `room` entries in all.
///
/// # Errors
/// [`OutOfMemory`]; the vector is unchanged.
pub fn try_hold<T>(entries: &mut Vec<T>, room: usize) -> Result<(), OutOfMemory> {
    let more = room.saturating_sub(entries.len());
    entries.try_reserve(more).map_err(|_| OutOfMemory { bytes: room.saturating_mul(size_of::<T>()) })
}

/// Ensures that a queue has room for `room` entries in all.
///
/// # Errors
/// [`OutOfMemory`]; the queue is unchanged.
pub fn try_hold_queue<T>(entries: &mut VecDeque<T>, room: usize) -> Result<(), OutOfMemory> {
    let more = room.saturating_sub(entries.len());
    entries.try_reserve(more).map_err(|_| OutOfMemory { bytes: room.saturating_mul(size_of::<T>()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_table_has_room_for_all_entries() {
        let mut entries = alloc::vec![1_u8; 3];
        let mut queue = VecDeque::from([1_u8; 3]);
        try_hold(&mut entries, 100).unwrap();
        try_hold_queue(&mut queue, 100).unwrap();
        assert!(entries.capacity() >= 100 && queue.capacity() >= 100);
        try_hold(&mut entries, 2).unwrap();
        assert_eq!((entries.len(), queue.len()), (3, 3));
        let refused = OutOfMemory { bytes: usize::MAX };
        assert_eq!(try_hold(&mut entries, usize::MAX), Err(refused));
        assert_eq!(try_hold_queue(&mut queue, usize::MAX), Err(refused));
    }
}
