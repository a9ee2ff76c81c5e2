//! A lane towards another process: a queue, and its companion once a counter needs it. Both APIs ([`original`](crate::original),
//! [`successor`](crate::successor)) write their entries through it.

use alloc::boxed::Box;

use once_cell::race::OnceBox;
use trunkline_proto::wire::device_queue::{
    AtomicChange, CounterUpdate, EntryFence, EntryWork, LENGTH_MAX, LocalAddress, PeerAddress, QueueEntry,
};

use crate::budget::WaitBudget;
use crate::error::WaitError;
use crate::memory::WordMemory;
use crate::queue::{DeviceQueue, EntryTicket, ReserveError};
use crate::reservation::QueueReservation;

/// Finds queues by number, such as a companion that the host has created. Implemented by the owner of the table of queues.
pub trait CompanionDirectory<M> {
    /// Returns a queue; `None` if the number is unknown here.
    fn find_queue(&self, number: u32) -> Option<DeviceQueue<M>>;
}

impl<M, F: Fn(u32) -> Option<DeviceQueue<M>>> CompanionDirectory<M> for F {
    fn find_queue(&self, number: u32) -> Option<DeviceQueue<M>> {
        self(number)
    }
}

/// An operation was not posted, or not completely.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpError {
    /// The queue refused the entries.
    #[error(transparent)]
    Refused(#[from] ReserveError),
    /// No companion exists, or the wait for it has ended.
    #[error("cannot get the companion queue: {0}")]
    Companion(WaitError),
    /// A put of no bytes.
    #[error("cannot put 0 bytes")]
    Empty,
    /// The range exceeds the address space.
    #[error("{len} bytes from {addr:#x} on exceed the address space")]
    Range {
        /// The first byte.
        addr: u64,
        /// How many.
        len: u64,
    },
    /// The group has no threads, or more than the queue is deep.
    #[error("invalid group of {0} threads: the number must be from 1 to the queue's depth")]
    Group(u32),
}

/// The bytes of a put.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PutBytes {
    /// The source.
    pub from: LocalAddress,
    /// The target.
    pub to: PeerAddress,
    /// The length.
    pub len: u64,
}

impl PutBytes {
    /// Returns the number of entries for these bytes: one per GiB, and one for an empty range.
    #[must_use]
    pub const fn entry_count(&self) -> u64 {
        let pieces = self.len.div_ceil(LENGTH_MAX);
        if pieces == 0 { 1 } else { pieces }
    }

    /// Returns the WRITE of `len` bytes from `offset` on.
    const fn piece_entry(&self, offset: u64, len: u64) -> QueueEntry {
        let from = LocalAddress { addr: self.from.addr + offset, ..self.from };
        let to = PeerAddress { addr: self.to.addr + offset, ..self.to };
        QueueEntry::new(EntryWork::Write { from, to, len, imm: None })
    }

    /// Returns the WRITE of the GiB number `nth`, which is below [`entry_count`](Self::entry_count).
    #[must_use]
    pub const fn nth_entry(&self, nth: u64) -> QueueEntry {
        let offset = nth * LENGTH_MAX;
        let left = self.len - offset;
        self.piece_entry(offset, if left < LENGTH_MAX { left } else { LENGTH_MAX })
    }

    const fn last_share(&self, threads: u32) -> u64 {
        // The last thread writes the remainder of the division as well.
        self.len - self.len / threads as u64 * (threads as u64 - 1)
    }

    /// Returns the WRITE of one thread of a group. All threads write the same length, and the last one writes the remainder too; a NOP if
    /// the share is empty.
    #[must_use]
    pub const fn share_entry(&self, thread: u32, threads: u32) -> QueueEntry {
        let each = self.len / threads as u64;
        let offset = each * thread as u64;
        let len = if thread + 1 == threads { self.last_share(threads) } else { each };
        if len == 0 { QueueEntry::new(EntryWork::Nop) } else { self.piece_entry(offset, len) }
    }

