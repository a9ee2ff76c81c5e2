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
    #[error("an entry of queue {} that was to come here failed: {:?}", .0.queue, .0.status)]
    Poisoned(PoisonWord),
    /// The queue was aborted.
    #[error("aborted: {:?}, reason {}", .0.status, .0.reason)]
    Aborted(AbortWord),
    /// The budget is spent. The awaited event may still happen.
    #[error("the time is over")]
    Timeout,
    /// The ticket belongs to another queue, or to an earlier queue in the same memory.
    #[error("the ticket is not of this queue")]
    Stale,
    /// No companion queue exists, and none will be created.
    #[error("the host makes no companion queue")]
    Refused,
}
