//! Queues between threads of this machine: many producers, one engine, and words of ordinary memory.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use trunkline_device_queue::{
    BellPage, DeviceQueue, ExecutorRules, HeapWords, JobExecutor, JobOutcome, QueueDrain, QueueJob,
    TicketPoll, WaitBudget, allocate_words,
};
use trunkline_proto::wire::device_queue::{DoorbellLayout, EntryWork, QueueEntry, QueueShape};

use common::{is_full, notify};

/// A budget whose waiter yields, because there may be more threads than cores.
struct Yielding;

impl WaitBudget for Yielding {
    fn spend_poll(&mut self) -> bool {
        thread::yield_now();
        true
    }
}

/// Checks that each producer's numbers arrive in its order.
struct InOrder(Vec<u32>);

impl JobExecutor for InOrder {
    fn begin_job(&mut self, _: u32, _: u64, job: &QueueJob) -> Option<JobOutcome> {
        let QueueJob::Execute(QueueEntry { work: EntryWork::Notify { imm, .. }, .. }) = job else {
            panic!("{job:?}")
        };
        let next = &mut self.0[(imm >> 24) as usize];
        assert_eq!(imm & 0xff_ffff, *next, "of producer {}", imm >> 24);
        *next += 1;
        Some(JobOutcome::Done(u64::from(*imm)))
    }
}

fn run(producers: u32, depth: u32, each: u32) {
    let page = BellPage::create(allocate_words(DoorbellLayout::new(1).unwrap().page_bytes()), 1).unwrap();
    let shape = QueueShape::new(depth, 0, 0, 0).unwrap();
    let first = u64::MAX - u64::from(each);
    let queue: DeviceQueue<HeapWords> =
        DeviceQueue::create(allocate_words(shape.queue_bytes()), shape, first, &page).unwrap();
    let mut drain = QueueDrain::new(page).unwrap();
    assert!(drain.add_queue(queue.clone(), ExecutorRules { is_ordered: true, me: 0, window: 64 }).unwrap());
    let left = AtomicU32::new(producers);
    thread::scope(|scope| {
        for producer in 0..producers {
            let (queue, left) = (&queue, &left);
            scope.spawn(move || {
                for number in 0..each {
                    let ticket = queue.post(&[notify(producer << 24 | number)], &mut Yielding).unwrap();
                    if number % 64 == 0 {
                        assert_eq!(queue.wait(ticket, &mut Yielding), Ok(()));
                        assert_eq!(queue.poll(ticket), Ok(TicketPoll::Done));
                    }
                }
                left.fetch_sub(1, Relaxed);
            });
        }
        let mut port = InOrder(vec![0; producers as usize]);
        while left.load(Relaxed) > 0
            || drain.queue_progress(0).is_some_and(|p| p.completed != queue_end(first, producers, each))
        {
            if drain.run_pass(&mut port).begun == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(port.0, vec![each; producers as usize]);
    });
}

fn queue_end(first: u64, producers: u32, each: u32) -> u64 {
    first.wrapping_add(u64::from(producers) * u64::from(each))
}

/// Acceptance case T11.
#[test]
fn producers_share_one_queue() {
    let each = if is_full() { 20_000 } else { 400 };
    for (producers, depth) in [(1, 2), (2, 2), (3, 64), (16, 8)] {
        run(producers, depth, each);
    }
}
