//! The protocol with more threads and longer runs than can be explored in every order: random schedules of producers, a
//! companion, waiters and the engine. A failing schedule is printed in the form that shuttle replays.
//!
//! 3,000 schedules, 100,000 with `TRUNKLINE_FULL`, or the number in `TRUNKLINE_SEEDS`.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;
#[path = "common/shuttled.rs"]
mod shuttled;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shuttle::rand::{Rng as _, thread_rng};
use shuttle::thread;
use trunkline_device_queue::channel::TicketRecord;
use trunkline_device_queue::{
    ConsumerStep, DeviceQueue, EntryTicket, ExecutorRules, JobExecutor, JobOutcome, QueueConsumer,
    QueueDrain, QueueJob, ReserveError, SignalSlot, SlotCondition, TicketPoll, UnlimitedWait, WaitError,
    WordMemory,
};
use trunkline_proto::wire::device_queue::{
    AbortWord, AtomicChange, CompanionWord, EntryStatus, EntryWork, QueueEntry, QueueShape, at,
};

use common::{add, is_full, notify, wait};
use shuttled::Words;

const RULES: ExecutorRules = ExecutorRules { is_ordered: false, me: 0, window: 4 };

fn schedules() -> usize {
    let asked = std::env::var("TRUNKLINE_SEEDS").ok().and_then(|count| count.parse().ok());
    asked.unwrap_or(if is_full() { 100_000 } else { 3_000 })
}

/// Runs a world by this number of random schedules: two thirds by random choice, one third by few preemptions at chosen
/// points. The number of steps is bounded.
fn check(world: impl Fn() + Send + Sync + 'static) {
    check_some(schedules(), world);
}

fn check_some(schedules: usize, world: impl Fn() + Send + Sync + 'static) {
    let world = Arc::new(world);
    let mut config = shuttle::Config::new();
    config.stack_size = 64 << 10;
    config.max_steps = shuttle::MaxSteps::FailAfter(200_000);
    let by_chance = shuttle::scheduler::RandomScheduler::new(schedules * 2 / 3);
    let chance = Arc::clone(&world);
    shuttle::Runner::new(by_chance, config.clone()).run(move || chance());
    let by_priority = shuttle::scheduler::PctScheduler::new(3, schedules / 3);
    shuttle::Runner::new(by_priority, config).run(move || world());
    println!("{schedules} schedules");
}

fn queue(
    depth: u32,
    number: u32,
    first: u64,
    page: &trunkline_device_queue::BellPage<Words>,
) -> DeviceQueue<Words> {
    let shape = QueueShape::new(depth, number, 0, number).unwrap();
    DeviceQueue::create(shuttled::for_queue(&shape), shape, first, page).unwrap()
}

/// Producers that have ended: the engine of a test runs until all have.
#[derive(Clone)]
struct Leavers(Words, u64);

impl Leavers {
    fn new(producers: u64) -> Self {
        Self(shuttled::shared(1), producers)
    }

    fn leave(&self) {
        self.0.fetch_add(0, 1, Relaxed);
    }

    fn all(&self) -> bool {
        self.0.load(0, Relaxed) == self.1
    }
}

/// The work of one producer: it posts six or seven numbers, one or two at a time. Sometimes it drops a reservation, and it waits for some
/// entries.
fn produce(queue: &DeviceQueue<Words>, producer: u32) {
    let mut posted = 0;
    while posted < 6 {
        let count: u32 = thread_rng().gen_range(1..=2);
        let mut reservation = queue.reserve_within(count, &mut UnlimitedWait).unwrap();
        if thread_rng().gen_range(0..4) == 0 {
            reservation.cancel();
            continue;
        }
        for _ in 0..count {
            reservation.write_entry(&notify(producer << 16 | posted)).unwrap();
            posted += 1;
        }
        let ticket = reservation.publish_within(&mut UnlimitedWait).ok().unwrap();
        queue.submit(ticket.index.wrapping_add(1));
        if thread_rng().gen_range(0..2) == 0 {
            assert_eq!(queue.wait(ticket, &mut UnlimitedWait), Ok(()));
        }
    }
}

