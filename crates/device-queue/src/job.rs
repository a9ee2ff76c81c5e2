//! Jobs that a queue's consumer gives to its executor, and their outcomes. Plain values, used by `consumer`, `drain` and executors.

use trunkline_proto::wire::device_queue::{CounterUpdate, EntryStatus, PeerAddress, PoisonWord, QueueEntry};

/// Most entries of one queue that may be in progress at a time.
pub const WINDOW_MAX: u32 = 64;

/// The guarantees of an executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExecutorRules {
    /// It places earlier bytes first, and places nothing behind a failed entry. The consumer then need not hold back an atomic until the
    /// writes before it are placed.
    pub is_ordered: bool,
    /// The rank of this process, whose counters entries raise.
    pub me: u32,
    /// Most entries in progress at a time, clamped to 1 to [`WINDOW_MAX`].
    pub window: u32,
}

/// The next step of a consumer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConsumerStep {
    /// A job to begin. Its outcome is reported under this index.
    Begin(u64, QueueJob),
    /// No entry can begin now.
    Held,
    /// All submitted entries have begun.
    Idle,
}

/// Work for the executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueueJob {
    /// An entry: a WRITE, READ, atomic, SHOW or NOTIFY.
    Execute(QueueEntry),
    /// An entry has completed, and the frontier covers it: raise its counter. The consumer needs no outcome: the executor poisons the
    /// counter if the job fails.
    Count {
        /// The counter.
        at: PeerAddress,
        /// The increment.
        value: u32,
        /// Whether a poison word follows the counter.
        poisoned: bool,
    },
    /// An entry failed to change its word: set the poison word, or the window's error word for it.
    Poison {
        /// The word that does not change.
        at: PeerAddress,
        /// Whether a poison word follows it.
        poisoned: bool,
        /// The value to set.
        poison: PoisonWord,
    },
}

/// The outcome of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JobOutcome {
    /// Success, with the old value where the operation returns one.
    Done(u64),
    /// Failure.
    Failed {
        /// The status; [`EntryStatus::Done`] is treated as [`EntryStatus::Network`].
        status: EntryStatus,
        /// A reason of the executor, for diagnostics.
        reason: u32,
    },
}

/// Executes jobs.
pub trait JobExecutor {
    /// Begins a job of the queue with the number `queue`. Returns its outcome if it has ended; otherwise the executor later calls
    /// [`QueueDrain::end_job`](crate::QueueDrain::end_job).
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome>;

    /// As [`begin_job`](Self::begin_job), for [`QueueJob::Execute`].
    #[inline]
    fn execute_entry(&mut self, queue: u32, index: u64, entry: &QueueEntry) -> Option<JobOutcome> {
        self.begin_job(queue, index, &QueueJob::Execute(*entry))
    }

    /// As [`begin_job`](Self::begin_job), for [`QueueJob::Count`] of the word `at`.
    #[inline]
    fn raise_counter(&mut self, queue: u32, index: u64, at: PeerAddress, count: CounterUpdate) {
        self.begin_job(queue, index, &QueueJob::Count { at, value: count.value, poisoned: count.poisoned });
    }

    /// Adds to a word, if that needs neither a device nor the network, and returns the old value. `None`: nothing was done, and the
    /// consumer calls [`execute_entry`](Self::execute_entry).
    #[inline]
    fn try_add(&mut self, at: PeerAddress, value: u64, poisoned: bool) -> Option<u64> {
        let _ = (at, value, poisoned);
        None
    }
}
