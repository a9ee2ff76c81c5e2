//! The protocol step by step: order, wrap-around, depths, failures, and how each wait ends.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

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
    BellPage, ClockDeadline, ConsumerStep, DeviceQueue, EntryTicket, ExecutorRules, HeapWords, JobExecutor,
    JobOutcome, OrDie, PollLimit, QueueConsumer, QueueDrain, QueueFault, QueueJob, QueueProgress,
    ReserveError, RingOutcome, SignalSlot, SlotCondition, SlotLayout, TicketPoll, UnlimitedWait, WaitError,
    WordMemory, allocate_words,
};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::device_queue::{
    AbortWord, CompanionWord, DoorbellLayout, EntryCompletion, EntryFence, EntryStatus, EntryWork,
    FrontierWord, LocalAddress, PeerAddress, PoisonWord, QueueEntry, QueueShape, ShapeError, at, is_before,
};

use common::{add, notify, wait, write};

const RULES: ExecutorRules = ExecutorRules { is_ordered: false, me: 0, window: 64 };
const FAILED: JobOutcome = JobOutcome::Failed { status: EntryStatus::Network, reason: 4 };

fn page(count: u32) -> BellPage<HeapWords> {
    BellPage::create(allocate_words(DoorbellLayout::new(count).unwrap().page_bytes()), count).unwrap()
}

fn queue_of(depth: u32, first: u64, number: u32, page: &BellPage<HeapWords>) -> DeviceQueue<HeapWords> {
    let shape = QueueShape::new(depth, number, 6, number).unwrap();
    DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, first, page).unwrap()
}

fn queue(depth: u32, first: u64) -> (BellPage<HeapWords>, DeviceQueue<HeapWords>) {
    let page = page(1);
    let queue = queue_of(depth, first, 0, &page);
    (page, queue)
}

fn post(queue: &DeviceQueue<HeapWords>, entries: &[QueueEntry]) -> EntryTicket {
    queue.post(entries, &mut PollLimit(1)).unwrap()
}

/// Makes a consumer begin all entries that can begin. Returns their indices.
fn begin(consumer: &mut QueueConsumer<HeapWords>) -> Vec<u64> {
    jobs(consumer).into_iter().map(|(index, _)| index).collect()
}

fn jobs(consumer: &mut QueueConsumer<HeapWords>) -> Vec<(u64, QueueJob)> {
    std::iter::from_fn(|| match consumer.next(&|_| None) {
        ConsumerStep::Begin(index, job) => Some((index, job)),
        ConsumerStep::Held | ConsumerStep::Idle => None,
    })
    .collect()
}

/// Posts and executes `count` notifications, in batches that fit the queue. Returns their tickets.
fn drive(page: &BellPage<HeapWords>, queue: &DeviceQueue<HeapWords>, count: u64) -> Vec<EntryTicket> {
    let mut consumer = QueueConsumer::new(queue, RULES).unwrap();
    let mut tickets = Vec::new();
    let mut next = consumer.queue_progress().completed;
    while (tickets.len() as u64) < count || !consumer.is_idle() {
        while (tickets.len() as u64) < count {
            match queue.post(&[notify(tickets.len() as u32)], &mut PollLimit(1)) {
                Ok(ticket) => tickets.push(ticket),
                Err(refusal) => {
                    assert_eq!(refusal, ReserveError::Busy);
                    break;
                }
            }
        }
        consumer.handle_doorbell(page.read_bell(0));
        for (index, job) in jobs(&mut consumer) {
            assert_eq!(index, next, "entries must begin in order");
            let imm = tickets.iter().position(|ticket| ticket.index == index).unwrap();
            assert_eq!(job, QueueJob::Execute(notify(imm as u32)));
            assert!(consumer.end_job(index, JobOutcome::Done(index)));
            next = next.wrapping_add(1);
        }
    }
    tickets
}

#[test]
fn indices_wrap_at_every_limit() {
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
                assert_eq!(queue.poll(*ticket), Ok(TicketPoll::Done));
                let completion = queue.read_completion(*ticket);
                let age = tickets.len() - nth;
                if age > depth as usize {
                    assert_eq!(completion, Err(CompletionError::Gone), "{nth} of {}", tickets.len());
                } else {
                    let value = ticket.index;
                    assert_eq!(completion, Ok(EntryCompletion { status: EntryStatus::Done, op: 10, value }));
                }
            }
            let next = EntryTicket { index: first.wrapping_add(tickets.len() as u64), ..tickets[0] };
            assert_eq!(queue.poll(next), Ok(TicketPoll::Busy));
            assert_eq!(queue.read_completion(next), Err(CompletionError::NotYet));
        }
    }
}

