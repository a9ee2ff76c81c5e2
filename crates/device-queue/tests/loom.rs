//! The protocol in small worlds, under every order of events and every value that a load may return by the memory model
//! of C++. The design names some of the worlds; others proved relevant later.
//!
//! `TRUNKLINE_FULL` allows one more preemption in most tests. The last figure that a test prints is the number of runs.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;
#[path = "common/loomed.rs"]
mod loomed;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use loom::thread;
use trunkline_device_queue::channel::TicketRecord;
use trunkline_device_queue::queue::CompletionError;
use trunkline_device_queue::successor::{self, PutActions};
use trunkline_device_queue::verdict::GroupVerdict;
use trunkline_device_queue::{
    BellPage, ConsumerStep, DeviceQueue, EntryTicket, ExecutorRules, JobExecutor, JobOutcome, PollLimit,
    PutBytes, QueueConsumer, QueueDrain, QueueJob, QueueLane, ReserveError, SignalSlot, SlotCondition,
    TicketPoll, UnlimitedWait, WaitError, WordAddition, WordMemory, poll_sum,
};
use trunkline_proto::wire::device_queue::{
    AbortWord, AtomicChange, EntryStatus, EntryWork, LocalAddress, PeerAddress, PoisonWord, QueueEntry,
    QueueShape, at,
};

use common::{add, is_full, notify, wait, write};
use loomed::Words;

const RULES: ExecutorRules = ExecutorRules { is_ordered: false, me: 0, window: 2 };

/// Runs a world in every order with at most this many preemptions.
fn check(preemptions: usize, world: impl Fn() + Send + Sync + 'static) {
    check_within(preemptions + usize::from(is_full()), world);
}

/// As above, also with `TRUNKLINE_FULL`: one more preemption takes too long.
fn check_within(preemptions: usize, world: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        world();
    });
    println!("{} runs", runs.load(Relaxed));
}

fn shape(depth: u32, number: u32, bell: u32) -> QueueShape {
    QueueShape::new(depth, number, 0, bell).unwrap()
}

fn queue(shape: QueueShape, first: u64, page: &BellPage<Words>) -> DeviceQueue<Words> {
    DeviceQueue::create(loomed::for_queue(&shape), shape, first, page).unwrap()
}

/// Executes the entries of one queue until it has completed `count`. Returns the numbers that were notified.
fn serve(page: &BellPage<Words>, consumer: &mut QueueConsumer<Words>, count: u64) -> Vec<u32> {
    let mut notified = Vec::new();
    let end = consumer.queue_progress().completed.wrapping_add(count);
    while consumer.queue_progress().completed != end {
        if page.take_group(0) != 0 {
            consumer.handle_doorbell(page.read_bell(0));
        }
        while let ConsumerStep::Begin(index, job) = consumer.next(&|_| None) {
            if let QueueJob::Execute(QueueEntry { work: EntryWork::Notify { imm, .. }, .. }) = job {
                notified.push(imm);
            }
            assert!(consumer.end_job(index, JobOutcome::Done(0)));
        }
        if consumer.queue_progress().completed != end {
            thread::yield_now();
        }
    }
    notified
}

/// (a) Two producers on a queue of depth two, with three entries. No entry is lost, torn, executed twice or out of
/// order, and the last doorbell covers all.
#[test]
fn producers_share_one_queue() {
    check_within(1, || {
        let page = loomed::page(1);
        let queue = queue(shape(2, 7, 0), 0, &page);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        let post =
            |queue: &DeviceQueue<Words>, number| queue.post(&[notify(number)], &mut UnlimitedWait).unwrap();
        let other = queue.clone();
        let one = thread::spawn(move || {
            post(&other, 10);
            post(&other, 11)
        });
        let other = queue.clone();
        let two = thread::spawn(move || post(&other, 20));
        let mut notified = serve(&page, &mut consumer, 3);
        let tickets = [one.join().unwrap(), two.join().unwrap()];
        assert!(tickets.iter().all(|ticket| queue.poll(*ticket) == Ok(TicketPoll::Done)));
        let place = |number| notified.iter().position(|n| *n == number);
        assert!(place(10) < place(11), "entries of one producer must stay in order: {notified:?}");
        notified.sort_unstable();
        assert_eq!(notified, [10, 11, 20]);
        let memory = queue_words(&queue);
        assert_eq!(memory, [3; 3], "reserved, ready, submitted");
        assert_eq!(page.read_bell(0), 3, "no doorbell is lost");
    });
}
/// The values of the producers' counters.
fn queue_words(queue: &DeviceQueue<Words>) -> [u64; 3] {
    let memory = queue.as_memory();
    [at::RESERVED, at::READY, at::SUBMITTED].map(|word| memory.load(word, Relaxed))
}

