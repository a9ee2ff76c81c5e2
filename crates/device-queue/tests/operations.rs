//! The operations of both APIs: the resulting entries in the rings, row by row, and the guarantees.
//!
//! Rows are written as in the design's traces: `M` is the queue, `C` its companion; addresses in hexadecimal, then keys.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;
#[path = "common/world.rs"]
mod world;

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Acquire;

use trunkline_device_queue::channel::TicketRecord as Recorded;
use trunkline_device_queue::lane::{OpError, PutBytes, QueueLane, WordAddition};
use trunkline_device_queue::original::{OriginalPeer, WordArray, read_signal, wait_signal};
use trunkline_device_queue::successor::{LaneChannel, PostedPut, PutActions, SlotArray};
use trunkline_device_queue::{
    BellPage, DeviceQueue, EntryTicket, ExecutorRules, HeapWords, PollLimit, QueueDrain, ReserveError,
    SignalSlot, SlotCondition, SlotLayout, TicketPoll, UnlimitedWait, WaitError, WordMemory, allocate_words,
};
use trunkline_proto::wire::device_queue::{
    AtomicChange, CompanionWord, DoorbellLayout, EntryFence, EntryStatus, EntryWork, LocalAddress,
    PeerAddress, QueueEntry, QueueShape, at,
};

use world::{Dice, Executor, key};

const GIB: u64 = 1 << 30;

/// The executor's rules, and the API under test.
const RULES: ExecutorRules = ExecutorRules { is_ordered: false, me: 0, window: 4 };

/// Finds companions among the queues of a test.
#[derive(Clone)]
struct Table(Vec<DeviceQueue<HeapWords>>);

impl trunkline_device_queue::CompanionDirectory<HeapWords> for Table {
    fn find_queue(&self, number: u32) -> Option<DeviceQueue<HeapWords>> {
        self.0.get(number as usize).cloned()
    }
}

/// Lanes with their companions: queue `n` and `n + lanes`, all of depth eight, from one index on.
struct Rig {
    page: BellPage<HeapWords>,
    queues: Vec<DeviceQueue<HeapWords>>,
    lanes: Vec<QueueLane<HeapWords, Table>>,
    window: Executor,
    drain: QueueDrain<HeapWords>,
}

fn rig_of(lanes: u32, depth: u32, first: u64, counters: SlotLayout, signals: SlotLayout) -> Rig {
    let count = 2 * lanes;
    let page =
        BellPage::create(allocate_words(DoorbellLayout::new(count).unwrap().page_bytes()), count).unwrap();
    let make = |number| {
        let shape = QueueShape::new(depth, number, 0, number).unwrap();
        DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, first, &page).unwrap()
    };
    let queues: Vec<_> = (0..count).map(make).collect();
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    for queue in &queues {
        assert!(drain.add_queue(queue.clone(), RULES).unwrap());
    }
    for (number, queue) in (0..lanes).zip(&queues) {
        queue.answer_companion(CompanionWord::Queue(number + lanes));
    }
    let table = Table(queues.clone());
    let lane = |queue: &DeviceQueue<HeapWords>| QueueLane::new(queue.clone(), table.clone());
    let lanes = queues[..lanes as usize].iter().map(lane).collect();
    Rig { page, queues, lanes, window: Executor::new(false, signals, counters), drain }
}

const BARE: SlotLayout = SlotLayout::Bare { values: 0, errors: 1024, count: 64 };
const POISONED: SlotLayout = SlotLayout::Poisoned { slots: 0, count: 64 };

fn original(first: u64) -> (Rig, OriginalPeer<HeapWords, Table>) {
    let rig = rig_of(1, 8, first, BARE, BARE);
    let peer = OriginalPeer(rig.lanes[0].clone());
    (rig, peer)
}

fn successor(lanes: u32) -> Rig {
    rig_of(lanes, 8, 0, POISONED, POISONED)
}

