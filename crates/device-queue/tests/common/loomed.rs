//! Memory over loom: each access of shared words is a choice of the model checker, and plain words must never be accessed by two threads
//! without order.

#![allow(unreachable_pub, reason = "a part of the test program")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use trunkline_device_queue::{BellPage, WordMemory};
use trunkline_proto::wire::device_queue::{DoorbellLayout, QueueShape};

use super::common::{Usage, of_bells, of_queue};

enum Word {
    Plain(UnsafeCell<u64>),
    Shared(AtomicU64),
    Unused,
}

/// Words under loom.
pub struct Loomed(Vec<Word>);

/// Shared by the threads of a model.
pub type Words = Arc<Loomed>;

// SAFETY: plain words are accessed through loom's cells, which end the model if two threads access one at the same
// time.
unsafe impl Sync for Loomed {}
// SAFETY: the words belong to no thread.
unsafe impl Send for Loomed {}

fn make(bytes: u64, usage: impl Fn(u64) -> Usage) -> Words {
    let word = |at: u64| match usage(at * 8) {
        Usage::Plain => Word::Plain(UnsafeCell::new(0)),
        Usage::Shared => Word::Shared(AtomicU64::new(0)),
        Usage::Unused => Word::Unused,
    };
    Arc::new(Loomed((0..bytes / 8).map(word).collect()))
}

/// Memory for a queue.
pub fn for_queue(shape: &QueueShape) -> Words {
    make(shape.queue_bytes(), |at| of_queue(shape, at))
}

/// A page of doorbells.
pub fn page(count: u32) -> BellPage<Words> {
    let bytes = DoorbellLayout::new(count).unwrap().page_bytes();
    BellPage::create(make(bytes, of_bells), count).unwrap()
}

/// Memory for signals and counters.
pub fn for_slots(words: u64) -> Words {
    make(words * 8, |_| Usage::Shared)
}

/// Memory that the protocol does not define.
pub fn for_data(words: u64) -> Words {
    make(words * 8, |_| Usage::Plain)
}

impl Loomed {
    fn shared(&self, at: u64) -> &AtomicU64 {
        match &self.0[at as usize / 8] {
            Word::Shared(word) => word,
            _ => panic!("the word at {at} is not shared"),
        }
    }

    fn plain(&self, at: u64) -> &UnsafeCell<u64> {
        match &self.0[at as usize / 8] {
            Word::Plain(word) => word,
            _ => panic!("the word at {at} is not plain"),
        }
    }
}

impl WordMemory for Loomed {
    fn byte_len(&self) -> u64 {
        self.0.len() as u64 * 8
    }

    fn load(&self, at: u64, order: Ordering) -> u64 {
        self.shared(at).load(order)
    }

    fn store(&self, at: u64, value: u64, order: Ordering) {
        self.shared(at).store(value, order);
    }

    fn fetch_add(&self, at: u64, value: u64, order: Ordering) -> u64 {
        self.shared(at).fetch_add(value, order)
    }

    fn fetch_or(&self, at: u64, bits: u64, order: Ordering) -> u64 {
        self.shared(at).fetch_or(bits, order)
    }

    fn swap(&self, at: u64, value: u64, order: Ordering) -> u64 {
        self.shared(at).swap(value, order)
    }

    fn compare_exchange(&self, at: u64, expect: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        let failure = match order {
            Ordering::Acquire | Ordering::AcqRel => Ordering::Acquire,
            Ordering::SeqCst => Ordering::SeqCst,
            _ => Ordering::Relaxed,
        };
        self.shared(at).compare_exchange(expect, new, order, failure)
    }

    fn fence(&self, order: Ordering) {
        loom::sync::atomic::fence(order);
    }

    fn get(&self, at: u64) -> u64 {
        // SAFETY: loom ends the model if another thread writes the word during this access.
        self.plain(at).with(|word| unsafe { *word })
    }

    fn put(&self, at: u64, value: u64) {
        // SAFETY: loom ends the model if another thread reads or writes the word during this access.
        self.plain(at).with_mut(|word| unsafe { *word = value });
    }

    fn pause(&self) {
        loom::thread::yield_now();
    }
}
