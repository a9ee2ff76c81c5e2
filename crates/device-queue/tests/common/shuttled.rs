//! Memory over shuttle: at each access of a shared word the schedule may switch to another thread.

#![allow(unreachable_pub, reason = "a part of the test program")]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use trunkline_device_queue::{BellPage, WordMemory};
use trunkline_proto::wire::device_queue::{DoorbellLayout, QueueShape};

use super::common::{Usage, of_queue};

enum Word {
    /// Never a point to switch threads.
    Plain(std::sync::atomic::AtomicU64),
    Shared(AtomicU64),
}

/// Words under shuttle.
pub struct Shuttled(Vec<Word>);

/// Shared by the threads of a schedule.
pub type Words = Arc<Shuttled>;

/// Memory for a queue.
pub fn for_queue(shape: &QueueShape) -> Words {
    let word = |at: u64| match of_queue(shape, at * 8) {
        Usage::Shared => Word::Shared(AtomicU64::new(0)),
        Usage::Plain | Usage::Unused => Word::Plain(std::sync::atomic::AtomicU64::new(0)),
    };
    Arc::new(Shuttled((0..shape.queue_bytes() / 8).map(word).collect()))
}

/// Memory of which every word is shared.
pub fn shared(words: u64) -> Words {
    Arc::new(Shuttled((0..words).map(|_| Word::Shared(AtomicU64::new(0))).collect()))
}

/// A page of doorbells.
pub fn page(count: u32) -> BellPage<Words> {
    BellPage::create(shared(DoorbellLayout::new(count).unwrap().page_bytes() / 8), count).unwrap()
}

impl Shuttled {
    fn word(&self, at: u64) -> &AtomicU64 {
        match &self.0[at as usize / 8] {
            Word::Shared(word) => word,
            Word::Plain(_) => panic!("the word at {at} is plain"),
        }
    }
}

impl WordMemory for Shuttled {
    fn byte_len(&self) -> u64 {
        self.0.len() as u64 * 8
    }

    fn load(&self, at: u64, _: Ordering) -> u64 {
        self.word(at).load(Ordering::SeqCst)
    }

    fn store(&self, at: u64, value: u64, _: Ordering) {
        self.word(at).store(value, Ordering::SeqCst);
    }

    fn fetch_add(&self, at: u64, value: u64, _: Ordering) -> u64 {
        self.word(at).fetch_add(value, Ordering::SeqCst)
    }

    fn fetch_or(&self, at: u64, bits: u64, _: Ordering) -> u64 {
        self.word(at).fetch_or(bits, Ordering::SeqCst)
    }

    fn swap(&self, at: u64, value: u64, _: Ordering) -> u64 {
        self.word(at).swap(value, Ordering::SeqCst)
    }

    fn compare_exchange(&self, at: u64, expect: u64, new: u64, _: Ordering) -> Result<u64, u64> {
        self.word(at).compare_exchange(expect, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn fence(&self, _: Ordering) {}

    fn get(&self, at: u64) -> u64 {
        match &self.0[at as usize / 8] {
            Word::Plain(word) => word.load(Relaxed),
            Word::Shared(word) => word.load(Ordering::SeqCst),
        }
    }

    fn put(&self, at: u64, value: u64) {
        match &self.0[at as usize / 8] {
            Word::Plain(word) => word.store(value, Relaxed),
            Word::Shared(word) => word.store(value, Ordering::SeqCst),
        }
    }

    fn pause(&self) {
        shuttle::thread::yield_now();
    }
}