#[test]
fn deepest_queue_fills_to_its_last_place() {
    let depth = 32_768;
    let (page, queue) = queue(depth, u64::MAX - 5);
    let entries: Vec<_> = (0..depth).map(notify).collect();
    let ticket = post(&queue, &entries);
    assert_eq!(queue.reserve_entries(1).err(), Some(ReserveError::Busy));
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    for nth in 0..depth {
        let ConsumerStep::Begin(index, QueueJob::Execute(entry)) = consumer.next(&|_| None) else {
            panic!("entry {nth} did not begin")
        };
        assert_eq!(entry, notify(nth));
        assert!(consumer.end_job(index, JobOutcome::Done(0)));
    }
    assert_eq!(queue.wait(ticket, &mut PollLimit(1)), Ok(()));
    assert!(queue.reserve_entries(depth).is_ok());
    let (too_many, none) = (queue.reserve_entries(depth + 1).err(), queue.reserve_entries(0).err());
    assert_eq!(too_many, Some(ReserveError::TooMany { asked: depth + 1, depth }));
    assert_eq!(none, Some(ReserveError::TooMany { asked: 0, depth }));
}

#[test]
fn invalid_queue_memory_is_refused() {
    let page = page(2);
    for depth in [1, 3, 65_536] {
        assert_eq!(QueueShape::new(depth, 0, 0, 0), Err(ShapeError::Depth(depth)));
    }
    let shape = QueueShape::new(8, 4, 1, 1).unwrap();
    let short = DeviceQueue::create(allocate_words(shape.queue_bytes() - 8), shape, 0, &page).err();
    assert_eq!(short, Some(ShapeError::Short { have: shape.queue_bytes() - 8, need: shape.queue_bytes() }));
    let memory = allocate_words(shape.queue_bytes());
    assert!(matches!(DeviceQueue::open(memory.clone(), &page).err(), Some(ShapeError::Magic(0))));
    let made = DeviceQueue::create(memory.clone(), shape, 77, &page).unwrap();
    let found = DeviceQueue::open(memory.clone(), &page).unwrap();
    assert_eq!(found.queue_shape(), made.queue_shape());
    assert_eq!(post(&found, &[notify(1)]).index, 77, "both values must access the same queue");
    memory.put(16, u64::from(3_u32) | 4 << 32);
    assert_eq!(DeviceQueue::open(memory, &page).err(), Some(ShapeError::Depth(3)));
    let far = QueueShape::new(8, 4, 1, 2).unwrap();
    let error = DeviceQueue::create(allocate_words(far.queue_bytes()), far, 0, &page).err();
    assert_eq!(error, Some(ShapeError::Bells(2)), "the page has no such doorbell");
    let words = allocate_words(DoorbellLayout::new(3).unwrap().page_bytes());
    assert!(BellPage::open(words.clone()).is_err());
    let bells = BellPage::create(words.clone(), 3).unwrap();
    assert_eq!(BellPage::open(words).unwrap().bell_count(), bells.bell_count());
}

#[test]
fn words_at_an_address_are_accessible() {
    let mut words = [const { AtomicU64::new(0) }; 16];
    let start = NonNull::from(&mut words).cast::<u8>();
    // SAFETY: the words outlive all uses below, and are atomics.
    let slice = unsafe { raw::words_at(start, 16 * 8 + 7) }.unwrap();
    assert_eq!(slice.byte_len(), 128);
    slice.store(120, 5, Release);
    assert_eq!((slice.load(120, Acquire), words[15].load(Relaxed)), (5, 5));
    let off = start.map_addr(|at| at | 4);
    // SAFETY: the call fails before it creates a slice.
    let unaligned = unsafe { raw::words_at(off, 8) };
    assert!(matches!(unaligned, Err(RawError::Unaligned(_))));
    // SAFETY: the call fails before it creates a slice.
    let long = unsafe { raw::words_at(start, usize::MAX & !7) };
    assert!(matches!(long, Err(RawError::Long(_))));
}

/// Trace A9: reservations are published in order, and a late submitter need not ring.
#[test]
fn publications_are_ordered_and_share_doorbells() {
    let (page, queue) = queue(8, 0);
    let (mut one, mut two) = (queue.reserve_entries(2).unwrap(), queue.reserve_entries(1).unwrap());
    assert!(two.write_entry(&notify(2)).is_some());
    let two = two.publish().unwrap_err();
    assert!(one.write_entry(&notify(0)).is_some() && one.write_entry(&notify(1)).is_some());
    assert_eq!(one.write_entry(&notify(9)), None, "the reservation has two places only");
    let one = one.publish().unwrap();
    let two = two.publish().unwrap();
    assert_eq!((one.index, two.index), (1, 2));
    assert_eq!(page.read_bell(0), 0, "no doorbell may be rung before a submit");
    assert_eq!(queue.submit(3), RingOutcome::Yes);
    assert_eq!((page.read_bell(0), page.take_group(0)), (3, 1));
    assert_eq!(queue.submit(2), RingOutcome::Covered);
    assert_eq!((page.read_bell(0), page.take_group(0)), (3, 0), "a covered submit must not ring");
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(3);
    let begun: Vec<_> = jobs(&mut consumer).into_iter().map(|(_, job)| job).collect();
    assert_eq!(begun, [0, 1, 2].map(|imm| QueueJob::Execute(notify(imm))));
}

