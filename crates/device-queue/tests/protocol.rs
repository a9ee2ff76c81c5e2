//! The protocol step by step: order, wrap-around, depths, failures, and how each wait ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod common;
#[path = "common/world.rs"]
mod world;

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use trunkline_device_queue::queue::CompletionError;
use trunkline_device_queue::raw::{self, RawError};
use trunkline_device_queue::{
    BellPage, Condition, Consumer, Drain, Fault, Forever, HeapWords, Job, Looks, Memory, OrDie, Outcome,
    Poll, Port, Progress, Queue, Refusal, Rules, Rung, Slot, Slots, Step, Ticket, Until, WaitError, heap,
};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::device_queue::{
    Aborted, Bells, Companion, Completion, Entry, Fence, Frontier, Local, Poison, Remote, Shape, ShapeError,
    Status, Work, at, is_before,
};

use common::{add, notify, planted, wait, write};

const RULES: Rules = Rules { is_ordered: false, me: 0, window: 64 };
const FAILED: Outcome = Outcome::Failed { status: Status::Network, reason: 4 };

fn page(count: u32) -> BellPage<HeapWords> {
    BellPage::create(heap(Bells::new(count).unwrap().bytes()), count, planted()).unwrap()
}

fn queue_of(depth: u32, first: u64, number: u32, page: &BellPage<HeapWords>) -> Queue<HeapWords> {
    let shape = Shape::new(depth, number, 6, number).unwrap();
    Queue::create(heap(shape.bytes()), shape, first, page, planted()).unwrap()
}

fn queue(depth: u32, first: u64) -> (BellPage<HeapWords>, Queue<HeapWords>) {
    let page = page(1);
    let queue = queue_of(depth, first, 0, &page);
    (page, queue)
}

fn post(queue: &Queue<HeapWords>, entries: &[Entry]) -> Ticket {
    queue.post(entries, &mut Looks(1)).unwrap()
}

/// Has a consumer begin what it can; the indices.
fn begin(consumer: &mut Consumer<HeapWords>) -> Vec<u64> {
    jobs(consumer).into_iter().map(|(index, _)| index).collect()
}

fn jobs(consumer: &mut Consumer<HeapWords>) -> Vec<(u64, Job)> {
    std::iter::from_fn(|| match consumer.next(&|_| None) {
        Step::Begin(index, job) => Some((index, job)),
        Step::Held | Step::Idle => None,
    })
    .collect()
}

/// Posts and executes `count` notifications, as many at a time as fit; their tickets.
fn drive(page: &BellPage<HeapWords>, queue: &Queue<HeapWords>, count: u64) -> Vec<Ticket> {
    let mut consumer = Consumer::new(queue, RULES).unwrap();
    let mut tickets = Vec::new();
    let mut next = consumer.progress().completed;
    while (tickets.len() as u64) < count || !consumer.is_idle() {
        while (tickets.len() as u64) < count {
            match queue.post(&[notify(tickets.len() as u32)], &mut Looks(1)) {
                Ok(ticket) => tickets.push(ticket),
                Err(refusal) => {
                    assert_eq!(refusal, Refusal::Busy);
                    break;
                }
            }
        }
        consumer.look(page.look(0));
        for (index, job) in jobs(&mut consumer) {
            assert_eq!(index, next, "in order");
            let imm = tickets.iter().position(|ticket| ticket.index == index).unwrap();
            assert_eq!(job, Job::Execute(notify(imm as u32)));
            assert!(consumer.end(index, Outcome::Done(index)));
            next = next.wrapping_add(1);
        }
    }
    tickets
}

#[test]
fn it_wraps_at_every_edge() {
    for depth in [2, 4, 1024] {
        let edges = [1 << 16, 1 << 32, 1 << 63, 0_u64];
        let firsts = edges
            .iter()
            .flat_map(|edge| [edge.wrapping_sub(3), edge.wrapping_sub(2 * u64::from(depth)), *edge]);
        for first in firsts {
            let (page, queue) = queue(depth, first);
            let tickets = drive(&page, &queue, 3 * u64::from(depth) + 1);
            for (nth, ticket) in tickets.iter().enumerate() {
                assert_eq!(ticket.index, first.wrapping_add(nth as u64));
                assert_eq!(queue.poll(*ticket), Ok(Poll::Done));
                let completion = queue.completion(*ticket);
                let age = tickets.len() - nth;
                if age > depth as usize {
                    assert_eq!(completion, Err(CompletionError::Gone), "{nth} of {}", tickets.len());
                } else {
                    let value = ticket.index;
                    assert_eq!(completion, Ok(Completion { status: Status::Done, op: 10, value }));
                }
            }
            let next = Ticket { index: first.wrapping_add(tickets.len() as u64), ..tickets[0] };
            assert_eq!(queue.poll(next), Ok(Poll::Busy));
            assert_eq!(queue.completion(next), Err(CompletionError::NotYet));
        }
    }
}

