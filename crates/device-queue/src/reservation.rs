//! Reserved places of a queue that are not published yet. Created by `queue`.

use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus, EntryWork, QueueEntry};

use crate::budget::WaitBudget;
use crate::memory::WordMemory;
use crate::queue::{DeviceQueue, EntryTicket};

/// Attempts of a dropped reservation to publish NOPs in its places. The producers before it normally publish soon. They do not if they have
/// left, and they are late if their thread is not running: of two threads on one core, one may be descheduled for some milliseconds.
const LEAVING_LOOKS_MAX: u32 = 1 << 10;

/// Consecutive places that this producer alone writes until they are published. If it is dropped before that, they become NOPs.
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
    /// Wraps reserved places, of which the first `written` are written.
    pub(crate) const fn new(queue: &'q DeviceQueue<M>, first: u64, count: u32, written: u32) -> Self {
        Self { queue, first, count, written, is_open: true }
    }

    /// Returns the number of the queue.
    #[must_use]
    pub const fn queue_number(&self) -> u32 {
        self.queue.queue_shape().number()
    }

    /// Returns the first index.
    #[must_use]
    pub const fn first_index(&self) -> u64 {
        self.first
    }

    /// Returns the number of places.
    #[must_use]
    pub const fn place_count(&self) -> u32 {
        self.count
    }

    /// Writes the next entry and returns its future ticket; `None` when all places are written.
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

    /// Publishes the entries, with NOPs in unwritten places, and returns the ticket of the last one. It can then be submitted.
    ///
    /// # Errors
    /// The reservation, while earlier reservations are unpublished.
    pub fn publish(mut self) -> Result<EntryTicket, Self> {
        if self.try_publish() {
            self.is_open = false;
            return Ok(self.queue.ticket_at(self.end_index().wrapping_sub(1)));
        }
        Err(self)
    }

    /// As [`publish`](Self::publish), and waits for earlier reservations.
    ///
    /// # Errors
    /// The reservation, when the budget is spent or the queue was aborted.
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

    /// Gives the places up: they become NOPs, which are published and submitted.
    pub fn cancel(self) {
        drop(self);
    }

    const fn end_index(&self) -> u64 {
        self.first.wrapping_add(self.count as u64)
    }

    fn try_publish(&mut self) -> bool {
        // Every place must hold a valid entry: the engine executes all of a published range.
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
        // Entries that were written must not run, as their producer gave up: all of them become NOPs.
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
        // The producers before this one have left in the middle. No producer can publish past them, so the queue ends for all.
        self.queue.abort(AbortWord { status: EntryStatus::Abandoned, reason: 0 });
    }
}
