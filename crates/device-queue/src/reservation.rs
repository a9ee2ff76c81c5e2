//! Places of a queue that somebody has taken and not published. Made by `queue`.

use trunkline_proto::wire::device_queue::{Aborted, Entry, Status, Work};

use crate::budget::Budget;
use crate::memory::Memory;
use crate::queue::{Queue, Ticket};

/// How often somebody who leaves a reservation tries to publish NOPs in its place. Those before him are about to publish, unless they
/// have left in the middle, or their thread is not running: of two threads on one core one may be away for some milliseconds.
const LEAVING_LOOKS_MAX: u32 = 1 << 10;

/// Places in a row that are one's own to write, until they are published.
///
/// Dropped before that, they become NOPs.
#[derive(Debug)]
#[must_use = "a reservation that is dropped becomes NOPs"]
pub struct Reservation<'q, M: Memory> {
    queue: &'q Queue<M>,
    first: u64,
    count: u32,
    written: u32,
    is_open: bool,
}

impl<'q, M: Memory> Reservation<'q, M> {
    /// Of places that were taken, of which so many are written.
    pub(crate) const fn new(queue: &'q Queue<M>, first: u64, count: u32, written: u32) -> Self {
        Self { queue, first, count, written, is_open: true }
    }

    /// The number of the queue.
    #[must_use]
    pub const fn queue(&self) -> u32 {
        self.queue.shape().number()
    }

    /// The first index.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// How many places there are.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Writes the next entry; the ticket that it will have. `None` when all places are written.
    #[must_use]
    pub fn write(&mut self, entry: &Entry) -> Option<Ticket> {
        if self.written == self.count {
            return None;
        }
        let index = self.first.wrapping_add(self.written.into());
        self.queue.put(index, entry);
        self.written += 1;
        Some(self.queue.ticket(index))
    }

    /// Publishes the entries, those that were not written as NOPs; the ticket of the last one. It can be submitted then.
    ///
    /// # Errors
    /// The reservation again, while those before it are not published.
    pub fn publish(mut self) -> Result<Ticket, Self> {
        if self.try_publish() {
            self.is_open = false;
            return Ok(self.queue.ticket(self.end().wrapping_sub(1)));
        }
        Err(self)
    }

    /// As [`publish`](Self::publish), and waits for those before.
    ///
    /// # Errors
    /// The reservation again, when the time is over or the queue was aborted.
    pub fn publish_within(mut self, budget: &mut impl Budget) -> Result<Ticket, Self> {
        loop {
            if self.try_publish() {
                self.is_open = false;
                return Ok(self.queue.ticket(self.end().wrapping_sub(1)));
            }
            if self.queue.aborted().is_some() || !budget.goes_on() {
                return Err(self);
            }
            self.queue.words().pause();
        }
    }

    /// Gives the places up: they become NOPs, and are published and submitted.
    pub fn cancel(self) {
        drop(self);
    }

    const fn end(&self) -> u64 {
        self.first.wrapping_add(self.count as u64)
    }

    fn try_publish(&mut self) -> bool {
        while self.written < self.count {
            let _ = self.write(&Entry::new(Work::Nop));
        }
        self.queue.publish(self.first, self.end())
    }
}

impl<M: Memory> Drop for Reservation<'_, M> {
    fn drop(&mut self) {
        if !self.is_open || self.queue.mutant().is("devq-leaves-a-hole") {
            return;
        }
        self.written = 0;
        for looks in 0..LEAVING_LOOKS_MAX {
            if self.try_publish() {
                self.queue.submit(self.end());
                return;
            }
            if self.queue.aborted().is_some() {
                return;
            }
            if self.queue.mutant().is("devq-leaves-in-haste") {
                self.queue.words().pause();
            } else {
                self.queue.words().step_aside(looks);
            }
        }
        // Those before have left in the middle: nobody gets further than them, so everybody is told.
        self.queue.abort(Aborted { status: Status::Abandoned, reason: 0 });
    }
}
