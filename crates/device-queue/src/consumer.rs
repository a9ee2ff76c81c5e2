//! The engine's side of one queue: what may begin, what has completed, and what becomes of everything after a failure.
//!
//! Entries are copied out once and then read, as whoever wrote them may go on writing. They begin in order and complete in order;
//! in between they may be under way together. After the first failure nothing more is executed: what comes is flushed, and the
//! signals and counters that it was to change are poisoned, so that who waits for those hears of it as well.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Acquire;

use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::{OutOfMemory, try_filled_with, try_vec};
use trunkline_proto::wire::device_queue::{
    Atomic, Completion, Count, Entry, EntryError, Fence, Frontier, Poison, Remote, Shape, Status, Work, at,
    is_before,
};

use crate::error::Fault;
use crate::job::{Job, Outcome, Port, Rules, Step, WINDOW_MAX};
use crate::memory::Memory;
use crate::place::{Kind, Place, State};
use crate::progress::Progress;
use crate::queue::Queue;

mod looking;
mod telling;

/// Numbers of the operations of companions.
const WAIT: u8 = Entry::new(Work::Wait { queue: 0, index: 0 }).op();
const ADD: u8 = {
    let at = Remote { peer: 0, addr: 0, key: 0 };
    Entry::new(Work::Atomic { at, change: Atomic::Add(0), poisoned: false }).op()
};

/// Bytes of an entry from which on its end is told by itself.
const TOLD_AT_ONCE: u64 = 64 << 10;

/// The engine's side of one queue. One at a time.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    shape: Shape,
    rules: Rules,
    /// First index that is not known to be submitted.
    rung: u64,
    /// First that has not begun.
    begun: u64,
    /// First that has not completed.
    completed: u64,
    /// What the frontier says of that.
    told: u64,
    /// The next entry, once copied out.
    head: Option<Result<Entry, EntryError>>,
    places: Box<[Place]>,
    /// Under way: writes, reads, atomics.
    under_way: [u32; 4],
    /// Those that are [`State::Failed`].
    to_poison: u32,
    /// What entries that have completed leave to be done.
    due: Vec<(u64, Job)>,
    /// Why nothing begins any more.
    stopped: Option<(Status, u32)>,
    fault: Option<Fault>,
    mutant: Mutant,
}

impl<M: Memory> Consumer<M> {
    /// The engine's side of a queue that no other engine has begun something of which it has not completed.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(queue: &Queue<M>, rules: Rules) -> Result<Self, OutOfMemory>
    where
        M: Clone,
    {
        let memory = queue.share();
        let shape = *queue.shape();
        let near = memory.load(at::RESERVED, Acquire);
        let first = Frontier(memory.load(at::FRONTIER, Acquire)).near(near);
        let window = rules.window.clamp(1, WINDOW_MAX).min(shape.depth());
        let places = try_filled_with(window.next_power_of_two() as usize, Place::default)?;
        // As many as can complete at a time: nothing is allocated later.
        let aborts = queue.mutant().is("devq-aborts-without-memory");
        let due = if aborts { Vec::with_capacity(places.len()) } else { try_vec(places.len())? };
        Ok(Self {
            memory,
            shape,
            rules: Rules { window, ..rules },
            rung: first,
            begun: first,
            completed: first,
            told: first,
            head: None,
            places,
            under_way: [0; 4],
            to_poison: 0,
            due,
            stopped: queue.fault().map(|fault| (fault.status, fault.reason)),
            fault: queue.fault(),
            mutant: queue.mutant(),
        })
    }