#[test]
fn the_deepest_queue_is_filled_to_the_last_place() {
    let depth = 32_768;
    let (page, queue) = queue(depth, u64::MAX - 5);
    let entries: Vec<_> = (0..depth).map(notify).collect();
    let ticket = post(&queue, &entries);
    assert_eq!(queue.reserve(1).err(), Some(Refusal::Busy));
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    for nth in 0..depth {
        let Step::Begin(index, Job::Execute(entry)) = consumer.next(&|_| None) else {
            panic!("{nth} is missing")
        };
        assert_eq!(entry, notify(nth));
        assert!(consumer.end(index, Outcome::Done(0)));
    }
    assert_eq!(queue.wait(ticket, &mut Looks(1)), Ok(()));
    assert!(queue.reserve(depth).is_ok());
    let (too_many, none) = (queue.reserve(depth + 1).err(), queue.reserve(0).err());
    assert_eq!(too_many, Some(Refusal::TooMany { asked: depth + 1, depth }));
    assert_eq!(none, Some(Refusal::TooMany { asked: 0, depth }));
}

#[test]
fn only_memory_that_is_a_queue_is_one() {
    let page = page(2);
    for depth in [1, 3, 65_536] {
        assert_eq!(Shape::new(depth, 0, 0, 0), Err(ShapeError::Depth(depth)));
    }
    let shape = Shape::new(8, 4, 1, 1).unwrap();
    let short = Queue::create(heap(shape.bytes() - 8), shape, 0, &page, planted()).err();
    assert_eq!(short, Some(ShapeError::Short { have: shape.bytes() - 8, need: shape.bytes() }));
    let memory = heap(shape.bytes());
    assert!(matches!(Queue::open(memory.clone(), &page, planted()).err(), Some(ShapeError::Magic(0))));
    let made = Queue::create(memory.clone(), shape, 77, &page, planted()).unwrap();
    let found = Queue::open(memory.clone(), &page, planted()).unwrap();
    assert_eq!(found.shape(), made.shape());
    assert_eq!(post(&found, &[notify(1)]).index, 77, "what one writes the other sees");
    memory.put(16, u64::from(3_u32) | 4 << 32);
    assert_eq!(Queue::open(memory, &page, planted()).err(), Some(ShapeError::Depth(3)));
    let far = Shape::new(8, 4, 1, 2).unwrap();
    let error = Queue::create(heap(far.bytes()), far, 0, &page, planted()).err();
    assert_eq!(error, Some(ShapeError::Bells(2)), "there is no such doorbell");
    let words = heap(Bells::new(3).unwrap().bytes());
    assert!(BellPage::open(words.clone(), planted()).is_err());
    let bells = BellPage::create(words.clone(), 3, planted()).unwrap();
    assert_eq!(BellPage::open(words, planted()).unwrap().count(), bells.count());
}

#[test]
fn words_at_an_address_are_a_memory() {
    let mut words = [const { AtomicU64::new(0) }; 16];
    let start = NonNull::from(&mut words).cast::<u8>();
    // SAFETY: the words are there for as long as they are used here, and are atomics.
    let slice = unsafe { raw::words(start, 16 * 8 + 7) }.unwrap();
    assert_eq!(slice.bytes(), 128);
    slice.store(120, 5, Release);
    assert_eq!((slice.load(120, Acquire), words[15].load(Relaxed)), (5, 5));
    let off = start.map_addr(|at| at | 4);
    // SAFETY: nothing is made of it.
    let unaligned = unsafe { raw::words(off, 8) };
    assert!(matches!(unaligned, Err(RawError::Unaligned(_))));
    // SAFETY: nothing is made of it.
    let long = unsafe { raw::words(start, usize::MAX & !7) };
    assert!(matches!(long, Err(RawError::Long(_))));
}

/// A9: who has reserved first publishes first, and who submits late has nothing to ring.
#[test]
fn publication_is_in_order_and_doorbells_do_for_several() {
    let (page, queue) = queue(8, 0);
    let (mut one, mut two) = (queue.reserve(2).unwrap(), queue.reserve(1).unwrap());
    assert!(two.write(&notify(2)).is_some());
    let two = two.publish().unwrap_err();
    assert!(one.write(&notify(0)).is_some() && one.write(&notify(1)).is_some());
    assert_eq!(one.write(&notify(9)), None, "it has two places");
    let one = one.publish().unwrap();
    let two = two.publish().unwrap();
    assert_eq!((one.index, two.index), (1, 2));
    assert_eq!(page.look(0), 0, "nothing was rung");
    assert_eq!(queue.submit(3), Rung::Yes);
    assert_eq!((page.look(0), page.take(0)), (3, 1));
    assert_eq!(queue.submit(2), Rung::Covered);
    assert_eq!((page.look(0), page.take(0)), (3, 0), "the late one rings nothing");
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(3);
    let begun: Vec<_> = jobs(&mut consumer).into_iter().map(|(_, job)| job).collect();
    assert_eq!(begun, [0, 1, 2].map(|imm| Job::Execute(notify(imm))));
}