impl Rig {
    fn channel(&self) -> LaneChannel<'_, HeapWords, Table> {
        let firsts = vec![0; self.lanes.len()];
        let recorded = Recorded::create(allocate_words(1024), 0, &firsts).unwrap();
        LaneChannel::new(&self.lanes, recorded, allocate_words(8), 0).unwrap()
    }

    /// The rows of a queue from an index on, up to the last published one.
    fn rows(&self, queue: u32, from: u64) -> Vec<String> {
        let letter = if (queue as usize) < self.lanes.len() { 'M' } else { 'C' };
        let queue = &self.queues[queue as usize];
        let ready = queue.as_memory().load(at::READY, Acquire);
        let mut rows = Vec::new();
        let mut index = from;
        while index != ready {
            rows.push(format!("{letter}[{index}]={}", row(queue, index)));
            index = index.wrapping_add(1);
        }
        rows
    }

    fn bell(&self, queue: u32) -> u64 {
        self.page.read_bell(queue)
    }

    /// Executes until no work is left.
    fn run(&mut self, dice: &mut Dice) {
        for _ in 0..10_000 {
            self.step(dice);
            let idle = |queue: &DeviceQueue<HeapWords>| {
                let submitted = queue.as_memory().load(at::SUBMITTED, Acquire);
                self.drain
                    .queue_progress(queue.queue_shape().number())
                    .is_some_and(|p| p.completed == submitted)
            };
            if self.window.is_idle() && self.queues.iter().all(idle) {
                // The last completion may leave a counter to be raised.
                self.drain.run_pass(&mut self.window);
                return;
            }
        }
        panic!("the executor does not become idle");
    }

    fn step(&mut self, dice: &mut Dice) {
        self.drain.run_pass(&mut self.window);
        if let Some((queue, index, outcome)) = self.window.step(dice) {
            assert!(self.drain.end_job(queue, index, outcome));
        }
    }
}

/// Formats one entry as in the traces.
fn row(queue: &DeviceQueue<HeapWords>, index: u64) -> String {
    let place = queue.queue_shape().entry_offset(index);
    let words: [u64; 8] = std::array::from_fn(|word| queue.as_memory().get(place + word as u64 * 8));
    let entry = QueueEntry::from_words(&words, index, false).unwrap();
    let fence = match entry.fence {
        EntryFence::None => "",
        EntryFence::ReadsAndAtomics => ",FENCE",
        EntryFence::All => ",FENCE_ALL",
    };
    match entry.work {
        EntryWork::Nop => format!("NOP{fence}"),
        EntryWork::Write { from, to, len, imm: None } => {
            format!("WRITE({:x},{},{:x},{},{len}{fence})", to.addr, to.key, from.addr, from.key)
        }
        EntryWork::WriteCounted { from, to, len, counter, key, value, poisoned } => {
            let slot = if poisoned { ",16" } else { "" };
            let write = format!("WRITE({:x},{},{:x},{},{len}{fence})", to.addr, to.key, from.addr, from.key);
            format!("{write},FA({counter:x},{key},+{value}{slot})")
        }
        EntryWork::WriteInline { bytes, to } => {
            format!("WRITE({:x},{},{:?}{fence})", to.addr, to.key, bytes.as_bytes())
        }
        EntryWork::Atomic { at, change: AtomicChange::Add(value), poisoned } => {
            let slot = if poisoned { ",16" } else { "" };
            format!("FA({:x},{},+{value}{slot}{fence})", at.addr, at.key)
        }
        EntryWork::Wait { queue, index } => format!("WAIT({queue},{index})"),
        other => format!("{other:?}"),
    }
}

fn bytes(len: u64) -> PutBytes {
    let to = PeerAddress { peer: 1, addr: 0x40, key: key::DATA };
    PutBytes { from: LocalAddress { addr: 0x1000, key: 9 }, to, len }
}

/// The peer's signals and the local counters, in the layout of each API.
const SIGNALS: PeerAddress = PeerAddress { peer: 1, addr: 0, key: key::SIGNALS };
const COUNTERS: PeerAddress = PeerAddress { peer: 0, addr: 0, key: key::COUNTERS };

fn bare(id: u32, value: u64) -> WordAddition {
    WordArray { at: SIGNALS }.add_to_word(id, value)
}

fn slot(id: u32, value: u64) -> WordAddition {
    SlotArray { at: SIGNALS }.add_to_slot(id, value)
}

/// Trace A1.
#[test]
fn put_is_a_write() {
    let (rig, peer) = original(0);
    let ticket = peer.put(&bytes(4096), &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 0), ["M[0]=WRITE(40,2,1000,9,4096)"]);
    let words =
        [at::RESERVED, at::READY, at::SUBMITTED].map(|word| rig.queues[0].as_memory().load(word, Acquire));
    assert_eq!((words, rig.bell(0), ticket.index), ([1, 1, 1], 1, 0));
    assert_eq!(
        peer.put(&bytes(0), &mut PollLimit(1)).unwrap().index,
        1,
        "a put without bytes must be one entry, too"
    );
    assert_eq!(rig.rows(0, 1), ["M[1]=WRITE(40,2,1000,9,0)"]);
    let far = PutBytes { from: LocalAddress { addr: u64::MAX - 1, key: 9 }, ..bytes(2) };
    assert!(matches!(peer.put(&far, &mut PollLimit(1)), Err(OpError::Range { len: 2, .. })));
}

