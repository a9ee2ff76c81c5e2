//! Once a queue exists, posting, executing and waiting allocate nothing. One thread does all of it, and only its
//! allocations are counted, because the test harness may allocate meanwhile.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use trunkline_device_queue::{
    BellPage, DeviceQueue, ExecutorRules, JobExecutor, JobOutcome, PollLimit, QueueDrain, QueueJob,
    WordAddition, allocate_words,
};
use trunkline_proto::wire::device_queue::{DoorbellLayout, PeerAddress, QueueShape};

use common::{add, notify, wait, write};

/// The system's allocator, counted.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes every call unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Executes at once.
struct Nothing;

impl JobExecutor for Nothing {
    fn begin_job(&mut self, _: u32, _: u64, _: &QueueJob) -> Option<JobOutcome> {
        Some(JobOutcome::Done(0))
    }
}

#[test]
fn entries_allocate_nothing() {
    let page = BellPage::create(allocate_words(DoorbellLayout::new(2).unwrap().page_bytes()), 2).unwrap();
    let queues = [0, 1].map(|number| {
        let shape = QueueShape::new(8, number, 0, number).unwrap();
        DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, 0, &page).unwrap()
    });
    let mut drain = QueueDrain::new(page).unwrap();
    for queue in &queues {
        assert!(
            drain.add_queue(queue.clone(), ExecutorRules { is_ordered: false, me: 0, window: 8 }).unwrap()
        );
    }
    let counter = WordAddition { at: PeerAddress { peer: 0, addr: 0, key: 1 }, value: 1, poisoned: true };
    let counted = counter.attach_to(write(0, 8)).unwrap();
    let before = ALLOCATIONS.get();
    for _ in 0..1_000 {
        let put = queues[0].post(&[counted, add(1, 0, 1, true), notify(1)], &mut PollLimit(1)).unwrap();
        let count = queues[1].post(&[wait(0, put.index), add(0, 0, 1, true)], &mut PollLimit(1)).unwrap();
        while drain.run_pass(&mut Nothing).busy > 0 {}
        assert_eq!(queues[0].wait(put, &mut PollLimit(1)), Ok(()));
        assert_eq!(queues[1].wait(count, &mut PollLimit(1)), Ok(()));
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