/// A post that fills the whole queue, and one entry more.
#[test]
fn place_is_not_written_before_it_is_free() {
    check(3, || {
        let page = loomed::page(1);
        let queue = queue(shape(2, 7, 0), 0, &page);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        let producer = thread::spawn(move || {
            let all = [notify(0), notify(1)];
            queue.post(&all, &mut UnlimitedWait).unwrap();
            queue.post(&[notify(2)], &mut UnlimitedWait).unwrap();
        });
        assert_eq!(serve(&page, &mut consumer, 3), [0, 1, 2]);
        producer.join().unwrap();
    });
}

/// A frontier that one producer has read is valid for the other one, too.
#[test]
fn producer_sees_room_found_by_another() {
    check(3, || {
        let page = loomed::page(1);
        let queue = queue(shape(2, 7, 0), 0, &page);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        queue.post(&[notify(0), notify(1)], &mut UnlimitedWait).unwrap();
        let post = |queue: DeviceQueue<Words>, number| {
            // A single attempt, which may find no room.
            move || match queue.reserve_entries(1) {
                Ok(mut reservation) => {
                    assert!(reservation.write_entry(&notify(number)).is_some());
                    let ticket = reservation.publish_within(&mut UnlimitedWait).ok().unwrap();
                    queue.submit(ticket.index + 1);
                    true
                }
                Err(refusal) => {
                    assert_eq!(refusal, ReserveError::Busy);
                    false
                }
            }
        };
        let (one, two) = (thread::spawn(post(queue.clone(), 2)), thread::spawn(post(queue.clone(), 3)));
        serve(&page, &mut consumer, 2);
        let posted = u64::from(one.join().unwrap()) + u64::from(two.join().unwrap());
        assert_eq!(serve(&page, &mut consumer, posted).len() as u64, posted);
    });
}

/// (b) A producer that flushes, beside another flush: when either returns, all entries recorded before have completed.
#[test]
fn concurrent_flushes_cover_earlier_entries() {
    check(2, || {
        let page = loomed::page(1);
        let queue = queue(shape(2, 7, 0), 0, &page);
        let channel = TicketRecord::create(loomed::for_slots(2), 0, &[0]).unwrap();
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        let first = queue.post(&[notify(0)], &mut UnlimitedWait).unwrap();
        assert!(channel.record_ticket(0, first));
        let flush = |channel: &TicketRecord<Words>, queue: &DeviceQueue<Words>, last| {
            // The flush may time out, but must not report a wrong result.
            match channel.flush(std::slice::from_ref(queue), &mut PollLimit(2)) {
                Ok(()) => assert_eq!(queue.poll(last), Ok(TicketPoll::Done)),
                Err(error) => assert_eq!(error, WaitError::Timeout),
            }
        };
        let (flushing, flushed) = (channel.clone(), queue.clone());
        let other = thread::spawn(move || flush(&flushing, &flushed, first));
        let (posting, posted) = (channel.clone(), queue.clone());
        let producer = thread::spawn(move || {
            let last = posted.post(&[notify(1)], &mut UnlimitedWait).unwrap();
            assert!(posting.record_ticket(0, last));
            flush(&posting, &posted, last);
        });
        serve(&page, &mut consumer, 2);
        other.join().unwrap();
        producer.join().unwrap();
        assert_eq!(channel.flush(std::slice::from_ref(&queue), &mut PollLimit(1)), Ok(()));
        assert_eq!(channel.pending_lanes(), 0);
    });
}

/// Executes additions to counters, and nothing else.
struct Counters {
    words: Words,
    notified: u32,
}