/// Trace A2, by both APIs.
#[test]
fn long_put_is_cut_at_a_gibibyte() {
    let rows = [
        "M[0]=WRITE(40,2,1000,9,1073741824)",
        "M[1]=WRITE(40000040,2,40001000,9,1073741824)",
        "M[2]=WRITE(80000040,2,80001000,9,536870912)",
    ];
    let (rig, peer) = original(0);
    assert_eq!(peer.put(&bytes(2 * GIB + GIB / 2), &mut PollLimit(1)).unwrap().index, 2);
    assert_eq!((rig.rows(0, 0), rig.bell(0)), (rows.map(String::from).to_vec(), 3));
    let rig = successor(1);
    let put =
        rig.channel().put(&bytes(2 * GIB + GIB / 2), &PutActions::default(), &mut PollLimit(1)).unwrap();
    assert_eq!((rig.rows(0, 0), put.write, put.last.index), (rows.map(String::from).to_vec(), put.last, 2));
}

/// Acceptance case T10: more gibibytes than the queue is deep, with a running engine.
#[test]
fn put_may_exceed_the_queue_depth() {
    let (rig, peer) = original(u64::MAX);
    let rig = RefCell::new(rig);
    let mut dice = Dice::new(1);
    struct Beside<'r>(&'r RefCell<Rig>, &'r mut Dice);
    impl trunkline_device_queue::WaitBudget for Beside<'_> {
        fn spend_poll(&mut self) -> bool {
            let mut rig = self.0.borrow_mut();
            let Rig { drain, .. } = &mut *rig;
            // The bytes are counted, not moved.
            drain.run_pass(&mut Counting);
            self.1.below(2) < 2
        }
    }
    struct Counting;
    impl trunkline_device_queue::JobExecutor for Counting {
        fn begin_job(
            &mut self,
            _: u32,
            _: u64,
            job: &trunkline_device_queue::QueueJob,
        ) -> Option<trunkline_device_queue::JobOutcome> {
            let trunkline_device_queue::QueueJob::Execute(QueueEntry {
                work: EntryWork::Write { len, .. },
                ..
            }) = job
            else {
                panic!("{job:?}")
            };
            assert!(*len == GIB || *len == 5);
            Some(trunkline_device_queue::JobOutcome::Done(0))
        }
    }
    let ticket = peer.put(&bytes(20 * GIB + 5), &mut Beside(&rig, &mut dice)).unwrap();
    assert_eq!(ticket.index, u64::MAX.wrapping_add(20));
    assert_eq!(peer.wait_local(ticket, &mut Beside(&rig, &mut dice)), Ok(()));
}

/// Trace A3.
#[test]
fn put_adds_its_signal_entry() {
    let (rig, peer) = original(3);
    let signal = peer.put_signal(&bytes(64), &bare(2, 7), &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 3), ["M[3]=WRITE(40,2,1000,9,64)", "M[4]=FA(10,3,+7,FENCE)"]);
    assert_eq!((signal.index, rig.bell(0)), (4, 5));
    let rig = successor(1);
    let with = PutActions { signal: Some(slot(2, 7)), ..PutActions::default() };
    let put = rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 0), ["M[0]=WRITE(40,2,1000,9,64)", "M[1]=FA(20,3,+7,16)"]);
    assert_eq!((put.write.index, put.last.index, rig.bell(0)), (0, 1, 2));
}

/// Trace A4.
#[test]
fn counter_waits_for_signal_or_last_write() {
    let counter = |poisoned| WordAddition { at: COUNTERS, value: 5, poisoned };
    let (rig, peer) = original(3);
    peer.put_signal_counter_remote(&bytes(64), &bare(2, 7), &counter(false), &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 3), ["M[3]=WRITE(40,2,1000,9,64)", "M[4]=FA(10,3,+7)"]);
    assert_eq!(rig.rows(1, 3), ["C[3]=WAIT(0,4)", "C[4]=FA(0,1,+5)"], "the counter must wait for the signal");
    assert_eq!((rig.bell(0), rig.bell(1)), (5, 5));
    peer.signal_counter_remote(&bare(0, 1), &counter(false), &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 5), ["M[5]=FA(0,3,+1)"]);
    assert_eq!(rig.rows(1, 5), ["C[5]=WAIT(0,5)", "C[6]=FA(0,1,+5)"]);

    let rig = successor(1);
    let with = PutActions { signal: Some(slot(2, 7)), counter: Some(counter(true)), ..PutActions::default() };
    rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 0), ["M[0]=WRITE(40,2,1000,9,64)", "M[1]=FA(20,3,+7,16)"]);
    assert_eq!(
        rig.rows(1, 0),
        ["C[0]=WAIT(0,0)", "C[1]=FA(0,1,+5,16)"],
        "the counter must wait for the last WRITE"
    );
    let after = PutActions { counter_after_signal: true, ..with };
    rig.channel().put(&bytes(64), &after, &mut PollLimit(1)).unwrap();
    assert_eq!(
        rig.rows(1, 2),
        ["C[2]=WAIT(0,3)", "C[3]=FA(0,1,+5,16)"],
        "on request, the counter must wait for the signal"
    );
    rig.channel().signal_counter(&slot(0, 1), &counter(true), &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 4), ["M[4]=FA(0,3,+1,16,FENCE)"]);
    assert_eq!(rig.rows(1, 4), ["C[4]=WAIT(0,4)", "C[5]=FA(0,1,+5,16)"]);
}