    fn check_range(&self) -> Result<(), OpError> {
        for addr in [self.from.addr, self.to.addr] {
            if addr.checked_add(self.len).is_none() {
                return Err(OpError::Range { addr, len: self.len });
            }
        }
        Ok(())
    }
}

/// An addition to a signal of another process, or to a counter of this one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WordAddition {
    /// The word.
    pub at: PeerAddress,
    /// The increment.
    pub value: u64,
    /// Whether a poison word follows the word.
    pub poisoned: bool,
}

impl WordAddition {
    /// Returns the addition as an entry.
    #[must_use]
    pub const fn to_entry(&self) -> QueueEntry {
        let Self { at, value, poisoned } = *self;
        QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(value), poisoned })
    }

    /// Returns `write` with this counter attached, which is raised once the WRITE has completed. Returns `None` for another entry, an
    /// unaligned word, or an increment above 2^32 - 1.
    #[must_use]
    pub fn attach_to(&self, write: QueueEntry) -> Option<QueueEntry> {
        let at = LocalAddress { addr: self.at.addr, key: self.at.key };
        let count = CounterUpdate { at, value: self.value as u32, poisoned: self.poisoned };
        let work = write.work.with_counter(count).filter(|_| self.fits_entry())?;
        Some(QueueEntry { work, ..write })
    }

    /// Returns whether an entry has room for this counter.
    const fn fits_entry(&self) -> bool {
        self.value <= u32::MAX as u64 && self.at.addr.is_multiple_of(8)
    }

    /// Returns whether the last WRITE of `bytes` can raise this counter. With `threads` above 0 each thread writes one share; with 0 the
    /// bytes are cut into pieces that fit an entry.
    pub(crate) const fn fits_last_write(&self, bytes: &PutBytes, threads: u32) -> bool {
        self.fits_entry() && (threads == 0 || bytes.last_share(threads) <= LENGTH_MAX)
    }
}

/// Additions to a write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteExtras {
    /// The entry behind the last WRITE.
    pub(crate) behind: Option<QueueEntry>,
    /// The counter that the last WRITE raises.
    pub(crate) counter: Option<WordAddition>,
}

impl WriteExtras {
    /// Returns the last WRITE with its counter attached.
    #[inline]
    fn last_write(&self, write: QueueEntry) -> QueueEntry {
        self.counter.and_then(|counter| counter.attach_to(write)).unwrap_or(write)
    }
}

/// A queue and its companion.
#[derive(Debug)]
pub struct QueueLane<M, D> {
    /// The queue.
    pub main: DeviceQueue<M>,
    directory: D,
    /// Found once: a queue keeps its companion.
    companion: OnceBox<DeviceQueue<M>>,
}

impl<M: Clone, D: Clone> Clone for QueueLane<M, D> {
    fn clone(&self) -> Self {
        let known = self.companion.get().map(|companion| OnceBox::with_value(Box::new(companion.clone())));
        let companion = known.unwrap_or_default();
        Self { main: self.main.clone(), directory: self.directory.clone(), companion }
    }
}

impl<M: WordMemory, D: CompanionDirectory<M>> QueueLane<M, D> {
    /// Creates a lane of a queue. The companion is found in `directory` when it is first needed.
    #[must_use]
    pub const fn new(main: DeviceQueue<M>, directory: D) -> Self {
        Self { main, directory, companion: OnceBox::new() }
    }

    /// Writes bytes, and behind them one more entry if given. One doorbell covers all entries that fit into the queue at once. Returns the
    /// tickets of the last WRITE and of the last entry.
    pub(crate) fn write_bytes(
        &self,
        bytes: &PutBytes,
        behind: Option<QueueEntry>,
        budget: &mut impl WaitBudget,
    ) -> Result<[EntryTicket; 2], OpError> {
        let tickets = self.publish_write(bytes, &WriteExtras { behind, counter: None }, budget, &mut None)?;
        self.main.submit(tickets[1].index.wrapping_add(1));
        Ok(tickets)
    }

