//! What a queue's consumer gives to its executor, and what it hears back. Values alone; used by `consumer`, `drain` and whoever executes.

use trunkline_proto::wire::device_queue::{CounterUpdate, EntryStatus, PeerAddress, PoisonWord, QueueEntry};

/// Entries of one queue that may be under way together.
pub const WINDOW_MAX: u32 = 64;

/// What the executor promises.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExecutorRules {
    /// It places what it was given first, first, and nothing behind what has failed: an atomic need not be held back until the writes before
    /// it are placed.
    pub is_ordered: bool,
    /// The rank of this process, whose counters entries raise.
    pub me: u32,
    /// Entries that it may have under way together; 1 to [`WINDOW_MAX`], else the nearest of them.
    pub window: u32,
}

/// What is to happen next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConsumerStep {
    /// A job to begin; its outcome is to be told by its index.
    Begin(u64, QueueJob),
    /// Nothing can begin now.
    Held,
    /// Everything that was submitted has begun.
    Idle,
}

/// Work for the executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueueJob {
    /// An entry: a WRITE, READ, atomic, SHOW or NOTIFY.
    Execute(QueueEntry),
    /// An entry has completed, and that was told: its counter is to be raised. How that ends is not asked: who executes it poisons the
    /// counter if it fails.
    Count {
        /// The counter.
        at: PeerAddress,
        /// Added.
        value: u32,
        /// Whether a poison word stands behind it.
        poisoned: bool,
    },
    /// The word that an entry was to change does not change: its poison word is to be set, or the error word that its window has for it.
    Poison {
        /// The word that does not change.
        at: PeerAddress,
        /// Whether a poison word stands behind it.
        poisoned: bool,
        /// What goes there.
        poison: PoisonWord,
    },
}

/// How a job ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JobOutcome {
    /// Well, with the value before, where the entry brings one.
    Done(u64),
    /// It failed.
    Failed {
        /// How; [`EntryStatus::Done`] stands for [`EntryStatus::Network`].
        status: EntryStatus,
        /// The executor's own reason.
        reason: u32,
    },
}

/// Executes jobs.
pub trait JobExecutor {
    /// Begins a job of a queue, by the queue's number; how it ended, if it has, else [`QueueDrain::end_job`](crate::QueueDrain::end_job) is called later.
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome>;

    /// The same of [`QueueJob::Execute`].
    #[inline]
    fn execute_entry(&mut self, queue: u32, index: u64, entry: &QueueEntry) -> Option<JobOutcome> {
        self.begin_job(queue, index, &QueueJob::Execute(*entry))
    }

    /// The same of [`QueueJob::Count`], whose word is `at`.
    #[inline]
    fn raise_counter(&mut self, queue: u32, index: u64, at: PeerAddress, count: CounterUpdate) {
        self.begin_job(queue, index, &QueueJob::Count { at, value: count.value, poisoned: count.poisoned });
    }

    /// Adds to a word, if that is all that it takes here and now: the value before. `None`: nothing was done, and [`execute_entry`](Self::execute_entry) is asked.
    #[inline]
    fn try_add(&mut self, at: PeerAddress, value: u64, poisoned: bool) -> Option<u64> {
        let _ = (at, value, poisoned);
        None
    }
}
