//! The producer's side of a queue, for any number of threads at once: reserve, write, publish, submit, poll.
//!
//! A reservation takes nothing unless there is room, so whoever finds none has nothing to give back. Publication is in the order of
//! reservation: what was reserved first must be published first, and one who leaves without publishing has that done for him, with
//! NOPs, or ends the queue for all where even that cannot be. Nothing here waits but what has `within` or `wait` in its name.

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

/// A queue, as its producers see it. Any number of threads may use it through one or several of these.
#[derive(Clone, Debug)]
pub struct DeviceQueue<M> {
    memory: M,
    shape: QueueShape,
    bell: QueueDoorbell<M>,
}

/// Names an entry that was published.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EntryTicket {
    /// The number of its queue.
    pub queue: u32,
    /// The epoch of its queue.
    pub epoch: u32,
    /// Its index.
    pub index: u64,
}

/// What a look at a ticket found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TicketPoll {
    /// Not yet.
    Busy,
    /// The entry is done, and all before it.
    Done,
}

/// No reservation was made, and nothing was taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReserveError {
    /// There is no room now.
    #[error("the queue has no room now")]
    Busy,
    /// There never will be.
    #[error("{asked} entries of a queue that is {depth} deep")]
    TooMany {
        /// Asked for; 0 is as wrong.
        asked: u32,
        /// There are.
        depth: u32,
    },
    /// There is no room, and the queue has come to its end.
    #[error(transparent)]
    Over(WaitError),
}

/// Whether a doorbell was rung.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RingOutcome {
    /// It was.
    Yes,
    /// Somebody else's covers these entries, or is about to.
    Covered,
}

/// A completion cannot be had.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompletionError {
    /// The entry has not completed.
    #[error("the entry has not completed")]
    NotYet,
    /// It has, and a later one's completion is in its place.
    #[error("the completion was overwritten by a later one's")]
    Gone,
    /// The ticket is of another queue.
    #[error("the ticket is not of this queue")]
    Stale,
}

impl<M: WordMemory + Clone> DeviceQueue<M> {
    /// Makes a queue whose first index is `first`. Nobody else may use the memory yet.
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
            // No entry of an earlier queue in this memory is to be taken for one of this.
            memory.put(shape.entry_offset(place), 0);
            memory.store(shape.completion_offset(place), EntryCompletion::NONE, Relaxed);
        }
        page.reset_bell(shape.bell(), first);
        memory.fence(SeqCst);
        Ok(Self { memory, shape, bell })
    }

    /// Finds a queue that somebody else has made.
    ///
    /// # Errors
    /// [`ShapeError`], if there is none.
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

    /// The memory, for its engine.
    pub(crate) fn clone_memory(&self) -> M {
        self.memory.clone()
    }
}

impl<M: WordMemory> DeviceQueue<M> {
    /// What the queue is.
    #[must_use]
    pub const fn queue_shape(&self) -> &QueueShape {
        &self.shape
    }

    /// Its words, for those who look at the protocol from outside: tests and tools.
    #[must_use]
    pub const fn as_memory(&self) -> &M {
        &self.memory
    }

