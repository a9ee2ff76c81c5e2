//! How far a queue is. Called by `consumer`, and by whoever tells it of queues that other engines have.

use core::sync::atomic::Ordering::Acquire;

use trunkline_proto::wire::devq::{Frontier, at, is_before};

use crate::memory::Memory;
use crate::queue::Queue;

/// How far a queue is, for others that WAIT for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress {
    /// All before this index have completed.
    pub completed: u64,
    /// The first that failed, or will whatever comes, as nothing is executed any more: so do all behind it, posted or not.
    pub first_bad: Option<u64>,
}

impl Progress {
    /// Of a queue that another engine has, by its memory.
    #[must_use]
    pub fn of<M: Memory>(queue: &Queue<M>, near: u64) -> Self {
        let completed = Frontier(queue.words().load(at::FRONTIER, Acquire)).near(near);
        let stopped = || queue.aborted().map(|_| queue.words().load(at::SUBMITTED, Acquire));
        Self { completed, first_bad: queue.fault().map(|fault| fault.first_bad).or_else(stopped) }
    }

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
