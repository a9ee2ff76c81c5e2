//! The engine's side of one queue: which entries may begin, which have completed, and how entries end after a failure. Called by `drain`,
//! or by a caller that drives one queue itself. It never executes an entry.
//!
//! Each entry is copied out once and then parsed, as its producer may still write to it. Entries begin in order and complete in order;
//! several may be in progress at a time. After the first failure no entry is executed. Later entries are flushed, and the signals and
//! counters that they were to change are poisoned, so that waits for those fail too.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Acquire;

use trunkline_proto::reserve::{OutOfMemory, try_filled_with, try_vec};
use trunkline_proto::wire::device_queue::{
    AtomicChange, CounterUpdate, EntryCompletion, EntryFence, EntryStatus, EntryWork, FrontierWord,
    PeerAddress, PoisonWord, QueueEntry, QueueEntryError, QueueShape, at, is_before,
};

use crate::entry_record::{EntryKind, EntryRecord, EntryStage};
use crate::error::QueueFault;
use crate::job::{ConsumerStep, ExecutorRules, JobExecutor, JobOutcome, QueueJob, WINDOW_MAX};
use crate::memory::WordMemory;
use crate::progress::QueueProgress;
use crate::queue::DeviceQueue;

mod control_words;
mod publish;

/// Operation numbers of the entries that companions use.
const WAIT: u8 = QueueEntry::new(EntryWork::Wait { queue: 0, index: 0 }).op_number();
const ADD: u8 = {
    let at = PeerAddress { peer: 0, addr: 0, key: 0 };
    QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(0), poisoned: false }).op_number()
};

/// Entries that move more bytes than this have their completion published at once.
const TOLD_AT_ONCE: u64 = 64 << 10;

/// The engine's side of one queue. A queue has one consumer at a time.
#[derive(Debug)]
pub struct QueueConsumer<M> {
    memory: M,
    shape: QueueShape,
    rules: ExecutorRules,
    /// First index that is not known to be submitted.
    rung: u64,
    /// First index that has not begun.
    begun: u64,
    /// First index that has not completed.
    completed: u64,
    /// The value of `completed` in the published frontier.
    told: u64,
    /// The next entry, once it has been copied out.
    head: Option<Result<QueueEntry, QueueEntryError>>,
    places: Box<[EntryRecord]>,
    /// Entries in progress, by [`EntryKind`]: others, writes, reads, atomics.
    under_way: [u32; 4],
    /// Entries in the stage [`EntryStage::Failed`].
    to_poison: u32,
    /// Follow-up jobs of completed entries.
    due: Vec<(u64, QueueJob)>,
    /// Why no entry begins any more.
    stopped: Option<(EntryStatus, u32)>,
    fault: Option<QueueFault>,
}

impl<M: WordMemory> QueueConsumer<M> {
    /// Creates the engine's side of a queue. No other engine may have operations of this queue in progress.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(queue: &DeviceQueue<M>, rules: ExecutorRules) -> Result<Self, OutOfMemory>
    where
        M: Clone,
    {
        let memory = queue.clone_memory();
        let shape = *queue.queue_shape();
        let near = memory.load(at::RESERVED, Acquire);
        let first = FrontierWord(memory.load(at::FRONTIER, Acquire)).index_near(near);
        let window = rules.window.clamp(1, WINDOW_MAX).min(shape.depth());
        let places = try_filled_with(window.next_power_of_two() as usize, EntryRecord::default)?;
        // At most this many entries complete at a time, so no later push allocates.
        let due = try_vec(places.len())?;
        Ok(Self {
            memory,
            shape,
            rules: ExecutorRules { window, ..rules },
            rung: first,
            begun: first,
            completed: first,
            told: first,
            head: None,
            places,
            under_way: [0; 4],
            to_poison: 0,
            due,
            stopped: queue.queue_fault().map(|fault| (fault.status, fault.reason)),
            fault: queue.queue_fault(),
        })
    }

    /// Returns the layout and the number of the queue.
    #[must_use]
    pub const fn queue_shape(&self) -> &QueueShape {
        &self.shape
    }