impl JobExecutor for Counters {
    fn begin_job(&mut self, _queue: u32, _index: u64, job: &QueueJob) -> Option<JobOutcome> {
        match job {
            QueueJob::Execute(QueueEntry {
                work: EntryWork::Atomic { at, change: AtomicChange::Add(add), .. },
                ..
            }) => {
                let old = self.words.fetch_add(at.addr, *add, AcqRel);
                Some(JobOutcome::Done(old))
            }
            QueueJob::Execute(_) => {
                self.notified += 1;
                Some(JobOutcome::Done(0))
            }
            QueueJob::Count { at, value, .. } => {
                let old = self.words.fetch_add(at.addr, u64::from(*value), AcqRel);
                Some(JobOutcome::Done(old))
            }
            QueueJob::Poison { .. } => panic!("no entry fails in this test"),
        }
    }
}

/// (c) A queue, its companion and the engine. The counter is raised once, and a thread that sees it sees the entry
/// complete, even if the companion runs first.
#[test]
fn companion_counts_completed_entries() {
    check(2, || {
        let page = loomed::page(2);
        let (main, companion) = (queue(shape(2, 7, 0), 0, &page), queue(shape(2, 8, 1), 0, &page));
        let counter = loomed::for_slots(2);
        let mut drain = QueueDrain::new(page).unwrap();
        assert!(
            drain.add_queue(main.clone(), RULES).unwrap()
                && drain.add_queue(companion.clone(), RULES).unwrap()
        );
        let waited = EntryTicket { queue: 7, epoch: 0, index: 0 };
        let (seen, at) = (main.clone(), Arc::clone(&counter));
        let counting = thread::spawn(move || {
            companion.post(&[wait(7, 0), add(0, 0, 5, true)], &mut UnlimitedWait).unwrap();
            let slot = SignalSlot::with_poison_word(0);
            assert_eq!(slot.wait(&at, SlotCondition::AtLeast(1), &mut UnlimitedWait), Ok(5));
            assert_eq!(
                seen.poll(waited),
                Ok(TicketPoll::Done),
                "a thread that sees the counter must see the completion"
            );
        });
        let posting = thread::spawn(move || main.post(&[notify(0)], &mut UnlimitedWait).unwrap());
        let mut port = Counters { words: Arc::clone(&counter), notified: 0 };
        while drain.queue_progress(8).is_none_or(|progress| progress.completed < 2) {
            if drain.run_pass(&mut port).begun == 0 {
                thread::yield_now();
            }
        }
        counting.join().unwrap();
        posting.join().unwrap();
        assert_eq!((port.notified, counter.load(0, Relaxed)), (1, 5));
    });
}

/// As [`companion_counts_completed_entries`], for a WRITE that raises the counter itself.
#[test]
fn write_counter_counts_completed_entries() {
    check(3, || {
        let page = loomed::page(1);
        let main = queue(shape(2, 7, 0), 0, &page);
        let counter = loomed::for_slots(2);
        let mut drain = QueueDrain::new(page).unwrap();
        assert!(drain.add_queue(main.clone(), RULES).unwrap());
        let addition =
            WordAddition { at: PeerAddress { peer: 0, addr: 0, key: 1 }, value: 5, poisoned: true };
        let at = Arc::clone(&counter);
        let counting = thread::spawn(move || {
            let counted = addition.attach_to(write(0, 8)).unwrap();
            let ticket = main.post(&[counted], &mut UnlimitedWait).unwrap();
            let slot = SignalSlot::with_poison_word(0);
            assert_eq!(slot.wait(&at, SlotCondition::AtLeast(1), &mut UnlimitedWait), Ok(5));
            assert_eq!(
                main.poll(ticket),
                Ok(TicketPoll::Done),
                "a thread that sees the counter must see the completion"
            );
        });
        let mut port = Counters { words: Arc::clone(&counter), notified: 0 };
        while drain.queue_progress(7).is_none_or(|progress| progress.completed < 1) {
            if drain.run_pass(&mut port).begun == 0 {
                thread::yield_now();
            }
        }
        counting.join().unwrap();
        assert_eq!((port.notified, counter.load(0, Relaxed)), (1, 5));
    });
}