#[test]
fn cancelled_places_become_nops() {
    let (page, queue) = queue(4, 0);
    let mut reservation = queue.reserve_entries(3).unwrap();
    assert!(reservation.write_entry(&notify(5)).is_some());
    reservation.cancel();
    let mut reservation = queue.reserve_entries(1).unwrap();
    assert!(reservation.write_entry(&notify(6)).is_some());
    drop(reservation);
    assert_eq!(
        queue.as_memory().load(at::SUBMITTED, Acquire),
        4,
        "cancelled places must be submitted, so that they become free"
    );
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    assert_eq!(begin(&mut consumer), [], "NOPs must not be executed");
    assert_eq!(consumer.queue_progress().completed, 4);
    for index in 0..4 {
        let ticket = EntryTicket { queue: 0, epoch: 6, index };
        assert_eq!(queue.read_completion(ticket).map(|completion| completion.op), Ok(0));
    }
    let mut reservation = queue.reserve_entries(2).unwrap();
    assert!(reservation.write_entry(&notify(7)).is_some());
    assert_eq!(reservation.publish().unwrap().index, 5, "unwritten places must become NOPs, too");
}

#[test]
fn cancel_behind_a_hole_aborts_the_queue() {
    let (_page, queue) = queue(8, 0);
    std::mem::forget(queue.reserve_entries(1).unwrap());
    let mut behind = queue.reserve_entries(1).unwrap();
    let ticket = behind.write_entry(&notify(1)).unwrap();
    let behind = behind.publish_within(&mut PollLimit(5)).unwrap_err();
    assert_eq!(
        queue.wait(ticket, &mut PollLimit(5)),
        Err(WaitError::Timeout),
        "the queue must not be aborted before the cancel"
    );
    drop(behind);
    let abandoned = AbortWord { status: EntryStatus::Abandoned, reason: 0 };
    assert_eq!(queue.wait(ticket, &mut UnlimitedWait), Err(WaitError::Aborted(abandoned)));
    assert_eq!(
        queue.post(&[notify(2)], &mut UnlimitedWait),
        Err(ReserveError::Busy),
        "no producer can publish behind the hole, although there is room"
    );
    assert_eq!(
        queue.reserve_within(8, &mut UnlimitedWait).err(),
        Some(ReserveError::Over(WaitError::Aborted(abandoned)))
    );
}

/// Acceptance case T8: an error at every place of a script of 32, with windows from 1 on. Earlier entries are done; the
/// failed one and later ones are not.
#[test]
fn failure_reaches_every_later_ticket() {
    for (bad, window) in (0..32_u64).flat_map(|bad| [(bad, 1), (bad, 7), (bad, 64)]) {
        let (page, queue) = queue(32, u64::MAX - 10);
        let entries: Vec<_> = (0..32).map(notify).collect();
        let last = post(&queue, &entries);
        let ticket = |nth: u64| EntryTicket { index: last.index.wrapping_sub(31 - nth), ..last };
        let mut consumer =
            QueueConsumer::new(&queue, ExecutorRules { is_ordered: false, me: 0, window }).unwrap();
        consumer.handle_doorbell(page.read_bell(0));
        loop {
            let begun = begin(&mut consumer);
            // Outcomes arrive in reverse; completions must be published in order nevertheless.
            for index in begun.iter().rev() {
                let outcome = if *index == ticket(bad).index { FAILED } else { JobOutcome::Done(0) };
                assert!(consumer.end_job(*index, outcome));
            }
            if begun.is_empty() {
                break;
            }
        }
        let fault = QueueFault { first_bad: ticket(bad).index, status: EntryStatus::Network, reason: 4 };
        assert_eq!((queue.queue_fault(), consumer.is_idle()), (Some(fault), true));
        for nth in 0..32 {
            let expected = if nth < bad { Ok(()) } else { Err(WaitError::Failed(fault)) };
            assert_eq!(queue.wait(ticket(nth), &mut PollLimit(1)), expected, "{nth} of {bad}");
            let status = match nth.cmp(&bad) {
                std::cmp::Ordering::Less => EntryStatus::Done,
                std::cmp::Ordering::Equal => EntryStatus::Network,
                std::cmp::Ordering::Greater => EntryStatus::Flushed,
            };
            assert_eq!(queue.read_completion(ticket(nth)).map(|completion| completion.status), Ok(status));
        }
        let late = post(&queue, &[notify(99)]);
        consumer.handle_doorbell(page.read_bell(0));
        assert_eq!(begin(&mut consumer), [], "nothing may be executed after a failure");
        assert_eq!(queue.wait(late, &mut PollLimit(1)), Err(WaitError::Failed(fault)));
        let progress = consumer.queue_progress();
        assert_eq!(progress.first_bad, Some(fault.first_bad));
        assert!(
            is_before(progress.first_bad.unwrap(), progress.completed),
            "a late outcome after a failure must be rejected"
        );
    }
}

