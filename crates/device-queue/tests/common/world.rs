//! The worst executor that the rules allow: it splits writes, places their pieces in any order, delays completions, reports them out of
//! order, and fails. A seed determines its choices.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use trunkline_device_queue::{
    HeapWords, JobExecutor, JobOutcome, QueueJob, SlotLayout, WordMemory, allocate_words,
};
use trunkline_proto::wire::device_queue::{EntryStatus, EntryWork, PeerAddress, QueueEntry};

/// Words of payload that the far side has.
pub const DATA_WORDS: u64 = 4096;

/// The regions that entries name by key.
pub mod key {
    /// The process's own counters.
    pub const COUNTERS: u32 = 1;
    /// The far side's payload; an address is an offset there.
    pub const DATA: u32 = 2;
    /// The far side's signals.
    pub const SIGNALS: u32 = 3;
}

/// A repeatable source of choices.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A job in progress.
#[derive(Debug)]
struct UnderWay {
    queue: u32,
    index: u64,
    job: QueueJob,
    /// Words of payload that are not placed yet.
    left: Vec<u64>,
    /// Its outcome, once it has ended and before it is reported.
    outcome: Option<JobOutcome>,
}

/// The executor, and the memory on which it operates.
#[derive(Debug)]
pub struct Executor {
    pub data: HeapWords,
    pub signals: HeapWords,
    pub signal_slots: SlotLayout,
    pub counters: HeapWords,
    pub counter_slots: SlotLayout,
    /// Whether it places earlier bytes first.
    pub is_ordered: bool,
    /// The jobs that fail, by queue and index.
    pub fails: BTreeMap<(u32, u64), EntryStatus>,
    /// Whether the far side is dead, so that nothing arrives there.
    pub is_dead: bool,
    under_way: Vec<UnderWay>,
    /// All jobs that began, in order.
    pub begun: Vec<(u32, u64)>,
    /// Jobs of entries that have failed.
    pub failed: BTreeSet<(u32, u64)>,
    /// In an ordered executor: the queues with a failed entry.
    broken: BTreeSet<u32>,
    /// Poison that could not be delivered.
    pub untold: u32,
}

impl Executor {
    pub fn new(is_ordered: bool, signal_slots: SlotLayout, counter_slots: SlotLayout) -> Self {
        Self {
            data: allocate_words(DATA_WORDS * 8),
            signals: allocate_words(4096),
            signal_slots,
            counters: allocate_words(4096),
            counter_slots,
            is_ordered,
            fails: BTreeMap::new(),
            is_dead: false,
            under_way: Vec::new(),
            begun: Vec::new(),
            failed: BTreeSet::new(),
            broken: BTreeSet::new(),
            untold: 0,
        }
    }

    /// Whether memory of this entry, or of an earlier one of its queue, may still be read.
    pub fn reads_up_to(&self, queue: u32, index: u64) -> bool {
        self.under_way.iter().any(|job| {
            let executes = matches!(job.job, QueueJob::Execute(_)) && job.outcome.is_none();
            executes && job.queue == queue && (index.wrapping_sub(job.index) as i64) >= 0
        })
    }