    /// Returns the progress of the queue, for WAITs of other queues.
    #[must_use]
    pub fn queue_progress(&self) -> QueueProgress {
        // A failure stops the queue, and a stopped queue begins no entry. So without a fault the first failed entry is the first that has
        // not begun.
        let stopped = self.stopped.map(|_| self.fault.map_or(self.begun, |fault| fault.first_bad));
        QueueProgress { completed: self.completed, first_bad: stopped }
    }

    /// Returns why the queue has failed, if it has.
    #[must_use]
    pub const fn queue_fault(&self) -> Option<QueueFault> {
        self.fault
    }

    /// Returns whether all submitted entries have completed and no follow-up job is left.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.completed == self.rung && self.due.is_empty()
    }

    fn stop_queue(&mut self, status: EntryStatus, reason: u32) {
        let status = if status == EntryStatus::Done { EntryStatus::Network } else { status };
        // The first reason is kept: later ones are consequences of it.
        self.stopped.get_or_insert((status, reason));
    }

    fn entry_record(&self, index: u64) -> &EntryRecord {
        &self.places[index as usize & (self.places.len() - 1)]
    }

    fn entry_record_mut(&mut self, index: u64) -> &mut EntryRecord {
        &mut self.places[index as usize & (self.places.len() - 1)]
    }

    /// Returns the next step. `others` returns the progress of the queues that entries WAIT for. Call it until no job can begin.
    pub fn next(&mut self, others: &impl Fn(u32) -> Option<QueueProgress>) -> ConsumerStep {
        if let Some((index, job)) = self.due.pop() {
            return ConsumerStep::Begin(index, job);
        }
        let step = self.next_poison().unwrap_or_else(|| self.next_entry(others));
        self.complete_entries();
        self.publish_frontier();
        step
    }

    /// Begins up to `most` jobs on `port`, which returns the outcome of each job that ended at once. This is [`next`](Self::next) and
    /// [`end_job`](Self::end_job) in a loop, but one frontier publishes all completions. Returns the number of jobs begun.
    pub fn begin_jobs(
        &mut self,
        most: u32,
        others: &impl Fn(u32) -> Option<QueueProgress>,
        port: &mut impl JobExecutor,
    ) -> u32 {
        let mut begun = 0;
        while begun < most {
            if !self.due.is_empty() {
                self.run_due_jobs(port);
            }
            // With no entry in progress, only a WAIT for another queue can delay the next one. An entry that ends at once then needs no
            // record.
            let is_alone = self.begun == self.completed && self.stopped.is_none() && self.has_more();
            if is_alone && let Some(more) = self.pass_alone(others, port) {
                begun += more;
                continue;
            }
            let step = self.next_poison().unwrap_or_else(|| self.next_entry(others));
            let ConsumerStep::Begin(index, job) = step else { break };
            begun += 1;
            if let Some(outcome) = port.begin_job(self.shape.number(), index, &job) {
                self.take_in(index, outcome);
            }
        }
        self.complete_entries();
        self.publish_frontier();
        if !self.due.is_empty() {
            self.run_due_jobs(port);
        }
        begun
    }

    /// Retires finished entries, publishes the frontier, then runs follow-up jobs.
    fn run_due_jobs(&mut self, port: &mut impl JobExecutor) {
        // A counter is raised only after the frontier covers its entry: its waiter may poll the ticket next.
        self.complete_entries();
        self.publish_frontier();
        while let Some((index, job)) = self.due.pop() {
            port.begin_job(self.shape.number(), index, &job);
        }
    }

    /// Begins the next entry while no other is in progress and the queue has not failed. Returns the number of jobs begun, or `None` if the
    /// entry is a WAIT that must be held, or is invalid.
    #[inline]
    fn pass_alone(
        &mut self,
        others: &impl Fn(u32) -> Option<QueueProgress>,
        port: &mut impl JobExecutor,
    ) -> Option<u32> {
        let index = self.begun;
        let read = if self.head.is_some() {
            self.head.take()?
        } else {
            let words = self.memory.get_entry(self.shape.entry_offset(index));
            if let Some(begun) = self.pass_plain(&words, index, others, port) {
                return Some(begun);
            }
            self.parse_entry(&words, index)
        };
        let Ok(entry) = &read else {
            self.head = Some(read);
            return None;
        };
        match entry.work {
            EntryWork::Nop | EntryWork::Barrier => {}
            EntryWork::Wait { queue, index: awaited } => {
                if !self.wait_is_over(queue, awaited, index, others) {
                    self.head = Some(read);
                    return None;
                }
            }
            _ => {
                self.begun = index.wrapping_add(1);
                match port.execute_entry(self.shape.number(), index, entry) {
                    Some(JobOutcome::Done(value)) => {
                        match entry.work.counter_update() {
                            None => self.pass_by(index, entry.op_number(), value),
                            Some(count) => {
                                self.pass_by_and_count(index, entry.op_number(), value, count, port)
                            }
                        }
                        // A waiter for this entry should not wait for the entries behind it, which may take equally
                        // long.
                        if entry.work.moved_bytes() > TOLD_AT_ONCE {
                            self.publish_frontier();
                        }
                    }
                    outcome => {
                        let _same = self.begin_entry(index, entry);
                        let _ended = outcome.is_some_and(|outcome| self.take_in(index, outcome));
                    }
                }
                return Some(1);
            }
        }
        self.begun = index.wrapping_add(1);
        self.pass_by(index, entry.op_number(), 0);
        Some(0)
    }

    /// Executes the two entries that companions use, from their words: a WAIT for a completed entry, and an ADD that is done at once.
    /// Returns `None` for every other entry; [`pass_alone`](Self::pass_alone) then handles it.
    #[inline]
    fn pass_plain(
        &mut self,
        words: &[u64; 8],
        index: u64,
        others: &impl Fn(u32) -> Option<QueueProgress>,
        port: &mut impl JobExecutor,
    ) -> Option<u32> {
        let op = (words[0] >> 32) as u8;
        // An entry with a check must be parsed in full, so the fast path does not apply.
        if !(op == WAIT || op == ADD) || self.shape.is_checked() {
            return None;
        }
        let (begun, value) = if op == WAIT {
            let (queue, awaited) = QueueEntry::plain_wait(words, index)?;
            (0, self.wait_is_over(queue, awaited, index, others).then_some(0)?)
        } else {
            let (at, value, poisoned) = QueueEntry::plain_add(words, index)?;
            (1, port.try_add(at, value, poisoned)?)
        };
        self.begun = index.wrapping_add(1);
        self.pass_by(index, op, value);
        Some(begun)
    }

    /// Completes the only entry in progress with success.
    #[inline]
    fn pass_by(&mut self, index: u64, op: u8, value: u64) {
        self.publish_completion(index, EntryCompletion { status: EntryStatus::Done, op, value });
        self.completed = self.begun;
    }

    /// As [`pass_by`](Self::pass_by), for an entry that raises a counter. The frontier is published first: a waiter for the counter may
    /// poll the ticket next.
    #[inline]
    fn pass_by_and_count(
        &mut self,
        index: u64,
        op: u8,
        value: u64,
        count: CounterUpdate,
        port: &mut impl JobExecutor,
    ) {
        let queue = self.shape.number();
        self.pass_by(index, op, value);
        self.publish_frontier();
        port.raise_counter(queue, index, self.own_counter(count), count);
    }

    /// Returns the address of a counter in this process.
    // A counter is always in this process, so the entry contains no rank for it.
    const fn own_counter(&self, count: CounterUpdate) -> PeerAddress {
        PeerAddress { peer: self.rules.me, addr: count.at.addr, key: count.at.key }
    }

    fn next_entry(&mut self, others: &impl Fn(u32) -> Option<QueueProgress>) -> ConsumerStep {
        while self.has_more() {
            if self.begun.wrapping_sub(self.completed) >= self.rules.window.into() {
                self.complete_entries();
                if self.begun.wrapping_sub(self.completed) >= self.rules.window.into() {
                    return ConsumerStep::Held;
                }
            }
            let index = self.begun;
            let head = match self.head {
                Some(head) => head,
                None => *self.head.insert(self.fetch_entry(index)),
            };
            let may_begin = match head {
                // If a WAIT finds a failed entry, that stops the queue.
                Ok(entry) if self.stopped.is_none() => self.may_begin(&entry, index, others),
                Ok(_) => true,
                Err(_) => {
                    self.stop_queue(EntryStatus::BadEntry, 0);
                    true
                }
            };
            if !may_begin && self.stopped.is_none() {
                return ConsumerStep::Held;
            }
            self.head = None;
            self.begun = index.wrapping_add(1);
            if let Some(job) = self.begin_entry(index, &head.unwrap_or(QueueEntry::new(EntryWork::Nop))) {
                return ConsumerStep::Begin(index, job);
            }
        }
        ConsumerStep::Idle
    }

    #[inline]
    fn has_more(&self) -> bool {
        is_before(self.begun, self.rung)
    }

    /// Copies an entry out and parses it.
    #[inline]
    fn fetch_entry(&self, index: u64) -> Result<QueueEntry, QueueEntryError> {
        self.parse_entry(&self.memory.get_entry(self.shape.entry_offset(index)), index)
    }

    #[inline]
    fn parse_entry(&self, words: &[u64; 8], index: u64) -> Result<QueueEntry, QueueEntryError> {
        QueueEntry::from_words(words, index, self.shape.is_checked())
    }

    /// Returns whether the next entry may begin, considering fences, earlier entries and other queues.
    fn may_begin(
        &mut self,
        entry: &QueueEntry,
        index: u64,
        others: &impl Fn(u32) -> Option<QueueProgress>,
    ) -> bool {
        let [_, writes, reads, atomics] = self.under_way;
        let all = self.under_way.iter().sum::<u32>();
        let is_fenced = match entry.fence {
            EntryFence::None => false,
            EntryFence::ReadsAndAtomics => reads + atomics > 0,
            EntryFence::All => all > 0,
        };
        if is_fenced {
            return false;
        }
        match entry.work {
            // Atomics take effect in order, and behind the bytes before them. An ordered executor guarantees that itself.
            EntryWork::Atomic { .. } if !self.rules.is_ordered => writes == 0 && atomics == 0,
            EntryWork::Barrier => all == 0,
            EntryWork::Wait { queue, index: awaited } => self.wait_is_over(queue, awaited, index, others),
            _ => true,
        }
    }

    #[inline]
    fn wait_is_over(
        &mut self,
        queue: u32,
        awaited: u64,
        index: u64,
        others: &impl Fn(u32) -> Option<QueueProgress>,
    ) -> bool {
        self.complete_entries();
        let own = QueueProgress { completed: self.completed, first_bad: None };
        let progress = if queue == self.shape.number() { Some(own) } else { others(queue) };
        // A WAIT for itself or for a later entry of its own queue would never end.
        let hangs = queue == self.shape.number() && !is_before(awaited, index);
        let Some(progress) = progress.filter(|_| !hangs) else {
            self.stop_queue(EntryStatus::Awaited, queue);
            return false;
        };
        match progress.of_entry(awaited) {
            None => false,
            Some(false) => {
                self.stop_queue(EntryStatus::Awaited, queue);
                false
            }
            Some(true) => true,
        }
    }

    /// Begins an entry. Returns its job, if it has one. An entry without a job has ended.
    fn begin_entry(&mut self, index: u64, entry: &QueueEntry) -> Option<QueueJob> {
        let (target, counts) = match (entry.work, entry.work.counter_update()) {
            (EntryWork::Atomic { at, poisoned, .. }, _) => (Some((at, poisoned)), None),
            (_, Some(count)) => (Some((self.own_counter(count), count.poisoned)), Some(count.value)),
            _ => (None, None),
        };
        *self.entry_record_mut(index) =
            // The record is made also for an entry that is flushed, because its word must be poisoned.
            EntryRecord { state: EntryStage::Free, op: entry.op_number(), target, counts, reason: 0 };
        if let Some((status, reason)) = self.stopped {
            self.fail_entry(index, status, reason);
            return if target.is_some() { self.poison_job(index) } else { None };
        }
        let kind = match entry.work {
            EntryWork::Nop | EntryWork::Barrier | EntryWork::Wait { .. } => {
                self.entry_record_mut(index).state = EntryStage::Ended(EntryStatus::Done, 0);
                return None;
            }
            EntryWork::Write { .. } | EntryWork::WriteCounted { .. } | EntryWork::WriteInline { .. } => {
                EntryKind::Write
            }
            EntryWork::Read { .. } => EntryKind::Read,
            EntryWork::Atomic { .. } => EntryKind::Atomic,
            EntryWork::Show | EntryWork::Notify { .. } => EntryKind::Other,
        };
        self.entry_record_mut(index).state = EntryStage::Running(kind);
        self.under_way[kind as usize] += 1;
        Some(QueueJob::Execute(*entry))
    }

    /// Fails an entry. If it was to change a word, it completes only after that word is poisoned.
    fn fail_entry(&mut self, index: u64, status: EntryStatus, reason: u32) {
        let place = self.entry_record_mut(index);
        place.reason = reason;
        place.state = EntryStage::Ended(status, 0);
        if place.target.is_some() {
            place.state = EntryStage::Failed(status);
            self.to_poison += 1;
        }
    }

    /// Returns the job that poisons the word of a failed entry.
    fn poison_job(&mut self, index: u64) -> Option<QueueJob> {
        let queue = self.shape.number();
        let place = self.entry_record_mut(index);
        let (EntryStage::Failed(status), Some((at, poisoned))) = (place.state, place.target) else {
            return None;
        };
        place.state = EntryStage::Poisoning(status);
        self.to_poison -= 1;
        Some(QueueJob::Poison { at, poisoned, poison: PoisonWord { status, queue } })
    }

    fn next_poison(&mut self) -> Option<ConsumerStep> {
        // The counter avoids a search of the whole window in every step of a queue without failures.
        if self.to_poison == 0 {
            return None;
        }
        let mut index = self.completed;
        while index != self.begun {
            if let Some(job) = self.poison_job(index) {
                return Some(ConsumerStep::Begin(index, job));
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// Takes the outcome of a job. Returns `false` if no job is in progress at this index.
    pub fn end_job(&mut self, index: u64, outcome: JobOutcome) -> bool {
        let ended = self.take_in(index, outcome);
        self.complete_entries();
        self.publish_frontier();
        ended
    }

    fn take_in(&mut self, index: u64, outcome: JobOutcome) -> bool {
        if !is_before(index, self.begun) || is_before(index, self.completed) {
            return false;
        }
        match (self.entry_record(index).state, outcome) {
            (EntryStage::Running(kind), outcome) => {
                self.under_way[kind as usize] -= 1;
                match outcome {
                    JobOutcome::Done(value) => {
                        self.entry_record_mut(index).state = EntryStage::Ended(EntryStatus::Done, value);
                    }
                    JobOutcome::Failed { status, reason } => {
                        let status = if status == EntryStatus::Done { EntryStatus::Network } else { status };
                        self.stop_queue(status, reason);
                        self.fail_entry(index, status, reason);
                    }
                }
            }
            // The outcome of the poisoning is ignored: no further measure exists if it failed.
            (EntryStage::Poisoning(status), _) => {
                self.entry_record_mut(index).state = EntryStage::Ended(status, 0)
            }
            (EntryStage::Free | EntryStage::Failed(_) | EntryStage::Ended(..), _) => return false,
        }
        true
    }

    /// Completes ended entries in order.
    #[inline]
    fn complete_entries(&mut self) {
        if self.completed != self.begun {
            self.complete_ended();
        }
    }

    fn complete_ended(&mut self) {
        let mut index = self.completed;
        while index != self.begun {
            let &EntryRecord { state: EntryStage::Ended(ended, value), op, reason, counts, .. } =
                self.entry_record(index)
            else {
                break;
            };
            let status = if self.fault.is_some() { EntryStatus::Flushed } else { ended };
            let is_lost = counts.is_some() && ended == EntryStatus::Done && status != EntryStatus::Done;
            if is_lost {
                // The entry ended well behind a failed one, so its counter is not raised. The counter is poisoned before the entry
                // completes, so that its waiters fail.
                self.fail_entry(index, status, 0);
                continue;
            }
            if status != EntryStatus::Done && self.fault.is_none() {
                // The error page is written before the frontier passes this entry.
                self.publish_fault(QueueFault { first_bad: index, status, reason });
            }
            self.publish_completion(index, EntryCompletion { status, op, value });
            let place = core::mem::take(self.entry_record_mut(index));
            if status == EntryStatus::Done {
                self.leave_count(index, &place);
            }
            index = index.wrapping_add(1);
        }
        self.completed = index;
    }

    /// Queues the counter of a completed entry to be raised.
    #[inline]
    fn leave_count(&mut self, index: u64, place: &EntryRecord) {
        if let (Some((at, poisoned)), Some(value)) = (place.target, place.counts) {
            self.due.push((index, QueueJob::Count { at, value, poisoned }));
        }
    }
}
