//! The engine's side of one queue: what may begin, what has completed, and what becomes of everything after a failure.
//!
//! Entries are copied out once and then read, as whoever wrote them may go on writing. They begin in order and complete in order;
//! in between they may be under way together. After the first failure nothing more is executed: what comes is flushed, and the
//! signals and counters that it was to change are poisoned, so that who waits for those hears of it as well.

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

/// Numbers of the operations of companions.
const WAIT: u8 = QueueEntry::new(EntryWork::Wait { queue: 0, index: 0 }).op_number();
const ADD: u8 = {
    let at = PeerAddress { peer: 0, addr: 0, key: 0 };
    QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(0), poisoned: false }).op_number()
};

/// Bytes of an entry from which on its end is told by itself.
const TOLD_AT_ONCE: u64 = 64 << 10;

/// The engine's side of one queue. One at a time.
#[derive(Debug)]
pub struct QueueConsumer<M> {
    memory: M,
    shape: QueueShape,
    rules: ExecutorRules,
    /// First index that is not known to be submitted.
    rung: u64,
    /// First that has not begun.
    begun: u64,
    /// First that has not completed.
    completed: u64,
    /// What the frontier says of that.
    told: u64,
    /// The next entry, once copied out.
    head: Option<Result<QueueEntry, QueueEntryError>>,
    places: Box<[EntryRecord]>,
    /// Under way: writes, reads, atomics.
    under_way: [u32; 4],
    /// Those that are [`EntryStage::Failed`].
    to_poison: u32,
    /// What entries that have completed leave to be done.
    due: Vec<(u64, QueueJob)>,
    /// Why nothing begins any more.
    stopped: Option<(EntryStatus, u32)>,
    fault: Option<QueueFault>,
}

impl<M: WordMemory> QueueConsumer<M> {
    /// The engine's side of a queue that no other engine has begun something of which it has not completed.
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
        // As many as can complete at a time: nothing is allocated later.
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

    /// What the queue is.
    #[must_use]
    pub const fn queue_shape(&self) -> &QueueShape {
        &self.shape
    }

    /// How far it is.
    #[must_use]
    pub fn queue_progress(&self) -> QueueProgress {
        // What fails stops the queue, and what has stopped begins nothing more.
        let stopped = self.stopped.map(|_| self.fault.map_or(self.begun, |fault| fault.first_bad));
        QueueProgress { completed: self.completed, first_bad: stopped }
    }

    /// Why it has failed, if it has.
    #[must_use]
    pub const fn queue_fault(&self) -> Option<QueueFault> {
        self.fault
    }