#[test]
fn what_is_given_up_becomes_nops() {
    let (page, queue) = queue(4, 0);
    let mut reservation = queue.reserve(3).unwrap();
    assert!(reservation.write(&notify(5)).is_some());
    reservation.cancel();
    let mut reservation = queue.reserve(1).unwrap();
    assert!(reservation.write(&notify(6)).is_some());
    drop(reservation);
    assert_eq!(
        queue.words().load(at::SUBMITTED, Acquire),
        4,
        "and are submitted, so that the places become free"
    );
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    assert_eq!(begin(&mut consumer), [], "nothing of it is executed");
    assert_eq!(consumer.progress().completed, 4);
    for index in 0..4 {
        let ticket = Ticket { queue: 0, epoch: 6, index };
        assert_eq!(queue.completion(ticket).map(|completion| completion.op), Ok(0));
    }
    let mut reservation = queue.reserve(2).unwrap();
    assert!(reservation.write(&notify(7)).is_some());
    assert_eq!(reservation.publish().unwrap().index, 5, "what was not written is a NOP, too");
}

#[test]
fn who_leaves_in_the_middle_ends_the_queue_for_those_behind() {
    let (_page, queue) = queue(8, 0);
    std::mem::forget(queue.reserve(1).unwrap());
    let mut behind = queue.reserve(1).unwrap();
    let ticket = behind.write(&notify(1)).unwrap();
    let behind = behind.publish_within(&mut Looks(5)).unwrap_err();
    assert_eq!(queue.wait(ticket, &mut Looks(5)), Err(WaitError::Timeout), "there is hope");
    drop(behind);
    let abandoned = Aborted { status: Status::Abandoned, reason: 0 };
    assert_eq!(queue.wait(ticket, &mut Forever), Err(WaitError::Aborted(abandoned)));
    assert_eq!(
        queue.post(&[notify(2)], &mut Forever),
        Err(Refusal::Busy),
        "there is room, but no way past the hole"
    );
    assert_eq!(
        queue.reserve_within(8, &mut Forever).err(),
        Some(Refusal::Over(WaitError::Aborted(abandoned)))
    );
}

/// T8: an error at every place of a script of 32, window 1 and more: those before are done, that one and those behind are not.
#[test]
fn a_failure_reaches_every_ticket_from_it_on() {
    for (bad, window) in (0..32_u64).flat_map(|bad| [(bad, 1), (bad, 7), (bad, 64)]) {
        let (page, queue) = queue(32, u64::MAX - 10);
        let entries: Vec<_> = (0..32).map(notify).collect();
        let last = post(&queue, &entries);
        let ticket = |nth: u64| Ticket { index: last.index.wrapping_sub(31 - nth), ..last };
        let mut consumer = Consumer::new(&queue, Rules { is_ordered: false, me: 0, window }).unwrap();
        consumer.look(page.look(0));
        loop {
            let begun = begin(&mut consumer);
            // The last first: completions are told in order all the same.
            for index in begun.iter().rev() {
                let outcome = if *index == ticket(bad).index { FAILED } else { Outcome::Done(0) };
                assert!(consumer.end(*index, outcome));
            }
            if begun.is_empty() {
                break;
            }
        }
        let fault = Fault { first_bad: ticket(bad).index, status: Status::Network, reason: 4 };
        assert_eq!((queue.fault(), consumer.is_idle()), (Some(fault), true));
        for nth in 0..32 {
            let expected = if nth < bad { Ok(()) } else { Err(WaitError::Failed(fault)) };
            assert_eq!(queue.wait(ticket(nth), &mut Looks(1)), expected, "{nth} of {bad}");
            let status = match nth.cmp(&bad) {
                std::cmp::Ordering::Less => Status::Done,
                std::cmp::Ordering::Equal => Status::Network,
                std::cmp::Ordering::Greater => Status::Flushed,
            };
            assert_eq!(queue.completion(ticket(nth)).map(|completion| completion.status), Ok(status));
        }
        let late = post(&queue, &[notify(99)]);
        consumer.look(page.look(0));
        assert_eq!(begin(&mut consumer), [], "nothing is executed any more");
        assert_eq!(queue.wait(late, &mut Looks(1)), Err(WaitError::Failed(fault)));
        let progress = consumer.progress();
        assert_eq!(progress.first_bad, Some(fault.first_bad));
        assert!(
            is_before(progress.first_bad.unwrap(), progress.completed),
            "what is behind a failure has ended"
        );
    }
}