#[test]
fn every_wait_ends_at_its_limit() {
    let (page, queue) = queue(2, 0);
    let ticket = post(&queue, &[notify(0), notify(1)]);
    assert_eq!(queue.wait(ticket, &mut PollLimit(3)), Err(WaitError::Timeout));
    let time = Cell::new(0);
    let clock = || {
        time.set(time.get() + 10);
        Instant(time.get())
    };
    let mut until = ClockDeadline { deadline: Instant(95), clock };
    assert_eq!(queue.wait(ticket, &mut until), Err(WaitError::Timeout));
    assert_eq!(time.get(), 100, "the wait must poll until its deadline");
    assert_eq!(queue.reserve_within(1, &mut PollLimit(3)).err(), Some(ReserveError::Busy));
    assert_eq!(queue.companion_within(&mut PollLimit(3)), Err(WaitError::Timeout));
    let words = allocate_words(16);
    let slot = SignalSlot::with_poison_word(0);
    let waited = slot.wait(&words, SlotCondition::AtLeast(1), &mut PollLimit(3));
    assert_eq!(waited, Err(WaitError::Timeout));
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    for index in begin(&mut consumer) {
        consumer.end_job(index, JobOutcome::Done(0));
    }
    assert_eq!(queue.wait(ticket, &mut PollLimit(1)), Ok(()), "a timeout must not affect a later wait");
    let stale = [EntryTicket { epoch: 5, ..ticket }, EntryTicket { queue: 1, ..ticket }];
    for ticket in stale {
        assert_eq!(queue.wait(ticket, &mut UnlimitedWait), Err(WaitError::Stale));
        assert_eq!(queue.read_completion(ticket), Err(CompletionError::Stale));
    }
}

/// A timeout ends the kernel only if the budget requests that.
#[test]
fn spent_budget_ends_the_kernel_on_request() {
    fn die() -> ! {
        panic!("the kernel's end")
    }
    let (_page, queue) = queue(2, 0);
    let ticket = post(&queue, &[notify(0), notify(1)]);
    let waits = |die: Option<fn() -> !>| {
        let mut budget = OrDie::new(PollLimit(3), die);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.wait(ticket, &mut budget)))
    };
    assert_eq!(waits(None).unwrap(), Err(WaitError::Timeout));
    let ended = waits(Some(die)).unwrap_err();
    assert_eq!(ended.downcast_ref(), Some(&"the kernel's end"));
}

#[test]
fn abort_ends_every_wait_and_begins_nothing() {
    let (page, queue) = queue(4, 0);
    let ticket = post(&queue, &[notify(0), notify(1), notify(2)]);
    let mut consumer =
        QueueConsumer::new(&queue, ExecutorRules { is_ordered: false, me: 0, window: 1 }).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    assert_eq!(begin(&mut consumer), [0]);
    let why = AbortWord { status: EntryStatus::Other(900), reason: 17 };
    assert!(queue.abort(why));
    assert!(!queue.abort(AbortWord { status: EntryStatus::Aborted, reason: 1 }), "the first abort must stay");
    assert_eq!(queue.abort_word(), Some(why));
    assert_eq!(
        queue.wait(ticket, &mut UnlimitedWait),
        Err(WaitError::Aborted(why)),
        "the wait must end even without an engine"
    );
    assert_eq!(queue.companion_within(&mut UnlimitedWait), Err(WaitError::Aborted(why)));
    assert_eq!(page.take_group(0), 1, "the abort must notify the engine");
    consumer.handle_doorbell(page.read_bell(0));
    assert!(consumer.end_job(0, JobOutcome::Done(0)));
    assert_eq!(begin(&mut consumer), []);
    assert_eq!(
        queue.poll(EntryTicket { index: 0, ..ticket }),
        Ok(TicketPoll::Done),
        "an entry in progress at the abort may succeed"
    );
    let fault = QueueFault { first_bad: 1, status: EntryStatus::Other(900), reason: 17 };
    assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)));
}