/// Trace A5.
#[test]
fn put_adds_its_counter_entries() {
    let rig = successor(1);
    let counter = Some(WordAddition { at: COUNTERS, value: 1, poisoned: true });
    let with = PutActions { counter, ..PutActions::default() };
    rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(0, 0), ["M[0]=WRITE(40,2,1000,9,64)"]);
    assert_eq!(rig.rows(1, 0), ["C[0]=WAIT(0,0)", "C[1]=FA(0,1,+1,16)"]);
    assert_eq!(rig.channel().put(&bytes(0), &with, &mut PollLimit(1)), Err(OpError::Empty));
}

/// A put is too long for the queue while nothing is executed: some of its entries are posted, and the rest is refused.
/// A flush waits for the posted ones.
#[test]
fn flush_covers_a_partly_refused_put() {
    let rig = successor(2);
    let channel = rig.channel();
    let refused = channel.put(&bytes(9 * GIB), &PutActions::default(), &mut PollLimit(3));
    assert!(matches!(refused, Err(OpError::Refused(_))), "{refused:?}");
    assert_eq!(rig.rows(0, 0).len(), 8, "the posted entries must fill the queue");
    assert_eq!(channel.pending_lanes(), 0b1);
    assert_eq!(
        channel.flush(&mut PollLimit(3)),
        Err(WaitError::Timeout),
        "the flush must wait, as the source is still to be read"
    );
}

/// A directory may take a lock, so it is queried once for a companion, not for each put.
#[test]
fn companion_is_looked_up_once() {
    let rig = successor(1);
    let asked = Cell::new(0);
    let directory = |number: u32| {
        asked.set(asked.get() + 1);
        rig.queues.get(number as usize).cloned()
    };
    let lane = QueueLane::new(rig.queues[0].clone(), directory);
    assert_eq!(asked.get(), 0, "no put has needed the companion yet");
    let peer = OriginalPeer(lane);
    for id in 0..3 {
        peer.put_signal_counter_remote(&bytes(64), &bare(0, 1), &bare(id, 1), &mut PollLimit(1)).unwrap();
    }
    peer.clone().signal_counter_remote(&bare(0, 1), &bare(1, 1), &mut PollLimit(1)).unwrap();
    assert_eq!(asked.get(), 1);
}

/// A counter that the last WRITE raises itself needs one entry, and none of the companion. If the entry has no room for it, the companion
/// raises it.
#[test]
fn write_entry_raises_its_counter() {
    let rig = successor(1);
    let counter = |value| Some(WordAddition { at: COUNTERS, value, poisoned: true });
    let with = PutActions { counter: counter(5), counter_in_entry: true, ..PutActions::default() };
    let channel = rig.channel();
    let put = channel.put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
    assert_eq!((put.write, put.last, rig.bell(0)), (put.last, put.last, 1));
    channel
        .put(&bytes(GIB + 1), &PutActions { signal: Some(slot(2, 7)), ..with }, &mut PollLimit(1))
        .unwrap();
    channel.put_cooperative(&bytes(20), 3, &with, &mut PollLimit(1)).unwrap();
    let rows = [
        "M[0]=WRITE(40,2,1000,9,64),FA(0,1,+5,16)",
        "M[1]=WRITE(40,2,1000,9,1073741824)",
        "M[2]=WRITE(40000040,2,40001000,9,1),FA(0,1,+5,16)",
        "M[3]=FA(20,3,+7,16)",
        "M[4]=WRITE(40,2,1000,9,6)",
        "M[5]=WRITE(46,2,1006,9,6)",
        "M[6]=WRITE(4c,2,100c,9,8),FA(0,1,+5,16)",
    ];
    assert_eq!(rig.rows(0, 0), rows);
    assert!(rig.rows(1, 0).is_empty());
    let rig = successor(1);
    let most = PutActions { counter: counter(u64::from(u32::MAX)), ..with };
    let others = [
        PutActions { counter: counter(1 << 32), ..with },
        PutActions { counter_after_signal: true, signal: Some(slot(2, 7)), ..with },
    ];
    for with in [&most].into_iter().chain(&others) {
        rig.channel().put(&bytes(64), with, &mut PollLimit(1)).unwrap();
    }
    assert_eq!(rig.rows(0, 0).len(), 4);
    let waits: Vec<_> = rig.rows(1, 0).into_iter().step_by(2).collect();
    assert_eq!(waits, ["C[0]=WAIT(0,1)", "C[2]=WAIT(0,3)"]);
    // A share that does not fit an entry fails, and must poison its counter.
    let rig = successor(1);
    rig.channel().put_cooperative(&bytes(5 * GIB), 2, &with, &mut PollLimit(1)).unwrap();
    assert_eq!(rig.rows(1, 0)[0], "C[0]=WAIT(0,1)");
    let (write, counter) = (common::write(0, 8), with.counter.unwrap());
    assert!(counter.attach_to(write).is_some());
    assert_eq!(counter.attach_to(QueueEntry::new(EntryWork::Nop)), None, "only a WRITE can have a counter");
    let unaligned = WordAddition { at: PeerAddress { addr: 4, ..counter.at }, ..counter };
    assert_eq!(unaligned.attach_to(write), None);
}