#[test]
fn every_wait_ends_when_its_time_is_over() {
    let (page, queue) = queue(2, 0);
    let ticket = post(&queue, &[notify(0), notify(1)]);
    assert_eq!(queue.wait(ticket, &mut Looks(3)), Err(WaitError::Timeout));
    let time = Cell::new(0);
    let clock = || {
        time.set(time.get() + 10);
        Instant(time.get())
    };
    let mut until = Until { deadline: Instant(95), clock };
    assert_eq!(queue.wait(ticket, &mut until), Err(WaitError::Timeout));
    assert_eq!(time.get(), 100, "it looked until then");
    assert_eq!(queue.reserve_within(1, &mut Looks(3)).err(), Some(Refusal::Busy));
    assert_eq!(queue.companion_within(&mut Looks(3)), Err(WaitError::Timeout));
    let words = heap(16);
    let slot = Slot::poisoned(0);
    let waited = slot.wait(&words, Condition::AtLeast(1), &mut Looks(3), planted());
    assert_eq!(waited, Err(WaitError::Timeout));
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    for index in begin(&mut consumer) {
        consumer.end(index, Outcome::Done(0));
    }
    assert_eq!(queue.wait(ticket, &mut Looks(1)), Ok(()), "a timeout takes nothing away");
    let stale = [Ticket { epoch: 5, ..ticket }, Ticket { queue: 1, ..ticket }];
    for ticket in stale {
        assert_eq!(queue.wait(ticket, &mut Forever), Err(WaitError::Stale));
        assert_eq!(queue.completion(ticket), Err(CompletionError::Stale));
    }
}

/// And the kernel only where that was asked for.
#[test]
fn a_spent_budget_is_the_end_if_it_is_asked_to_be() {
    fn die() -> ! {
        panic!("the kernel's end")
    }
    let (_page, queue) = queue(2, 0);
    let ticket = post(&queue, &[notify(0), notify(1)]);
    let waits = |die: Option<fn() -> !>| {
        let mut budget = OrDie::new(Looks(3), die, planted());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.wait(ticket, &mut budget)))
    };
    assert_eq!(waits(None).unwrap(), Err(WaitError::Timeout));
    let ended = waits(Some(die)).unwrap_err();
    assert_eq!(ended.downcast_ref(), Some(&"the kernel's end"));
}

#[test]
fn an_abort_ends_every_wait_and_nothing_begins_after_it() {
    let (page, queue) = queue(4, 0);
    let ticket = post(&queue, &[notify(0), notify(1), notify(2)]);
    let mut consumer = Consumer::new(&queue, Rules { is_ordered: false, me: 0, window: 1 }).unwrap();
    consumer.look(page.look(0));
    assert_eq!(begin(&mut consumer), [0]);
    let why = Aborted { status: Status::Other(900), reason: 17 };
    assert!(queue.abort(why));
    assert!(!queue.abort(Aborted { status: Status::Aborted, reason: 1 }), "the first one stays");
    assert_eq!(queue.aborted(), Some(why));
    assert_eq!(queue.wait(ticket, &mut Forever), Err(WaitError::Aborted(why)), "also where no engine is");
    assert_eq!(queue.companion_within(&mut Forever), Err(WaitError::Aborted(why)));
    assert_eq!(page.take(0), 1, "the engine is to look");
    consumer.look(page.look(0));
    assert!(consumer.end(0, Outcome::Done(0)));
    assert_eq!(begin(&mut consumer), []);
    assert_eq!(queue.poll(Ticket { index: 0, ..ticket }), Ok(Poll::Done), "it was under way, and went well");
    let fault = Fault { first_bad: 1, status: Status::Other(900), reason: 17 };
    assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)));
}