/// Two queues are submitted together, while another producer of the first one submits as well. The greatest doorbell of
/// each queue is stored last, and an engine that takes the bits at any time reads both.
#[test]
fn two_queues_ring_their_last_doorbells() {
    check(3, || {
        let page = loomed::page(2);
        let queues = [queue(shape(2, 7, 0), 0, &page), queue(shape(2, 8, 1), 0, &page)];
        for (queue, count) in queues.iter().zip([2, 1]) {
            for _ in 0..count {
                let mut reservation = queue.reserve_entries(1).unwrap();
                assert!(reservation.write_entry(&notify(0)).is_some());
                assert!(reservation.publish().is_ok());
            }
        }
        let [main, companion] = queues.clone();
        let both = thread::spawn(move || main.submit_both(1, &companion, 1));
        let [main, _] = queues;
        let other = thread::spawn(move || main.submit(2));
        // A thread that clears a bit must read its doorbell afterwards.
        let mut seen = [0; 2];
        let mut look = |page: &BellPage<Words>| {
            let bits = page.take_group(0);
            for bell in 0..2 {
                if bits >> bell & 1 == 1 {
                    seen[bell as usize] = seen[bell as usize].max(page.read_bell(bell));
                }
            }
        };
        look(&page);
        both.join().unwrap();
        other.join().unwrap();
        look(&page);
        assert_eq!((seen, page.read_bell(0), page.read_bell(1)), ([2, 1], 2, 1));
    });
}

/// (d) Bits are taken while other threads set them: every doorbell is read, at the latest after all were rung.
#[test]
fn taken_bits_lose_no_doorbell() {
    check(3, || {
        let page = loomed::page(2);
        let queues = [queue(shape(2, 7, 0), 0, &page), queue(shape(2, 8, 1), 0, &page)];
        let mut drain = QueueDrain::new(page).unwrap();
        for queue in &queues {
            assert!(drain.add_queue(queue.clone(), RULES).unwrap());
        }
        let mut port = Counters { words: loomed::for_slots(1), notified: 0 };
        drain.run_pass(&mut port);
        let ring = |queue: DeviceQueue<Words>| move || queue.post(&[notify(0)], &mut UnlimitedWait).unwrap();
        let [one, two] = queues.map(|queue| thread::spawn(ring(queue)));
        drain.run_pass(&mut port);
        drain.run_pass(&mut port);
        one.join().unwrap();
        two.join().unwrap();
        drain.run_pass(&mut port);
        assert_eq!(port.notified, 2);
    });
}

/// Two producers submit at the same time, in the other order than they published: the last doorbell covers both.
#[test]
fn last_doorbell_is_the_greatest() {
    check(4, || {
        let page = loomed::page(1);
        let queue = queue(shape(2, 7, 0), 0, &page);
        for _ in 0..2 {
            let mut reservation = queue.reserve_entries(1).unwrap();
            assert!(reservation.write_entry(&notify(0)).is_some());
            assert!(reservation.publish().is_ok());
        }
        let submit = |queue: DeviceQueue<Words>, end| move || queue.submit(end);
        let (one, two) = (thread::spawn(submit(queue.clone(), 1)), thread::spawn(submit(queue.clone(), 2)));
        one.join().unwrap();
        two.join().unwrap();
        assert_eq!(page.read_bell(0), 2);
        assert_eq!(page.take_group(0), 1);
    });
}

/// (e) A slot is reset while other threads add: no addition is lost or counted twice.
#[test]
fn slot_reset_during_additions_loses_none() {
    check(4, || {
        let words = loomed::for_slots(3);
        let slot = SignalSlot::with_poison_word(0).with_base(16);
        let adding = Arc::clone(&words);
        let adder = thread::spawn(move || {
            adding.fetch_add(0, 1, AcqRel);
            adding.fetch_add(0, 1, AcqRel);
        });
        let resetting = Arc::clone(&words);
        let other = thread::spawn(move || slot.reset_base(&resetting).unwrap());
        let mine = slot.reset_base(&words).unwrap();
        let seen = slot.read_value(&words);
        assert!(seen <= 2, "no base may exceed a value that is read later: {seen}");
        adder.join().unwrap();
        let others = other.join().unwrap();
        assert_eq!(mine + others + slot.read_value(&words), 2);
    });
}

