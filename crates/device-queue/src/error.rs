//! Why a wait ended without what was waited for.

use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus, PoisonWord};

/// Why a queue has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueFault {
    /// The first entry that failed; all after it have failed, too.
    pub first_bad: u64,
    /// How that one ended.
    pub status: EntryStatus,
    /// The executor's own reason.
    pub reason: u32,
}

/// A wait ended without what was waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WaitError {
    /// The queue failed before the entry, or at it.
    #[error("entry {} of the queue failed: {:?}, reason {}", .0.first_bad, .0.status, .0.reason)]
    Failed(QueueFault),
    /// What was to change the signal or counter has failed.
    #[error("an entry of queue {} that was to come here failed: {:?}", .0.queue, .0.status)]
    Poisoned(PoisonWord),
    /// Somebody has told everybody to stop.
    #[error("aborted: {:?}, reason {}", .0.status, .0.reason)]
    Aborted(AbortWord),
    /// The time is over. What was waited for may still happen.
    #[error("the time is over")]
    Timeout,
    /// The ticket is of another queue, or of an earlier one in the same memory.
    #[error("the ticket is not of this queue")]
    Stale,
    /// There is no companion queue, and there will be none.
    #[error("the host makes no companion queue")]
    Refused,
}
