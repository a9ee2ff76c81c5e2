//! A lane towards another process: a queue, and its companion once somebody counts. Both APIs ([`original`](crate::original),
//! [`successor`](crate::successor)) write their entries by it.

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

/// Finds the queue of a number, when the host has made a companion. Who has the table implements it.
pub trait CompanionDirectory<M> {
    /// The queue; `None` if it is not known here.
    fn find_queue(&self, number: u32) -> Option<DeviceQueue<M>>;
}

impl<M, F: Fn(u32) -> Option<DeviceQueue<M>>> CompanionDirectory<M> for F {
    fn find_queue(&self, number: u32) -> Option<DeviceQueue<M>> {
        self(number)
    }
}

/// An operation was not posted, or not as a whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpError {
    /// The queue did not take it.
    #[error(transparent)]
    Refused(#[from] ReserveError),
    /// There is no companion, or waiting for it has ended.
    #[error("no companion: {0}")]
    Companion(WaitError),
    /// A put of nothing.
    #[error("a put of no bytes")]
    Empty,
    /// The bytes are not all within an address space.
    #[error("{len} bytes from {addr:#x} on")]
    Range {
        /// The first byte.
        addr: u64,
        /// How many.
        len: u64,
    },
    /// More threads than the queue is deep, or none.
    #[error("a group of {0} threads")]
    Group(u32),
}

/// Bytes that a put is to bring there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PutBytes {
    /// From.
    pub from: LocalAddress,
    /// To.
    pub to: PeerAddress,
    /// How many.
    pub len: u64,
}

impl PutBytes {
    /// Entries that they take: one for each GiB, and one for nothing.
    #[must_use]
    pub const fn entry_count(&self) -> u64 {
        let pieces = self.len.div_ceil(LENGTH_MAX);
        if pieces == 0 { 1 } else { pieces }
    }

    /// The WRITE of a piece of `len` bytes from `offset` on.
    const fn piece_entry(&self, offset: u64, len: u64) -> QueueEntry {
        let from = LocalAddress { addr: self.from.addr + offset, ..self.from };
        let to = PeerAddress { addr: self.to.addr + offset, ..self.to };
        QueueEntry::new(EntryWork::Write { from, to, len, imm: None })
    }

    /// The WRITE of a GiB of them, below [`entry_count`](Self::entry_count).
    #[must_use]
    pub const fn nth_entry(&self, nth: u64) -> QueueEntry {
        let offset = nth * LENGTH_MAX;
        let left = self.len - offset;
        self.piece_entry(offset, if left < LENGTH_MAX { left } else { LENGTH_MAX })
    }

    const fn last_share(&self, threads: u32) -> u64 {
        self.len - self.len / threads as u64 * (threads as u64 - 1)
    }

    /// The WRITE of one of the threads of a group: as many bytes as each other, and the last one has what remains; a NOP for none.
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

/// A signal of another process, or a counter of this one: the word and what is added.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WordAddition {
    /// The word.
    pub at: PeerAddress,
    /// Added.
    pub value: u64,
    /// Whether a poison word stands behind it.
    pub poisoned: bool,
}

impl WordAddition {
    /// The entry.
    #[must_use]
    pub const fn to_entry(&self) -> QueueEntry {
        let Self { at, value, poisoned } = *self;
        QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(value), poisoned })
    }

    /// A WRITE that raises this counter of its own process once it has completed; `None` of another entry, of a word that is not aligned, or if
    /// there is more to add than an entry has room for.
    #[must_use]
    pub fn attach_to(&self, write: QueueEntry) -> Option<QueueEntry> {
        let at = LocalAddress { addr: self.at.addr, key: self.at.key };
        let count = CounterUpdate { at, value: self.value as u32, poisoned: self.poisoned };
        let work = write.work.with_counter(count).filter(|_| self.fits_entry())?;
        Some(QueueEntry { work, ..write })
    }

    /// Whether an entry has room for it.
    const fn fits_entry(&self) -> bool {
        self.value <= u32::MAX as u64 && self.at.addr.is_multiple_of(8)
    }

    /// Whether the last WRITE of some bytes can raise it, where each of so many threads writes its share; 0: in pieces that an entry has room for.
    pub(crate) const fn fits_last_write(&self, bytes: &PutBytes, threads: u32) -> bool {
        self.fits_entry() && (threads == 0 || bytes.last_share(threads) <= LENGTH_MAX)
    }
}

/// What goes with bytes that are written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteExtras {
    /// Behind the last WRITE.
    pub(crate) behind: Option<QueueEntry>,
    /// Raised by the last WRITE.
    pub(crate) counter: Option<WordAddition>,
}

impl WriteExtras {
    /// The last WRITE, with what it raises.
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
    /// Found once: a queue has one companion, and keeps it.
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
    /// A queue, and where its companion will be found.
    #[must_use]
    pub const fn new(main: DeviceQueue<M>, directory: D) -> Self {
        Self { main, directory, companion: OnceBox::new() }
    }

    /// Writes bytes, and behind them one more entry if given, with one doorbell for what fits into the queue at once; the tickets
    /// of the last WRITE and of the last entry.
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

    /// The same, but what fits into the queue last is not submitted: that is the caller's to do at once. If it fails, `part` is the last
    /// ticket of what was submitted before that.
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

    /// Writes the shares of a group's threads, by one reservation, and submits nothing, as `publish_write`.
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

    /// The companion, which the host makes when it is first asked for. The directory is asked once.
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

    /// Counts an entry when it has completed; the companion's ticket.
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

    /// Submits what was published up to `last`, and has the companion count an entry of it when that has completed: by one look of the engine
    /// at both queues, if the companion has room.
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
        // Nothing is waited for before the first queue is submitted.
        self.main.submit(end);
        let Some(early) = early else {
            return self.count_completion(companion, of, counter, budget).map(drop);
        };
        let counted = publish_reserved(early, budget)?;
        companion.submit(counted.index.wrapping_add(1));
        Ok(())
    }

    /// Writes bytes, and has the companion raise a counter when they are written; the ticket of the last WRITE.
    ///
    /// # Errors
    /// [`OpError`]; before [`OpError::Refused`] of the companion, the bytes have been posted.
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

    /// Adds to a word of the other process.
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
    // What is given up here becomes NOPs.
    reservation.publish_within(budget).map_err(|_left| OpError::Refused(ReserveError::Busy))
}
