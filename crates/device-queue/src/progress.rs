//! Progress of a queue. Maintained by `consumer`, read for entries of other queues that WAIT for it.

use trunkline_proto::wire::device_queue::is_before;

/// Progress of a queue, for WAITs of other queues.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueProgress {
    /// All entries before this index have completed.
    pub completed: u64,
    /// The first entry that has failed or certainly will: a stopped queue executes nothing more. All entries behind it fail too, posted or
    /// not.
    pub first_bad: Option<u64>,
}

impl QueueProgress {
    /// Returns how an entry has ended or certainly will: `Some(true)` for success, `None` while that is open.
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