#[test]
fn invalid_words_of_a_device_are_rejected() {
    for depth in [2, 8] {
        let (page, queue) = queue(depth, 0);
        let ticket = post(&queue, &[notify(0)]);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        consumer.handle_doorbell(u64::from(depth) + 1);
        assert!(
            matches!(queue.poll(ticket), Err(WaitError::Aborted(why)) if why.status == EntryStatus::BadDoorbell)
        );
        consumer.handle_doorbell(page.read_bell(0));
        assert_eq!(begin(&mut consumer), [], "a failed queue must begin nothing");
        assert_eq!(consumer.queue_progress().first_bad, Some(0), "waiters of later entries must fail");
    }
    // Written entries fail, and their words are poisoned, although no valid doorbell covers them.
    let (bells, lost) = queue(8, 5);
    let ticket = post(&lost, &[add(0, 0, 1, true), add(16, 0, 1, true)]);
    let mut consumer = QueueConsumer::new(&lost, RULES).unwrap();
    consumer.handle_doorbell(5 + 9);
    let mut poisoned = Vec::new();
    while let ConsumerStep::Begin(index, job) = consumer.next(&|_| None) {
        poisoned.push(job);
        assert!(consumer.end_job(index, JobOutcome::Done(0)));
    }
    assert_eq!(poisoned.len(), 2, "{poisoned:?}");
    assert!(poisoned.iter().all(|job| matches!(job, QueueJob::Poison { .. })), "{poisoned:?}");
    assert!(consumer.is_idle() && consumer.queue_progress().completed == 7);
    assert!(matches!(lost.poll(ticket), Err(WaitError::Aborted(_) | WaitError::Failed(_))));
    consumer.handle_doorbell(bells.read_bell(0));
    assert!(consumer.is_idle(), "a doorbell below the frontier must have no effect");
    let (page, queue) = queue(8, 0);
    let ticket = post(&queue, &[notify(0), notify(1)]);
    let place = queue.queue_shape().entry_offset(1);
    queue.as_memory().put(place, queue.as_memory().get(place) - 1);
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    for index in begin(&mut consumer) {
        consumer.end_job(index, JobOutcome::Done(0));
    }
    let fault = QueueFault { first_bad: 1, status: EntryStatus::BadEntry, reason: 0 };
    assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)), "an entry of another lap must be rejected");
    assert_eq!(queue.poll(EntryTicket { index: 0, ..ticket }), Ok(TicketPoll::Done));
    consumer.handle_doorbell(0);
    consumer.handle_doorbell(1);
    assert_eq!(begin(&mut consumer), [], "a late doorbell must have no effect");
    assert!(
        !consumer.end_job(0, JobOutcome::Done(0)) && !consumer.end_job(77, FAILED),
        "no job is in progress"
    );
}

#[test]
fn fences_delay_only_specified_entries() {
    let read = {
        let (into, from) = (LocalAddress { addr: 0, key: 1 }, PeerAddress { peer: 1, addr: 0, key: 2 });
        QueueEntry::new(EntryWork::Read { into, from, len: 8 })
    };
    let fenced = |fence| notify(0).with_fence(fence);
    let cases: &[(&[QueueEntry], bool, usize)] = &[
        (&[write(0, 8), write(8, 8), read, read], false, 4),
        (&[write(0, 8), add(1, 0, 1, true)], false, 1),
        (&[write(0, 8), add(1, 0, 1, true)], true, 2),
        (&[read, add(1, 0, 1, true)], false, 2),
        (&[add(1, 0, 1, true), add(1, 0, 1, true)], false, 1),
        (&[add(1, 0, 1, true), add(1, 0, 1, true)], true, 2),
        (&[add(1, 0, 1, true), write(0, 8)], false, 2),
        (&[write(0, 8), fenced(EntryFence::ReadsAndAtomics)], false, 2),
        (&[read, fenced(EntryFence::ReadsAndAtomics)], false, 1),
        (&[add(1, 0, 1, true), fenced(EntryFence::ReadsAndAtomics)], false, 1),
        (&[write(0, 8), fenced(EntryFence::All)], true, 1),
        (&[notify(0), fenced(EntryFence::All)], true, 1),
        (&[notify(0), QueueEntry::new(EntryWork::Barrier), notify(1)], true, 1),
        (&[QueueEntry::new(EntryWork::Nop), QueueEntry::new(EntryWork::Barrier), notify(1)], true, 1),
    ];
    for (nth, (entries, is_ordered, expected)) in cases.iter().enumerate() {
        let (page, queue) = queue(8, 0);
        let last = post(&queue, entries);
        let mut consumer =
            QueueConsumer::new(&queue, ExecutorRules { is_ordered: *is_ordered, me: 0, window: 8 }).unwrap();
        consumer.handle_doorbell(page.read_bell(0));
        let mut begun = begin(&mut consumer);
        assert_eq!(begun.len(), *expected, "case {nth}");
        while let Some(index) = begun.pop() {
            consumer.end_job(index, JobOutcome::Done(0));
            begun.extend(begin(&mut consumer));
        }
        assert_eq!(queue.poll(last), Ok(TicketPoll::Done), "case {nth}: all entries must complete");
    }
}

/// No engine polls any more, so the places stay in use. A producer that needs one gets the reason.
#[test]
fn full_failed_queue_reports_its_error() {
    let (page, queue) = queue(4, 0);
    post(&queue, &[notify(0)]);
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    assert_eq!(begin(&mut consumer), [0]);
    assert!(consumer.end_job(0, FAILED));
    post(&queue, &[notify(1), notify(2), notify(3), notify(4)]);
    let fault = QueueFault { first_bad: 0, status: EntryStatus::Network, reason: 4 };
    let over = queue.reserve_within(1, &mut PollLimit(1000)).err();
    assert_eq!(over, Some(ReserveError::Over(WaitError::Failed(fault))));
}

/// Executes at once. Entries of configured queues fail, and poison is recorded.
#[derive(Default)]
struct Recording {
    executed: Vec<(u32, u64)>,
    poisoned: Vec<(u64, bool, PoisonWord)>,
    fails: Vec<(u32, u64)>,
}

