//! WRITEs that raise a counter of their own process: when they do, and what becomes of the counter when something fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod common;

use trunkline_device_queue::{
    Addition, BellPage, Drain, HeapWords, Job, Looks, Outcome, Poll, Port, Queue, Rules, Ticket, heap,
};
use trunkline_proto::wire::device_queue::{Aborted, Bells, Entry, Poison, Remote, Shape, Status};

use common::{planted, write};

/// What an executor was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Began(u64),
    Counted(u64),
    Poisoned(u64, Status),
}

/// Executes WRITEs at once or later, as it is told, and looks whether what is counted has completed.
struct Watching {
    queue: Queue<HeapWords>,
    /// They end at once; else by [`Drain::end`].
    at_once: bool,
    /// The one that fails, if it ends at once.
    fails: Option<u64>,
    seen: Vec<Event>,
}

impl Port for Watching {
    fn begin(&mut self, queue: u32, index: u64, job: &Job) -> Option<Outcome> {
        match *job {
            Job::Execute(_) => {
                self.seen.push(Event::Began(index));
                let failed = Outcome::Failed { status: Status::Network, reason: 3 };
                let outcome = if self.fails == Some(index) { failed } else { Outcome::Done(0) };
                return self.at_once.then_some(outcome);
            }
            Job::Count { at, value, poisoned } => {
                assert_eq!((at, value, poisoned), (counter(index).at, 5, true), "of this process");
                let ticket = Ticket { queue, epoch: self.queue.shape().epoch(), index };
                assert_eq!(
                    self.queue.poll(ticket),
                    Ok(Poll::Done),
                    "who hears of it by the counter may look"
                );
                assert_eq!(self.queue.completion(ticket).unwrap().status, Status::Done);
                self.seen.push(Event::Counted(index));
            }
            Job::Poison { at, poisoned, poison } => {
                assert_eq!((at, poisoned), (counter(index).at, true));
                let Poison { status, queue: named } = poison;
                assert_eq!(named, queue);
                self.seen.push(Event::Poisoned(index, status));
            }
        }
        Some(Outcome::Done(0))
    }
}

/// The counter of an entry: each has its own.
fn counter(index: u64) -> Addition {
    Addition { at: Remote { peer: 9, addr: 64 + index * 16, key: 7 }, value: 5, poisoned: true }
}

fn counted(index: u64) -> Entry {
    counter(index).with(write(8, 8)).unwrap()
}

fn world(window: u32, at_once: bool) -> (Drain<HeapWords>, Watching) {
    let page = BellPage::create(heap(Bells::new(1).unwrap().bytes()), 1, planted()).unwrap();
    let shape = Shape::new(8, 4, 2, 0).unwrap();
    let queue = Queue::create(heap(shape.bytes()), shape, 0, &page, planted()).unwrap();
    let mut drain = Drain::new(page, planted()).unwrap();
    assert!(drain.add(queue.clone(), Rules { is_ordered: false, me: 9, window }).unwrap());
    (drain, Watching { queue, at_once, fails: None, seen: Vec::new() })
}

fn ended(drain: &mut Drain<HeapWords>, index: u64, outcome: Outcome) {
    assert!(drain.end(4, index, outcome));
}

const DONE: Outcome = Outcome::Done(0);
const FAILED: Outcome = Outcome::Failed { status: Status::Network, reason: 3 };

/// What ends at once, one after another.
#[test]
fn what_ends_at_once_is_counted_once_it_has_completed() {
    let (mut drain, mut port) = world(4, true);
    for round in 0..3 {
        let first = round * 3;
        let entries = [counted(first), write(8, 8), counted(first + 2)];
        port.queue.post(&entries, &mut Looks(1)).unwrap();
        assert_eq!(drain.pass(&mut port).busy, 0);
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

/// What ends later, and not in order: nothing is counted before all before it have completed, and what is counted is not left over.
#[test]
fn what_ends_later_is_counted_in_its_turn() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[counted(0), counted(1), write(8, 8), counted(3)], &mut Looks(1)).unwrap();
    assert_eq!(drain.pass(&mut port).busy, 1);
    assert_eq!(port.seen.split_off(0), [0, 1, 2, 3].map(Event::Began));
    ended(&mut drain, 1, DONE);
    ended(&mut drain, 3, DONE);
    assert_eq!(drain.pass(&mut port).busy, 1);
    assert!(port.seen.is_empty(), "the first one is under way");
    ended(&mut drain, 0, DONE);
    // Its turn comes before that of anything new.
    port.at_once = true;
    port.queue.post(&[write(8, 8)], &mut Looks(1)).unwrap();
    ended(&mut drain, 2, DONE);
    assert_eq!(drain.pass(&mut port).busy, 0);
    port.seen[..3].sort_by_key(|event| if let Event::Counted(index) = event { *index } else { 9 });
    assert_eq!(port.seen, [Event::Counted(0), Event::Counted(1), Event::Counted(3), Event::Began(4)]);
}

/// A queue with nothing left but a counter to be raised is not idle.
#[test]
fn what_is_due_keeps_the_queue_busy() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[counted(0)], &mut Looks(1)).unwrap();
    assert_eq!(drain.pass(&mut port).busy, 1);
    ended(&mut drain, 0, DONE);
    assert_eq!(drain.pass(&mut port).busy, 0, "it was raised in this pass");
    assert_eq!(port.seen, [Event::Began(0), Event::Counted(0)]);
}

/// The counter of a WRITE that fails is poisoned, and those of all behind it, whether they began or not; those before are raised.
#[test]
fn who_waits_for_a_counter_hears_of_a_failure() {
    let (mut drain, mut port) = world(4, true);
    port.fails = Some(1);
    port.queue.post(&[counted(0), counted(1), counted(2)], &mut Looks(1)).unwrap();
    while drain.pass(&mut port).busy > 0 {}
    let network = |index| Event::Poisoned(index, Status::Network);
    let seen = [Event::Began(0), Event::Counted(0), Event::Began(1), network(1), network(2)];
    assert_eq!(port.seen, seen);
}

/// One that ended well behind one that fails completes as flushed: it is not counted, and whoever waits for its counter hears of it.
#[test]
fn who_waits_for_a_counter_hears_that_it_was_flushed() {
    let (mut drain, mut port) = world(4, false);
    port.queue.post(&[write(8, 8), counted(1)], &mut Looks(1)).unwrap();
    drain.pass(&mut port);
    ended(&mut drain, 1, DONE);
    ended(&mut drain, 0, FAILED);
    while drain.pass(&mut port).busy > 0 {}
    assert_eq!(port.seen[2..], [Event::Poisoned(1, Status::Flushed)]);
}

/// After an abort nothing begins, and no counter is raised.
#[test]
fn who_waits_for_a_counter_hears_of_an_abort() {
    let (mut drain, mut port) = world(4, true);
    port.queue.post(&[counted(0)], &mut Looks(1)).unwrap();
    assert!(port.queue.abort(Aborted { status: Status::Aborted, reason: 0 }));
    while drain.pass(&mut port).busy > 0 {}
    assert_eq!(port.seen, [Event::Poisoned(0, Status::Aborted)]);
}
