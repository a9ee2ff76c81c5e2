//! Errors of waits, and the fault of a queue.

use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus, PoisonWord};

/// Why a queue has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueFault {
    /// The first entry that failed; all entries behind it have failed too.
    pub first_bad: u64,
    /// The status of that entry.
    pub status: EntryStatus,
    /// A reason of the executor, for diagnostics.
    pub reason: u32,
}

/// A wait ended without success.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WaitError {
    /// The queue failed at this entry or before it.
    #[error("entry {} of the queue failed: {:?}, reason {}", .0.first_bad, .0.status, .0.reason)]
    Failed(QueueFault),
    /// The operation that was to change the signal or counter has failed.
    #[error("the signal or counter will not be raised: an entry of queue {} failed: {:?}", .0.queue, .0.status)]
    Poisoned(PoisonWord),
    /// The queue was aborted.
    #[error("the queue was aborted: {:?}, reason {}", .0.status, .0.reason)]
    Aborted(AbortWord),
    /// The budget is spent. The awaited event may still happen.
    #[error("the wait timed out")]
    Timeout,
    /// The ticket belongs to another queue, or to an earlier queue in the same memory.
    #[error("the ticket belongs to another queue")]
    Stale,
    /// No companion queue exists, and none will be created.
    #[error("the host refuses to create a companion queue")]
    Refused,
}