/// Trace A6, by both APIs.
#[test]
fn group_writes_its_shares() {
    for cooperative in [false, true] {
        for (len, each, last) in [(100, 3, 7), (20, 0, 20), (32, 1, 1)] {
            let rig = rig_of(1, 64, 0, POISONED, POISONED);
            let bytes = bytes(len);
            if cooperative {
                let put = rig
                    .channel()
                    .put_cooperative(&bytes, 32, &PutActions::default(), &mut PollLimit(1))
                    .unwrap();
                assert_eq!(put.last.index, 31);
            } else {
                let ticket =
                    OriginalPeer(rig.lanes[0].clone()).put_group(&bytes, 32, &mut PollLimit(1)).unwrap();
                assert_eq!(ticket.index, 31);
            }
            assert_eq!(rig.bell(0), 32);
            let rows = rig.rows(0, 0);
            for (thread, found) in rows.iter().enumerate() {
                let len = if thread == 31 { last } else { each };
                let offset = thread as u64 * each;
                let expected = match len {
                    0 => format!("M[{thread}]=NOP"),
                    len => format!("M[{thread}]=WRITE({:x},2,{:x},9,{len})", 0x40 + offset, 0x1000 + offset),
                };
                assert_eq!(*found, expected);
            }
            assert_eq!(rows.len(), 32);
        }
    }
    let (_, peer) = original(0);
    assert_eq!(
        peer.put_group(&bytes(9), 9, &mut PollLimit(1)),
        Err(OpError::Group(9)),
        "the share must not exceed the queue"
    );
}

/// Traces A7 and A8.
#[test]
fn original_fences_and_resets() {
    let (rig, peer) = original(0);
    let fenced = peer.fence(&mut PollLimit(1));
    assert_eq!(fenced, Err(WaitError::Timeout.into()), "the fence must time out, as nothing is executed");
    assert_eq!(rig.rows(0, 0), ["M[0]=NOP"]);
    let rig = RefCell::new(rig);
    let mut dice = Dice::new(3);
    struct Beside<'r>(&'r RefCell<Rig>, &'r mut Dice);
    impl trunkline_device_queue::WaitBudget for Beside<'_> {
        fn spend_poll(&mut self) -> bool {
            self.0.borrow_mut().step(self.1);
            true
        }
    }
    peer.reset_signal(&WordArray { at: SIGNALS }, 2, &mut Beside(&rig, &mut dice)).unwrap();
    assert_eq!(rig.borrow().rows(0, 1), ["M[1]=NOP", "M[2]=WRITE(10,3,[0, 0, 0, 0, 0, 0, 0, 0])"]);
}

/// Traces A10 and A11: a place is free once its last entry has completed, and the completion contains the lap.
#[test]
fn ring_places_are_reused_after_completion() {
    let (mut rig, peer) = original(65_536 - 8);
    let tickets: Vec<_> = (0..8).map(|_| peer.put(&bytes(8), &mut PollLimit(1)).unwrap()).collect();
    let full = peer.put(&bytes(8), &mut PollLimit(1));
    assert_eq!(
        full,
        Err(OpError::Refused(ReserveError::Busy)),
        "the queue must be full, as nothing has completed"
    );
    rig.run(&mut Dice::new(0));
    let ticket = peer.put(&bytes(8), &mut PollLimit(1)).unwrap();
    assert_eq!(ticket.index, 65_536);
    rig.run(&mut Dice::new(0));
    let owner = |ticket: EntryTicket| {
        let word = rig.queues[0]
            .as_memory()
            .load(rig.queues[0].queue_shape().completion_offset(ticket.index), Acquire);
        (word as u32, word >> 56)
    };
    assert_eq!(owner(tickets[1]), (65_529, 1), "the completion must be of the previous lap");
    assert_eq!(owner(ticket), (65_536, 0));
}

