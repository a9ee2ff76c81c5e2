//! The operations of one thread on a window: puts, gets, signals, counters, barriers, and waits for them. Kernels
//! that run on the host call it; each call writes queue entries or polls words.

use std::cell::Cell;
use std::time::Duration;

use trunkline_device::{GuestBudget, GuestQueues, HostDeadline, QueueWords, abort_process};
use trunkline_device_queue::{
    DeviceQueue, EntryTicket, OrDie, SignalSlot, SlotCondition, WaitBudget, WaitError, WordAddition, poll_sum,
};
use trunkline_proto::wire::device_queue::{
    AbortWord, AtomicChange, EntryStatus, EntryWork, LENGTH_MAX, LocalAddress, PeerAddress, QueueEntry,
};

use super::error::KernelError;
use super::window::{OwnPart, SourceMemory};

/// Entries that are posted together, at most. Of a put of more than a GiB, the writes before the last one are posted
/// ahead.
const TOGETHER: usize = 3;

/// The notifications of a put: changes of words that follow its bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PutNotification {
    /// The signal of the target rank, and the number to add to it.
    pub signal: Option<(u32, u64)>,
    /// The counter of this rank, and the number to add to it once the bytes are placed. The entry of the last write
    /// adds it, or an entry of its own if the number is more than 2^32 - 1. A ticket or a flush guarantees that the
    /// bytes are placed, not that the counter was raised: wait for the counter.
    pub counter: Option<(u32, u64)>,
}

impl PutNotification {
    /// No notification.
    pub const NONE: Self = Self { signal: None, counter: None };

    /// Adds 1 to a signal of the target rank.
    ///
    /// # Examples
    /// ```
    /// use trunkline::device::PutNotification;
    ///
    /// let with = PutNotification::signal(3); // signal 3 of the target rank
    /// assert_eq!(with.signal, Some((3, 1)));
    /// assert_eq!(with.counter, None);
    /// ```
    #[must_use]
    pub const fn signal(id: u32) -> Self {
        Self::signal_by(id, 1)
    }

    /// Adds `value` to a signal of the target rank, so that a number travels with the bytes.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// # let next = (kernel.rank() + 1) % kernel.size();
    /// # let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// let items = [1_u8, 2, 3];
    /// let with = PutNotification::signal_by(0, items.len() as u64);
    /// kernel.put_bytes(next, 64, 0, &items, with)?;
    /// let count = kernel.take_signal(previous, 0, 1)?; // how many items the previous rank has put
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn signal_by(id: u32, value: u64) -> Self {
        Self { signal: Some((id, value)), counter: None }
    }

    /// Adds 1 to a counter of this rank.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// for rank in 0..kernel.size() {
    ///     kernel.put(rank, 64, 0, 8, PutNotification::counter(0))?;
    /// }
    /// kernel.wait_counter(0, kernel.size() as u64)?; // all bytes are placed at their targets
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn counter(id: u32) -> Self {
        Self { signal: None, counter: Some((id, 1)) }
    }

    /// Adds 1 to a counter of this rank, too.
    ///
    /// # Examples
    /// ```
    /// use trunkline::device::PutNotification;
    ///
    /// // The target waits for signal 0, and this rank for counter 2.
    /// let with = PutNotification::signal(0).and_counter(2);
    /// assert_eq!((with.signal, with.counter), (Some((0, 1)), Some((2, 1))));
    /// ```
    #[must_use]
    pub const fn and_counter(self, id: u32) -> Self {
        Self { counter: Some((id, 1)), ..self }
    }
}

/// A posted put, get or signal, for [`Kernel::wait`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostedTransfer {
    pub(super) lane: usize,
    /// The ticket of the last entry that moves bytes.
    pub(super) bytes: EntryTicket,
}

