//! WRITEs that raise a counter of their own process: when they do, and how the counter is treated after a failure.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod common;

use trunkline_device_queue::{
    BellPage, DeviceQueue, EntryTicket, ExecutorRules, HeapWords, JobExecutor, JobOutcome, PollLimit,
    QueueDrain, QueueJob, TicketPoll, WordAddition, allocate_words,
};
use trunkline_proto::wire::device_queue::{
    AbortWord, DoorbellLayout, EntryStatus, PeerAddress, PoisonWord, QueueEntry, QueueShape,
};

use common::write;

/// The jobs that an executor received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Began(u64),
    Counted(u64),
    Poisoned(u64, EntryStatus),
}

/// Executes WRITEs at once or later, as configured, and checks that counted entries have completed.
struct Watching {
    queue: DeviceQueue<HeapWords>,
    /// WRITEs end at once; otherwise by [`QueueDrain::end_job`].
    at_once: bool,
    /// The index of the WRITE that fails, if WRITEs end at once.
    fails: Option<u64>,
    seen: Vec<Event>,
}

impl JobExecutor for Watching {
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome> {
        match *job {
            QueueJob::Execute(_) => {
                self.seen.push(Event::Began(index));
                let failed = JobOutcome::Failed { status: EntryStatus::Network, reason: 3 };
                let outcome = if self.fails == Some(index) { failed } else { JobOutcome::Done(0) };
                return self.at_once.then_some(outcome);
            }
            QueueJob::Count { at, value, poisoned } => {
                assert_eq!((at, value, poisoned), (counter(index).at, 5, true), "of this process");
                let ticket = EntryTicket { queue, epoch: self.queue.queue_shape().epoch(), index };
                assert_eq!(
                    self.queue.poll(ticket),
                    Ok(TicketPoll::Done),
                    "who hears of it by the counter may look"
                );
                assert_eq!(self.queue.read_completion(ticket).unwrap().status, EntryStatus::Done);
                self.seen.push(Event::Counted(index));
            }
            QueueJob::Poison { at, poisoned, poison } => {
                assert_eq!((at, poisoned), (counter(index).at, true));
                let PoisonWord { status, queue: named } = poison;
                assert_eq!(named, queue);
                self.seen.push(Event::Poisoned(index, status));
            }
        }
        Some(JobOutcome::Done(0))
    }
}

/// The counter of an entry: each has its own.
fn counter(index: u64) -> WordAddition {
    WordAddition { at: PeerAddress { peer: 9, addr: 64 + index * 16, key: 7 }, value: 5, poisoned: true }
}

fn counted(index: u64) -> QueueEntry {
    counter(index).attach_to(write(8, 8)).unwrap()
}

fn world(window: u32, at_once: bool) -> (QueueDrain<HeapWords>, Watching) {
    let page = BellPage::create(allocate_words(DoorbellLayout::new(1).unwrap().page_bytes()), 1).unwrap();
    let shape = QueueShape::new(8, 4, 2, 0).unwrap();
    let queue = DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, 0, &page).unwrap();
    let mut drain = QueueDrain::new(page).unwrap();
    assert!(drain.add_queue(queue.clone(), ExecutorRules { is_ordered: false, me: 9, window }).unwrap());
    (drain, Watching { queue, at_once, fails: None, seen: Vec::new() })
}

fn ended(drain: &mut QueueDrain<HeapWords>, index: u64, outcome: JobOutcome) {
    assert!(drain.end_job(4, index, outcome));
}

const DONE: JobOutcome = JobOutcome::Done(0);
const FAILED: JobOutcome = JobOutcome::Failed { status: EntryStatus::Network, reason: 3 };