/// Trace A12.
#[test]
fn error_fails_all_later_entries() {
    let (mut rig, peer) = original(0);
    rig.window.fails.insert((0, 3), EntryStatus::Network);
    let tickets: Vec<_> = (0..6).map(|_| peer.put(&bytes(8), &mut PollLimit(1)).unwrap()).collect();
    rig.run(&mut Dice::new(5));
    for ticket in tickets {
        let result = peer.wait_local(ticket, &mut PollLimit(1));
        assert_eq!(result.is_ok(), ticket.index <= 2, "{ticket:?}");
        assert!(result.is_ok() || matches!(result, Err(WaitError::Failed(fault)) if fault.first_bad == 3));
    }
}

/// Trace A14: chunk `k` is put over lane `k mod 2` and raises the lane's own signal.
#[test]
fn lanes_raise_their_own_signals() {
    let rig = successor(2);
    let channel = rig.channel();
    let with = PutActions { signal: Some(slot(0, 64)), signal_per_lane: true, ..PutActions::default() };
    for chunk in 0..4_u32 {
        let put = channel.put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
        assert_eq!(put.lane, chunk % 2);
    }
    for (lane, signal) in [(0, "0"), (1, "80")] {
        let rows = rig.rows(lane, 0);
        let signals: Vec<_> = rows.iter().filter(|row| row.contains("FA")).collect();
        assert_eq!(signals.len(), 2);
        assert!(signals.iter().all(|row| row.contains(&format!("FA({signal},3,+64,16)"))), "{rows:?}");
    }
}

/// Trace A15, of the successor: puts on lanes 0, 1, 0; a flush waits for the last put of each lane.
#[test]
fn flush_covers_all_lanes() {
    let mut rig = successor(2);
    let lanes = rig.lanes.clone();
    let firsts = [0, 0];
    let recorded = Recorded::create(allocate_words(1024), 0, &firsts).unwrap();
    let channel = LaneChannel::new(&lanes, recorded, allocate_words(8), 0).unwrap();
    let puts: Vec<PostedPut> =
        (0..3).map(|_| channel.put(&bytes(64), &PutActions::default(), &mut PollLimit(1)).unwrap()).collect();
    assert_eq!(channel.pending_lanes(), 0b11);
    assert_eq!(channel.flush(&mut PollLimit(1)), Err(WaitError::Timeout));
    rig.run(&mut Dice::new(9));
    assert_eq!(channel.flush(&mut PollLimit(1)), Ok(()));
    assert_eq!(channel.pending_lanes(), 0);
    assert!(puts.iter().all(|put| channel.wait_local(put, &mut PollLimit(1)) == Ok(())));
    let stale = PostedPut { lane: 2, ..puts[0] };
    assert_eq!(channel.wait_local(&stale, &mut UnlimitedWait), Err(WaitError::Stale));
}

/// The guarantees of both APIs under any executor; each world is checked after every step.
fn worlds(mut world: impl FnMut(Dice)) {
    for seed in 0..400 {
        world(Dice::new(seed));
    }
}

/// Returns whether the words of a put have arrived; the executor writes the entry's index into each.
fn is_there(rig: &Rig, len: u64, write: EntryTicket) -> bool {
    is_there_at(rig, 0x40, len, write)
}

fn is_there_at(rig: &Rig, at: u64, len: u64, write: EntryTicket) -> bool {
    (0..len / 8).all(|word| rig.window.data.load(at + word * 8, Acquire) == write.index | 1 << 40)
}

/// Guarantee G1, original and successor: a thread that sees the signal of a put sees its bytes.
#[test]
fn g1_bytes_arrive_before_their_signal() {
    worlds(|mut dice| {
        let (mut rig, peer) = original(dice.below(9));
        let signal = peer.put_signal(&bytes(64), &bare(1, 1), &mut PollLimit(1)).unwrap();
        let write = EntryTicket { index: signal.index.wrapping_sub(1), ..signal };
        let raised = BARE.slot_at(1).unwrap();
        while read_signal(&rig.window.signals, &raised) == 0 {
            rig.step(&mut dice);
        }
        assert!(is_there(&rig, 64, write));
        assert_eq!(wait_signal(&rig.window.signals, &raised, 1, &mut PollLimit(1)), Ok(1));
    });
    worlds(|mut dice| {
        let mut rig = successor(1);
        let with = PutActions { signal: Some(slot(1, 1)), ..PutActions::default() };
        let put = rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
        while POISONED.slot_at(1).unwrap().read_value(&rig.window.signals) == 0 {
            rig.step(&mut dice);
        }
        assert!(is_there(&rig, 64, put.write));
    });
}