    /// As [`write_bytes`](Self::write_bytes), but leaves the last batch unsubmitted; the caller submits it at once. On failure `part` is
    /// the last ticket that was submitted before it.
    #[inline]
    pub(crate) fn publish_write(
        &self,
        bytes: &PutBytes,
        beside: &WriteExtras,
        budget: &mut impl WaitBudget,
        part: &mut Option<EntryTicket>,
    ) -> Result<[EntryTicket; 2], OpError> {
        bytes.check_range()?;
        if bytes.len > LENGTH_MAX {
            return self.publish_pieces(bytes, beside, budget, part);
        }
        let write = bytes.piece_entry(0, bytes.len);
        // The common case is one WRITE: no reservation object, and no wait.
        if beside.behind.is_none() && beside.counter.is_none() {
            match self.main.place_now([write]) {
                Ok(ticket) => return Ok([ticket; 2]),
                Err(Some(early)) => return Ok([publish_reserved(early, budget)?; 2]),
                Err(None) => {}
            }
        }
        let write = beside.last_write(write);
        let Some(behind) = beside.behind else {
            return Ok([self.main.place_entries(&[write], budget)?; 2]);
        };
        let last = self.main.place_entries(&[write, behind], budget)?;
        Ok([EntryTicket { index: last.index.wrapping_sub(1), ..last }, last])
    }

    fn publish_pieces(
        &self,
        bytes: &PutBytes,
        beside: &WriteExtras,
        budget: &mut impl WaitBudget,
        part: &mut Option<EntryTicket>,
    ) -> Result<[EntryTicket; 2], OpError> {
        let writes = bytes.entry_count();
        let depth = u64::from(self.main.queue_shape().depth());
        let total = writes + u64::from(beside.behind.is_some());
        let mut next = 0;
        let mut last_write = None;
        loop {
            // More entries than the queue is deep are posted in batches. Each batch is submitted, because room for the next one needs its
            // completion.
            let count = (total - next).min(depth);
            let mut reservation = self.main.reserve_within(count as u32, budget)?;
            for nth in next..next + count {
                let write = || {
                    if nth + 1 == writes {
                        beside.last_write(bytes.nth_entry(nth))
                    } else {
                        bytes.nth_entry(nth)
                    }
                };
                let entry = beside.behind.filter(|_| nth == writes).unwrap_or_else(write);
                let ticket = reservation.write_entry(&entry);
                last_write = if nth < writes { ticket } else { last_write };
            }
            let last = publish_reserved(reservation, budget)?;
            next += count;
            if next == total {
                return Ok([last_write.unwrap_or(last), last]);
            }
            self.main.submit(last.index.wrapping_add(1));
            *part = Some(last);
        }
    }

    /// Writes the shares of a group's threads in one reservation. Submits nothing, as `publish_write`.
    pub(crate) fn publish_shares(
        &self,
        bytes: &PutBytes,
        threads: u32,
        beside: &WriteExtras,
        budget: &mut impl WaitBudget,
    ) -> Result<[EntryTicket; 2], OpError> {
        bytes.check_range()?;
        let count = threads.saturating_add(u32::from(beside.behind.is_some()));
        if threads == 0 || count > self.main.queue_shape().depth() {
            return Err(OpError::Group(threads));
        }
        let mut reservation = self.main.reserve_within(count, budget)?;
        for thread in 0..threads {
            let share = bytes.share_entry(thread, threads);
            let _ = reservation.write_entry(&if thread + 1 == threads {
                beside.last_write(share)
            } else {
                share
            });
        }
        let last_share = reservation.first_index().wrapping_add(u64::from(threads) - 1);
        if let Some(entry) = beside.behind {
            let _ = reservation.write_entry(&entry);
        }
        let last = publish_reserved(reservation, budget)?;
        Ok([EntryTicket { index: last_share, ..last }, last])
    }