impl JobExecutor for Recording {
    fn begin_job(&mut self, queue: u32, index: u64, job: &QueueJob) -> Option<JobOutcome> {
        match job {
            QueueJob::Execute(_) if self.fails.contains(&(queue, index)) => return Some(FAILED),
            QueueJob::Execute(_) => self.executed.push((queue, index)),
            QueueJob::Poison { at, poisoned, poison } => self.poisoned.push((at.addr, *poisoned, *poison)),
            QueueJob::Count { .. } => unreachable!("the test posts no entry with a counter"),
        }
        Some(JobOutcome::Done(0))
    }
}

/// Trace A13 and invariant I13: a companion that runs first waits, and counts once.
#[test]
fn wait_holds_its_queue_until_the_entry_completes() {
    let page = page(3);
    let (main, companion) = (queue_of(8, u64::MAX, 0, &page), queue_of(8, 5, 1, &page));
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    assert!(
        drain.add_queue(main.clone(), RULES).unwrap() && drain.add_queue(companion.clone(), RULES).unwrap()
    );
    assert!(!drain.add_queue(main.clone(), RULES).unwrap(), "the queue was already added");
    let mut port = Recording::default();
    let count = post(&companion, &[wait(0, 0), add(0, 64, 1, true)]);
    for _ in 0..3 {
        assert_eq!(drain.run_pass(&mut port).busy, 1);
    }
    assert_eq!(port.executed, []);
    post(&main, &[notify(0)]);
    drain.run_pass(&mut port);
    drain.run_pass(&mut port);
    assert_eq!(port.executed, [(0, u64::MAX)], "the companion must wait for the second entry");
    post(&main, &[notify(1)]);
    drain.run_pass(&mut port);
    drain.run_pass(&mut port);
    assert_eq!(port.executed, [(0, u64::MAX), (0, 0), (1, 6)]);
    assert_eq!(companion.poll(count), Ok(TicketPoll::Done));
    assert_eq!(
        drain.run_pass(&mut port),
        trunkline_device_queue::DrainPass::default(),
        "no work may be left"
    );
}

/// A failed entry reaches the ticket, the counter and the signal; earlier entries are not affected.
#[test]
fn failure_reaches_tickets_counters_and_signals() {
    let page = page(2);
    let (main, companion) = (queue_of(8, 0, 0, &page), queue_of(8, 0, 1, &page));
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    assert!(
        drain.add_queue(main.clone(), RULES).unwrap() && drain.add_queue(companion.clone(), RULES).unwrap()
    );
    let mut port = Recording { fails: vec![(0, 2)], ..Recording::default() };
    let first = post(&main, &[write(0, 8), add(1, 128, 1, true)]);
    let second = post(&main, &[write(8, 8), add(1, 144, 1, false)]);
    let counted = post(&companion, &[wait(0, 0), add(0, 64, 1, true)]);
    let lost = post(&companion, &[wait(0, 2), add(0, 80, 1, true)]);
    while drain.run_pass(&mut port).busy > 0 {}
    assert_eq!(port.executed, [(0, 0), (0, 1), (1, 1)]);
    let network = PoisonWord { status: EntryStatus::Network, queue: 0 };
    let awaited = PoisonWord { status: EntryStatus::Awaited, queue: 1 };
    assert_eq!(port.poisoned, [(144, false, network), (80, true, awaited)]);
    assert_eq!((main.poll(first), companion.poll(counted)), (Ok(TicketPoll::Done), Ok(TicketPoll::Done)));
    let fault = QueueFault { first_bad: 2, status: EntryStatus::Network, reason: 4 };
    assert_eq!(main.poll(second), Err(WaitError::Failed(fault)));
    let fault = QueueFault { first_bad: 2, status: EntryStatus::Awaited, reason: 0 };
    assert_eq!(companion.poll(lost), Err(WaitError::Failed(fault)));
}

#[test]
fn wait_for_an_impossible_entry_fails() {
    let page = page(1);
    for (entry, reason) in [(wait(9, 0), 9), (wait(0, 0), 0), (wait(0, 1), 0)] {
        let queue = queue_of(8, 0, 0, &page);
        let ticket = post(&queue, &[entry]);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        consumer.handle_doorbell(page.read_bell(0));
        assert_eq!(begin(&mut consumer), []);
        let fault = QueueFault { first_bad: 0, status: EntryStatus::Awaited, reason };
        assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)));
    }
    // An entry that is behind a failure, or not yet posted to a failed queue, is never executed.
    let (awaited, completed) = (7, 3);
    for first_bad in [2, 3, 7].map(Some) {
        let queue = queue_of(8, 0, 0, &page);
        let ticket = post(&queue, &[wait(9, awaited)]);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        consumer.handle_doorbell(page.read_bell(0));
        let step = consumer.next(&|_| Some(QueueProgress { completed, first_bad }));
        assert!(matches!(step, ConsumerStep::Idle), "{first_bad:?}: {step:?}");
        let fault = QueueFault { first_bad: 0, status: EntryStatus::Awaited, reason: 9 };
        assert_eq!(queue.poll(ticket), Err(WaitError::Failed(fault)));
    }
    for first_bad in [None, Some(8), Some(9)] {
        let queue = queue_of(8, 0, 0, &page);
        let ticket = post(&queue, &[wait(9, awaited)]);
        let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
        consumer.handle_doorbell(page.read_bell(0));
        let step = consumer.next(&|_| Some(QueueProgress { completed, first_bad }));
        assert!(matches!(step, ConsumerStep::Held), "{first_bad:?}: {step:?}");
        assert!(matches!(
            consumer.next(&|_| Some(QueueProgress { completed: 8, first_bad })),
            ConsumerStep::Idle
        ));
        assert_eq!(queue.poll(ticket), Ok(TicketPoll::Done));
    }
    let queue = queue_of(8, 0, 0, &page);
    let ticket = post(&queue, &[notify(0), wait(0, 0), notify(1)]);
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    assert_eq!(begin(&mut consumer), [0], "a wait for an earlier entry of the same queue is valid");
    consumer.end_job(0, JobOutcome::Done(0));
    assert_eq!(begin(&mut consumer), [2]);
    consumer.end_job(2, JobOutcome::Done(0));
    assert_eq!(queue.poll(ticket), Ok(TicketPoll::Done));
}

