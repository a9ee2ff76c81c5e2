//! What a queue's consumer gives to its executor, and what it hears back. Values alone; used by `consumer`, `drain` and whoever executes.

use trunkline_proto::wire::device_queue::{Count, Entry, Poison, Remote, Status};

/// Entries of one queue that may be under way together.
pub const WINDOW_MAX: u32 = 64;

/// What the executor promises.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rules {
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
pub enum Step {
    /// A job to begin; its outcome is to be told by its index.
    Begin(u64, Job),
    /// Nothing can begin now.
    Held,
    /// Everything that was submitted has begun.
    Idle,
}

/// Work for the executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Job {
    /// An entry: a WRITE, READ, atomic, SHOW or NOTIFY.
    Execute(Entry),
    /// An entry has completed, and that was told: its counter is to be raised. How that ends is not asked: who executes it poisons the
    /// counter if it fails.
    Count {
        /// The counter.
        at: Remote,
        /// Added.
        value: u32,
        /// Whether a poison word stands behind it.
        poisoned: bool,
    },
    /// The word that an entry was to change does not change: its poison word is to be set, or the error word that its window has for it.
    Poison {
        /// The word that does not change.
        at: Remote,
        /// Whether a poison word stands behind it.
        poisoned: bool,
        /// What goes there.
        poison: Poison,
    },
}

/// How a job ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Well, with the value before, where the entry brings one.
    Done(u64),
    /// It failed.
    Failed {
        /// How; [`Status::Done`] stands for [`Status::Network`].
        status: Status,
        /// The executor's own reason.
        reason: u32,
    },
}

/// Executes jobs.
pub trait Port {
    /// Begins a job of a queue, by the queue's number; how it ended, if it has, else [`Drain::end`](crate::Drain::end) is called later.
    fn begin(&mut self, queue: u32, index: u64, job: &Job) -> Option<Outcome>;

    /// The same of [`Job::Execute`].
    #[inline]
    fn execute(&mut self, queue: u32, index: u64, entry: &Entry) -> Option<Outcome> {
        self.begin(queue, index, &Job::Execute(*entry))
    }

    /// The same of [`Job::Count`], whose word is `at`.
    #[inline]
    fn count(&mut self, queue: u32, index: u64, at: Remote, count: Count) {
        self.begin(queue, index, &Job::Count { at, value: count.value, poisoned: count.poisoned });
    }

    /// Adds to a word, if that is all that it takes here and now: the value before. `None`: nothing was done, and [`execute`](Self::execute) is asked.
    #[inline]
    fn add(&mut self, at: Remote, value: u64, poisoned: bool) -> Option<u64> {
        let _ = (at, value, poisoned);
        None
    }
}