    /// Posts one entry.
    pub(crate) fn post_entry(
        &self,
        entry: &QueueEntry,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        Ok(self.main.post(core::slice::from_ref(entry), budget)?)
    }

    /// Returns the companion, which the host creates on the first request. The directory is queried once.
    ///
    /// # Errors
    /// [`OpError::Companion`].
    #[inline]
    pub fn companion_queue(&self, budget: &mut impl WaitBudget) -> Result<&DeviceQueue<M>, OpError> {
        match self.companion.get() {
            Some(known) => Ok(known),
            None => self.find_companion(budget),
        }
    }

    #[cold]
    fn find_companion(&self, budget: &mut impl WaitBudget) -> Result<&DeviceQueue<M>, OpError> {
        let number = self.main.companion_within(budget).map_err(OpError::Companion)?;
        let found = self.directory.find_queue(number).ok_or(OpError::Companion(WaitError::Refused))?;
        Ok(self.companion.get_or_init(|| Box::new(found)))
    }

    /// Has the companion raise a counter when an entry has completed. Returns the companion's ticket.
    pub(crate) fn count_completion(
        &self,
        companion: &DeviceQueue<M>,
        of: EntryTicket,
        counter: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        let wait = QueueEntry::new(EntryWork::Wait { queue: of.queue, index: of.index });
        Ok(companion.post(&[wait, counter.to_entry()], budget)?)
    }

    /// Submits all entries up to `last`, and has the companion raise a counter when the entry `of` has completed. If the companion has
    /// room, one poll of the engine finds both queues.
    pub(crate) fn submit_and_count(
        &self,
        last: EntryTicket,
        companion: &DeviceQueue<M>,
        of: EntryTicket,
        counter: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<(), OpError> {
        let end = last.index.wrapping_add(1);
        let wait = QueueEntry::new(EntryWork::Wait { queue: of.queue, index: of.index });
        let early = match companion.place_now([wait, counter.to_entry()]) {
            Ok(counted) => {
                self.main.submit_both(end, companion, counted.index.wrapping_add(1));
                return Ok(());
            }
            Err(early) => early,
        };
        // The first queue is submitted before any wait: the wait may need its completions.
        self.main.submit(end);
        let Some(early) = early else {
            return self.count_completion(companion, of, counter, budget).map(drop);
        };
        let counted = publish_reserved(early, budget)?;
        companion.submit(counted.index.wrapping_add(1));
        Ok(())
    }

    /// Writes bytes, and has the companion raise a counter when they are written. Returns the ticket of the last WRITE.
    ///
    /// # Errors
    /// [`OpError`]. If the companion's queue refuses ([`OpError::Refused`]), the bytes have been posted.
    pub fn write_and_count(
        &self,
        companion: &DeviceQueue<M>,
        bytes: &PutBytes,
        counter: &WordAddition,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        let [write, last] = self.publish_write(bytes, &WriteExtras::default(), budget, &mut None)?;
        self.submit_and_count(last, companion, write, counter, budget)?;
        Ok(write)
    }

    /// Posts an addition to a word of another process.
    pub(crate) fn post_addition(
        &self,
        to: &WordAddition,
        fence: EntryFence,
        budget: &mut impl WaitBudget,
    ) -> Result<EntryTicket, OpError> {
        self.post_entry(&to.to_entry().with_fence(fence), budget)
    }
}

fn publish_reserved<M: WordMemory>(
    reservation: QueueReservation<'_, M>,
    budget: &mut impl WaitBudget,
) -> Result<EntryTicket, OpError> {
    // A reservation that fails to publish in time is dropped there, and becomes NOPs.
    reservation.publish_within(budget).map_err(|_left| OpError::Refused(ReserveError::Busy))
}
