//! A channel: the lanes over which one group of threads posts, and a flush that covers them all.
//!
//! Each lane is a queue. A channel has two words per lane: the index behind the last recorded ticket, and the index behind the last ticket
//! that a flush has seen complete. So a second flush cannot return before the first, and tickets recorded meanwhile are not lost.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use trunkline_proto::wire::device_queue::is_before;

use crate::budget::WaitBudget;
use crate::error::WaitError;
use crate::memory::WordMemory;
use crate::queue::{DeviceQueue, EntryTicket};

/// Most lanes of a channel.
pub const LANES_MAX: u32 = 64;

/// The words of a channel: 16 bytes per lane, at an offset that the caller chooses.
#[derive(Clone, Copy, Debug)]
pub struct TicketRecord<M> {
    memory: M,
    words: u64,
    lanes: u32,
}

impl<M: WordMemory> TicketRecord<M> {
    /// Creates the words of a channel whose lanes have the first indices `firsts`. Returns `None` for no lane or too many. No other thread
    /// may use the words yet.
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

    /// Records a ticket, so that later flushes wait for it. Returns `false` for an unknown lane.
    #[must_use]
    pub fn record_ticket(&self, lane: u32, ticket: EntryTicket) -> bool {
        if lane >= self.lanes {
            return false;
        }
        // The counter only grows: of two threads that record at once, the later ticket remains.
        self.memory.advance_counter(self.recorded_offset(lane), ticket.index.wrapping_add(1), AcqRel);
        true
    }

    /// Returns the lanes that a flush would wait for, one bit each.
    #[must_use]
    pub fn pending_lanes(&self) -> u64 {
        let is_pending = |lane: &u32| {
            let flushed = self.memory.load(self.flushed_offset(*lane), Acquire);
            is_before(flushed, self.memory.load(self.recorded_offset(*lane), Acquire))
        };
        (0..self.lanes).filter(is_pending).fold(0, |bits, lane| bits | 1 << lane)
    }

    /// Waits until all tickets recorded before this call have completed. `queues` are the queues of the lanes, in order.
    ///
    /// # Errors
    /// As [`DeviceQueue::wait`], for the first lane with an error; later lanes have not been waited for then. [`WaitError::Stale`] if the
    /// number of queues differs from the number of lanes.
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
            // The end is read once: tickets recorded during the flush belong to the next flush, so the wait is bounded.
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
