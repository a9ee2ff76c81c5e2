//! A channel: the lanes over which one group of threads posts, and a flush that covers them all.
//!
//! Each lane is a queue. A channel has two words for a lane: behind the last ticket that was recorded, and behind the last one that some
//! flush has seen complete. So a second flush sees what the first has really done, and nothing that is recorded meanwhile gets lost.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use trunkline_proto::wire::device_queue::is_before;

use crate::budget::WaitBudget;
use crate::error::WaitError;
use crate::memory::WordMemory;
use crate::queue::{DeviceQueue, EntryTicket};

/// Lanes of a channel.
pub const LANES_MAX: u32 = 64;

/// The words of a channel: 16 bytes for each lane, at an offset of the caller's.
#[derive(Clone, Copy, Debug)]
pub struct TicketRecord<M> {
    memory: M,
    words: u64,
    lanes: u32,
}

impl<M: WordMemory> TicketRecord<M> {
    /// A channel whose lanes have the first indices `firsts`; `None` if there are none or too many. Nobody else may use the words yet.
    #[must_use]
    pub fn create(memory: M, words: u64, firsts: &[u64]) -> Option<Self> {
        let lanes = u32::try_from(firsts.len()).ok().filter(|lanes| (1..=LANES_MAX).contains(lanes))?;
        let channel = Self { memory, words, lanes };
        for (lane, first) in (0..).zip(firsts) {
            channel.memory.store(channel.recorded_offset(lane), *first, Release);
            channel.memory.store(channel.flushed_offset(lane), *first, Release);
        }
        Some(channel)
    }

    const fn recorded_offset(&self, lane: u32) -> u64 {
        self.words + lane as u64 * 16
    }

    const fn flushed_offset(&self, lane: u32) -> u64 {
        self.words + lane as u64 * 16 + 8
    }

    /// Has later flushes wait for a ticket of a lane; `false` if there is no such lane.
    #[must_use]
    pub fn record_ticket(&self, lane: u32, ticket: EntryTicket) -> bool {
        if lane >= self.lanes {
            return false;
        }
        self.memory.advance_counter(self.recorded_offset(lane), ticket.index.wrapping_add(1), AcqRel);
        true
    }

    /// The lanes that a flush would wait for, a bit each.
    #[must_use]
    pub fn pending_lanes(&self) -> u64 {
        let is_pending = |lane: &u32| {
            let flushed = self.memory.load(self.flushed_offset(*lane), Acquire);
            is_before(flushed, self.memory.load(self.recorded_offset(*lane), Acquire))
        };
        (0..self.lanes).filter(is_pending).fold(0, |bits, lane| bits | 1 << lane)
    }

    /// Waits until everything that was recorded before has completed; `queues` are the lanes'.
    ///
    /// # Errors
    /// As [`DeviceQueue::wait`], of the first lane that has something to say; the others have not been waited for then. [`WaitError::Stale`] if there are
    /// more lanes or fewer.
    pub fn flush(&self, queues: &[DeviceQueue<M>], budget: &mut impl WaitBudget) -> Result<(), WaitError> {
        self.flush_all(queues.iter(), budget)
    }

    pub(crate) fn flush_all<'q>(
        &self,
        queues: impl ExactSizeIterator<Item = &'q DeviceQueue<M>>,
        budget: &mut impl WaitBudget,
    ) -> Result<(), WaitError>
    where
        M: 'q,
    {
        if queues.len() != self.lanes as usize {
            return Err(WaitError::Stale);
        }
        for (lane, queue) in (0..self.lanes).zip(queues) {
            let flushed = self.memory.load(self.flushed_offset(lane), Acquire);
            let end = self.memory.load(self.recorded_offset(lane), Acquire);
            if !is_before(flushed, end) {
                continue;
            }
            let number = queue.queue_shape().number();
            let epoch = queue.queue_shape().epoch();
            queue.wait(EntryTicket { queue: number, epoch, index: end.wrapping_sub(1) }, budget)?;
            self.memory.advance_counter(self.flushed_offset(lane), end, AcqRel);
        }
        Ok(())
    }
}
