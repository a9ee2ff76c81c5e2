//! What one thread uses of a window: puts, gets, signals, counters, barriers, and waits for them.

use std::cell::Cell;
use std::time::Duration;

use trunkline_device::{Guest, Patience, Watching, Words, die};
use trunkline_device_queue::{
    Addition, Budget, Condition, OrDie, Queue, Slot, Ticket, WaitError, look_at_sum,
};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::wire::device_queue::{Aborted, Atomic, Entry, LENGTH_MAX, Local, Remote, Status, Work};

use super::error::KernelError;
use super::window::{OwnPart, Source, planted};

/// Entries that go with one another: writes of all but the last GiB are posted before.
const TOGETHER: usize = 3;

/// What goes with a put.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct With {
    /// A signal of the other rank, and by how much it is raised.
    pub signal: Option<(u32, u64)>,
    /// A counter of this rank, and by how much it is raised once the bytes are placed: by the last write's own entry, or by one of its own if that is more than
    /// 2^32 - 1. A ticket and a flush say that the bytes are placed, and not that it was raised: wait for it.
    pub counter: Option<(u32, u64)>,
}

impl With {
    /// Nothing.
    pub const NONE: Self = Self { signal: None, counter: None };

    /// A signal, by 1.
    #[must_use]
    pub const fn signal(id: u32) -> Self {
        Self::signal_by(id, 1)
    }

    /// A signal, by so much: a number that goes with the bytes.
    #[must_use]
    pub const fn signal_by(id: u32, value: u64) -> Self {
        Self { signal: Some((id, value)), counter: None }
    }

    /// A counter, by 1.
    #[must_use]
    pub const fn counter(id: u32) -> Self {
        Self { signal: None, counter: Some((id, 1)) }
    }

    /// And a counter, by 1.
    #[must_use]
    pub const fn and_counter(self, id: u32) -> Self {
        Self { counter: Some((id, 1)), ..self }
    }
}

/// What was posted: it can be waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Posted {
    pub(super) lane: usize,
    /// The last entry that moves bytes.
    pub(super) bytes: Ticket,
}

/// What one thread uses of a window.
#[derive(Debug)]
pub struct Kernel<'w> {
    pub(super) part: &'w OwnPart,
    pub(super) channel: u32,
    lanes: &'w [Queue<Words>],
    /// Whose turn it is.
    cursor: Cell<usize>,
    /// The last entry of each lane that no flush has covered.
    last: Vec<Cell<Option<Ticket>>>,
    limit: Option<Duration>,
    /// A wait that takes longer ends the process.
    dies: bool,
    /// Where another process executes.
    guest: Option<&'w Guest>,
    pub(super) mutant: Mutant,
}

/// How long a wait may take.
pub(super) enum Limit<'w> {
    Own(Patience),
    /// The end of the process that executes ends it, too.
    Guests(Watching<'w>),
}

impl Budget for Limit<'_> {
    #[inline]
    fn goes_on(&mut self) -> bool {
        match self {
            Self::Own(patience) => patience.goes_on(),
            Self::Guests(watching) => watching.goes_on(),
        }
    }
}

impl<'w> Kernel<'w> {
    pub(super) fn new(
        part: &'w OwnPart,
        channel: u32,
        lanes: &'w [Queue<Words>],
        guest: Option<&'w Guest>,
    ) -> Self {
        let last = lanes.iter().map(|_| Cell::new(None)).collect();
        Self {
            part,
            channel,
            lanes,
            cursor: Cell::new(0),
            last,
            limit: None,
            dies: false,
            guest,
            mutant: planted(),
        }
    }

    /// The same, and none of its waits lasts longer. One that would ends with [`WaitError::Timeout`]; what it waited for may still come.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// The same, and a wait that would last longer than the limit ends the process instead (`SIGABRT`, with a line on standard error): for kernels that
    /// cannot go on without what they wait for. Other ranks hear of it as of any death.
    #[must_use]
    pub fn or_die(self) -> Self {
        Self { dies: true, ..self }
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.part.rank
    }

    /// Ranks of the window.
    #[must_use]
    pub fn size(&self) -> usize {
        self.part.keys.len()
    }

