//! The memory that a waiter reads: one cache line for a counter that 64 queues raise, and one line per ticket.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use trunkline_device_queue::{
    BellPage, DeviceQueue, ExecutorRules, HeapWords, JobExecutor, JobOutcome, PollLimit, QueueDrain,
    QueueJob, SignalSlot, SlotCondition, WordMemory, allocate_words,
};
use trunkline_proto::wire::device_queue::{AtomicChange, DoorbellLayout, EntryWork, QueueShape};

use common::add;

/// Queues, each of which does a part of the awaited work.
const QUEUES: u32 = 64;
/// Bytes of a line of a host's cache.
const LINE: u64 = 64;

type Lines = Arc<Mutex<BTreeSet<(u32, u64)>>>;

/// Records the lines that were read or changed. Lines of another memory get other numbers.
#[derive(Clone)]
struct Watched {
    words: HeapWords,
    number: u32,
    lines: Lines,
}

impl Watched {
    fn new(bytes: u64, number: u32, lines: &Lines) -> Self {
        Self { words: allocate_words(bytes), number, lines: Arc::clone(lines) }
    }

    fn note(&self, at: u64) -> &HeapWords {
        self.lines.lock().unwrap().insert((self.number, at / LINE));
        &self.words
    }
}

impl WordMemory for Watched {
    fn byte_len(&self) -> u64 {
        self.words.byte_len()
    }

    fn load(&self, at: u64, order: Ordering) -> u64 {
        self.note(at).load(at, order)
    }

    fn store(&self, at: u64, value: u64, order: Ordering) {
        self.note(at).store(at, value, order);
    }

    fn fetch_add(&self, at: u64, value: u64, order: Ordering) -> u64 {
        WordMemory::fetch_add(self.note(at), at, value, order)
    }

    fn fetch_or(&self, at: u64, bits: u64, order: Ordering) -> u64 {
        self.note(at).fetch_or(at, bits, order)
    }

    fn swap(&self, at: u64, value: u64, order: Ordering) -> u64 {
        self.note(at).swap(at, value, order)
    }

    fn compare_exchange(&self, at: u64, expect: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        self.note(at).compare_exchange(at, expect, new, order)
    }

    fn fence(&self, order: Ordering) {
        self.words.fence(order);
    }

    fn get(&self, at: u64) -> u64 {
        self.note(at).get(at)
    }

    fn put(&self, at: u64, value: u64) {
        self.note(at).put(at, value);
    }

    fn pause(&self) {
        self.words.pause();
    }
}

/// Executes additions to the one slot.
struct Adds(Watched);

impl JobExecutor for Adds {
    fn begin_job(&mut self, _: u32, _: u64, job: &QueueJob) -> Option<JobOutcome> {
        let QueueJob::Execute(entry) = job else { panic!("no entry fails in this test") };
        let EntryWork::Atomic { change: AtomicChange::Add(value), .. } = entry.work else {
            panic!("the test posts additions only")
        };
        Some(JobOutcome::Done(WordMemory::fetch_add(&self.0, 0, value, Ordering::AcqRel)))
    }
}

#[test]
fn polls_read_one_line_per_counter_or_ticket() {
    let lines = Lines::default();
    let bells = Watched::new(DoorbellLayout::new(QUEUES).unwrap().page_bytes(), QUEUES, &lines);
    let page = BellPage::create(bells, QUEUES).unwrap();
    let counter = Watched::new(128, QUEUES + 1, &lines);
    let mut drain = QueueDrain::new(page.clone()).unwrap();
    let queue = |number| {
        let shape = QueueShape::new(4, number, 0, number).unwrap();
        DeviceQueue::create(Watched::new(shape.queue_bytes(), number, &lines), shape, 0, &page).unwrap()
    };
    let queues: Vec<_> = (0..QUEUES).map(queue).collect();
    for queue in &queues {
        assert!(
            drain.add_queue(queue.clone(), ExecutorRules { is_ordered: false, me: 0, window: 4 }).unwrap()
        );
    }
    let post = |queue: &DeviceQueue<_>| queue.post(&[add(0, 0, 1, true)], &mut PollLimit(1)).unwrap();
    let tickets: Vec<_> = queues.iter().map(post).collect();
    let looked = |look: &mut dyn FnMut()| {
        lines.lock().unwrap().clear();
        look();
        lines.lock().unwrap().len()
    };
    let (slot, until) = (SignalSlot::with_poison_word(0), SlotCondition::AtLeast(u64::from(QUEUES)));
    let mut counted = false;
    let mut look = || counted = slot.check_condition(&counter, until).unwrap();
    assert_eq!(looked(&mut look), 1, "a poll must read one line before any addition");
    assert!(!counted);
    while drain.run_pass(&mut Adds(counter.clone())).busy > 0 {}
    let mut look = || counted = slot.check_condition(&counter, until).unwrap();
    assert_eq!(looked(&mut look), 1, "a poll must read one line after all additions");
    assert!(counted);
    let by_tickets = looked(&mut || {
        for (queue, ticket) in queues.iter().zip(&tickets) {
            assert_eq!(queue.wait(*ticket, &mut PollLimit(1)), Ok(()));
        }
    });
    assert_eq!(by_tickets, QUEUES as usize);
}
