//! Places of a queue that somebody has taken and not published. Made by `queue`.

use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus, EntryWork, QueueEntry};

use crate::budget::WaitBudget;
use crate::memory::WordMemory;
use crate::queue::{DeviceQueue, EntryTicket};

/// How often somebody who leaves a reservation tries to publish NOPs in its place. Those before him are about to publish, unless they
/// have left in the middle, or their thread is not running: of two threads on one core one may be away for some milliseconds.
const LEAVING_LOOKS_MAX: u32 = 1 << 10;

/// Places in a row that are one's own to write, until they are published.
///
/// Dropped before that, they become NOPs.
#[derive(Debug)]
#[must_use = "a reservation that is dropped becomes NOPs"]
pub struct QueueReservation<'q, M: WordMemory> {
    queue: &'q DeviceQueue<M>,
    first: u64,
    count: u32,
    written: u32,
    is_open: bool,
}

impl<'q, M: WordMemory> QueueReservation<'q, M> {
    /// Of places that were taken, of which so many are written.
    pub(crate) const fn new(queue: &'q DeviceQueue<M>, first: u64, count: u32, written: u32) -> Self {
        Self { queue, first, count, written, is_open: true }
    }

    /// The number of the queue.
    #[must_use]
    pub const fn queue_number(&self) -> u32 {
        self.queue.queue_shape().number()
    }

    /// The first index.
    #[must_use]
    pub const fn first_index(&self) -> u64 {
        self.first
    }

    /// How many places there are.
    #[must_use]
    pub const fn place_count(&self) -> u32 {
        self.count
    }

    /// Writes the next entry; the ticket that it will have. `None` when all places are written.
    #[must_use]
    pub fn write_entry(&mut self, entry: &QueueEntry) -> Option<EntryTicket> {
        if self.written == self.count {
            return None;
        }
        let index = self.first.wrapping_add(self.written.into());
        self.queue.write_entry(index, entry);
        self.written += 1;
        Some(self.queue.ticket_at(index))
    }

    /// Publishes the entries, those that were not written as NOPs; the ticket of the last one. It can be submitted then.
    ///
    /// # Errors
    /// The reservation again, while those before it are not published.
    pub fn publish(mut self) -> Result<EntryTicket, Self> {
        if self.try_publish() {
            self.is_open = false;
            return Ok(self.queue.ticket_at(self.end_index().wrapping_sub(1)));
        }
        Err(self)
    }

    /// As [`publish`](Self::publish), and waits for those before.
    ///
    /// # Errors
    /// The reservation again, when the time is over or the queue was aborted.
    pub fn publish_within(mut self, budget: &mut impl WaitBudget) -> Result<EntryTicket, Self> {
        loop {
            if self.try_publish() {
                self.is_open = false;
                return Ok(self.queue.ticket_at(self.end_index().wrapping_sub(1)));
            }
            if self.queue.abort_word().is_some() || !budget.spend_poll() {
                return Err(self);
            }
            self.queue.as_memory().pause();
        }
    }

    /// Gives the places up: they become NOPs, and are published and submitted.
    pub fn cancel(self) {
        drop(self);
    }

    const fn end_index(&self) -> u64 {
        self.first.wrapping_add(self.count as u64)
    }

    fn try_publish(&mut self) -> bool {
        while self.written < self.count {
            let _ = self.write_entry(&QueueEntry::new(EntryWork::Nop));
        }
        self.queue.publish_entries(self.first, self.end_index())
    }
}

impl<M: WordMemory> Drop for QueueReservation<'_, M> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        self.written = 0;
        for looks in 0..LEAVING_LOOKS_MAX {
            if self.try_publish() {
                self.queue.submit(self.end_index());
                return;
            }
            if self.queue.abort_word().is_some() {
                return;
            }
            self.queue.as_memory().step_aside(looks);
        }
        // Those before have left in the middle: nobody gets further than them, so everybody is told.
        self.queue.abort(AbortWord { status: EntryStatus::Abandoned, reason: 0 });
    }
}