    pub(super) fn patience(&self) -> OrDie<Limit<'w>> {
        let patience = self.limit.map_or(Patience::endless(), Patience::of);
        let patience = match self.guest {
            None => Limit::Own(patience),
            Some(guest) => Limit::Guests(guest.watching(patience)),
        };
        OrDie::new(patience, self.dies.then_some(die as fn() -> !), self.mutant)
    }

    pub(super) fn remote(&self, rank: usize, addr: u64) -> Result<Remote, KernelError> {
        let key = self.part.keys.get(rank).ok_or(KernelError::NoRank(rank))?;
        Ok(Remote { peer: rank as u32, addr, key: key.bits() })
    }

    fn in_data(&self, at: u64, len: u64) -> Result<(), KernelError> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.part.layout.shape().bytes);
        if inside { Ok(()) } else { Err(KernelError::Range { at, len }) }
    }

    pub(super) fn add(at: Remote, value: u64) -> Entry {
        Entry::new(Work::Atomic { at, change: Atomic::Add(value), poisoned: true })
    }

    fn raise(&self, rank: usize, (id, value): (u32, u64)) -> Result<Entry, KernelError> {
        let slot = self.part.layout.signal(self.rank() as u32, id);
        let slot = slot.ok_or(KernelError::None { what: "signal", id })?;
        Ok(Self::add(self.remote(rank, slot)?, value))
    }

    fn count(&self, (id, value): (u32, u64)) -> Result<Addition, KernelError> {
        let slot = self.part.layout.counter(id).ok_or(KernelError::None { what: "counter", id })?;
        Ok(Addition { at: self.remote(self.rank(), slot)?, value, poisoned: true })
    }

    /// The last write, which raises the counter that goes with it if it has room for that, and the counter's own entry if not.
    fn counted(&self, write: Entry, counter: &Addition) -> [Option<Entry>; 2] {
        let apart = [Some(write), Some(counter.entry())];
        let is_apart = self.mutant.is("dev-window-counts-apart");
        counter.with(write).filter(|_| !is_apart).map_or(apart, |counted| [Some(counted), None])
    }

    fn next_lane(&self) -> usize {
        let lane = self.cursor.get();
        self.cursor.set((lane + 1) % self.lanes.len());
        lane
    }

    pub(super) fn post(&self, lane: usize, entries: &[Entry]) -> Result<Ticket, KernelError> {
        let queue = self.lanes.get(lane).ok_or(KernelError::None { what: "lane", id: lane as u32 })?;
        let ticket = queue.post(entries, &mut self.patience())?;
        if let Some(last) = self.last.get(lane) {
            last.set(Some(ticket));
        }
        Ok(ticket)
    }

    /// Writes `len` bytes of this rank's part from `from` on to a rank's part, from `to` on, and what goes with them. Nothing is ordered among puts.
    ///
    /// # Errors
    /// [`KernelError`]; of more than a GiB the first may have been posted.
    pub fn put(&self, rank: usize, to: u64, from: u64, len: u64, with: With) -> Result<Posted, KernelError> {
        self.in_data(from, len)?;
        let key = self.part.keys.get(self.rank()).ok_or(KernelError::NoRank(self.rank()))?;
        self.put_from(rank, to, Local { addr: from, key: key.bits() }, len, with)
    }

    /// The same from memory that was registered.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    pub fn put_source(
        &self,
        rank: usize,
        to: u64,
        (source, from): (&Source, u64),
        len: u64,
        with: With,
    ) -> Result<Posted, KernelError> {
        source.memory.checked(from, len).map_err(|_| KernelError::Range { at: from, len })?;
        self.put_from(rank, to, Local { addr: from, key: source.key.bits() }, len, with)
    }

    /// Copies bytes to this rank's part, from `from` on, and puts them from there: the slice may be changed when this comes back, the part when it was waited for.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    pub fn put_bytes(
        &self,
        rank: usize,
        to: u64,
        from: u64,
        bytes: &[u8],
        with: With,
    ) -> Result<Posted, KernelError> {
        self.write(from, bytes)?;
        self.put(rank, to, from, bytes.len() as u64, with)
    }

    /// Copies bytes to this rank's part.
    ///
    /// # Errors
    /// [`KernelError::Range`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), KernelError> {
        self.in_data(at, bytes.len() as u64)?;
        self.part.memory.write(at, bytes).map_err(|_| KernelError::Range { at, len: bytes.len() as u64 })
    }

    /// Copies bytes out of this rank's part. What others put there can be read after the wait that told of it.
    ///
    /// # Errors
    /// [`KernelError::Range`].
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), KernelError> {
        let len = into.len() as u64;
        self.in_data(at, len)?;
        self.part.memory.read(at, into).map_err(|_| KernelError::Range { at, len })
    }

    fn put_from(
        &self,
        rank: usize,
        to: u64,
        from: Local,
        len: u64,
        with: With,
    ) -> Result<Posted, KernelError> {
        self.in_data(to, len)?;
        let lane = self.next_lane();
        let target = self.remote(rank, to)?;
        let write = |offset: u64, len| {
            let from = Local { addr: from.addr + offset, ..from };
            let to = Remote { addr: target.addr + offset, ..target };
            Entry::new(Work::Write { from, to, len, imm: None })
        };
        let mut done = 0;
        while len - done > LENGTH_MAX {
            self.post(lane, &[write(done, LENGTH_MAX)])?;
            done += LENGTH_MAX;
        }
        let write = write(done, len - done);
        // The counter first: that is executed here, and need not wait for what the other rank answers.
        let counter = with.counter.map(|counter| self.count(counter)).transpose()?;
        let [write, counter] = counter.map_or([Some(write), None], |counter| self.counted(write, &counter));
        let signal = with.signal.map(|signal| self.raise(rank, signal)).transpose()?;
        let mut entries = [Entry::new(Work::Nop); TOGETHER];
        let mut count = 0;
        for (place, entry) in entries.iter_mut().zip([write, counter, signal].into_iter().flatten()) {
            *place = entry;
            count += 1;
        }
        let last = self.post(lane, &entries[..count])?;
        let bytes = Ticket { index: last.index.wrapping_sub(count as u64 - 1), ..last };
        Ok(Posted { lane, bytes })
    }

    /// Reads `len` bytes of a rank's part, from `from` on, into this rank's, from `into` on. They are there when it was waited for.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    pub fn get(&self, rank: usize, from: u64, into: u64, len: u64) -> Result<Posted, KernelError> {
        self.in_data(from, len)?;
        self.in_data(into, len)?;
        let lane = self.next_lane();
        let own = self.remote(self.rank(), into)?;
        let from = self.remote(rank, from)?;
        let into = Local { addr: into, key: own.key };
        let mut done = 0;
        loop {
            let piece = (len - done).min(LENGTH_MAX);
            let into = Local { addr: into.addr + done, ..into };
            let from = Remote { addr: from.addr + done, ..from };
            let bytes = self.post(lane, &[Entry::new(Work::Read { into, from, len: piece })])?;
            done += piece;
            if done == len {
                return Ok(Posted { lane, bytes });
            }
        }
    }

    /// Raises a signal of a rank, behind all that was put on the first lane before; of other lanes it says nothing: [`flush`](Self::flush) first.
    ///
    /// # Errors
    /// As [`Kernel::put`].
    pub fn signal(&self, rank: usize, id: u32, value: u64) -> Result<Posted, KernelError> {
        Ok(Posted { lane: 0, bytes: self.post(0, &[self.raise(rank, (id, value))?])? })
    }

    /// Waits until what was posted is complete: its source may be changed, and what was got is there.
    ///
    /// # Errors
    /// [`KernelError::Wait`].
    pub fn wait(&self, posted: Posted) -> Result<(), KernelError> {
        let queue = self.lanes.get(posted.lane).ok_or(WaitError::Stale)?;
        Ok(queue.wait(posted.bytes, &mut self.patience())?)
    }

    /// Waits until all that this kernel has posted is complete.
    ///
    /// # Errors
    /// [`KernelError::Wait`], of the first lane that has something to say.
    pub fn flush(&self) -> Result<(), KernelError> {
        for (queue, last) in self.lanes.iter().zip(&self.last) {
            if let Some(ticket) = last.get() {
                queue.wait(ticket, &mut self.patience())?;
                last.set(None);
            }
        }
        Ok(())
    }

    pub(super) fn wait_slot(&self, slot: Slot, value: u64) -> Result<u64, KernelError> {
        let until = Condition::AtLeast(value);
        let words = &self.part.words;
        let none = KernelError::None { what: "lane", id: 0 };
        let first = self.lanes.first().ok_or(none)?;
        Ok(slot.wait_unless_aborted(words, until, first, &mut self.patience(), self.mutant)?)
    }

    fn signal_slot(&self, by: usize, id: u32) -> Result<Slot, KernelError> {
        let layout = &self.part.layout;
        let slot = layout.signal(by as u32, id);
        let base = layout.signal_base(by as u32, id);
        let (slot, base) = slot.zip(base).ok_or(KernelError::None { what: "signal", id })?;
        Ok(Slot::poisoned(slot).based(base))
    }

    fn counter_slot(&self, id: u32) -> Result<Slot, KernelError> {
        let layout = &self.part.layout;
        let slot = layout.counter(id).zip(layout.counter_base(id));
        let (slot, base) = slot.ok_or(KernelError::None { what: "counter", id })?;
        Ok(Slot::poisoned(slot).based(base))
    }

    /// Waits until a rank has raised a signal here to `value`; what it is then. What was put before it can be read.
    ///
    /// # Errors
    /// [`KernelError::Wait`].
    pub fn wait_signal(&self, by: usize, id: u32, value: u64) -> Result<u64, KernelError> {
        self.wait_slot(self.signal_slot(by, id)?, value)
    }

    /// Waits until a rank has raised a signal here to `value`, and lets it begin anew: what it was, which counts no more.
    ///
    /// # Errors
    /// [`KernelError::Wait`]; the signal then is as it was.
    pub fn take_signal(&self, by: usize, id: u32, value: u64) -> Result<u64, KernelError> {
        self.wait_signal(by, id, value)?;
        self.reset_signal(by, id)
    }

    /// Waits until all ranks together have raised a signal here to `value`.
    ///
    /// # Errors
    /// [`KernelError::Wait`].
    pub fn wait_signals(&self, id: u32, value: u64) -> Result<u64, KernelError> {
        self.signal_slot(0, id)?;
        let slots = (0..self.size()).filter_map(|by| self.signal_slot(by, id).ok());
        let mut budget = self.patience();
        loop {
            if let Some(sum) = look_at_sum(&self.part.words, slots.clone(), value, self.mutant)? {
                return Ok(sum);
            }
            if let Some(why) = self.lanes.first().and_then(Queue::aborted) {
                return Err(WaitError::Aborted(why).into());
            }
            if !budget.goes_on() {
                return Err(WaitError::Timeout.into());
            }
            trunkline_device_queue::Memory::pause(&self.part.words);
        }
    }

    /// What a rank has raised a signal here to.
    ///
    /// # Errors
    /// [`KernelError::None`].
    pub fn read_signal(&self, by: usize, id: u32) -> Result<u64, KernelError> {
        Ok(self.signal_slot(by, id)?.read(&self.part.words))
    }

    /// Lets a signal of this rank begin anew: what has come counts no more, what comes counts. What it was.
    ///
    /// # Errors
    /// [`KernelError::None`].
    pub fn reset_signal(&self, by: usize, id: u32) -> Result<u64, KernelError> {
        let reset = self.signal_slot(by, id)?.reset(&self.part.words, self.mutant);
        Ok(reset.unwrap_or(0))
    }

    /// Waits until a counter of this rank is at least `value`; what it is then.
    ///
    /// # Errors
    /// [`KernelError::Wait`].
    pub fn wait_counter(&self, id: u32, value: u64) -> Result<u64, KernelError> {
        self.wait_slot(self.counter_slot(id)?, value)
    }

    /// Waits until all ranks have come to this barrier as often as this one. All that this kernel put before is at its target then. How often that is
    /// stands in the window, so a later kernel goes on from there.
    ///
    /// # Errors
    /// [`KernelError::Wait`].
    pub fn barrier(&self, id: u32) -> Result<(), KernelError> {
        use std::sync::atomic::Ordering::{AcqRel, Acquire};

        use trunkline_device_queue::Memory as _;
        let none = KernelError::None { what: "barrier", id };
        let layout = &self.part.layout;
        let words = &self.part.words;
        self.flush()?;
        let epoch = layout.epoch(id).ok_or(none)?;
        let again = self.mutant.is("dev-barriers-begin-anew");
        let round = if again { words.load(epoch, Acquire) | 1 } else { words.add(epoch, 1, AcqRel) + 1 };
        let others = || (0..self.size()).filter(|&other| other != self.rank());
        for other in others() {
            let slot = layout.barrier(id, self.rank() as u32).ok_or(none)?;
            self.post(0, &[Self::add(self.remote(other, slot)?, 1)])?;
        }
        for other in others() {
            let slot = layout.barrier(id, other as u32).ok_or(none)?;
            self.wait_slot(Slot::poisoned(slot), round)?;
        }
        Ok(())
    }

    /// Tells everybody who uses this kernel's channel to stop: all its waits, for what it has posted and for signals and counters, end with [`WaitError::Aborted`], and nothing more is executed.
    pub fn abort(&self, reason: u32) {
        for queue in self.lanes {
            queue.abort(Aborted { status: Status::Aborted, reason });
        }
    }
}
