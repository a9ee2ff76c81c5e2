//! Memory of queues, signals and counters: words of this process that the protocol of `device-queue` reads and writes. An optional observer
//! is notified when a doorbell was rung, and at each poll of a wait. Used by producers and the executor.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trunkline_device_queue::WordMemory as DeviceMemory;
use trunkline_mem::{MemoryRange, OutOfMemory};

/// Polls with a yield before a caller of `step_aside` sleeps, and the length of each sleep.
const YIELDS: u32 = 64;
/// See [`YIELDS`].
const ASIDE: Duration = Duration::from_micros(100);

/// The executor, as producers see it.
pub trait DoorbellObserver: Send + Sync {
    /// Called after a bit was set: a doorbell was rung, or the queue needs a poll.
    fn on_doorbell(&self);

    /// Called after a fruitless poll of a wait.
    fn on_wait(&self);
}

/// Words by their offset, with an optional observer.
#[derive(Clone)]
pub struct QueueWords {
    memory: MemoryRange,
    /// The word that is accessed in place of one that is out of bounds.
    spare: Arc<AtomicU64>,
    ringer: Option<Arc<dyn DoorbellObserver>>,
}

impl QueueWords {
    /// Wraps memory without an observer.
    #[must_use]
    pub fn from_memory(memory: MemoryRange) -> Self {
        Self { memory, spare: Arc::default(), ringer: None }
    }

    /// Allocates zeroed words of at least `bytes` bytes, aligned to a page.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_heap(bytes: u64) -> Result<Self, OutOfMemory> {
        let bytes = bytes.checked_next_multiple_of(8).and_then(|bytes| usize::try_from(bytes).ok());
        MemoryRange::try_heap(bytes.unwrap_or(usize::MAX)).map(Self::from_memory)
    }

    /// Returns the same words with an observer.
    #[must_use]
    pub fn with_observer(&self, ringer: Arc<dyn DoorbellObserver>) -> Self {
        Self { ringer: Some(ringer), ..self.clone() }
    }

    /// Returns the memory of the words.
    #[must_use]
    pub const fn as_memory(&self) -> &MemoryRange {
        &self.memory
    }

    /// Returns the word at an offset. An offset out of bounds is a bug of the caller; the access then uses a word that no other thread
    /// uses.
    #[inline]
    fn word_at(&self, at: u64) -> &AtomicU64 {
        let word = self.memory.atomic_word(at);
        debug_assert!(word.is_ok(), "no word at {at:#x}");
        word.unwrap_or(&self.spare)
    }
}

impl fmt::Debug for QueueWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({:?}, told: {})", self.memory, self.ringer.is_some())
    }
}

/// Returns the order of the read of a failed exchange.
const fn of_failure(order: Ordering) -> Ordering {
    match order {
        Ordering::SeqCst => Ordering::SeqCst,
        Ordering::Acquire | Ordering::AcqRel => Ordering::Acquire,
        _ => Ordering::Relaxed,
    }
}

impl DeviceMemory for QueueWords {
    #[inline]
    fn byte_len(&self) -> u64 {
        self.memory.len() as u64
    }

    #[inline]
    fn load(&self, at: u64, order: Ordering) -> u64 {
        self.word_at(at).load(order)
    }

    #[inline]
    fn store(&self, at: u64, value: u64, order: Ordering) {
        self.word_at(at).store(value, order);
    }

    #[inline]
    fn fetch_add(&self, at: u64, value: u64, order: Ordering) -> u64 {
        self.word_at(at).fetch_add(value, order)
    }

    /// The protocol sets only bits of doorbells this way, so this is where the observer is notified. The access is sequentially consistent
    /// whatever the caller requests: a thread that falls asleep sets its flag, then reads the bits once more.
    #[inline]
    fn fetch_or(&self, at: u64, bits: u64, _: Ordering) -> u64 {
        let before = self.word_at(at).fetch_or(bits, Ordering::SeqCst);
        if let Some(ringer) = &self.ringer {
            ringer.on_doorbell();
        }
        before
    }

    #[inline]
    fn swap(&self, at: u64, value: u64, order: Ordering) -> u64 {
        self.word_at(at).swap(value, order)
    }

    #[inline]
    fn compare_exchange(&self, at: u64, expect: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        self.word_at(at).compare_exchange(expect, new, order, of_failure(order))
    }

    #[inline]
    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }

    #[inline]
    fn get(&self, at: u64) -> u64 {
        self.word_at(at).load(Ordering::Relaxed)
    }

    #[inline]
    fn put(&self, at: u64, value: u64) {
        self.word_at(at).store(value, Ordering::Relaxed);
    }

    #[inline]
    fn get_entry(&self, at: u64) -> [u64; 8] {
        let row = self.memory.atomic_words::<8>(at);
        debug_assert!(row.is_ok(), "no entry at {at:#x}");
        row.map_or([0; 8], |row| row.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    #[inline]
    fn put_entry(&self, at: u64, words: &[u64; 8]) {
        let row = self.memory.atomic_words::<8>(at);
        debug_assert!(row.is_ok(), "no entry at {at:#x}");
        for (into, word) in row.into_iter().flatten().zip(words) {
            into.store(*word, Ordering::Relaxed);
        }
    }

    /// A sequentially consistent store is one instruction. The accesses around it are sequentially consistent too, so all threads see them
    /// in one order.
    #[inline]
    fn store_fenced(&self, at: u64, value: u64) {
        self.word_at(at).store(value, Ordering::SeqCst);
    }

    /// On x86-64 the change of the bits is a locked instruction, and so is the exchange that each submitter made before. Each is a full
    /// fence of the processor, and the compiler moves no access across them. So the two stores need no fences of their own, which would
    /// dominate the cost of this function.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn store_both_fenced(&self, words: [trunkline_device_queue::StoredWord; 2], bits_at: u64, bits: u64) {
        for word in words {
            self.word_at(word.at).store(word.value, Ordering::Release);
        }
        self.fetch_or(bits_at, bits, Ordering::SeqCst);
    }

    #[inline]
    fn put_completion(&self, at: u64, [writing, value, head]: [u64; 3]) {
        let row = self.memory.atomic_words::<2>(at);
        debug_assert!(row.is_ok(), "no completion at {at:#x}");
        let Ok([first, second]) = row else { return };
        first.store(writing, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Release);
        second.store(value, Ordering::Relaxed);
        first.store(head, Ordering::Release);
    }

    #[inline]
    fn is_same(&self, other: &Self) -> bool {
        // Handles of one page are clones with different observers, so the addresses are compared.
        self.memory.addr() == other.memory.addr()
    }

    fn step_aside(&self, looks: u32) {
        self.pause();
        // The awaited producer may be descheduled. Sleeps let it run also on a machine with one core, and make a bounded number of polls
        // last long enough.
        if looks < YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(ASIDE);
        }
    }

    #[inline]
    fn pause(&self) {
        match &self.ringer {
            Some(ringer) => ringer.on_wait(),
            None => std::hint::spin_loop(),
        }
    }
}
