//! Queues between threads of this machine: many producers, one engine, words of ordinary memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod common;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use trunkline_device_queue::{
    BellPage, Budget, Drain, HeapWords, Job, Outcome, Poll, Port, Queue, Rules, heap,
};
use trunkline_proto::wire::device_queue::{Bells, Entry, Shape, Work};

use common::{is_full, notify, planted};

/// Two cores may have more threads than they can run: whoever waits lets others go on.
struct Yielding;

impl Budget for Yielding {
    fn goes_on(&mut self) -> bool {
        thread::yield_now();
        true
    }
}

/// Checks that each producer's numbers come in its order.
struct InOrder(Vec<u32>);

impl Port for InOrder {
    fn begin(&mut self, _: u32, _: u64, job: &Job) -> Option<Outcome> {
        let Job::Execute(Entry { work: Work::Notify { imm, .. }, .. }) = job else { panic!("{job:?}") };
        let next = &mut self.0[(imm >> 24) as usize];
        assert_eq!(imm & 0xff_ffff, *next, "of producer {}", imm >> 24);
        *next += 1;
        Some(Outcome::Done(u64::from(*imm)))
    }
}

fn run(producers: u32, depth: u32, each: u32) {
    let page = BellPage::create(heap(Bells::new(1).unwrap().bytes()), 1, planted()).unwrap();
    let shape = Shape::new(depth, 0, 0, 0).unwrap();
    let first = u64::MAX - u64::from(each);
    let queue: Queue<HeapWords> = Queue::create(heap(shape.bytes()), shape, first, &page, planted()).unwrap();
    let mut drain = Drain::new(page, planted()).unwrap();
    assert!(drain.add(queue.clone(), Rules { is_ordered: true, me: 0, window: 64 }).unwrap());
    let left = AtomicU32::new(producers);
    thread::scope(|scope| {
        for producer in 0..producers {
            let (queue, left) = (&queue, &left);
            scope.spawn(move || {
                for number in 0..each {
                    let ticket = queue.post(&[notify(producer << 24 | number)], &mut Yielding).unwrap();
                    if number % 64 == 0 {
                        assert_eq!(queue.wait(ticket, &mut Yielding), Ok(()));
                        assert_eq!(queue.poll(ticket), Ok(Poll::Done));
                    }
                }
                left.fetch_sub(1, Relaxed);
            });
        }
        let mut port = InOrder(vec![0; producers as usize]);
        while left.load(Relaxed) > 0
            || drain.progress(0).is_some_and(|p| p.completed != queue_end(first, producers, each))
        {
            if drain.pass(&mut port).begun == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(port.0, vec![each; producers as usize]);
    });
}

fn queue_end(first: u64, producers: u32, each: u32) -> u64 {
    first.wrapping_add(u64::from(producers) * u64::from(each))
}

/// T11.
#[test]
fn producers_of_one_queue() {
    let each = if is_full() { 20_000 } else { 400 };
    for (producers, depth) in [(1, 2), (2, 2), (3, 64), (16, 8)] {
        run(producers, depth, each);
    }
}