#[test]
fn what_a_device_wrote_is_not_believed() {
    for depth in [2, 8] {
        let (page, queue) = queue(depth, 0);
        let ticket = post(&queue, &[notify(0)]);
        let mut consumer = Consumer::new(&queue, RULES).unwrap();
        consumer.look(u64::from(depth) + 1);
        assert!(
            matches!(queue.poll(ticket), Err(WaitError::Aborted(why)) if why.status == Status::BadDoorbell)
        );
        consumer.look(page.look(0));
        assert_eq!(begin(&mut consumer), [], "the queue has failed");
        assert_eq!(consumer.progress().first_bad, Some(0), "who waits for more hears of it");
    }
    // What has been written fails with what it was to raise, though no doorbell that is believed told of it.
    let (bells, lost) = queue(8, 5);
    let ticket = post(&lost, &[add(0, 0, 1, true), add(16, 0, 1, true)]);
    let mut consumer = Consumer::new(&lost, RULES).unwrap();
    consumer.look(5 + 9);
    let mut poisoned = Vec::new();
    while let Step::Begin(index, job) = consumer.next(&|_| None) {
        poisoned.push(job);
        assert!(consumer.end(index, Outcome::Done(0)));
    }
    assert_eq!(poisoned.len(), 2, "{poisoned:?}");
    assert!(poisoned.iter().all(|job| matches!(job, Job::Poison { .. })), "{poisoned:?}");
    assert!(consumer.is_idle() && consumer.progress().completed == 7);
    assert!(matches!(lost.poll(ticket), Err(WaitError::Aborted(_) | WaitError::Failed(_))));
    consumer.look(bells.look(0));
    assert!(consumer.is_idle(), "the doorbell that was rung is behind");
    let (page, queue) = queue(8, 0);
    let ticket = post(&queue, &[notify(0), notify(1)]);
    let place = queue.shape().entry(1);
    queue.words().put(place, queue.words().get(place) - 1);
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    for index in begin(&mut consumer) {
        consumer.end(index, Outcome::Done(0));
    }
    let fault = Fault { first_bad: 1, status: Status::BadEntry, reason: 0 };
    assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)), "another lap's entry is none");
    assert_eq!(queue.poll(Ticket { index: 0, ..ticket }), Ok(Poll::Done));
    consumer.look(0);
    consumer.look(1);
    assert_eq!(begin(&mut consumer), [], "a doorbell that comes late means nothing");
    assert!(!consumer.end(0, Outcome::Done(0)) && !consumer.end(77, FAILED), "nothing is under way");
}

#[test]
fn fences_hold_what_they_should() {
    let read = {
        let (into, from) = (Local { addr: 0, key: 1 }, Remote { peer: 1, addr: 0, key: 2 });
        Entry::new(Work::Read { into, from, len: 8 })
    };
    let fenced = |fence| notify(0).fenced(fence);
    let cases: &[(&[Entry], bool, usize)] = &[
        (&[write(0, 8), write(8, 8), read, read], false, 4),
        (&[write(0, 8), add(1, 0, 1, true)], false, 1),
        (&[write(0, 8), add(1, 0, 1, true)], true, 2),
        (&[read, add(1, 0, 1, true)], false, 2),
        (&[add(1, 0, 1, true), add(1, 0, 1, true)], false, 1),
        (&[add(1, 0, 1, true), add(1, 0, 1, true)], true, 2),
        (&[add(1, 0, 1, true), write(0, 8)], false, 2),
        (&[write(0, 8), fenced(Fence::ReadsAndAtomics)], false, 2),
        (&[read, fenced(Fence::ReadsAndAtomics)], false, 1),
        (&[add(1, 0, 1, true), fenced(Fence::ReadsAndAtomics)], false, 1),
        (&[write(0, 8), fenced(Fence::All)], true, 1),
        (&[notify(0), fenced(Fence::All)], true, 1),
        (&[notify(0), Entry::new(Work::Barrier), notify(1)], true, 1),
        (&[Entry::new(Work::Nop), Entry::new(Work::Barrier), notify(1)], true, 1),
    ];
    for (nth, (entries, is_ordered, expected)) in cases.iter().enumerate() {
        let (page, queue) = queue(8, 0);
        let last = post(&queue, entries);
        let mut consumer =
            Consumer::new(&queue, Rules { is_ordered: *is_ordered, me: 0, window: 8 }).unwrap();
        consumer.look(page.look(0));
        let mut begun = begin(&mut consumer);
        assert_eq!(begun.len(), *expected, "case {nth}");
        while let Some(index) = begun.pop() {
            consumer.end(index, Outcome::Done(0));
            begun.extend(begin(&mut consumer));
        }
        assert_eq!(queue.poll(last), Ok(Poll::Done), "case {nth}: it goes on");
    }
}

/// No engine looks any more: the places stay taken, and whoever wants one hears why.
#[test]
fn a_full_queue_that_has_failed_says_so() {
    let (page, queue) = queue(4, 0);
    post(&queue, &[notify(0)]);
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    assert_eq!(begin(&mut consumer), [0]);
    assert!(consumer.end(0, FAILED));
    post(&queue, &[notify(1), notify(2), notify(3), notify(4)]);
    let fault = Fault { first_bad: 0, status: Status::Network, reason: 4 };
    let over = queue.reserve_within(1, &mut Looks(1000)).err();
    assert_eq!(over, Some(Refusal::Over(WaitError::Failed(fault))));
}

/// Executes at once; entries of the queues it is told fail, poison is kept.
#[derive(Default)]
struct Recording {
    executed: Vec<(u32, u64)>,
    poisoned: Vec<(u64, bool, Poison)>,
    fails: Vec<(u32, u64)>,
}