    /// What the queue is.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        if self.mutant.is("devq-wait-before-completion") {
            let ended = |index: &u64| matches!(self.place(*index).state, State::Ended(Status::Done, _));
            let mut completed = self.begun;
            while completed != self.completed && !ended(&completed.wrapping_sub(1)) {
                completed = completed.wrapping_sub(1);
            }
            return Progress { completed, first_bad: None };
        }
        // What fails stops the queue, and what has stopped begins nothing more.
        let stopped = self.stopped.map(|_| self.fault.map_or(self.begun, |fault| fault.first_bad));
        Progress { completed: self.completed, first_bad: stopped }
    }

    /// Why it has failed, if it has.
    #[must_use]
    pub const fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Whether everything that was submitted has completed.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.completed == self.rung && self.due.is_empty()
    }

    fn stop(&mut self, status: Status, reason: u32) {
        let status = if status == Status::Done { Status::Network } else { status };
        self.stopped.get_or_insert((status, reason));
    }

    fn place(&self, index: u64) -> &Place {
        &self.places[index as usize & (self.places.len() - 1)]
    }

    fn place_mut(&mut self, index: u64) -> &mut Place {
        &mut self.places[index as usize & (self.places.len() - 1)]
    }

    /// What is to happen next; `others` tells of the queues that entries WAIT for. To be called until nothing can begin.
    pub fn next(&mut self, others: &impl Fn(u32) -> Option<Progress>) -> Step {
        if let Some((index, job)) = self.due.pop() {
            return Step::Begin(index, job);
        }
        let step = self.next_poison().unwrap_or_else(|| self.next_entry(others));
        self.complete();
        self.tell_frontier();
        step
    }

    /// Begins up to `most` jobs at `port`, which says how each has ended if it has: as [`next`](Self::next) and [`end`](Self::end) again and
    /// again, but what completes is told by one frontier. How many began.
    pub fn turn(
        &mut self,
        most: u32,
        others: &impl Fn(u32) -> Option<Progress>,
        port: &mut impl Port,
    ) -> u32 {
        let mut begun = 0;
        while begun < most {
            if !self.due.is_empty() {
                self.settle(port);
            }
            // With nothing under way there is nothing to wait for but other queues, and what ends at once takes no place.
            let is_alone = self.begun == self.completed && self.stopped.is_none() && self.has_more();
            if is_alone && let Some(more) = self.pass_alone(others, port) {
                begun += more;
                continue;
            }
            let step = self.next_poison().unwrap_or_else(|| self.next_entry(others));
            let Step::Begin(index, job) = step else { break };
            begun += 1;
            if let Some(outcome) = port.begin(self.shape.number(), index, &job) {
                self.take_in(index, outcome);
            }
        }
        self.complete();
        self.tell_frontier();
        if !self.due.is_empty() {
            self.settle(port);
        }
        begun
    }

    /// Completes what has ended, tells of it, and has done what that leaves to be done.
    fn settle(&mut self, port: &mut impl Port) {
        self.complete();
        self.tell_frontier();
        while let Some((index, job)) = self.due.pop() {
            port.begin(self.shape.number(), index, &job);
        }
    }

    /// The next entry, which may begin as nothing else is under way and all is well, but for a WAIT; how many jobs began. `None`: it is held,
    /// or cannot be read.
    #[inline]
    fn pass_alone(&mut self, others: &impl Fn(u32) -> Option<Progress>, port: &mut impl Port) -> Option<u32> {
        let index = self.begun;
        let read = if self.head.is_some() {
            self.head.take()?
        } else {
            let words = self.memory.get_entry(self.shape.entry(index));
            if let Some(begun) = self.pass_plain(&words, index, others, port) {
                return Some(begun);
            }
            self.read(&words, index)
        };
        let Ok(entry) = &read else {
            self.head = Some(read);
            return None;
        };
        match entry.work {
            Work::Nop | Work::Barrier => {}
            Work::Wait { queue, index: awaited } => {
                if !self.wait_is_over(queue, awaited, index, others) {
                    self.head = Some(read);
                    return None;
                }
            }
            _ => {
                self.begun = index.wrapping_add(1);
                match port.execute(self.shape.number(), index, entry) {
                    Some(Outcome::Done(value)) => {
                        match entry.work.count() {
                            None => self.pass_by(index, entry.op(), value),
                            Some(count) => self.pass_by_and_count(index, (entry.op(), value), count, port),
                        }
                        // Whoever waits for it is not to wait for those behind it, which may take as long.
                        if entry.work.bytes() > TOLD_AT_ONCE && !self.mutant.is("devq-tells-after-all") {
                            self.tell_frontier();
                        }
                    }
                    outcome => {
                        let _same = self.begin(index, entry);
                        let _ended = outcome.is_some_and(|outcome| self.take_in(index, outcome));
                    }
                }
                return Some(1);
            }
        }
        self.begun = index.wrapping_add(1);
        self.pass_by(index, entry.op(), 0);
        Some(0)
    }

    /// What companions do, by its words: a WAIT for what has completed, and an ADD that is done at once. As [`pass_alone`](Self::pass_alone), which goes on with all else.
    #[inline]
    fn pass_plain(
        &mut self,
        words: &[u64; 8],
        index: u64,
        others: &impl Fn(u32) -> Option<Progress>,
        port: &mut impl Port,
    ) -> Option<u32> {
        let op = (words[0] >> 32) as u8;
        if !(op == WAIT || op == ADD) || self.shape.is_checked() {
            return None;
        }
        let (begun, value) = if op == WAIT {
            let (queue, awaited) = Entry::plain_wait(words, index)?;
            (0, self.wait_is_over(queue, awaited, index, others).then_some(0)?)
        } else {
            let (at, value, poisoned) = Entry::plain_add(words, index)?;
            (1, port.add(at, value, poisoned)?)
        };
        self.begun = index.wrapping_add(1);
        self.pass_by(index, op, value);
        Some(begun)
    }

    /// The only entry under way has ended well.
    #[inline]
    fn pass_by(&mut self, index: u64, op: u8, value: u64) {
        self.tell_completion(index, Completion { status: Status::Done, op, value });
        self.completed = self.begun;
    }

    /// The same of one that raises a counter: once that was told, as whoever hears of it by the counter may look.
    #[inline]
    fn pass_by_and_count(&mut self, index: u64, (op, value): (u8, u64), count: Count, port: &mut impl Port) {
        let queue = self.shape.number();
        if self.mutant.is("devq-counts-early") {
            port.count(queue, index, self.own(count), count);
            return self.pass_by(index, op, value);
        }
        self.pass_by(index, op, value);
        self.tell_frontier();
        port.count(queue, index, self.own(count), count);
    }

    /// The word of a counter of this process.
    const fn own(&self, count: Count) -> Remote {
        Remote { peer: self.rules.me, addr: count.at.addr, key: count.at.key }
    }

    fn next_entry(&mut self, others: &impl Fn(u32) -> Option<Progress>) -> Step {
        while self.has_more() {
            if self.begun.wrapping_sub(self.completed) >= self.rules.window.into() {
                self.complete();
                if self.begun.wrapping_sub(self.completed) >= self.rules.window.into() {
                    return Step::Held;
                }
            }
            let index = self.begun;
            let head = match self.head {
                Some(head) => head,
                None => *self.head.insert(self.fetch(index)),
            };
            let may_begin = match head {
                // Its failure, if a WAIT finds one, stops the queue.
                Ok(entry) if self.stopped.is_none() => self.may_begin(&entry, index, others),
                Ok(_) => true,
                Err(_) => {
                    self.stop(Status::BadEntry, 0);
                    true
                }
            };
            if !may_begin && self.stopped.is_none() {
                return Step::Held;
            }
            self.head = None;
            self.begun = index.wrapping_add(1);
            if let Some(job) = self.begin(index, &head.unwrap_or(Entry::new(Work::Nop))) {
                return Step::Begin(index, job);
            }
        }
        Step::Idle
    }

    #[inline]
    fn has_more(&self) -> bool {
        if self.mutant.is("devq-plain-compare") {
            return self.begun < self.rung;
        }
        is_before(self.begun, self.rung)
    }

    /// Copies an entry out and reads it.
    #[inline]
    fn fetch(&self, index: u64) -> Result<Entry, EntryError> {
        self.read(&self.memory.get_entry(self.shape.entry(index)), index)
    }

    #[inline]
    fn read(&self, words: &[u64; 8], index: u64) -> Result<Entry, EntryError> {
        let index =
            if self.mutant.is("devq-no-sequence") { (words[0] as u32).wrapping_sub(1).into() } else { index };
        Entry::from_words(words, index, self.shape.is_checked())
    }

    /// Whether the next entry may begin, as far as those before it and other queues go.
    fn may_begin(&mut self, entry: &Entry, index: u64, others: &impl Fn(u32) -> Option<Progress>) -> bool {
        let [_, writes, reads, atomics] = self.under_way;
        let all = self.under_way.iter().sum::<u32>();
        let is_fenced = match entry.fence {
            Fence::None => false,
            Fence::ReadsAndAtomics => reads + atomics > 0 && !self.mutant.is("devq-no-fence-of-reads"),
            Fence::All => all > 0 && !self.mutant.is("devq-no-fence-of-all"),
        };
        if is_fenced {
            return false;
        }
        match entry.work {
            Work::Atomic { .. } if !self.rules.is_ordered => {
                (writes == 0 || self.mutant.is("devq-signal-before-data"))
                    && (atomics == 0 || self.mutant.is("devq-atomics-overtake"))
            }
            Work::Barrier => all == 0 || self.mutant.is("devq-no-barrier"),
            Work::Wait { queue, index: awaited } => self.wait_is_over(queue, awaited, index, others),
            _ => true,
        }
    }

    #[inline]
    fn wait_is_over(
        &mut self,
        queue: u32,
        awaited: u64,
        index: u64,
        others: &impl Fn(u32) -> Option<Progress>,
    ) -> bool {
        self.complete();
        let own = Progress { completed: self.completed, first_bad: None };
        let progress = if queue == self.shape.number() { Some(own) } else { others(queue) };
        // What waits for itself, or for what comes behind it, waits for ever.
        let hangs = queue == self.shape.number() && !is_before(awaited, index);
        let Some(progress) = progress.filter(|_| !hangs) else {
            self.stop(Status::Awaited, queue);
            return false;
        };
        let is_early = self.mutant.is("devq-wait-one-early");
        match progress.of_entry(if is_early { awaited.wrapping_sub(1) } else { awaited }) {
            None => false,
            Some(false)
                if self.mutant.is("devq-waits-for-what-never-comes")
                    && !is_before(awaited, progress.completed) =>
            {
                false
            }
            Some(false) if !self.mutant.is("devq-wait-ignores-failure") => {
                self.stop(Status::Awaited, queue);
                false
            }
            Some(_) => true,
        }
    }

    /// Begins an entry: its job, if there is one; the others have ended with that.
    fn begin(&mut self, index: u64, entry: &Entry) -> Option<Job> {
        let (target, counts) = match (entry.work, entry.work.count()) {
            (Work::Atomic { at, poisoned, .. }, _) => (Some((at, poisoned)), None),
            (_, Some(count)) => (Some((self.own(count), count.poisoned)), Some(count.value)),
            _ => (None, None),
        };
        *self.place_mut(index) = Place { state: State::Free, op: entry.op(), target, counts, reason: 0 };
        if let Some((status, reason)) = self.stopped {
            self.fail(index, status, reason);
            return if target.is_some() { self.poison(index) } else { None };
        }
        let kind = match entry.work {
            Work::Nop | Work::Barrier | Work::Wait { .. } => {
                self.place_mut(index).state = State::Ended(Status::Done, 0);
                return None;
            }
            Work::Write { .. } | Work::WriteCounted { .. } | Work::WriteInline { .. } => Kind::Write,
            Work::Read { .. } => Kind::Read,
            Work::Atomic { .. } => Kind::Atomic,
            Work::Show | Work::Notify { .. } => Kind::Other,
        };
        self.place_mut(index).state = State::Running(kind);
        self.under_way[kind as usize] += 1;
        Some(Job::Execute(*entry))
    }

    /// An entry has failed; if it was to change a word, that is to be poisoned before it completes.
    fn fail(&mut self, index: u64, status: Status, reason: u32) {
        let tells = !self.mutant.is("devq-no-poison");
        let place = self.place_mut(index);
        place.reason = reason;
        place.state = State::Ended(status, 0);
        if place.target.is_some() && tells {
            place.state = State::Failed(status);
            self.to_poison += 1;
        }
    }

    /// The job that poisons the word of an entry that failed.
    fn poison(&mut self, index: u64) -> Option<Job> {
        let queue = self.shape.number();
        let place = self.place_mut(index);
        let (State::Failed(status), Some((at, poisoned))) = (place.state, place.target) else { return None };
        place.state = State::Poisoning(status);
        self.to_poison -= 1;
        Some(Job::Poison { at, poisoned, poison: Poison { status, queue } })
    }

    fn next_poison(&mut self) -> Option<Step> {
        if self.to_poison == 0 {
            return None;
        }
        let mut index = self.completed;
        while index != self.begun {
            if let Some(job) = self.poison(index) {
                return Some(Step::Begin(index, job));
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// Takes in how a job ended; `false`: there is none under way at this index.
    pub fn end(&mut self, index: u64, outcome: Outcome) -> bool {
        let ended = self.take_in(index, outcome);
        self.complete();
        self.tell_frontier();
        ended
    }

    fn take_in(&mut self, index: u64, outcome: Outcome) -> bool {
        if !is_before(index, self.begun) || is_before(index, self.completed) {
            return false;
        }
        match (self.place(index).state, outcome) {
            (State::Running(kind), outcome) => {
                self.under_way[kind as usize] -= 1;
                match outcome {
                    Outcome::Done(value) => {
                        self.place_mut(index).state = State::Ended(Status::Done, value);
                        if self.mutant.is("devq-counts-out-of-turn") {
                            let place = *self.place(index);
                            self.leave_count(index, &place);
                            self.place_mut(index).counts = None;
                        }
                    }
                    Outcome::Failed { status, reason } => {
                        let status = if status == Status::Done { Status::Network } else { status };
                        self.stop(status, reason);
                        self.fail(index, status, reason);
                    }
                }
            }
            // Whether the word could be poisoned or not, nothing more can be done.
            (State::Poisoning(status), _) => self.place_mut(index).state = State::Ended(status, 0),
            (State::Free | State::Failed(_) | State::Ended(..), _) => return false,
        }
        true
    }

    /// Completes what has ended, in order.
    #[inline]
    fn complete(&mut self) {
        if self.completed != self.begun {
            self.complete_ended();
        }
    }

    fn complete_ended(&mut self) {
        let mut index = self.completed;
        while index != self.begun {
            let &Place { state: State::Ended(ended, value), op, reason, counts, .. } = self.place(index)
            else {
                break;
            };
            if self.fault.is_some() && self.mutant.is("devq-stops-at-failure") {
                break;
            }
            let status = if self.fault.is_some() { Status::Flushed } else { ended };
            let is_lost = counts.is_some() && ended == Status::Done && status != Status::Done;
            if is_lost && !self.mutant.is("devq-flushed-counts-are-silent") {
                // It ended well behind one that had not, and will not be counted: whoever waits for that hears of it first.
                self.fail(index, status, 0);
                continue;
            }
            if status != Status::Done && self.fault.is_none() {
                self.tell_fault(Fault { first_bad: index, status, reason });
            }
            self.tell_completion(index, Completion { status, op, value });
            let place = core::mem::take(self.place_mut(index));
            if status == Status::Done {
                self.leave_count(index, &place);
            }
            index = index.wrapping_add(1);
        }
        self.completed = index;
    }

    /// An entry that has completed leaves its counter to be raised.
    #[inline]
    fn leave_count(&mut self, index: u64, place: &Place) {
        if let (Some((at, poisoned)), Some(value)) = (place.target, place.counts) {
            self.due.push((index, Job::Count { at, value, poisoned }));
        }
    }
}
