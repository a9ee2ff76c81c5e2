//! WRITEs that raise a counter of their own process: the time of the addition, and the counter after a failure.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

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
    /// Whether WRITEs end at once; otherwise [`QueueDrain::end_job`] ends them.
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
                assert_eq!(
                    (at, value, poisoned),
                    (counter(index).at, 5, true),
                    "the counter must be this process's"
                );
                let ticket = EntryTicket { queue, epoch: self.queue.queue_shape().epoch(), index };
                assert_eq!(
                    self.queue.poll(ticket),
                    Ok(TicketPoll::Done),
                    "an entry must have completed before its counter is raised"
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
fn immediate_writes_are_counted_after_completion() {
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

/// Entries that end later and out of order. No counter is raised before all earlier entries have completed, and none is
/// forgotten.
#[test]
fn late_writes_are_counted_in_order() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[counted(0), counted(1), write(8, 8), counted(3)], &mut PollLimit(1)).unwrap();
    assert_eq!(drain.run_pass(&mut port).busy, 1);
    assert_eq!(port.seen.split_off(0), [0, 1, 2, 3].map(Event::Began));
    ended(&mut drain, 1, DONE);
    ended(&mut drain, 3, DONE);
    assert_eq!(drain.run_pass(&mut port).busy, 1);
    assert!(port.seen.is_empty(), "the first entry is still in progress");
    ended(&mut drain, 0, DONE);
    // The counter is raised before any new entry begins.
    port.at_once = true;
    port.queue.post(&[write(8, 8)], &mut PollLimit(1)).unwrap();
    ended(&mut drain, 2, DONE);
    assert_eq!(drain.run_pass(&mut port).busy, 0);
    port.seen[..3].sort_by_key(|event| if let Event::Counted(index) = event { *index } else { 9 });
    assert_eq!(port.seen, [Event::Counted(0), Event::Counted(1), Event::Counted(3), Event::Began(4)]);
}

/// A queue whose only work is a counter to be raised is not idle: its next pass raises the counter.
#[test]
fn due_counter_is_raised_by_the_next_pass() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[counted(0)], &mut PollLimit(1)).unwrap();
    assert_eq!(drain.run_pass(&mut port).busy, 1);
    ended(&mut drain, 0, DONE);
    assert_eq!(drain.run_pass(&mut port).busy, 0, "the counter must be raised in this pass");
    assert_eq!(port.seen, [Event::Began(0), Event::Counted(0)]);
}

/// The counters of a failed WRITE and of all later entries are poisoned, whether these began or not; earlier counters
/// are raised.
#[test]
fn failure_poisons_counters_from_its_entry_on() {
    let (mut drain, mut port) = world(4, true);
    port.fails = Some(1);
    port.queue.post(&[counted(0), counted(1), counted(2)], &mut PollLimit(1)).unwrap();
    while drain.run_pass(&mut port).busy > 0 {}
    let network = |index| Event::Poisoned(index, EntryStatus::Network);
    let seen = [Event::Began(0), Event::Counted(0), Event::Began(1), network(1), network(2)];
    assert_eq!(port.seen, seen);
}

/// An entry that succeeded behind a failed one completes as flushed. Its counter is poisoned and not raised, so its
/// waiters fail.
#[test]
fn flushed_write_poisons_its_counter() {
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
fn abort_poisons_counters() {
    let (mut drain, mut port) = world(4, true);
    port.queue.post(&[counted(0)], &mut PollLimit(1)).unwrap();
    assert!(port.queue.abort(AbortWord { status: EntryStatus::Aborted, reason: 0 }));
    while drain.run_pass(&mut port).busy > 0 {}
    assert_eq!(port.seen, [Event::Poisoned(0, EntryStatus::Aborted)]);
}