/// Guarantee G2, successor: a signal after a flush covers earlier puts on all lanes. The original has no channels; its
/// fence has the same effect for one queue.
#[test]
fn g2_signal_after_a_flush_covers_earlier_puts() {
    worlds(|mut dice| {
        let mut rig = successor(2);
        let lanes = rig.lanes.clone();
        let recorded = Recorded::create(allocate_words(1024), 0, &[0, 0]).unwrap();
        let channel = LaneChannel::new(&lanes, recorded, allocate_words(8), 0).unwrap();
        let put = [0, 64].map(|at| {
            let to = PeerAddress { addr: bytes(64).to.addr + at, ..bytes(64).to };
            channel.put(&PutBytes { to, ..bytes(64) }, &PutActions::default(), &mut PollLimit(1)).unwrap()
        });
        while channel.flush(&mut PollLimit(1)).is_err() {
            rig.step(&mut dice);
        }
        channel.signal(&slot(0, 1), &mut PollLimit(1)).unwrap();
        while POISONED.slot_at(0).unwrap().read_value(&rig.window.signals) == 0 {
            rig.step(&mut dice);
        }
        assert!((0..).zip(&put).all(|(nth, put)| is_there_at(&rig, 0x40 + 64 * nth, 64, put.write)));
        assert!(put.iter().all(|put| channel.wait_local(put, &mut PollLimit(1)) == Ok(())));
    });
    worlds(|mut dice| {
        let (mut rig, peer) = original(0);
        let put = peer.put(&bytes(64), &mut PollLimit(1)).unwrap();
        while peer.wait_local(put, &mut PollLimit(1)).is_err() {
            rig.step(&mut dice);
        }
        peer.signal_remote(&bare(0, 1), &mut PollLimit(1)).unwrap();
        while read_signal(&rig.window.signals, &BARE.slot_at(0).unwrap()) == 0 {
            rig.step(&mut dice);
        }
        assert!(is_there(&rig, 64, put));
    });
}

/// Guarantee G3, original and successor: once a counter is raised, the source of its put can be changed.
#[test]
fn g3_counted_sources_are_not_read() {
    let counter = |poisoned| WordAddition { at: COUNTERS, value: 1, poisoned };
    worlds(|mut dice| {
        let (mut rig, peer) = original(0);
        peer.put_signal_counter_remote(&bytes(64), &bare(0, 1), &counter(false), &mut PollLimit(1)).unwrap();
        while read_signal(&rig.window.counters, &BARE.slot_at(0).unwrap()) == 0 {
            rig.step(&mut dice);
        }
        assert!(!rig.window.reads_up_to(0, 1));
        assert_eq!(
            read_signal(&rig.window.signals, &BARE.slot_at(0).unwrap()),
            1,
            "the original's counter must wait for the signal"
        );
    });
    worlds(|mut dice| {
        let mut rig = successor(1);
        let with =
            PutActions { signal: Some(slot(0, 1)), counter: Some(counter(true)), ..PutActions::default() };
        let put = rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
        while POISONED.slot_at(0).unwrap().read_value(&rig.window.counters) == 0 {
            rig.step(&mut dice);
        }
        assert!(!rig.window.reads_up_to(0, put.write.index));
    });
    worlds(|mut dice| {
        let mut rig = successor(1);
        let counter = Some(counter(true));
        let with =
            PutActions { signal: Some(slot(0, 1)), counter, counter_in_entry: true, ..PutActions::default() };
        let put = rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
        while POISONED.slot_at(0).unwrap().read_value(&rig.window.counters) == 0 {
            rig.step(&mut dice);
        }
        assert!(!rig.window.reads_up_to(0, put.write.index));
        assert_eq!(rig.queues[0].poll(put.write), Ok(TicketPoll::Done));
    });
}

/// Guarantee G4, original and successor: after a local wait the source can be changed. The wait does not imply when a
/// GPU at the target sees the bytes.
#[test]
fn g4_completed_sources_are_not_read() {
    worlds(|mut dice| {
        let (mut rig, peer) = original(0);
        let put = peer.put(&bytes(64), &mut PollLimit(1)).unwrap();
        while peer.wait_local(put, &mut PollLimit(1)).is_err() {
            rig.step(&mut dice);
        }
        assert!(!rig.window.reads_up_to(0, put.index));
    });
    worlds(|mut dice| {
        let mut rig = successor(1);
        let put = rig.channel().put(&bytes(64), &PutActions::default(), &mut PollLimit(1)).unwrap();
        while rig.channel().wait_local(&put, &mut PollLimit(1)).is_err() {
            rig.step(&mut dice);
        }
        assert!(!rig.window.reads_up_to(0, put.write.index));
    });
}