/// Entries that end at once, one after another.
#[test]
fn what_ends_at_once_is_counted_once_it_has_completed() {
    let (mut drain, mut port) = world(4, true);
    for round in 0..3 {
        let first = round * 3;
        let entries = [counted(first), write(8, 8), counted(first + 2)];
        port.queue.post(&entries, &mut PollLimit(1)).unwrap();
        assert_eq!(drain.run_pass(&mut port).busy, 0);
        let began = Event::Began;
        let all = [
            began(first),
            Event::Counted(first),
            began(first + 1),
            began(first + 2),
            Event::Counted(first + 2),
        ];
        assert_eq!(port.seen.split_off(0), all);
    }
}

/// Entries that end later and out of order: no counter is raised before all earlier entries have completed, and none is left over.
#[test]
fn what_ends_later_is_counted_in_its_turn() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[counted(0), counted(1), write(8, 8), counted(3)], &mut PollLimit(1)).unwrap();
    assert_eq!(drain.run_pass(&mut port).busy, 1);
    assert_eq!(port.seen.split_off(0), [0, 1, 2, 3].map(Event::Began));
    ended(&mut drain, 1, DONE);
    ended(&mut drain, 3, DONE);
    assert_eq!(drain.run_pass(&mut port).busy, 1);
    assert!(port.seen.is_empty(), "the first one is under way");
    ended(&mut drain, 0, DONE);
    // The counter is raised before any new entry begins.
    port.at_once = true;
    port.queue.post(&[write(8, 8)], &mut PollLimit(1)).unwrap();
    ended(&mut drain, 2, DONE);
    assert_eq!(drain.run_pass(&mut port).busy, 0);
    port.seen[..3].sort_by_key(|event| if let Event::Counted(index) = event { *index } else { 9 });
    assert_eq!(port.seen, [Event::Counted(0), Event::Counted(1), Event::Counted(3), Event::Began(4)]);
}

/// A queue with nothing left but a counter to be raised is not idle.
#[test]
fn what_is_due_keeps_the_queue_busy() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[counted(0)], &mut PollLimit(1)).unwrap();
    assert_eq!(drain.run_pass(&mut port).busy, 1);
    ended(&mut drain, 0, DONE);
    assert_eq!(drain.run_pass(&mut port).busy, 0, "it was raised in this pass");
    assert_eq!(port.seen, [Event::Began(0), Event::Counted(0)]);
}

/// The counters of a failed WRITE and of all entries behind it are poisoned, whether these began or not; earlier counters are raised.
#[test]
fn who_waits_for_a_counter_hears_of_a_failure() {
    let (mut drain, mut port) = world(4, true);
    port.fails = Some(1);
    port.queue.post(&[counted(0), counted(1), counted(2)], &mut PollLimit(1)).unwrap();
    while drain.run_pass(&mut port).busy > 0 {}
    let network = |index| Event::Poisoned(index, EntryStatus::Network);
    let seen = [Event::Began(0), Event::Counted(0), Event::Began(1), network(1), network(2)];
    assert_eq!(port.seen, seen);
}

/// An entry that ended well behind a failed one completes as flushed: its counter is poisoned, not raised, so its waiters fail.
#[test]
fn who_waits_for_a_counter_hears_that_it_was_flushed() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[write(8, 8), counted(1)], &mut PollLimit(1)).unwrap();
    drain.run_pass(&mut port);
    ended(&mut drain, 1, DONE);
    ended(&mut drain, 0, FAILED);
    while drain.run_pass(&mut port).busy > 0 {}
    assert_eq!(port.seen[2..], [Event::Poisoned(1, EntryStatus::Flushed)]);
}

/// After an abort nothing begins, and no counter is raised.
#[test]
fn who_waits_for_a_counter_hears_of_an_abort() {
    let (mut drain, mut port) = world(4, true);
    port.queue.post(&[counted(0)], &mut PollLimit(1)).unwrap();
    assert!(port.queue.abort(AbortWord { status: EntryStatus::Aborted, reason: 0 }));
    while drain.run_pass(&mut port).busy > 0 {}
    assert_eq!(port.seen, [Event::Poisoned(0, EntryStatus::Aborted)]);
}