/// The doorbell of a queue was rung, and its bit taken, before the engine had the queue.
#[test]
fn doorbell_before_registration_is_served() {
    let page = page(1);
    let queue = queue_of(4, 3, 0, &page);
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    let mut port = Recording::default();
    let ticket = post(&queue, &[notify(0)]);
    assert_eq!(drain.run_pass(&mut port).begun, 0, "the engine does not have the queue yet");
    assert!(drain.add_queue(queue.clone(), RULES).unwrap());
    assert_eq!(drain.run_pass(&mut port).begun, 1);
    assert_eq!(queue.poll(ticket), Ok(TicketPoll::Done));
}

#[test]
fn companion_is_created_on_the_first_request() {
    let page = page(2);
    let main = queue_of(8, 0, 0, &page);
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    assert!(drain.add_queue(main.clone(), RULES).unwrap());
    let mut port = Recording::default();
    drain.run_pass(&mut port);
    assert_eq!(drain.asked_companion(), None);
    assert_eq!(
        (main.request_companion(), main.request_companion()),
        (CompanionWord::Asked, CompanionWord::Asked)
    );
    drain.run_pass(&mut port);
    assert_eq!(drain.asked_companion(), Some(0));
    assert!(drain.add_queue(queue_of(4, 0, 1, &page), RULES).unwrap());
    drain.answer_companion(0, CompanionWord::Queue(1));
    assert_eq!((drain.asked_companion(), main.companion_within(&mut PollLimit(1))), (None, Ok(1)));
    drain.answer_companion(0, CompanionWord::Refused);
    assert_eq!(main.companion_within(&mut UnlimitedWait), Err(WaitError::Refused));
}

#[test]
fn signal_is_read_awaited_and_reset() {
    let words = allocate_words(256);
    let slot = SignalSlot::with_poison_word(0).with_base(16);
    let wait = |until| slot.wait(&words, until, &mut PollLimit(1));
    words.fetch_add(0, 5, Relaxed);
    let holds = [
        SlotCondition::Equal(5),
        SlotCondition::NotEqual(4),
        SlotCondition::AtLeast(5),
        SlotCondition::MoreThan(4),
        SlotCondition::AtMost(5),
        SlotCondition::LessThan(6),
    ];
    for until in holds {
        assert_eq!(wait(until), Ok(5));
    }
    for until in [
        SlotCondition::Equal(6),
        SlotCondition::NotEqual(5),
        SlotCondition::MoreThan(5),
        SlotCondition::LessThan(5),
    ] {
        assert_eq!(wait(until), Err(WaitError::Timeout));
    }
    assert_eq!((slot.reset_base(&words), slot.read_value(&words)), (Some(5), 0));
    assert_eq!(words.load(0, Relaxed), 5, "a reset must not change the value");
    words.fetch_add(0, u64::MAX, Relaxed);
    assert_eq!(wait(SlotCondition::AtLeast(u64::MAX)), Ok(u64::MAX));
    assert_eq!(SignalSlot::with_poison_word(0).reset_base(&words), None);
    let poison = PoisonWord { status: EntryStatus::PeerDead, queue: 3 };
    words.store(8, poison.to_word(), Release);
    assert_eq!(
        wait(SlotCondition::AtLeast(7)),
        Ok(u64::MAX),
        "a value that was reached before the failure must succeed"
    );
    assert_eq!(wait(SlotCondition::Equal(0)), Err(WaitError::Poisoned(poison)));
    assert!(slot.clear_poison(&words, poison) && !slot.clear_poison(&words, poison));
    assert_eq!(wait(SlotCondition::Equal(0)), Err(WaitError::Timeout));
}