    /// Returns the number of entries of a queue that began.
    pub fn begun_of(&self, queue: u32) -> usize {
        self.begun.iter().filter(|(number, _)| *number == queue).count()
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Makes one random step. Returns the job that ended, if it is reported now.
    pub fn step(&mut self, dice: &mut Dice) -> Option<(u32, u64, JobOutcome)> {
        if self.under_way.is_empty() {
            return None;
        }
        let at = dice.below(self.under_way.len() as u64) as usize;
        if let Some(outcome) = self.under_way[at].outcome {
            if dice.one_in(2) {
                return None;
            }
            let job = self.under_way.swap_remove(at);
            return Some((job.queue, job.index, outcome));
        }
        self.go_on(at, dice);
        None
    }

    fn go_on(&mut self, at: usize, dice: &mut Dice) {
        let (queue, index, job) =
            (self.under_way[at].queue, self.under_way[at].index, self.under_way[at].job);
        if let QueueJob::Poison { at: word, poison, .. } = job {
            self.under_way[at].outcome = Some(self.set_poison(word.key, word.addr, poison.to_word()));
            return;
        }
        if let Some(status) = self.fails.get(&(queue, index)) {
            self.fail(at, *status, 7);
            return;
        }
        if self.is_dead && !self.is_local(&job) {
            self.fail(at, EntryStatus::PeerDead, 0);
            return;
        }
        let QueueJob::Execute(QueueEntry { work, .. }) = job else { return };
        let value = match work {
            EntryWork::Write { .. } | EntryWork::WriteCounted { .. } | EntryWork::WriteInline { .. } => {
                let left = &mut self.under_way[at].left;
                if !left.is_empty() {
                    let piece = left.swap_remove(dice.below(left.len() as u64) as usize);
                    self.data.store(piece, index | 1 << 40, Release);
                    return;
                }
                0
            }
            EntryWork::Atomic { at: word, change, .. } => {
                if self.is_ordered && self.has_earlier(queue, index) {
                    return;
                }
                let memory = if word.key == key::COUNTERS { &self.counters } else { &self.signals };
                let old = memory.load(word.addr, Acquire);
                memory.swap(word.addr, change.apply_to(old), AcqRel);
                old
            }
            _ => 0,
        };
        self.under_way[at].outcome = Some(JobOutcome::Done(value));
    }

    /// Returns whether an earlier job of a queue has not taken effect yet: an ordered executor keeps that order.
    fn has_earlier(&self, queue: u32, index: u64) -> bool {
        self.under_way.iter().any(|job| {
            job.queue == queue && job.outcome.is_none() && (index.wrapping_sub(job.index) as i64) > 0
        })
    }

    fn is_local(&self, job: &QueueJob) -> bool {
        match job {
            QueueJob::Execute(QueueEntry { work: EntryWork::Atomic { at, .. }, .. }) => {
                at.key == key::COUNTERS
            }
            _ => false,
        }
    }

    fn set_poison(&mut self, key: u32, value: u64, word: u64) -> JobOutcome {
        let (memory, slots) = match key {
            key::COUNTERS => (&self.counters, &self.counter_slots),
            _ => (&self.signals, &self.signal_slots),
        };
        let error = slots.error_of(value).filter(|_| !self.is_dead || key == key::COUNTERS);
        match error {
            Some(error) => {
                memory.store(error, word, Release);
                JobOutcome::Done(0)
            }
            None => {
                self.untold += 1;
                JobOutcome::Failed { status: EntryStatus::PeerDead, reason: 0 }
            }
        }
    }

    /// Records that a job has failed. In an ordered executor no later entry of its queue takes effect.
    fn fail(&mut self, at: usize, status: EntryStatus, reason: u32) {
        let UnderWay { queue, index, .. } = self.under_way[at];
        self.under_way[at].outcome = Some(JobOutcome::Failed { status, reason });
        self.failed.insert((queue, index));
        if self.is_ordered {
            self.broken.insert(queue);
            for job in &mut self.under_way {
                let behind = job.queue == queue && (job.index.wrapping_sub(index) as i64) > 0;
                if behind && job.outcome.is_none() && matches!(job.job, QueueJob::Execute(_)) {
                    job.outcome = Some(JobOutcome::Failed { status: EntryStatus::Flushed, reason: 0 });
                    self.failed.insert((queue, job.index));
                }
            }
        }
    }
}

/// Words of a WRITE, each of which is placed separately.
fn pieces(to: &PeerAddress, len: u64) -> Vec<u64> {
    (0..len / 8).map(|word| to.addr + word * 8).collect()
}

impl JobExecutor for Executor {
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome> {
        if let QueueJob::Count { at, value, .. } = job {
            assert_eq!(
                (at.key, at.peer),
                (key::COUNTERS, 0),
                "only the process's own counters may be raised"
            );
            WordMemory::fetch_add(&self.counters, at.addr, u64::from(*value), AcqRel);
            return Some(JobOutcome::Done(0));
        }
        let left = match job {
            QueueJob::Execute(QueueEntry { work: EntryWork::Write { to, len, .. }, .. }) => pieces(to, *len),
            QueueJob::Execute(QueueEntry { work: EntryWork::WriteCounted { to, len, .. }, .. }) => {
                pieces(to, u64::from(*len))
            }
            _ => Vec::new(),
        };
        if matches!(job, QueueJob::Execute(_)) {
            self.begun.push((queue, index));
        }
        self.under_way.push(UnderWay { queue, index, job: *job, left, outcome: None });
        if self.broken.contains(&queue) && matches!(job, QueueJob::Execute(_)) {
            self.fail(self.under_way.len() - 1, EntryStatus::Flushed, 0);
        }
        None
    }
}