/// The access of one thread to a window, through one channel.
///
/// NVSHMEM's device calls (`nvshmem_putmem_signal` and others) are the counterpart. A kernel posts entries to its
/// channel's queues, one per lane, in turns.
#[derive(Debug)]
pub struct Kernel<'w> {
    pub(super) part: &'w OwnPart,
    pub(super) channel: u32,
    lanes: &'w [DeviceQueue<QueueWords>],
    /// The lane of the next put or get.
    cursor: Cell<usize>,
    /// The last entry per lane that no flush has covered.
    last: Vec<Cell<Option<EntryTicket>>>,
    limit: Option<Duration>,
    /// Whether a wait beyond the limit ends the process.
    dies: bool,
    /// The queues of the executor, if that is another process.
    guest: Option<&'w GuestQueues>,
}

/// The limit of a wait.
pub(super) enum WaitLimit<'w> {
    Own(HostDeadline),
    /// The wait ends also if the executing process has ended.
    Guests(GuestBudget<'w>),
}

impl WaitBudget for WaitLimit<'_> {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        match self {
            Self::Own(patience) => patience.spend_poll(),
            Self::Guests(watching) => watching.spend_poll(),
        }
    }
}

impl<'w> Kernel<'w> {
    pub(super) fn new(
        part: &'w OwnPart,
        channel: u32,
        lanes: &'w [DeviceQueue<QueueWords>],
        guest: Option<&'w GuestQueues>,
    ) -> Self {
        let last = lanes.iter().map(|_| Cell::new(None)).collect();
        Self { part, channel, lanes, cursor: Cell::new(0), last, limit: None, dies: false, guest }
    }

    /// Returns this kernel with a limit for each of its waits. A wait that exceeds it fails with
    /// [`WaitError::Timeout`]; the awaited change may still happen later.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use trunkline::device::{KernelError, WaitError, Window};
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// let kernel = window.kernel(0)?.limit(Duration::from_secs(1));
    /// match kernel.wait_signal(1, 0, 1) {
    ///     // The wait can be repeated: the signal may still arrive.
    ///     Err(KernelError::Wait(WaitError::Timeout)) => eprintln!("rank 1 is late"),
    ///     waited => println!("the value of signal 0 is {}", waited?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Returns this kernel with waits that end the process when they exceed the limit (`SIGABRT`, with a line on
    /// standard error). For kernels that cannot continue without the awaited change. Other ranks see the death of
    /// this rank.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use trunkline::device::Window;
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// let kernel = window.kernel(0)?.limit(Duration::from_secs(60)).or_die();
    /// kernel.wait_signal(1, 0, 1)?; // aborts this process if rank 1 is more than a minute late
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn or_die(self) -> Self {
        Self { dies: true, ..self }
    }