/// A completion is read while a later one replaces it: the read returns the right one, or fails.
#[test]
fn overwritten_completion_is_read_right_or_refused() {
    check(3, || {
        let page = loomed::page(1);
        let queue = queue(shape(2, 7, 0), 0, &page);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        for index in 0..2 {
            queue.post(&[notify(0)], &mut UnlimitedWait).unwrap();
            consumer.handle_doorbell(index + 1);
            assert!(matches!(consumer.next(&|_| None), ConsumerStep::Begin(..)));
            consumer.end_job(index, JobOutcome::Done(100 + index));
        }
        queue.post(&[notify(0)], &mut UnlimitedWait).unwrap();
        let reading = queue.clone();
        let reader = thread::spawn(move || {
            let ticket = EntryTicket { queue: 7, epoch: 0, index: 0 };
            match reading.read_completion(ticket) {
                Ok(completion) => assert_eq!(completion.value, 100),
                Err(error) => assert_eq!(error, CompletionError::Gone),
            }
            match reading.read_completion(EntryTicket { index: 2, ..ticket }) {
                Ok(completion) => assert_eq!(completion.value, 102),
                Err(error) => assert_eq!(error, CompletionError::NotYet),
            }
        });
        consumer.handle_doorbell(3);
        assert!(matches!(consumer.next(&|_| None), ConsumerStep::Begin(..)));
        consumer.end_job(2, JobOutcome::Done(102));
        reader.join().unwrap();
    });
}

/// One producer cancels between reserving and publishing, while another is behind it. The other's entry is executed,
/// and the doorbell covers it.
#[test]
fn cancelled_place_blocks_no_other_producer() {
    check_within(1, || {
        let page = loomed::page(1);
        let queue = queue(shape(4, 7, 0), 0, &page);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        let reserved = queue.clone();
        let leaving = thread::spawn(move || reserved.reserve_entries(1).unwrap().cancel());
        let posting = thread::spawn(move || queue.post(&[notify(1)], &mut UnlimitedWait).unwrap());
        assert_eq!(serve(&page, &mut consumer, 2), [1]);
        leaving.join().unwrap();
        posting.join().unwrap();
    });
}

/// The queue fails while a waiter polls: waits for the failed entry and later ones fail, and waits for earlier ones do not.
#[test]
fn frontier_shows_failures_from_their_entry_on() {
    check(3, || {
        let page = loomed::page(1);
        let queue = queue(shape(4, 7, 0), 0, &page);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        queue.post(&[notify(0), notify(1), notify(2)], &mut UnlimitedWait).unwrap();
        let waiter = thread::spawn(move || {
            let ticket = |index| EntryTicket { queue: 7, epoch: 0, index };
            assert_eq!(queue.wait(ticket(0), &mut UnlimitedWait), Ok(()));
            let completion = queue.read_completion(ticket(0)).map(|completion| completion.value);
            assert_eq!(completion, Ok(50), "a thread that sees the frontier must see the completion");
            let failed = queue.wait(ticket(1), &mut UnlimitedWait);
            assert!(matches!(failed, Err(WaitError::Failed(fault)) if fault.first_bad == 1));
            assert_eq!(queue.wait(ticket(2), &mut UnlimitedWait), failed);
        });
        consumer.handle_doorbell(3);
        while let ConsumerStep::Begin(index, _) = consumer.next(&|_| None) {
            let failed = JobOutcome::Failed { status: EntryStatus::Network, reason: 9 };
            assert!(consumer.end_job(index, if index == 1 { failed } else { JobOutcome::Done(50) }));
        }
        waiter.join().unwrap();
    });
}

/// The leader of a group waits, and all threads get the same result, twice in a row.
#[test]
fn group_gets_the_result_of_its_leader() {
    check(3, || {
        let words = loomed::for_slots(3);
        let verdict = GroupVerdict::new(words, 0);
        let why = AbortWord { status: EntryStatus::Aborted, reason: 12 };
        let member = verdict.clone();
        let member = thread::spawn(move || member.await_result(1, &mut UnlimitedWait));
        verdict.publish_result(1, Err(WaitError::Aborted(why)));
        assert_eq!(member.join().unwrap(), Err(WaitError::Aborted(why)), "no member may continue alone");
        let member = verdict.clone();
        let member = thread::spawn(move || member.await_result(2, &mut UnlimitedWait));
        verdict.publish_result(2, Ok(()));
        assert_eq!(member.join().unwrap(), Ok(()));
    });
}

