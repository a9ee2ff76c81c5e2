//! The producer's side of a queue, for any number of threads at once: reserve, write, publish, submit, poll.
//!
//! A reservation acquires places only if they are free, so a producer that finds no room has nothing to give back. Publication follows the
//! order of reservation. The entries of a reservation that is dropped unpublished become NOPs; where even that is impossible, the queue is
//! aborted for all producers. Only functions that take a budget wait.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use trunkline_proto::wire::device_queue::{
    AbortWord, CompanionWord, CompletionOwner, EntryCompletion, EntryStatus, FrontierWord, QueueEntry,
    QueueShape, ShapeError, at, is_before,
};

use crate::bells::{BellPage, QueueDoorbell};
use crate::budget::WaitBudget;
use crate::error::{QueueFault, WaitError};
use crate::memory::WordMemory;
use crate::reservation::QueueReservation;

/// A queue, as its producers see it. Any number of threads may use one value, or several values for the same queue.
#[derive(Clone, Debug)]
pub struct DeviceQueue<M> {
    memory: M,
    shape: QueueShape,
    bell: QueueDoorbell<M>,
}

/// Names a published entry.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EntryTicket {
    /// The number of its queue.
    pub queue: u32,
    /// The epoch of its queue.
    pub epoch: u32,
    /// Its index.
    pub index: u64,
}

/// The result of one poll of a ticket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TicketPoll {
    /// The entry has not completed.
    Busy,
    /// The entry and all entries before it have completed.
    Done,
}

/// A reservation was refused. No place was acquired.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReserveError {
    /// The queue is full now. The caller may retry.
    #[error("the queue is full")]
    Busy,
    /// The queue never has room for this many entries.
    #[error("cannot reserve {asked} entries: the number must be from 1 to the queue's depth of {depth}")]
    TooMany {
        /// Entries that were requested; 0 is also refused.
        asked: u32,
        /// The queue's depth.
        depth: u32,
    },
    /// The queue is full, and has failed or was aborted.
    #[error(transparent)]
    Over(WaitError),
}

/// Whether this call rang the doorbell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RingOutcome {
    /// It did.
    Yes,
    /// Another producer's doorbell covers these entries, or will.
    Covered,
}

/// A completion cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompletionError {
    /// The entry has not completed.
    #[error("the entry has not completed")]
    NotYet,
    /// The entry has completed, but a later entry's completion has replaced it.
    #[error("the completion was overwritten by a later one")]
    Gone,
    /// The ticket belongs to another queue.
    #[error("the ticket belongs to another queue")]
    Stale,
}

impl<M: WordMemory + Clone> DeviceQueue<M> {
    /// Creates a queue whose first index is `first`. No other thread may use the memory yet.
    ///
    /// # Errors
    /// [`ShapeError`], if the memory is too small, or the page has no such doorbell.
    pub fn create(memory: M, shape: QueueShape, first: u64, page: &BellPage<M>) -> Result<Self, ShapeError> {
        let have = memory.byte_len();
        let need = shape.queue_bytes();
        if have < need {
            return Err(ShapeError::Short { have, need });
        }
        let bell = page.doorbell_at(shape.bell()).ok_or(ShapeError::Bells(shape.bell()))?;
        for (word, value) in shape.to_words().iter().enumerate() {
            memory.put(word as u64 * 8, *value);
        }
        for word in [at::RESERVED, at::READY, at::SUBMITTED, at::SHADOW] {
            memory.store(word, first, Relaxed);
        }
        memory.store(at::FRONTIER, FrontierWord::new(first, false).0, Relaxed);
        for word in [at::ABORT, at::COMPANION, at::ERROR, at::FIRST_BAD, at::REASON] {
            memory.store(word, 0, Relaxed);
        }
        if shape.is_for_device() {
            for word in [at::ABORT_ASKED, at::COMPANION_ASKED] {
                memory.store(word, 0, Relaxed);
            }
        }
        for place in 0..u64::from(shape.depth()) {
            // A stale entry of an earlier queue in this memory must not be parsed as one of this queue.
            memory.put(shape.entry_offset(place), 0);
            memory.store(shape.completion_offset(place), EntryCompletion::NONE, Relaxed);
        }
        page.reset_bell(shape.bell(), first);
        // The fence orders these stores before the handle that producers receive.
        memory.fence(SeqCst);
        Ok(Self { memory, shape, bell })
    }