impl Port for Recording {
    fn begin(&mut self, queue: u32, index: u64, job: &Job) -> Option<Outcome> {
        match job {
            Job::Execute(_) if self.fails.contains(&(queue, index)) => return Some(FAILED),
            Job::Execute(_) => self.executed.push((queue, index)),
            Job::Poison { at, poisoned, poison } => self.poisoned.push((at.addr, *poisoned, *poison)),
            Job::Count { .. } => unreachable!("none of these entries counts"),
        }
        Some(Outcome::Done(0))
    }
}

/// A13, and I13: a companion that comes first waits, and counts once.
#[test]
fn a_wait_holds_its_queue_until_the_entry_has_completed() {
    let page = page(3);
    let (main, companion) = (queue_of(8, u64::MAX, 0, &page), queue_of(8, 5, 1, &page));
    let mut drain = Drain::new(page.clone(), planted()).unwrap();
    assert!(drain.add(main.clone(), RULES).unwrap() && drain.add(companion.clone(), RULES).unwrap());
    assert!(!drain.add(main.clone(), RULES).unwrap(), "it is there");
    let mut port = Recording::default();
    let count = post(&companion, &[wait(0, 0), add(0, 64, 1, true)]);
    for _ in 0..3 {
        assert_eq!(drain.pass(&mut port).busy, 1);
    }
    assert_eq!(port.executed, []);
    post(&main, &[notify(0)]);
    drain.pass(&mut port);
    drain.pass(&mut port);
    assert_eq!(port.executed, [(0, u64::MAX)], "one is not enough");
    post(&main, &[notify(1)]);
    drain.pass(&mut port);
    drain.pass(&mut port);
    assert_eq!(port.executed, [(0, u64::MAX), (0, 0), (1, 6)]);
    assert_eq!(companion.poll(count), Ok(Poll::Done));
    assert_eq!(drain.pass(&mut port), trunkline_device_queue::Pass::default(), "nothing is left to do");
}

/// A failed entry reaches the ticket, the counter and the signal; what came before it is not touched.
#[test]
fn a_failure_goes_over_to_who_waits_for_it() {
    let page = page(2);
    let (main, companion) = (queue_of(8, 0, 0, &page), queue_of(8, 0, 1, &page));
    let mut drain = Drain::new(page.clone(), planted()).unwrap();
    assert!(drain.add(main.clone(), RULES).unwrap() && drain.add(companion.clone(), RULES).unwrap());
    let mut port = Recording { fails: vec![(0, 2)], ..Recording::default() };
    let first = post(&main, &[write(0, 8), add(1, 128, 1, true)]);
    let second = post(&main, &[write(8, 8), add(1, 144, 1, false)]);
    let counted = post(&companion, &[wait(0, 0), add(0, 64, 1, true)]);
    let lost = post(&companion, &[wait(0, 2), add(0, 80, 1, true)]);
    while drain.pass(&mut port).busy > 0 {}
    assert_eq!(port.executed, [(0, 0), (0, 1), (1, 1)]);
    let network = Poison { status: Status::Network, queue: 0 };
    let awaited = Poison { status: Status::Awaited, queue: 1 };
    assert_eq!(port.poisoned, [(144, false, network), (80, true, awaited)]);
    assert_eq!((main.poll(first), companion.poll(counted)), (Ok(Poll::Done), Ok(Poll::Done)));
    let fault = Fault { first_bad: 2, status: Status::Network, reason: 4 };
    assert_eq!(main.poll(second), Err(WaitError::Failed(fault)));
    let fault = Fault { first_bad: 2, status: Status::Awaited, reason: 0 };
    assert_eq!(companion.poll(lost), Err(WaitError::Failed(fault)));
}

#[test]
fn what_waits_for_what_never_comes_fails() {
    let page = page(1);
    for (entry, reason) in [(wait(9, 0), 9), (wait(0, 0), 0), (wait(0, 1), 0)] {
        let queue = queue_of(8, 0, 0, &page);
        let ticket = post(&queue, &[entry]);
        let mut consumer = Consumer::new(&queue, RULES).unwrap();
        consumer.look(page.look(0));
        assert_eq!(begin(&mut consumer), []);
        let fault = Fault { first_bad: 0, status: Status::Awaited, reason };
        assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)));
    }
    // Behind a failure, or where nothing is executed any more, nothing comes: also what nobody has posted yet.
    let (awaited, completed) = (7, 3);
    for first_bad in [2, 3, 7].map(Some) {
        let queue = queue_of(8, 0, 0, &page);
        let ticket = post(&queue, &[wait(9, awaited)]);
        let mut consumer = Consumer::new(&queue, RULES).unwrap();
        consumer.look(page.look(0));
        let step = consumer.next(&|_| Some(Progress { completed, first_bad }));
        assert!(matches!(step, Step::Idle), "{first_bad:?}: {step:?}");
        let fault = Fault { first_bad: 0, status: Status::Awaited, reason: 9 };
        assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)));
    }
    for first_bad in [None, Some(8), Some(9)] {
        let queue = queue_of(8, 0, 0, &page);
        let ticket = post(&queue, &[wait(9, awaited)]);
        let mut consumer = Consumer::new(&queue, RULES).unwrap();
        consumer.look(page.look(0));
        let step = consumer.next(&|_| Some(Progress { completed, first_bad }));
        assert!(matches!(step, Step::Held), "{first_bad:?}: {step:?}");
        assert!(matches!(consumer.next(&|_| Some(Progress { completed: 8, first_bad })), Step::Idle));
        assert_eq!(queue.poll(ticket), Ok(Poll::Done));
    }
    let queue = queue_of(8, 0, 0, &page);
    let ticket = post(&queue, &[notify(0), wait(0, 0), notify(1)]);
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    assert_eq!(begin(&mut consumer), [0], "to wait for what was before is right");
    consumer.end(0, Outcome::Done(0));
    assert_eq!(begin(&mut consumer), [2]);
    consumer.end(2, Outcome::Done(0));
    assert_eq!(queue.poll(ticket), Ok(Poll::Done));
}