    /// Returns the number of this rank.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// let next = (kernel.rank() + 1) % kernel.size(); // the ranks form a ring
    /// let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// kernel.signal(next, 0, 1)?;
    /// kernel.wait_signal(previous, 0, 1)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.part.rank
    }

    /// Returns the number of ranks of the window.
    ///
    /// # Examples
    /// See [`rank`](Self::rank).
    #[must_use]
    pub fn size(&self) -> usize {
        self.part.keys.len()
    }

    pub(super) fn wait_budget(&self) -> OrDie<WaitLimit<'w>> {
        let patience = self.limit.map_or(HostDeadline::without_deadline(), HostDeadline::from_duration);
        let patience = match self.guest {
            None => WaitLimit::Own(patience),
            Some(guest) => WaitLimit::Guests(guest.with_deadline(patience)),
        };
        OrDie::new(patience, self.dies.then_some(abort_process as fn() -> !))
    }

    pub(super) fn remote_address(&self, rank: usize, addr: u64) -> Result<PeerAddress, KernelError> {
        let key = self.part.keys.get(rank).ok_or(KernelError::NoRank(rank))?;
        Ok(PeerAddress { peer: rank as u32, addr, key: key.to_bits() })
    }

    fn check_data_range(&self, at: u64, len: u64) -> Result<(), KernelError> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.part.layout.shape().bytes);
        if inside { Ok(()) } else { Err(KernelError::Range { at, len }) }
    }

    pub(super) fn add_entry(at: PeerAddress, value: u64) -> QueueEntry {
        QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(value), poisoned: true })
    }

    fn signal_entry(&self, rank: usize, id: u32, value: u64) -> Result<QueueEntry, KernelError> {
        let slot = self.part.layout.signal_slot(self.rank() as u32, id);
        let slot = slot.ok_or(KernelError::None { what: "signal", id })?;
        Ok(Self::add_entry(self.remote_address(rank, slot)?, value))
    }

    fn counter_addition(&self, id: u32, value: u64) -> Result<WordAddition, KernelError> {
        let slot = self.part.layout.counter_slot(id).ok_or(KernelError::None { what: "counter", id })?;
        Ok(WordAddition { at: self.remote_address(self.rank(), slot)?, value, poisoned: true })
    }

    /// Returns the last write of a put, with the counter attached if the entry has room for it, else with the
    /// counter's own entry.
    fn write_with_counter(&self, write: QueueEntry, counter: &WordAddition) -> [Option<QueueEntry>; 2] {
        let apart = [Some(write), Some(counter.to_entry())];
        counter.attach_to(write).map_or(apart, |counted| [Some(counted), None])
    }

    fn next_lane(&self) -> usize {
        let lane = self.cursor.get();
        self.cursor.set((lane + 1) % self.lanes.len());
        lane
    }

    pub(super) fn post_entries(
        &self,
        lane: usize,
        entries: &[QueueEntry],
    ) -> Result<EntryTicket, KernelError> {
        let queue = self.lanes.get(lane).ok_or(KernelError::None { what: "lane", id: lane as u32 })?;
        let ticket = queue.post(entries, &mut self.wait_budget())?;
        if let Some(last) = self.last.get(lane) {
            last.set(Some(ticket));
        }
        Ok(ticket)
    }

    /// Writes `len` bytes of this rank's part, from offset `from` on, to a rank's part, from offset `to` on, and then
    /// the notifications. Returns when the entries are posted; the source must not change until [`wait`](Self::wait)
    /// or [`flush`](Self::flush) returns. Puts are not ordered among each other.
    ///
    /// # Errors
    /// - [`KernelError::NoRank`], [`KernelError::Range`]: the rank or the bytes are out of range.
    /// - [`KernelError::None`]: the window has no such signal or counter.
    /// - [`KernelError::Post`]: the queue does not accept the entries. Of a put of more than a GiB, the first parts
    ///   may have been posted.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// # let next = (kernel.rank() + 1) % kernel.size();
    /// # let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// kernel.write(0, b"hello")?;
    /// // From offset 0 of this rank to offset 100 of the next rank; then signal 0 of that rank.
    /// kernel.put(next, 100, 0, 5, PutNotification::signal(0))?;
    /// kernel.wait_signal(previous, 0, 1)?;
    /// let mut text = [0; 5];
    /// kernel.read(100, &mut text)?; // the bytes of the previous rank
    /// # Ok(())
    /// # }
    /// ```
    pub fn put(
        &self,
        rank: usize,
        to: u64,
        from: u64,
        len: u64,
        with: PutNotification,
    ) -> Result<PostedTransfer, KernelError> {
        self.check_data_range(from, len)?;
        let key = self.part.keys.get(self.rank()).ok_or(KernelError::NoRank(self.rank()))?;
        self.put_from(rank, to, LocalAddress { addr: from, key: key.to_bits() }, len, with)
    }

    /// Writes `len` bytes of registered memory, from offset `from` of `source` on, to a rank's part, as
    /// [`Kernel::put`] does.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    ///
    /// # Examples
    /// ```no_run
    /// # use std::error::Error;
    /// # use trunkline::device::{Devices, Kernel, PutNotification};
    /// # fn example(devices: &Devices, kernel: &Kernel<'_>) -> Result<(), Box<dyn Error>> {
    /// let source = devices.source(1 << 20)?;
    /// // 4096 bytes from offset 8192 of the source to offset 0 of rank 1.
    /// kernel.put_source(1, 0, &source, 8192, 4096, PutNotification::signal(0))?;
    /// kernel.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_source(
        &self,
        rank: usize,
        to: u64,
        source: &SourceMemory,
        from: u64,
        len: u64,
        with: PutNotification,
    ) -> Result<PostedTransfer, KernelError> {
        source.memory.checked_address(from, len).map_err(|_| KernelError::Range { at: from, len })?;
        self.put_from(rank, to, LocalAddress { addr: from, key: source.key.to_bits() }, len, with)
    }

    /// Copies bytes to this rank's part, from offset `from` on, and puts them from there. The slice may be changed
    /// when the call returns, the part only when the put is complete.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// # let next = (kernel.rank() + 1) % kernel.size();
    /// # let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// // The bytes are staged at offset 0 of this rank, and put to offset 64 of the next rank.
    /// kernel.put_bytes(next, 64, 0, b"hello", PutNotification::signal(0))?;
    /// kernel.wait_signal(previous, 0, 1)?;
    /// let mut text = [0; 5];
    /// kernel.read(64, &mut text)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn put_bytes(
        &self,
        rank: usize,
        to: u64,
        from: u64,
        bytes: &[u8],
        with: PutNotification,
    ) -> Result<PostedTransfer, KernelError> {
        self.write(from, bytes)?;
        self.put(rank, to, from, bytes.len() as u64, with)
    }

    /// Copies bytes to this rank's part, from offset `at` on.
    ///
    /// # Errors
    /// [`KernelError::Range`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// kernel.write(0, &7_u64.to_le_bytes())?;
    /// let put = kernel.put(1, 0, 0, 8, PutNotification::NONE)?;
    /// kernel.wait(put)?; // before that, the put may still read the bytes
    /// kernel.write(0, &8_u64.to_le_bytes())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), KernelError> {
        self.check_data_range(at, bytes.len() as u64)?;
        self.part.memory.write(at, bytes).map_err(|_| KernelError::Range { at, len: bytes.len() as u64 })
    }

    /// Copies bytes out of this rank's part, from offset `at` on. Data of other ranks can be read after a wait for
    /// the signal or barrier that follows it.
    ///
    /// # Errors
    /// [`KernelError::Range`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// kernel.wait_signal(1, 0, 1)?; // before that, the bytes of rank 1 may be incomplete
    /// let mut word = [0; 8];
    /// kernel.read(0, &mut word)?;
    /// println!("rank 1 has sent {}", u64::from_le_bytes(word));
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), KernelError> {
        let len = into.len() as u64;
        self.check_data_range(at, len)?;
        self.part.memory.read(at, into).map_err(|_| KernelError::Range { at, len })
    }

    fn put_from(
        &self,
        rank: usize,
        to: u64,
        from: LocalAddress,
        len: u64,
        with: PutNotification,
    ) -> Result<PostedTransfer, KernelError> {
        self.check_data_range(to, len)?;
        let lane = self.next_lane();
        let target = self.remote_address(rank, to)?;
        let write = |offset: u64, len| {
            let from = LocalAddress { addr: from.addr + offset, ..from };
            let to = PeerAddress { addr: target.addr + offset, ..target };
            QueueEntry::new(EntryWork::Write { from, to, len, imm: None })
        };
        let mut done = 0;
        while len - done > LENGTH_MAX {
            self.post_entries(lane, &[write(done, LENGTH_MAX)])?;
            done += LENGTH_MAX;
        }
        let write = write(done, len - done);
        // The counter is first: this process executes it, without waiting for a reply of the target.
        let counter = with.counter.map(|(id, value)| self.counter_addition(id, value)).transpose()?;
        let [write, counter] =
            counter.map_or([Some(write), None], |counter| self.write_with_counter(write, &counter));
        let signal = with.signal.map(|(id, value)| self.signal_entry(rank, id, value)).transpose()?;
        let mut entries = [QueueEntry::new(EntryWork::Nop); TOGETHER];
        let mut count = 0;
        for (place, entry) in entries.iter_mut().zip([write, counter, signal].into_iter().flatten()) {
            *place = entry;
            count += 1;
        }
        let last = self.post_entries(lane, &entries[..count])?;
        let bytes = EntryTicket { index: last.index.wrapping_sub(count as u64 - 1), ..last };
        Ok(PostedTransfer { lane, bytes })
    }

    /// Reads `len` bytes of a rank's part, from offset `from` on, into this rank's part, from offset `into` on.
    /// Returns when the entries are posted; the bytes have arrived when [`wait`](Self::wait) or
    /// [`flush`](Self::flush) returns.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// let get = kernel.get(1, 0, 64, 8)?; // from offset 0 of rank 1 to offset 64 of this rank
    /// kernel.wait(get)?;
    /// let mut word = [0; 8];
    /// kernel.read(64, &mut word)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, rank: usize, from: u64, into: u64, len: u64) -> Result<PostedTransfer, KernelError> {
        self.check_data_range(from, len)?;
        self.check_data_range(into, len)?;
        let lane = self.next_lane();
        let own = self.remote_address(self.rank(), into)?;
        let from = self.remote_address(rank, from)?;
        let into = LocalAddress { addr: into, key: own.key };
        let mut done = 0;
        loop {
            let piece = (len - done).min(LENGTH_MAX);
            let into = LocalAddress { addr: into.addr + done, ..into };
            let from = PeerAddress { addr: from.addr + done, ..from };
            let bytes =
                self.post_entries(lane, &[QueueEntry::new(EntryWork::Read { into, from, len: piece })])?;
            done += piece;
            if done == len {
                return Ok(PostedTransfer { lane, bytes });
            }
        }
    }

    /// Adds `value` to a signal of a rank, after all earlier puts on the first lane. Puts on other lanes are not
    /// ordered before it: call [`flush`](Self::flush) first.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// # let next = (kernel.rank() + 1) % kernel.size();
    /// # let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// for row in 0..8 {
    ///     kernel.put(next, 4096 + 512 * row, 512 * row, 512, PutNotification::NONE)?;
    /// }
    /// kernel.flush()?; // the rows may be on other lanes than the signal
    /// kernel.signal(next, 0, 1)?;
    /// kernel.wait_signal(previous, 0, 1)?; // all rows of the previous rank have arrived
    /// # Ok(())
    /// # }
    /// ```
    pub fn signal(&self, rank: usize, id: u32, value: u64) -> Result<PostedTransfer, KernelError> {
        Ok(PostedTransfer { lane: 0, bytes: self.post_entries(0, &[self.signal_entry(rank, id, value)?])? })
    }

    /// Waits until a posted operation is complete: the source of a put may be changed, and the bytes of a get have
    /// arrived.
    ///
    /// # Errors
    /// [`KernelError::Wait`]: the operation failed, or exceeded the limit.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// let put = kernel.put(1, 0, 0, 8, PutNotification::NONE)?;
    /// // The kernel can compute here while the bytes are in flight.
    /// kernel.wait(put)?;
    /// kernel.write(0, &[0; 8])?; // the source may be changed
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self, posted: PostedTransfer) -> Result<(), KernelError> {
        let queue = self.lanes.get(posted.lane).ok_or(WaitError::Stale)?;
        Ok(queue.wait(posted.bytes, &mut self.wait_budget())?)
    }

    /// Waits until all operations that this kernel has posted are complete. NVSHMEM's counterpart is `nvshmem_quiet`.
    ///
    /// # Errors
    /// [`KernelError::Wait`] of the first lane with a failure.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// for rank in 0..kernel.size() {
    ///     kernel.put(rank, 64, 0, 8, PutNotification::NONE)?;
    /// }
    /// kernel.flush()?; // waits for all puts, where `wait` waits for one
    /// kernel.write(0, &[0; 8])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&self) -> Result<(), KernelError> {
        for (queue, last) in self.lanes.iter().zip(&self.last) {
            if let Some(ticket) = last.get() {
                queue.wait(ticket, &mut self.wait_budget())?;
                last.set(None);
            }
        }
        Ok(())
    }

    pub(super) fn wait_slot(&self, slot: SignalSlot, value: u64) -> Result<u64, KernelError> {
        let until = SlotCondition::AtLeast(value);
        let words = &self.part.words;
        let none = KernelError::None { what: "lane", id: 0 };
        let first = self.lanes.first().ok_or(none)?;
        Ok(slot.wait_unless_aborted(words, until, first, &mut self.wait_budget())?)
    }

    fn signal_slot(&self, by: usize, id: u32) -> Result<SignalSlot, KernelError> {
        let layout = &self.part.layout;
        let slot = layout.signal_slot(by as u32, id);
        let base = layout.signal_base(by as u32, id);
        let (slot, base) = slot.zip(base).ok_or(KernelError::None { what: "signal", id })?;
        Ok(SignalSlot::with_poison_word(slot).with_base(base))
    }

    fn counter_slot(&self, id: u32) -> Result<SignalSlot, KernelError> {
        let layout = &self.part.layout;
        let slot = layout.counter_slot(id).zip(layout.counter_base(id));
        let (slot, base) = slot.ok_or(KernelError::None { what: "counter", id })?;
        Ok(SignalSlot::with_poison_word(slot).with_base(base))
    }

    /// Waits until rank `by` has raised signal `id` here to at least `value`, and returns its value. Bytes that `by`
    /// put before the signal can be read then. NVSHMEM's counterpart is `nvshmem_signal_wait_until`.
    ///
    /// # Errors
    /// [`KernelError::Wait`]: a put or the rank has failed, or the limit is exceeded. [`KernelError::None`]: the
    /// window has no such signal.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// # let next = (kernel.rank() + 1) % kernel.size();
    /// # let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// for round in 1..=10_u64 {
    ///     kernel.put_bytes(next, 64, 0, &round.to_le_bytes(), PutNotification::signal(0))?;
    ///     kernel.wait_signal(previous, 0, round)?; // each round adds one signal
    ///     let mut word = [0; 8];
    ///     kernel.read(64, &mut word)?;
    ///     kernel.barrier(0)?; // the next round may overwrite the bytes
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_signal(&self, by: usize, id: u32, value: u64) -> Result<u64, KernelError> {
        self.wait_slot(self.signal_slot(by, id)?, value)
    }

    /// Waits until rank `by` has raised signal `id` here to at least `value`, and resets it. Returns its former
    /// value.
    ///
    /// # Errors
    /// As [`wait_signal`](Self::wait_signal); the signal then keeps its value.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// # let next = (kernel.rank() + 1) % kernel.size();
    /// # let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// for round in 0..10 {
    ///     kernel.signal(next, 0, 100 + round)?; // a number that differs from round to round
    ///     let number = kernel.take_signal(previous, 0, 1)?; // and resets the signal
    ///     println!("round {round}: {number}");
    ///     kernel.barrier(0)?; // without it, the numbers of two rounds could add up
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_signal(&self, by: usize, id: u32, value: u64) -> Result<u64, KernelError> {
        self.wait_signal(by, id, value)?;
        self.reset_signal(by, id)
    }

    /// Waits until the values of signal `id` of all ranks add up to at least `value`. Returns the sum.
    ///
    /// # Errors
    /// As [`wait_signal`](Self::wait_signal).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// for rank in 0..kernel.size() {
    ///     kernel.put(rank, 64, 0, 8, PutNotification::signal(0))?;
    /// }
    /// // Each rank raises the signal once, in any order.
    /// kernel.wait_signals(0, kernel.size() as u64)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_signals(&self, id: u32, value: u64) -> Result<u64, KernelError> {
        self.signal_slot(0, id)?;
        let slots = (0..self.size()).filter_map(|by| self.signal_slot(by, id).ok());
        let mut budget = self.wait_budget();
        loop {
            if let Some(sum) = poll_sum(&self.part.words, slots.clone(), value)? {
                return Ok(sum);
            }
            if let Some(why) = self.lanes.first().and_then(DeviceQueue::abort_word) {
                return Err(WaitError::Aborted(why).into());
            }
            if !budget.spend_poll() {
                return Err(WaitError::Timeout.into());
            }
            trunkline_device_queue::WordMemory::pause(&self.part.words);
        }
    }

    /// Returns the value to which rank `by` has raised signal `id` here. Does not wait.
    ///
    /// # Errors
    /// [`KernelError::None`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// let value = kernel.read_signal(1, 0)?; // earlier kernels may have raised it
    /// kernel.signal(1, 1, 1)?; // asks rank 1 for one more signal
    /// kernel.wait_signal(1, 0, value + 1)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_signal(&self, by: usize, id: u32) -> Result<u64, KernelError> {
        Ok(self.signal_slot(by, id)?.read_value(&self.part.words))
    }

    /// Resets a signal of this rank to 0, without losing an addition: those that have arrived are removed, later ones
    /// count. Returns its former value.
    ///
    /// # Errors
    /// [`KernelError::None`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// let rounds = kernel.reset_signal(1, 0)?;
    /// println!("rank 1 has raised the signal to {rounds}");
    /// kernel.signal(1, 1, 1)?; // rank 1 may begin the next phase
    /// kernel.wait_signal(1, 0, 1)?; // counts from 0 again
    /// # Ok(())
    /// # }
    /// ```
    pub fn reset_signal(&self, by: usize, id: u32) -> Result<u64, KernelError> {
        let reset = self.signal_slot(by, id)?.reset_base(&self.part.words);
        Ok(reset.unwrap_or(0))
    }

    /// Waits until a counter of this rank is at least `value`, and returns its value.
    ///
    /// # Errors
    /// [`KernelError::Wait`], [`KernelError::None`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// for row in 0..8 {
    ///     kernel.put(1, 4096 + 512 * row, 512 * row, 512, PutNotification::counter(0))?;
    /// }
    /// kernel.wait_counter(0, 8)?; // all rows are placed at rank 1
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_counter(&self, id: u32, value: u64) -> Result<u64, KernelError> {
        self.wait_slot(self.counter_slot(id)?, value)
    }

    /// Waits until all ranks have called this barrier as often as this rank. All puts of this kernel are complete
    /// then. The window counts the calls, so a later kernel continues the count. NVSHMEM's counterpart is
    /// `nvshmem_barrier_all`.
    ///
    /// # Errors
    /// [`KernelError::Wait`], [`KernelError::Post`], [`KernelError::None`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, PutNotification};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// let at = 8 * (1 + kernel.rank() as u64); // each rank writes into its own place
    /// for rank in 0..kernel.size() {
    ///     kernel.put(rank, at, 0, 8, PutNotification::NONE)?;
    /// }
    /// kernel.barrier(0)?;
    /// let mut words = vec![0; 8 * kernel.size()];
    /// kernel.read(8, &mut words)?; // the words of all ranks
    /// # Ok(())
    /// # }
    /// ```
    pub fn barrier(&self, id: u32) -> Result<(), KernelError> {
        use std::sync::atomic::Ordering::AcqRel;

        use trunkline_device_queue::WordMemory as _;
        let none = KernelError::None { what: "barrier", id };
        let layout = &self.part.layout;
        let words = &self.part.words;
        self.flush()?;
        let epoch = layout.barrier_epoch(id).ok_or(none)?;
        let round = words.fetch_add(epoch, 1, AcqRel) + 1;
        let others = || (0..self.size()).filter(|&other| other != self.rank());
        for other in others() {
            let slot = layout.barrier_slot(id, self.rank() as u32).ok_or(none)?;
            self.post_entries(0, &[Self::add_entry(self.remote_address(other, slot)?, 1)])?;
        }
        for other in others() {
            let slot = layout.barrier_slot(id, other as u32).ok_or(none)?;
            self.wait_slot(SignalSlot::with_poison_word(slot), round)?;
        }
        Ok(())
    }

    /// Aborts the channel of this kernel: all its waits, for posted operations, signals and counters, end with
    /// [`WaitError::Aborted`], and no further entry is executed.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError, WaitError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// kernel.abort(7); // a number that the program defines
    /// match kernel.wait_signal(1, 0, 1) {
    ///     Err(KernelError::Wait(WaitError::Aborted(why))) => eprintln!("reason {}", why.reason),
    ///     waited => println!("the signal was raised before: {}", waited?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(&self, reason: u32) {
        for queue in self.lanes {
            queue.abort(AbortWord { status: EntryStatus::Aborted, reason });
        }
    }
}