#[test]
fn every_slot_has_its_error_word() {
    let bare = SlotLayout::Bare { values: 64, errors: 128, count: 3 };
    let poisoned = SlotLayout::Poisoned { slots: 64, count: 3 };
    assert_eq!(bare.slot_at(2).map(|slot| (slot.value, slot.error)), Some((80, 144)));
    assert_eq!(poisoned.slot_at(2).map(|slot| (slot.value, slot.error)), Some((96, 104)));
    assert_eq!((bare.slot_at(3), poisoned.slot_at(3)), (None, None));
    for (addr, bare_error, poisoned_error) in [
        (56, None, None),
        (64, Some(128), Some(72)),
        (72, Some(136), None),
        (80, Some(144), Some(88)),
        (84, None, None),
    ] {
        assert_eq!((bare.error_of(addr), poisoned.error_of(addr)), (bare_error, poisoned_error), "{addr}");
    }
    assert_eq!((bare.error_of(88), poisoned.error_of(112)), (None, None), "the layouts have three slots");
}

/// With checks, an entry with one wrong bit is refused. Without the flag the check is ignored.
#[test]
fn entry_with_a_wrong_check_is_refused() {
    let page = page(1);
    let shape = QueueShape::new(2, 0, 0, 0).unwrap().with_check();
    let queue = DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, 0, &page).unwrap();
    let ticket = post(&queue, &[notify(1)]);
    let place = shape.entry_offset(0) + 40;
    queue.as_memory().put(place, 3);
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    assert_eq!(begin(&mut consumer), []);
    assert!(
        matches!(queue.poll(ticket), Err(WaitError::Failed(fault)) if fault.status == EntryStatus::BadEntry)
    );
}

/// The frontier of a queue never passes its doorbell, whatever outcomes an engine reports.
#[test]
fn frontier_never_passes_the_doorbell() {
    let (page, queue) = queue(4, 0);
    let mut consumer =
        QueueConsumer::new(&queue, ExecutorRules { is_ordered: false, me: 0, window: 0 }).unwrap();
    for round in 0..20_u32 {
        let ticket = post(&queue, &[notify(round)]);
        consumer.handle_doorbell(page.read_bell(0));
        let begun = begin(&mut consumer);
        assert_eq!(begun, [u64::from(round)], "a window of 0 must act as a window of 1");
        let frontier = FrontierWord(queue.as_memory().load(at::FRONTIER, Acquire)).index_near(ticket.index);
        assert!(is_before(frontier, page.read_bell(0)));
        consumer.end_job(ticket.index, JobOutcome::Done(0));
        assert!(consumer.is_idle());
    }
}

/// Executes jobs at once, and records the producer's view of the first entry when the second one is executed.
struct Watches<'a> {
    queue: &'a DeviceQueue<HeapWords>,
    first: EntryTicket,
    seen: Vec<TicketPoll>,
}

impl JobExecutor for Watches<'_> {
    fn begin_job(&mut self, _: u32, index: u64, _: &QueueJob) -> Option<JobOutcome> {
        if index == 1 {
            self.seen.push(self.queue.poll(self.first).unwrap());
        }
        Some(JobOutcome::Done(0))
    }
}

#[test]
fn long_entry_is_published_before_the_next_begins() {
    let (page, queue) = queue(8, 0);
    let long = EntryWork::Write {
        from: LocalAddress { addr: 0, key: 1 },
        to: PeerAddress { peer: 1, addr: 0, key: 1 },
        len: 1 << 30,
        imm: None,
    };
    let first = post(&queue, &[QueueEntry::new(long)]);
    post(&queue, &[QueueEntry::new(long)]);
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    let mut port = Watches { queue: &queue, first, seen: Vec::new() };
    assert_eq!(consumer.begin_jobs(16, &|_| None, &mut port), 2);
    assert!(matches!(port.seen[..], [TicketPoll::Done]), "{:?}", port.seen);
}

#[test]
fn failed_queue_stays_failed_under_another_engine() {
    let (page, queue) = queue(8, 0);
    post(&queue, &[write(0, 8)]);
    let mut consumer = QueueConsumer::new(&queue, RULES).unwrap();
    consumer.handle_doorbell(page.read_bell(0));
    let [(index, _)] = jobs(&mut consumer)[..] else { panic!("exactly one entry must begin") };
    assert!(consumer.end_job(index, FAILED));
    drop(consumer);
    let _refused = queue.post(&[write(0, 8)], &mut PollLimit(1));
    page.as_memory().store(page.doorbell_layout().bell_offset(0), 2, Release);
    let mut again = QueueConsumer::new(&queue, RULES).unwrap();
    again.handle_doorbell(page.read_bell(0));
    assert_eq!(begin(&mut again), [0_u64; 0], "another engine must begin nothing");
}

#[test]
fn bits_of_missing_doorbells_are_ignored() {
    let page = page(1);
    let queue = queue_of(8, 0, 0, &page);
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    assert!(drain.add_queue(queue.clone(), RULES).unwrap());
    struct Never;
    impl JobExecutor for Never {
        fn begin_job(&mut self, _: u32, _: u64, _: &QueueJob) -> Option<JobOutcome> {
            unreachable!("nothing was posted")
        }
    }
    page.as_memory().store(DoorbellLayout::group_offset(0), 1 << 63, Release);
    assert_eq!(drain.run_pass(&mut Never).begun, 0);
}