    /// Opens a queue that another thread or process has created.
    ///
    /// # Errors
    /// [`ShapeError`], if the memory contains no valid queue.
    pub fn open(memory: M, page: &BellPage<M>) -> Result<Self, ShapeError> {
        let have = memory.byte_len();
        if have < at::RESERVED {
            return Err(ShapeError::Short { have, need: at::RESERVED });
        }
        let mut words = [0; 16];
        for (place, word) in words.iter_mut().enumerate() {
            *word = memory.get(place as u64 * 8);
        }
        let shape = QueueShape::from_words(&words, have)?;
        let bell = page.doorbell_at(shape.bell()).ok_or(ShapeError::Bells(shape.bell()))?;
        Ok(Self { memory, shape, bell })
    }

    /// Returns a handle to the memory, for the queue's engine.
    pub(crate) fn clone_memory(&self) -> M {
        self.memory.clone()
    }
}

impl<M: WordMemory> DeviceQueue<M> {
    /// Returns the layout and the number of the queue.
    #[must_use]
    pub const fn queue_shape(&self) -> &QueueShape {
        &self.shape
    }

    /// Returns the words of the queue, for tests and tools that inspect the protocol.
    #[must_use]
    pub const fn as_memory(&self) -> &M {
        &self.memory
    }

    /// Reserves `count` consecutive places, if they are free.
    ///
    /// # Errors
    /// [`ReserveError`]; no place was acquired.
    pub fn reserve_entries(&self, count: u32) -> Result<QueueReservation<'_, M>, ReserveError> {
        self.take_places(count).map(|first| self.reservation_at(first, count))
    }

    /// As [`reserve_entries`](Self::reserve_entries), and waits for room.
    ///
    /// # Errors
    /// [`ReserveError::TooMany`], [`ReserveError::Over`], or [`ReserveError::Busy`] when the budget is spent.
    pub fn reserve_within(
        &self,
        count: u32,
        budget: &mut impl WaitBudget,
    ) -> Result<QueueReservation<'_, M>, ReserveError> {
        self.take_within(count, budget).map(|first| self.reservation_at(first, count))
    }

    const fn reservation_at(&self, first: u64, count: u32) -> QueueReservation<'_, M> {
        QueueReservation::new(self, first, count, 0)
    }

    #[inline]
    fn take_within(&self, count: u32, budget: &mut impl WaitBudget) -> Result<u64, ReserveError> {
        loop {
            match self.take_places(count) {
                Err(ReserveError::Busy) if budget.spend_poll() => self.memory.pause(),
                result => return result,
            }
        }
    }

    /// Acquires `count` consecutive places and returns the first index.
    #[inline]
    fn take_places(&self, count: u32) -> Result<u64, ReserveError> {
        let depth = self.shape.depth();
        if count == 0 || count > depth {
            return Err(ReserveError::TooMany { asked: count, depth });
        }
        // Relaxed is enough: this counter only divides places among producers. `has_room` acquires the completion of the entries that used
        // these places a lap ago.
        let mut first = self.memory.load(at::RESERVED, Relaxed);
        loop {
            let end = first.wrapping_add(count.into());
            if !self.has_room(end) {
                // A full queue that has ended reports its end, so that producers stop retrying.
                return Err(self.end_error().map_or(ReserveError::Busy, ReserveError::Over));
            }
            match self.memory.compare_exchange(at::RESERVED, first, end, Relaxed) {
                Ok(_) => return Ok(first),
                Err(other) => first = other,
            }
        }
    }

    #[inline(always)]
    pub(crate) fn write_entry(&self, index: u64, entry: &QueueEntry) {
        self.memory
            .put_entry(self.shape.entry_offset(index), &entry.to_words(index, self.shape.is_checked()));
    }

    /// Publishes the entries from `first` to before `end`, if all reservations before `first` are published. No other producer changes the
    /// word then, so a store does instead of a compare and swap.
    #[inline]
    pub(crate) fn publish_entries(&self, first: u64, end: u64) -> bool {
        if self.memory.load(at::READY, Acquire) != first {
            return false;
        }
        // Release makes the entries visible with the counter. The acquire above continues the chain to the producers before this one.
        self.memory.store(at::READY, end, Release);
        true
    }

    /// Returns whether the place before `end` is free: the entry that used it one lap earlier has completed. It first reads the shadow, the
    /// frontier as some producer last saw it, because the frontier itself may be in remote or uncached memory.
    fn has_room(&self, end: u64) -> bool {
        let needed = end.wrapping_sub(u64::from(self.shape.depth()));
        if !is_before(self.memory.load(at::SHADOW, Acquire), needed) {
            return true;
        }
        let frontier = FrontierWord(self.memory.load(at::FRONTIER, Acquire)).index_near(needed);
        self.memory.advance_counter(at::SHADOW, frontier, AcqRel);
        !is_before(frontier, needed)
    }

    /// Submits all entries before `end`, which are published, to the engine. One doorbell serves all producers that submit at the same
    /// time.
    pub fn submit(&self, end: u64) -> RingOutcome {
        let Some(to) = self.raise_submitted(end) else { return RingOutcome::Covered };
        self.ring_until_current(to);
        RingOutcome::Yes
    }

    /// Rings the doorbell once for entries that a producer submitted before it died without ringing.
    pub fn ring_for_dead_producer(&self) {
        self.bell.ring(self.memory.load(at::SUBMITTED, SeqCst));
    }

    /// Raises the counter of submitted entries. Returns its current value, or `None` if it already covered `end`.
    #[inline]
    fn raise_submitted(&self, end: u64) -> Option<u64> {
        let memory = &self.memory;
        if !is_before(memory.advance_counter(at::SUBMITTED, end, SeqCst), end) {
            return None;
        }
        Some(memory.load(at::SUBMITTED, SeqCst))
    }

    /// Rings until the doorbell equals the counter of submitted entries.
    #[inline]
    fn ring_until_current(&self, mut to: u64) {
        loop {
            // Two producers may store their doorbells in the wrong order. The later of the two reads the counter after the other has
            // raised it, so it sees the larger value and rings again.
            self.bell.ring(to);
            let now = self.memory.load(at::SUBMITTED, SeqCst);
            if now == to {
                return;
            }
            to = now;
        }
    }

    /// As [`submit`](Self::submit), for this queue and another one. If both doorbells are side by side, one word of bits marks both queues.
    pub fn submit_both(&self, end: u64, other: &Self, others_end: u64) {
        if !self.bell.is_beside(&other.bell) {
            self.submit(end);
            other.submit(others_end);
            return;
        }
        let ours = self.raise_submitted(end);
        let theirs = other.raise_submitted(others_end);
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            ours.into_iter().for_each(|to| self.ring_until_current(to));
            return theirs.into_iter().for_each(|to| other.ring_until_current(to));
        };
        self.bell.ring_both(ours, &other.bell, theirs);
        // Each queue has the race of `ring_until_current` of its own, so each counter is read again.
        for (queue, to) in [(self, ours), (other, theirs)] {
            let now = queue.memory.load(at::SUBMITTED, SeqCst);
            if now != to {
                queue.ring_until_current(now);
            }
        }
    }

    /// Reserves, writes, publishes and submits entries. Returns the ticket of the last one.
    ///
    /// # Errors
    /// [`ReserveError`]. [`ReserveError::Busy`] once the budget is spent. If it was spent while earlier reservations were unpublished, the
    /// queue has been aborted, because their producers are taken to have left.
    pub fn post(
        &self,
        entries: &[QueueEntry],
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, ReserveError> {
        let ticket = self.place_entries(entries, budget)?;
        self.submit(ticket.index.wrapping_add(1));
        Ok(ticket)
    }

    /// As [`post`](Self::post), but submits nothing. The caller submits at once.
    #[inline]
    pub(crate) fn place_entries(
        &self,
        entries: &[QueueEntry],
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, ReserveError> {
        let first = self.take_within(u32::try_from(entries.len()).unwrap_or(u32::MAX), budget)?;
        // A reservation that fails to publish in time is dropped there, and becomes NOPs.
        self.write_all(first, entries)
            .or_else(|early| early.publish_within(budget).map_err(|_left| ReserveError::Busy))
    }

    /// As [`place_entries`](Self::place_entries), without waiting. It is inlined so that entries known at compile time are built in a few
    /// instructions.
    ///
    /// # Errors
    /// The reservation, while earlier ones are unpublished; `None` if the queue has no room.
    #[inline(always)]
    pub(crate) fn place_now<const N: usize>(
        &self,
        entries: [QueueEntry; N],
    ) -> Result<EntryTicket, Option<QueueReservation<'_, M>>> {
        let count = N as u32;
        let first = self.take_places(count).map_err(|_| None)?;
        for (nth, entry) in (0..).zip(&entries) {
            self.write_entry(first.wrapping_add(nth), entry);
        }
        let end = first.wrapping_add(count.into());
        if self.publish_entries(first, end) {
            return Ok(self.ticket_at(end.wrapping_sub(1)));
        }
        Err(Some(QueueReservation::new(self, first, count, count)))
    }

    /// Writes and publishes entries in places that were reserved for them.
    #[inline]
    fn write_all(&self, first: u64, entries: &[QueueEntry]) -> Result<EntryTicket, QueueReservation<'_, M>> {
        let mut end = first;
        for entry in entries {
            self.write_entry(end, entry);
            end = end.wrapping_add(1);
        }
        if self.publish_entries(first, end) {
            return Ok(self.ticket_at(end.wrapping_sub(1)));
        }
        let count = entries.len() as u32;
        Err(QueueReservation::new(self, first, count, count))
    }

    /// Polls a ticket once.
    ///
    /// # Errors
    /// [`WaitError`], if the entry will never complete successfully: it has failed, or the queue was aborted before it completed.
    pub fn poll(&self, ticket: EntryTicket) -> Result<TicketPoll, WaitError> {
        if (ticket.queue, ticket.epoch) != (self.shape.number(), self.shape.epoch()) {
            return Err(WaitError::Stale);
        }
        // Acquire pairs with the engine's release of the frontier, so bytes of a completed READ and the error page are visible.
        let frontier = FrontierWord(self.memory.load(at::FRONTIER, Acquire));
        if !frontier.has_completed(ticket.index) {
            return self.abort_word().map_or(Ok(TicketPoll::Busy), |why| Err(WaitError::Aborted(why)));
        }
        match self.fault_of(frontier) {
            Some(fault) if !is_before(ticket.index, fault.first_bad) => Err(WaitError::Failed(fault)),
            _ => Ok(TicketPoll::Done),
        }
    }

    /// Waits until an entry has completed.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`WaitError::Timeout`].
    pub fn wait(&self, ticket: EntryTicket, budget: &mut impl WaitBudget) -> Result<(), WaitError> {
        self.wait_for(budget, || self.poll(ticket).map(|poll| (poll == TicketPoll::Done).then_some(())))
    }

    /// Polls until `look` returns a value.
    fn wait_for<T>(
        &self,
        budget: &mut impl WaitBudget,
        mut look: impl FnMut() -> Result<Option<T>, WaitError>,
    ) -> Result<T, WaitError> {
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if !budget.spend_poll() {
                return Err(WaitError::Timeout);
            }
            self.memory.pause();
        }
    }

    /// Returns the fault, if the failure bit of `frontier` is set.
    fn fault_of(&self, frontier: FrontierWord) -> Option<QueueFault> {
        if !frontier.has_failed() {
            return None;
        }
        // Relaxed is enough: the engine wrote the error page before the frontier, which the caller has acquired.
        let error = self.memory.load(at::ERROR, Relaxed);
        let reason = self.memory.load(at::REASON, Relaxed);
        let status = EntryStatus::from_bits((error >> 32) as u16);
        Some(QueueFault {
            first_bad: self.memory.load(at::FIRST_BAD, Relaxed),
            status: if status == EntryStatus::Done { EntryStatus::Flushed } else { status },
            reason: reason as u32,
        })
    }

    /// Returns why the queue has failed, if it has.
    #[must_use]
    pub fn queue_fault(&self) -> Option<QueueFault> {
        self.fault_of(FrontierWord(self.memory.load(at::FRONTIER, Acquire)))
    }

    /// Returns why the queue was aborted, if it was.
    #[must_use]
    pub fn abort_word(&self) -> Option<AbortWord> {
        AbortWord::from_word(self.memory.load(at::ABORT, Acquire))
    }

    fn end_error(&self) -> Option<WaitError> {
        self.queue_fault().map(WaitError::Failed).or_else(|| self.abort_word().map(WaitError::Aborted))
    }

    /// Aborts the queue. The first reason is kept; returns whether it is this call's. The engine executes no entry once it
    /// has read the abort. Operations in progress may still access memory until they have completed.
    pub fn abort(&self, why: AbortWord) -> bool {
        let is_first = self.memory.compare_exchange(at::ABORT, 0, why.to_word(), AcqRel).is_ok();
        self.bell.mark_queue();
        is_first
    }

    /// Reads the completion of an entry: its status, and the value that the operation returned. It is valid until a later entry's
    /// completion replaces it.
    ///
    /// # Errors
    /// [`CompletionError`].
    pub fn read_completion(&self, ticket: EntryTicket) -> Result<EntryCompletion, CompletionError> {
        if (ticket.queue, ticket.epoch) != (self.shape.number(), self.shape.epoch()) {
            return Err(CompletionError::Stale);
        }
        let place = self.shape.completion_offset(ticket.index);
        let head = self.memory.load(place, Acquire);
        let (status, op) = match EntryCompletion::read_owner(&self.shape, ticket.index, head) {
            CompletionOwner::NotYet => return Err(CompletionError::NotYet),
            CompletionOwner::Gone => return Err(CompletionError::Gone),
            CompletionOwner::Here { status, op } => (status, op),
        };
        // The engine may replace the completion meanwhile. The second read of the head detects that, as of a sequence lock; the fence keeps
        // it behind the read of the value.
        let value = self.memory.load(place + 8, Relaxed);
        self.memory.fence(Acquire);
        if self.memory.load(place, Relaxed) != head {
            return Err(CompletionError::Gone);
        }
        Ok(EntryCompletion { status, op, value })
    }

    /// Returns the state of the companion queue. The first call requests it from the host.
    pub fn request_companion(&self) -> CompanionWord {
        match CompanionWord::from_word(self.memory.load(at::COMPANION, Acquire)) {
            CompanionWord::None => {
                let asked = CompanionWord::Asked.to_word();
                match self.memory.compare_exchange(
                    at::COMPANION,
                    CompanionWord::None.to_word(),
                    asked,
                    AcqRel,
                ) {
                    Ok(_) => {
                        self.bell.mark_queue();
                        CompanionWord::Asked
                    }
                    Err(other) => CompanionWord::from_word(other),
                }
            }
            known => known,
        }
    }

    /// As [`request_companion`](Self::request_companion), and waits until the host has created it. Returns its number.
    ///
    /// # Errors
    /// [`WaitError::Refused`], [`WaitError::Timeout`], or the failure or abort of this queue.
    pub fn companion_within(&self, budget: &mut impl WaitBudget) -> Result<u32, WaitError> {
        self.wait_for(budget, || match self.request_companion() {
            CompanionWord::Queue(number) => Ok(Some(number)),
            CompanionWord::Refused | CompanionWord::Invalid(_) => Err(WaitError::Refused),
            CompanionWord::None | CompanionWord::Asked => self.end_error().map_or(Ok(None), Err),
        })
    }

    #[inline]
    pub(crate) const fn ticket_at(&self, index: u64) -> EntryTicket {
        EntryTicket { queue: self.shape.number(), epoch: self.shape.epoch(), index }
    }
}

/// Words that the engine writes for producers.
impl<M: WordMemory> DeviceQueue<M> {
    /// Replies to a request for a companion.
    pub fn answer_companion(&self, companion: CompanionWord) {
        self.memory.store(at::COMPANION, companion.to_word(), Release);
    }
}