/// Guarantee G5, original and successor: signals of one queue are applied in order. The second is never visible before
/// the first.
#[test]
fn g5_signals_of_a_queue_arrive_in_order() {
    worlds(|mut dice| {
        let (mut rig, peer) = original(0);
        peer.signal_remote(&bare(0, 1), &mut PollLimit(1)).unwrap();
        peer.signal_remote_with_fence(&bare(1, 1), &mut PollLimit(1)).unwrap();
        peer.signal_remote(&bare(2, 1), &mut PollLimit(1)).unwrap();
        in_order(&mut rig, &BARE, &mut dice);
    });
    worlds(|mut dice| {
        let mut rig = successor(1);
        for id in 0..3 {
            rig.channel().signal(&slot(id, 1), &mut PollLimit(1)).unwrap();
        }
        in_order(&mut rig, &POISONED, &mut dice);
    });
}

fn in_order(rig: &mut Rig, slots: &SlotLayout, dice: &mut Dice) {
    let mut seen = [0; 3];
    while seen != [1; 3] {
        rig.step(dice);
        seen = [0, 1, 2].map(|id| slots.slot_at(id).unwrap().read_value(&rig.window.signals));
        assert!(seen[0] >= seen[1] && seen[1] >= seen[2], "{seen:?}");
    }
}

/// A failed put reaches every waiter of both APIs: the ticket, the counter, the signal there.
#[test]
fn failed_put_reaches_every_waiter() {
    let counter = |poisoned| WordAddition { at: COUNTERS, value: 1, poisoned };
    let ends = |memory: &HeapWords, slot: SignalSlot, queue: u32| {
        let result = slot.wait(memory, SlotCondition::AtLeast(1), &mut PollLimit(1));
        assert!(matches!(result, Err(WaitError::Poisoned(poison)) if poison.queue == queue), "{result:?}");
    };
    worlds(|mut dice| {
        let (mut rig, peer) = original(0);
        rig.window.fails.insert((0, 0), EntryStatus::Access);
        peer.put_signal_counter_remote(&bytes(64), &bare(1, 1), &counter(false), &mut PollLimit(1)).unwrap();
        rig.run(&mut dice);
        ends(&rig.window.signals, BARE.slot_at(1).unwrap(), 0);
        ends(&rig.window.counters, BARE.slot_at(0).unwrap(), 1);
        assert_eq!(rig.queues[0].queue_fault().map(|fault| fault.status), Some(EntryStatus::Access));
    });
    worlds(|mut dice| {
        let mut rig = successor(1);
        rig.window.fails.insert((0, 0), EntryStatus::Access);
        let with =
            PutActions { signal: Some(slot(1, 1)), counter: Some(counter(true)), ..PutActions::default() };
        let put = rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
        rig.run(&mut dice);
        ends(&rig.window.signals, POISONED.slot_at(1).unwrap(), 0);
        ends(&rig.window.counters, POISONED.slot_at(0).unwrap(), 1);
        assert!(matches!(rig.channel().wait_local(&put, &mut PollLimit(1)), Err(WaitError::Failed(_))));
        assert!(rig.queues[0].poll(put.last) != Ok(TicketPoll::Done));
    });
    // The failed entry, and one behind it; one of them may have ended well.
    worlds(|mut dice| {
        let mut rig = successor(1);
        rig.window.fails.insert((0, dice.below(2)), EntryStatus::Access);
        let counter =
            |id: u64| Some(WordAddition { at: PeerAddress { addr: id * 16, ..COUNTERS }, ..counter(true) });
        for id in [1, 2] {
            let with = PutActions { counter: counter(id), counter_in_entry: true, ..PutActions::default() };
            rig.channel().put(&bytes(64), &with, &mut PollLimit(1)).unwrap();
        }
        rig.run(&mut dice);
        let bad = rig.queues[0].queue_fault().unwrap().first_bad;
        for id in bad..2 {
            ends(&rig.window.counters, POISONED.slot_at(1 + id as u32).unwrap(), 0);
        }
        let first = POISONED.slot_at(1).unwrap().read_value(&rig.window.counters);
        assert_eq!(first, bad, "exactly the entries before the failure must be counted");
    });
}

/// Acceptance case T14: a counter that eight lanes share is the sum of all.
#[test]
fn shared_counter_is_the_sum() {
    for counter_in_entry in [false, true] {
        let mut rig = successor(8);
        let counter = Some(WordAddition { at: COUNTERS, value: 3, poisoned: true });
        let with = PutActions { counter, counter_in_entry, ..PutActions::default() };
        let channel = rig.channel();
        for _ in 0..16 {
            channel.put(&bytes(8), &with, &mut PollLimit(1)).unwrap();
        }
        drop(channel);
        rig.run(&mut Dice::new(4));
        assert_eq!(POISONED.slot_at(0).unwrap().read_value(&rig.window.counters), 48);
    }
}