/// Entries of several producers, some of which drop reservations. Every entry is executed once, in its producer's
/// order, by a queue that wraps at 64 bits.
#[test]
fn entries_survive_dropped_reservations() {
    check(|| {
        let page = shuttled::page(1);
        let depth = [2, 4][thread_rng().gen_range(0..2)];
        let first = [0, u64::MAX - 3][thread_rng().gen_range(0..2)];
        let queue = queue(depth, 0, first, &page);
        let leavers = Leavers::new(3);
        let mut threads = Vec::new();
        for producer in 0..3 {
            let (queue, leavers) = (queue.clone(), leavers.clone());
            threads.push(thread::spawn(move || {
                produce(&queue, producer);
                leavers.leave();
            }));
        }
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        let mut seen: Vec<u32> = Vec::new();
        loop {
            let is_last = leavers.all();
            if page.take_group(0) != 0 {
                consumer.handle_doorbell(page.read_bell(0));
            }
            while let ConsumerStep::Begin(index, QueueJob::Execute(entry)) = consumer.next(&|_| None) {
                if let EntryWork::Notify { imm, .. } = entry.work {
                    seen.push(imm);
                }
                assert!(consumer.end_job(index, JobOutcome::Done(0)));
            }
            assert_eq!(consumer.queue_fault(), None);
            if is_last {
                break;
            }
            thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let words =
            [at::RESERVED, at::READY, at::SUBMITTED].map(|word| queue.as_memory().load(word, Relaxed));
        assert_eq!(
            words,
            [consumer.queue_progress().completed; 3],
            "all reserved entries must have completed"
        );
        for producer in 0..3 {
            let own: Vec<_> =
                seen.iter().filter(|imm| *imm >> 16 == producer).map(|imm| imm & 0xffff).collect();
            assert!(own.iter().copied().eq(0..own.len() as u32) && own.len() >= 6, "{seen:?}");
        }
    });
}

/// Executes at once, and fails as configured.
struct Instantly {
    counters: Words,
    fails_at: Option<u64>,
}

impl JobExecutor for Instantly {
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome> {
        let order = std::sync::atomic::Ordering::AcqRel;
        Some(match job {
            QueueJob::Poison { at, poison, .. } => {
                self.counters.store(at.addr + 8, poison.to_word(), order);
                JobOutcome::Done(0)
            }
            QueueJob::Execute(_) if queue == 0 && self.fails_at.is_some_and(|at| at <= index) => {
                JobOutcome::Failed { status: EntryStatus::Network, reason: 1 }
            }
            QueueJob::Execute(QueueEntry {
                work: EntryWork::Atomic { at, change: AtomicChange::Add(value), .. },
                ..
            }) => JobOutcome::Done(self.counters.fetch_add(at.addr, *value, order)),
            QueueJob::Count { at, value, .. } => {
                JobOutcome::Done(self.counters.fetch_add(at.addr, u64::from(*value), order))
            }
            QueueJob::Execute(_) => JobOutcome::Done(0),
        })
    }
}

/// Two producers whose entries are counted by a companion, which is created on the first request. One of the entries
/// may fail, or a thread may abort. Every wait, for a ticket, for the counter or for a flush, ends in the same way.
#[test]
fn every_wait_ends() {
    check(|| {
        let page = shuttled::page(2);
        let queues = [queue(4, 0, 0, &page), queue(4, 1, u64::MAX - 1, &page)];
        let counters = shuttled::shared(2);
        let channel = TicketRecord::create(shuttled::shared(2), 0, &[0]).unwrap();
        let trouble = thread_rng().gen_range(0..4);
        let fails_at = (trouble == 0).then(|| thread_rng().gen_range(0..4));
        let leavers = Leavers::new(2);
        let mut threads = Vec::new();
        for _ in 0..2 {
            let (queues, counters, channel, leavers) =
                (queues.clone(), Arc::clone(&counters), channel.clone(), leavers.clone());
            threads.push(thread::spawn(move || {
                let result = put_and_count(&queues, &counters, &channel, trouble);
                leavers.leave();
                result
            }));
        }
        let mut drain = QueueDrain::new(page).unwrap();
        assert!(drain.add_queue(queues[0].clone(), RULES).unwrap());
        let mut port = Instantly { counters: Arc::clone(&counters), fails_at };
        if trouble == 1 {
            queues[0].abort(AbortWord { status: EntryStatus::Aborted, reason: 3 });
        }
        while !leavers.all() {
            drain.run_pass(&mut port);
            if let Some(asked) = drain.asked_companion() {
                assert!(
                    drain.add_queue(queues[1].clone(), RULES).unwrap(),
                    "the companion must be created once"
                );
                drain.answer_companion(asked, CompanionWord::Queue(1));
            }
            thread::yield_now();
        }
        let good = threads
            .into_iter()
            .filter(|_| true)
            .map(|thread| thread.join().unwrap())
            .filter(|good| *good)
            .count();
        assert!(trouble < 2 || good == 2, "without a failure both producers must succeed");
        let counted = SignalSlot::with_poison_word(0).read_value(&counters);
        assert!(counted <= 2 && (trouble < 2 || counted == 2), "{counted}");
    });
}

/// One put, its count, and all the waits. Returns whether all succeeded.
fn put_and_count(
    queues: &[DeviceQueue<Words>; 2],
    counters: &Words,
    channel: &TicketRecord<Words>,
    trouble: u32,
) -> bool {
    let [main, companion] = queues;
    let put = match main.post(&[notify(0), notify(1)], &mut UnlimitedWait) {
        Ok(put) => put,
        Err(ReserveError::Over(_)) => return false,
        // An earlier producer has cancelled.
        Err(ReserveError::Busy) if trouble == 1 => return false,
        Err(other) => panic!("{other}"),
    };
    assert!(channel.record_ticket(0, put));
    match main.companion_within(&mut UnlimitedWait) {
        Ok(number) => assert_eq!(number, 1),
        Err(WaitError::Failed(_) | WaitError::Aborted(_)) => return false,
        Err(other) => panic!("{other}"),
    }
    let count = companion.post(&[wait(0, put.index), add(0, 0, 1, true)], &mut UnlimitedWait);
    // A failed entry fails for all waiters, and a successful one for none.
    let by_ticket = main.wait(put, &mut UnlimitedWait);
    let by_counter = match count {
        Ok(count) => {
            let by_count = companion.wait(count, &mut UnlimitedWait);
            let slot = SignalSlot::with_poison_word(0);
            let until = SlotCondition::AtLeast(if by_count.is_ok() { 1 } else { 2 });
            assert_eq!(slot.wait(counters, until, &mut UnlimitedWait).is_ok(), by_count.is_ok());
            by_count
        }
        Err(ReserveError::Over(error)) => Err(error),
        Err(other) => panic!("{other}"),
    };
    if by_counter.is_ok() {
        assert_eq!(main.poll(put), Ok(TicketPoll::Done), "a counted entry must have completed");
    }
    let flushed = channel.flush(std::slice::from_ref(main), &mut UnlimitedWait);
    if flushed.is_ok() {
        assert_eq!(main.poll(put), Ok(TicketPoll::Done), "a flushed entry must have completed");
    }
    by_ticket.is_ok() && by_counter.is_ok() && flushed.is_ok()
}

/// A slot that is reset while three other threads add to it: no addition is lost.
#[test]
fn slot_resets_lose_no_addition() {
    check(|| {
        let words = shuttled::shared(3);
        let slot = SignalSlot::with_poison_word(0).with_base(16);
        let adders: Vec<_> = (0..3_u64)
            .map(|_| {
                let words = Arc::clone(&words);
                thread::spawn(move || (0..3).for_each(|_| _ = words.fetch_add(0, 1, Relaxed)))
            })
            .collect();
        let resetting = Arc::clone(&words);
        let other = thread::spawn(move || slot.reset_base(&resetting).unwrap());
        let mine = slot.reset_base(&words).unwrap() + slot.reset_base(&words).unwrap();
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        assert_eq!(mine + other.join().unwrap() + slot.read_value(&words), 9);
    });
}

/// A producer has died between reserving and publishing, without a drop. All producers behind it get an error.
#[test]
fn hole_fails_all_later_producers() {
    // Each of them tries about a thousand times to publish behind the hole.
    check_some(schedules() / 30, || {
        let page = shuttled::page(1);
        let queue = queue(4, 0, 0, &page);
        std::mem::forget(queue.reserve_entries(1).unwrap());
        let behind = queue.clone();
        let behind = thread::spawn(move || behind.reserve_entries(1).map(drop));
        let ticket = EntryTicket { queue: 0, epoch: 0, index: 1 };
        let why = AbortWord { status: EntryStatus::Abandoned, reason: 0 };
        assert_eq!(queue.wait(ticket, &mut UnlimitedWait), Err(WaitError::Aborted(why)));
        assert_eq!(behind.join().unwrap(), Ok(()));
    });
}