/// Two threads put on one channel: each gets a different turn, so lanes are used one after another.
#[test]
fn threads_of_a_channel_get_different_turns() {
    check(2, || {
        let page = loomed::page(2);
        let none = |_| None;
        let lanes: Arc<[_]> = [(7, 0), (8, 1)]
            .map(|(number, bell)| QueueLane::new(queue(shape(2, number, bell), 0, &page), none))
            .into();
        let recorded = TicketRecord::create(loomed::for_slots(4), 0, &[0, 0]).unwrap();
        let cursor = loomed::for_slots(1);
        let put = |lanes: Arc<[QueueLane<Words, _>]>, recorded: TicketRecord<Words>, cursor: Words| {
            move || {
                let channel = successor::LaneChannel::new(&lanes, recorded, cursor, 0).unwrap();
                let (from, to) = (LocalAddress { addr: 0, key: 0 }, PeerAddress { peer: 1, addr: 0, key: 0 });
                channel
                    .put(&PutBytes { from, to, len: 8 }, &PutActions::default(), &mut UnlimitedWait)
                    .unwrap()
                    .lane
            }
        };
        let other = thread::spawn(put(Arc::clone(&lanes), recorded.clone(), Arc::clone(&cursor)));
        let mine = put(Arc::clone(&lanes), recorded.clone(), cursor)();
        assert_ne!(mine, other.join().unwrap());
        assert_eq!(recorded.pending_lanes(), 0b11);
    });
}

/// Two slots in one wait: a sum that was reached before one of them failed is a success.
#[test]
fn sum_reached_before_a_failure_is_a_success() {
    check(2, || {
        let words = loomed::for_slots(4);
        let raised = Arc::clone(&words);
        let raiser = thread::spawn(move || {
            raised.fetch_add(16, 2, AcqRel);
            raised.store(24, PoisonWord { status: EntryStatus::Network, queue: 3 }.to_word(), Release);
        });
        let slots = [SignalSlot::with_poison_word(0), SignalSlot::with_poison_word(16)];
        let look = |value| poll_sum(&words, slots.into_iter(), value);
        match look(2) {
            Ok(found) => assert!(matches!(found, None | Some(2))),
            Err(error) => panic!("{error}"),
        }
        raiser.join().unwrap();
        assert_eq!(look(2), Ok(Some(2)));
        assert!(matches!(look(3), Err(WaitError::Poisoned(_))));
    });
}

/// As above, for one slot.
#[test]
fn value_reached_before_a_failure_is_a_success() {
    check(2, || {
        let words = loomed::for_slots(2);
        let raised = Arc::clone(&words);
        let raiser = thread::spawn(move || {
            raised.fetch_add(0, 2, AcqRel);
            raised.store(8, PoisonWord { status: EntryStatus::Network, queue: 3 }.to_word(), Release);
        });
        let slot = SignalSlot::with_poison_word(0);
        let look = |value| slot.check_condition(&words, SlotCondition::AtLeast(value));
        if let Err(error) = look(2) {
            panic!("{error}");
        }
        raiser.join().unwrap();
        assert_eq!(look(2), Ok(true));
        assert!(matches!(look(3), Err(WaitError::Poisoned(_))));
    });
}

/// A signal covers its bytes: bytes that were written before it was raised are read after it was seen.
#[test]
fn signal_covers_its_bytes() {
    check(3, || {
        let (words, data) = (loomed::for_slots(2), loomed::for_data(1));
        let (signal, bytes) = (Arc::clone(&words), Arc::clone(&data));
        let target = thread::spawn(move || {
            let slot = SignalSlot::with_poison_word(0);
            assert_eq!(slot.wait(&signal, SlotCondition::AtLeast(1), &mut UnlimitedWait), Ok(1));
            assert_eq!(bytes.get(0), 77);
        });
        data.put(0, 77);
        words.fetch_add(0, 1, AcqRel);
        target.join().unwrap();
    });
}
