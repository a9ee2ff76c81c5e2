//! How far a queue is. Kept by `consumer`, for queues that WAIT for it.

use trunkline_proto::wire::device_queue::is_before;

/// How far a queue is, for others that WAIT for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueProgress {
    /// All before this index have completed.
    pub completed: u64,
    /// The first that failed, or will whatever comes, as nothing is executed any more: so do all behind it, posted or not.
    pub first_bad: Option<u64>,
}

impl QueueProgress {
    /// How an entry has ended, or will whatever comes: `true` well. `None` as long as that is open.
    #[inline]
    #[must_use]
    pub const fn of_entry(&self, index: u64) -> Option<bool> {
        if let Some(bad) = self.first_bad
            && !is_before(index, bad)
        {
            return Some(false);
        }
        if is_before(index, self.completed) { Some(true) } else { None }
    }
}
