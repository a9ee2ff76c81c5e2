//! How far a queue is. Called by `consumer`, and by whoever tells it of queues that other engines have.

use core::sync::atomic::Ordering::Acquire;

use trunkline_proto::wire::devq::{Frontier, at};

use crate::memory::Memory;
use crate::queue::Queue;

/// How far a queue is, for others that WAIT for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress {
    /// All before this index have completed.
    pub completed: u64,
    /// The first that failed.
    pub first_bad: Option<u64>,
}

impl Progress {
    /// Of a queue that another engine has, by its memory.
    #[must_use]
    pub fn of<M: Memory>(queue: &Queue<M>, near: u64) -> Self {
        let completed = Frontier(queue.words().load(at::FRONTIER, Acquire)).near(near);
        Self { completed, first_bad: queue.fault().map(|fault| fault.first_bad) }
    }
}