    /// Takes `count` places in a row, if they are free.
    ///
    /// # Errors
    /// [`ReserveError`]; nothing was taken.
    pub fn reserve_entries(&self, count: u32) -> Result<QueueReservation<'_, M>, ReserveError> {
        self.take_places(count).map(|first| self.reservation_at(first, count))
    }

    /// As [`reserve_entries`](Self::reserve_entries), and waits for room.
    ///
    /// # Errors
    /// [`ReserveError::TooMany`], [`ReserveError::Over`], or [`ReserveError::Busy`] when the time is over.
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

    /// The first of the places.
    #[inline]
    fn take_places(&self, count: u32) -> Result<u64, ReserveError> {
        let depth = self.shape.depth();
        if count == 0 || count > depth {
            return Err(ReserveError::TooMany { asked: count, depth });
        }
        let mut first = self.memory.load(at::RESERVED, Relaxed);
        loop {
            let end = first.wrapping_add(count.into());
            if !self.has_room(end) {
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

    /// Publishes what was written from `first` to before `end`, if it is the turn of that. Nobody else changes the word then, so it takes no
    /// exchange.
    #[inline]
    pub(crate) fn publish_entries(&self, first: u64, end: u64) -> bool {
        if self.memory.load(at::READY, Acquire) != first {
            return false;
        }
        self.memory.store(at::READY, end, Release);
        true
    }

    /// Whether the place before `end` is free: what lay there a lap ago has completed. First by what some producer has seen, as
    /// the frontier may be far away.
    fn has_room(&self, end: u64) -> bool {
        let needed = end.wrapping_sub(u64::from(self.shape.depth()));
        if !is_before(self.memory.load(at::SHADOW, Acquire), needed) {
            return true;
        }
        let frontier = FrontierWord(self.memory.load(at::FRONTIER, Acquire)).index_near(needed);
        self.memory.advance_counter(at::SHADOW, frontier, AcqRel);
        !is_before(frontier, needed)
    }

    /// Tells the engine of all before `end`, which were published. One doorbell does for all who ask at the same time.
    pub fn submit(&self, end: u64) -> RingOutcome {
        let Some(to) = self.raise_submitted(end) else { return RingOutcome::Covered };
        self.ring_until_current(to);
        RingOutcome::Yes
    }

    /// Rings for what was submitted, once: whoever was to do that has died in between.
    pub fn ring_for_dead_producer(&self) {
        self.bell.ring(self.memory.load(at::SUBMITTED, SeqCst));
    }

    /// Raises the counter of what was submitted; where it is now, if that was needed.
    #[inline]
    fn raise_submitted(&self, end: u64) -> Option<u64> {
        let memory = &self.memory;
        if !is_before(memory.advance_counter(at::SUBMITTED, end, SeqCst), end) {
            return None;
        }
        Some(memory.load(at::SUBMITTED, SeqCst))
    }

    /// Rings until the doorbell says what was submitted.
    #[inline]
    fn ring_until_current(&self, mut to: u64) {
        loop {
            // Who raised the counter before the last doorbell was stored is seen by whoever stored that one: of two that store
            // in the wrong order, the one that did so last looks after the other has raised the counter.
            self.bell.ring(to);
            let now = self.memory.load(at::SUBMITTED, SeqCst);
            if now == to {
                return;
            }
            to = now;
        }
    }

    /// As [`submit`](Self::submit) of this queue and of another one, and the engine is told once where their doorbells are side by side.
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
        for (queue, to) in [(self, ours), (other, theirs)] {
            let now = queue.memory.load(at::SUBMITTED, SeqCst);
            if now != to {
                queue.ring_until_current(now);
            }
        }
    }

    /// Reserves, writes, publishes and submits entries; the ticket of the last one.
    ///
    /// # Errors
    /// [`ReserveError`]. [`ReserveError::Busy`] once the time is over; where that was only while those before were not published, the queue has
    /// been aborted, as they are gone.
    pub fn post(
        &self,
        entries: &[QueueEntry],
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, ReserveError> {
        let ticket = self.place_entries(entries, budget)?;
        self.submit(ticket.index.wrapping_add(1));
        Ok(ticket)
    }

    /// As [`post`](Self::post), but nothing is submitted: that is the caller's to do at once.
    #[inline]
    pub(crate) fn place_entries(
        &self,
        entries: &[QueueEntry],
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, ReserveError> {
        let first = self.take_within(u32::try_from(entries.len()).unwrap_or(u32::MAX), budget)?;
        // What is given up becomes NOPs.
        self.write_all(first, entries)
            .or_else(|early| early.publish_within(budget).map_err(|_left| ReserveError::Busy))
    }

    /// The same without waiting, of entries that are known where it is called: each is put together there in few instructions.
    ///
    /// # Errors
    /// The reservation while those before it are not published; nothing if there is no room.
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

    /// Writes and publishes entries in places that were taken for them.
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

    /// Looks whether an entry is done.
    ///
    /// # Errors
    /// [`WaitError`], when it will never be: it has failed, or the queue was aborted before it completed.
    pub fn poll(&self, ticket: EntryTicket) -> Result<TicketPoll, WaitError> {
        if (ticket.queue, ticket.epoch) != (self.shape.number(), self.shape.epoch()) {
            return Err(WaitError::Stale);
        }
        let frontier = FrontierWord(self.memory.load(at::FRONTIER, Acquire));
        if !frontier.has_completed(ticket.index) {
            return self.abort_word().map_or(Ok(TicketPoll::Busy), |why| Err(WaitError::Aborted(why)));
        }
        match self.fault_of(frontier) {
            Some(fault) if !is_before(ticket.index, fault.first_bad) => Err(WaitError::Failed(fault)),
            _ => Ok(TicketPoll::Done),
        }
    }

    /// Waits until an entry is done.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`WaitError::Timeout`].
    pub fn wait(&self, ticket: EntryTicket, budget: &mut impl WaitBudget) -> Result<(), WaitError> {
        self.wait_for(budget, || self.poll(ticket).map(|poll| (poll == TicketPoll::Done).then_some(())))
    }

    /// Waits until a look finds something.
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

    /// The fault, if a frontier says that there is one.
    fn fault_of(&self, frontier: FrontierWord) -> Option<QueueFault> {
        if !frontier.has_failed() {
            return None;
        }
        let error = self.memory.load(at::ERROR, Relaxed);
        let reason = self.memory.load(at::REASON, Relaxed);
        let status = EntryStatus::from_bits((error >> 32) as u16);
        Some(QueueFault {
            first_bad: self.memory.load(at::FIRST_BAD, Relaxed),
            status: if status == EntryStatus::Done { EntryStatus::Flushed } else { status },
            reason: reason as u32,
        })
    }

    /// Why the queue has failed, if it has.
    #[must_use]
    pub fn queue_fault(&self) -> Option<QueueFault> {
        self.fault_of(FrontierWord(self.memory.load(at::FRONTIER, Acquire)))
    }

    /// Why everybody is to stop, if so.
    #[must_use]
    pub fn abort_word(&self) -> Option<AbortWord> {
        AbortWord::from_word(self.memory.load(at::ABORT, Acquire))
    }

    fn end_error(&self) -> Option<WaitError> {
        self.queue_fault().map(WaitError::Failed).or_else(|| self.abort_word().map(WaitError::Aborted))
    }

    /// Tells everybody to stop, unless somebody has already; `true` if this is the reason that stays. The engine executes nothing more once
    /// it has seen this; what it was at may still touch memory until it has completed.
    pub fn abort(&self, why: AbortWord) -> bool {
        let is_first = self.memory.compare_exchange(at::ABORT, 0, why.to_word(), AcqRel).is_ok();
        self.bell.mark_queue();
        is_first
    }

    /// The completion of an entry: how it ended, and the value that it brings. It is there until a later one takes its place.
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
        let value = self.memory.load(place + 8, Relaxed);
        self.memory.fence(Acquire);
        if self.memory.load(place, Relaxed) != head {
            return Err(CompletionError::Gone);
        }
        Ok(EntryCompletion { status, op, value })
    }

    /// The companion queue. The first who asks has the host make it.
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

    /// As [`request_companion`](Self::request_companion), and waits until the host has made it; its number.
    ///
    /// # Errors
    /// [`WaitError::Refused`], [`WaitError::Timeout`], or the end of this queue.
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

/// Only for what the engine tells producers.
impl<M: WordMemory> DeviceQueue<M> {
    /// Answers who has asked for a companion.
    pub fn answer_companion(&self, companion: CompanionWord) {
        self.memory.store(at::COMPANION, companion.to_word(), Release);
    }
}