    /// Whether everything that was submitted has completed.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.completed == self.rung && self.due.is_empty()
    }

    fn stop_queue(&mut self, status: EntryStatus, reason: u32) {
        let status = if status == EntryStatus::Done { EntryStatus::Network } else { status };
        self.stopped.get_or_insert((status, reason));
    }

    fn entry_record(&self, index: u64) -> &EntryRecord {
        &self.places[index as usize & (self.places.len() - 1)]
    }

    fn entry_record_mut(&mut self, index: u64) -> &mut EntryRecord {
        &mut self.places[index as usize & (self.places.len() - 1)]
    }

    /// What is to happen next; `others` tells of the queues that entries WAIT for. To be called until nothing can begin.
    pub fn next(&mut self, others: &impl Fn(u32) -> Option<QueueProgress>) -> ConsumerStep {
        if let Some((index, job)) = self.due.pop() {
            return ConsumerStep::Begin(index, job);
        }
        let step = self.next_poison().unwrap_or_else(|| self.next_entry(others));
        self.complete_entries();
        self.publish_frontier();
        step
    }

    /// Begins up to `most` jobs at `port`, which says how each has ended if it has: as [`next`](Self::next) and [`end_job`](Self::end_job) again and
    /// again, but what completes is told by one frontier. How many began.
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
            // With nothing under way there is nothing to wait for but other queues, and what ends at once takes no place.
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

    /// Completes what has ended, tells of it, and has done what that leaves to be done.
    fn run_due_jobs(&mut self, port: &mut impl JobExecutor) {
        self.complete_entries();
        self.publish_frontier();
        while let Some((index, job)) = self.due.pop() {
            port.begin_job(self.shape.number(), index, &job);
        }
    }

    /// The next entry, which may begin as nothing else is under way and all is well, but for a WAIT; how many jobs began. `None`: it is held,
    /// or cannot be read.
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
                        // Whoever waits for it is not to wait for those behind it, which may take as long.
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

    /// What companions do, by its words: a WAIT for what has completed, and an ADD that is done at once. As [`pass_alone`](Self::pass_alone), which goes on with all else.
    #[inline]
    fn pass_plain(
        &mut self,
        words: &[u64; 8],
        index: u64,
        others: &impl Fn(u32) -> Option<QueueProgress>,
        port: &mut impl JobExecutor,
    ) -> Option<u32> {
        let op = (words[0] >> 32) as u8;
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

    /// The only entry under way has ended well.
    #[inline]
    fn pass_by(&mut self, index: u64, op: u8, value: u64) {
        self.publish_completion(index, EntryCompletion { status: EntryStatus::Done, op, value });
        self.completed = self.begun;
    }

    /// The same of one that raises a counter: once that was told, as whoever hears of it by the counter may look.
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

    /// The word of a counter of this process.
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
                // Its failure, if a WAIT finds one, stops the queue.
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

    /// Copies an entry out and reads it.
    #[inline]
    fn fetch_entry(&self, index: u64) -> Result<QueueEntry, QueueEntryError> {
        self.parse_entry(&self.memory.get_entry(self.shape.entry_offset(index)), index)
    }

    #[inline]
    fn parse_entry(&self, words: &[u64; 8], index: u64) -> Result<QueueEntry, QueueEntryError> {
        QueueEntry::from_words(words, index, self.shape.is_checked())
    }

    /// Whether the next entry may begin, as far as those before it and other queues go.
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
        // What waits for itself, or for what comes behind it, waits for ever.
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

    /// Begins an entry: its job, if there is one; the others have ended with that.
    fn begin_entry(&mut self, index: u64, entry: &QueueEntry) -> Option<QueueJob> {
        let (target, counts) = match (entry.work, entry.work.counter_update()) {
            (EntryWork::Atomic { at, poisoned, .. }, _) => (Some((at, poisoned)), None),
            (_, Some(count)) => (Some((self.own_counter(count), count.poisoned)), Some(count.value)),
            _ => (None, None),
        };
        *self.entry_record_mut(index) =
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

    /// An entry has failed; if it was to change a word, that is to be poisoned before it completes.
    fn fail_entry(&mut self, index: u64, status: EntryStatus, reason: u32) {
        let place = self.entry_record_mut(index);
        place.reason = reason;
        place.state = EntryStage::Ended(status, 0);
        if place.target.is_some() {
            place.state = EntryStage::Failed(status);
            self.to_poison += 1;
        }
    }

    /// The job that poisons the word of an entry that failed.
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

    /// Takes in how a job ended; `false`: there is none under way at this index.
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
            // Whether the word could be poisoned or not, nothing more can be done.
            (EntryStage::Poisoning(status), _) => {
                self.entry_record_mut(index).state = EntryStage::Ended(status, 0)
            }
            (EntryStage::Free | EntryStage::Failed(_) | EntryStage::Ended(..), _) => return false,
        }
        true
    }

    /// Completes what has ended, in order.
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
                // It ended well behind one that had not, and will not be counted: whoever waits for that hears of it first.
                self.fail_entry(index, status, 0);
                continue;
            }
            if status != EntryStatus::Done && self.fault.is_none() {
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

    /// An entry that has completed leaves its counter to be raised.
    #[inline]
    fn leave_count(&mut self, index: u64, place: &EntryRecord) {
        if let (Some((at, poisoned)), Some(value)) = (place.target, place.counts) {
            self.due.push((index, QueueJob::Count { at, value, poisoned }));
        }
    }
}