/// A queue that was rung before the engine had it, and whose bit was taken.
#[test]
fn what_was_rung_before_counts() {
    let page = page(1);
    let queue = queue_of(4, 3, 0, &page);
    let mut drain = Drain::new(page.clone(), planted()).unwrap();
    let mut port = Recording::default();
    let ticket = post(&queue, &[notify(0)]);
    assert_eq!(drain.pass(&mut port).begun, 0, "it is nobody's");
    assert!(drain.add(queue.clone(), RULES).unwrap());
    assert_eq!(drain.pass(&mut port).begun, 1);
    assert_eq!(queue.poll(ticket), Ok(Poll::Done));
}

#[test]
fn a_companion_is_made_when_it_is_first_asked_for() {
    let page = page(2);
    let main = queue_of(8, 0, 0, &page);
    let mut drain = Drain::new(page.clone(), planted()).unwrap();
    assert!(drain.add(main.clone(), RULES).unwrap());
    let mut port = Recording::default();
    drain.pass(&mut port);
    assert_eq!(drain.asked(), None);
    assert_eq!((main.companion(), main.companion()), (Companion::Asked, Companion::Asked));
    drain.pass(&mut port);
    assert_eq!(drain.asked(), Some(0));
    assert!(drain.add(queue_of(4, 0, 1, &page), RULES).unwrap());
    drain.answer(0, Companion::Queue(1));
    assert_eq!((drain.asked(), main.companion_within(&mut Looks(1))), (None, Ok(1)));
    drain.answer(0, Companion::Refused);
    assert_eq!(main.companion_within(&mut Forever), Err(WaitError::Refused));
}

#[test]
fn a_signal_is_read_waited_for_and_begun_anew() {
    let words = heap(256);
    let slot = Slot::poisoned(0).based(16);
    let wait = |until| slot.wait(&words, until, &mut Looks(1), planted());
    words.add(0, 5, Relaxed);
    let holds = [
        Condition::Equal(5),
        Condition::NotEqual(4),
        Condition::AtLeast(5),
        Condition::MoreThan(4),
        Condition::AtMost(5),
        Condition::LessThan(6),
    ];
    for until in holds {
        assert_eq!(wait(until), Ok(5));
    }
    for until in [Condition::Equal(6), Condition::NotEqual(5), Condition::MoreThan(5), Condition::LessThan(5)]
    {
        assert_eq!(wait(until), Err(WaitError::Timeout));
    }
    assert_eq!((slot.reset(&words, planted()), slot.read(&words)), (Some(5), 0));
    assert_eq!(words.load(0, Relaxed), 5, "the value is only ever added to");
    words.add(0, u64::MAX, Relaxed);
    assert_eq!(wait(Condition::AtLeast(u64::MAX)), Ok(u64::MAX));
    assert_eq!(Slot::poisoned(0).reset(&words, planted()), None);
    let poison = Poison { status: Status::PeerDead, queue: 3 };
    words.store(8, poison.to_word(), Release);
    assert_eq!(wait(Condition::AtLeast(7)), Ok(u64::MAX), "what has come has come");
    assert_eq!(wait(Condition::Equal(0)), Err(WaitError::Poisoned(poison)));
    assert!(slot.heal(&words, poison) && !slot.heal(&words, poison));
    assert_eq!(wait(Condition::Equal(0)), Err(WaitError::Timeout));
}

