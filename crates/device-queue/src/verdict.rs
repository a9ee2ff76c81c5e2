//! The verdict of a group's leader: the result of its wait, shared with all threads of the group, so that they continue or stop together.
//! Called by groups of threads; the leader alone writes.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus, PoisonWord};

use crate::budget::WaitBudget;
use crate::error::{QueueFault, WaitError};
use crate::memory::WordMemory;

/// Three words of a group, at an offset that the caller chooses, initially 0.
#[derive(Clone, Copy, Debug)]
pub struct GroupVerdict<M> {
    memory: M,
    at: u64,
}

mod kind {
    pub(super) const GOOD: u32 = 0;
    pub(super) const FAILED: u32 = 1;
    pub(super) const POISONED: u32 = 2;
    pub(super) const ABORTED: u32 = 3;
    pub(super) const TIMEOUT: u32 = 4;
    pub(super) const STALE: u32 = 5;
    pub(super) const REFUSED: u32 = 6;
}

impl<M: WordMemory> GroupVerdict<M> {
    /// Wraps the words.
    pub const fn new(memory: M, at: u64) -> Self {
        Self { memory, at }
    }

    /// Publishes the result of a round. Only the leader calls it. Rounds count from 1 and wrap past 0. The group meets between two rounds.
    pub fn publish_result(&self, round: u32, result: Result<(), WaitError>) {
        let (kind, status, detail, more) = match result {
            Ok(()) => (kind::GOOD, EntryStatus::Done, 0, 0),
            Err(WaitError::Failed(fault)) => (kind::FAILED, fault.status, fault.reason, fault.first_bad),
            Err(WaitError::Poisoned(poison)) => (kind::POISONED, poison.status, poison.queue, 0),
            Err(WaitError::Aborted(why)) => (kind::ABORTED, why.status, why.reason, 0),
            Err(WaitError::Timeout) => (kind::TIMEOUT, EntryStatus::Done, 0, 0),
            Err(WaitError::Stale) => (kind::STALE, EntryStatus::Done, 0, 0),
            Err(WaitError::Refused) => (kind::REFUSED, EntryStatus::Done, 0, 0),
        };
        self.memory.store(self.at + 8, u64::from(status.to_bits()) | u64::from(detail) << 32, Relaxed);
        self.memory.store(self.at + 16, more, Relaxed);
        // The round is stored last, with release: a thread that sees it also sees the other two words.
        self.memory.store(self.at, u64::from(round) | u64::from(kind) << 32, Release);
    }

    /// Waits for the result of a round.
    ///
    /// # Errors
    /// As the leader's wait; [`WaitError::Timeout`] also if no result was published in time.
    pub fn await_result(&self, round: u32, budget: &mut impl WaitBudget) -> Result<(), WaitError> {
        loop {
            let told = self.memory.load(self.at, Acquire);
            if told as u32 == round {
                return self.read_result((told >> 32) as u32);
            }
            if !budget.spend_poll() {
                return Err(WaitError::Timeout);
            }
            self.memory.pause();
        }
    }

    fn read_result(&self, kind: u32) -> Result<(), WaitError> {
        let word = self.memory.load(self.at + 8, Relaxed);
        let status = EntryStatus::from_bits(word as u16);
        let detail = (word >> 32) as u32;
        Err(match kind {
            kind::GOOD => return Ok(()),
            kind::FAILED => {
                let first_bad = self.memory.load(self.at + 16, Relaxed);
                WaitError::Failed(QueueFault { first_bad, status, reason: detail })
            }
            kind::POISONED => WaitError::Poisoned(PoisonWord { status, queue: detail }),
            kind::ABORTED => WaitError::Aborted(AbortWord { status, reason: detail }),
            kind::TIMEOUT => WaitError::Timeout,
            kind::REFUSED => WaitError::Refused,
            _ => WaitError::Stale,
        })
    }
}