#[test]
fn every_slot_has_its_error_word() {
    let bare = Slots::Bare { values: 64, errors: 128, count: 3 };
    let poisoned = Slots::Poisoned { slots: 64, count: 3 };
    assert_eq!(bare.slot(2).map(|slot| (slot.value, slot.error)), Some((80, 144)));
    assert_eq!(poisoned.slot(2).map(|slot| (slot.value, slot.error)), Some((96, 104)));
    assert_eq!((bare.slot(3), poisoned.slot(3)), (None, None));
    for (addr, bare_error, poisoned_error) in [
        (56, None, None),
        (64, Some(128), Some(72)),
        (72, Some(136), None),
        (80, Some(144), Some(88)),
        (84, None, None),
    ] {
        assert_eq!((bare.error_of(addr), poisoned.error_of(addr)), (bare_error, poisoned_error), "{addr}");
    }
    assert_eq!((bare.error_of(88), poisoned.error_of(112)), (None, None), "there are three");
}

/// An entry that carries a check is refused when a bit of it is lost, and the check is not asked for otherwise.
#[test]
fn checks_are_as_the_header_says() {
    let page = page(1);
    let shape = Shape::new(2, 0, 0, 0).unwrap().checked();
    let queue = Queue::create(heap(shape.bytes()), shape, 0, &page, Mutant::NONE).unwrap();
    let ticket = post(&queue, &[notify(1)]);
    let place = shape.entry(0) + 40;
    queue.words().put(place, 3);
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    assert_eq!(begin(&mut consumer), []);
    assert!(matches!(queue.poll(ticket), Err(WaitError::Failed(fault)) if fault.status == Status::BadEntry));
}

/// The frontier of a queue never goes beyond its doorbell, whatever an engine is told.
#[test]
fn a_frontier_stays_behind_the_doorbell() {
    let (page, queue) = queue(4, 0);
    let mut consumer = Consumer::new(&queue, Rules { is_ordered: false, me: 0, window: 0 }).unwrap();
    for round in 0..20_u32 {
        let ticket = post(&queue, &[notify(round)]);
        consumer.look(page.look(0));
        let begun = begin(&mut consumer);
        assert_eq!(begun, [u64::from(round)], "a window of nothing is one of one");
        let frontier = Frontier(queue.words().load(at::FRONTIER, Acquire)).near(ticket.index);
        assert!(is_before(frontier, page.look(0)));
        consumer.end(ticket.index, Outcome::Done(0));
        assert!(consumer.is_idle());
    }
}

/// Executes everything at once; what the producer sees of the first entry while the second one is executed.
struct Watches<'a> {
    queue: &'a Queue<HeapWords>,
    first: Ticket,
    seen: Vec<Poll>,
}

impl Port for Watches<'_> {
    fn begin(&mut self, _: u32, index: u64, _: &Job) -> Option<Outcome> {
        if index == 1 {
            self.seen.push(self.queue.poll(self.first).unwrap());
        }
        Some(Outcome::Done(0))
    }
}

#[test]
fn who_waits_for_a_long_entry_does_not_wait_for_the_next_one() {
    let (page, queue) = queue(8, 0);
    let long = Work::Write {
        from: Local { addr: 0, key: 1 },
        to: Remote { peer: 1, addr: 0, key: 1 },
        len: 1 << 30,
        imm: None,
    };
    let first = post(&queue, &[Entry::new(long)]);
    post(&queue, &[Entry::new(long)]);
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    let mut port = Watches { queue: &queue, first, seen: Vec::new() };
    assert_eq!(consumer.turn(16, &|_| None, &mut port), 2);
    assert!(matches!(port.seen[..], [Poll::Done]), "{:?}", port.seen);
}

#[test]
fn a_queue_that_has_failed_stays_so_under_another_engine() {
    let (page, queue) = queue(8, 0);
    post(&queue, &[write(0, 8)]);
    let mut consumer = Consumer::new(&queue, RULES).unwrap();
    consumer.look(page.look(0));
    let [(index, _)] = jobs(&mut consumer)[..] else { panic!("one entry") };
    assert!(consumer.end(index, FAILED));
    drop(consumer);
    let _refused = queue.post(&[write(0, 8)], &mut Looks(1));
    page.words().store(page.bells().bell(0), 2, Release);
    let mut again = Consumer::new(&queue, RULES).unwrap();
    again.look(page.look(0));
    assert_eq!(begin(&mut again), [0_u64; 0], "nothing begins");
}

#[test]
fn bits_of_doorbells_that_there_are_not_are_nobodys() {
    let page = page(1);
    let queue = queue_of(8, 0, 0, &page);
    let mut drain = Drain::new(page.clone(), planted()).unwrap();
    assert!(drain.add(queue.clone(), RULES).unwrap());
    struct Never;
    impl Port for Never {
        fn begin(&mut self, _: u32, _: u64, _: &Job) -> Option<Outcome> {
            unreachable!("nothing was posted")
        }
    }
    page.words().store(Bells::group(0), 1 << 63, Release);
    assert_eq!(drain.pass(&mut Never).begun, 0);
}
