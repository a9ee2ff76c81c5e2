//! Memory of queues, signals and counters: words of this process that the protocol of `device-queue` reads and writes, and whoever is to be told
//! that a doorbell was rung, or that somebody waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trunkline_device_queue::WordMemory as DeviceMemory;
use trunkline_mem::{MemoryRange, OutOfMemory};

/// Looks after which somebody who steps aside sleeps, and how long.
const YIELDS: u32 = 64;
/// See [`YIELDS`].
const ASIDE: Duration = Duration::from_micros(100);

/// Who executes entries, as producers see it.
pub trait DoorbellObserver: Send + Sync {
    /// A doorbell was rung, or a queue needs to be looked at: its bit is set.
    fn on_doorbell(&self);

    /// Somebody has looked for something that is not there yet.
    fn on_wait(&self);
}

/// Words by their offset.
#[derive(Clone)]
pub struct QueueWords {
    memory: MemoryRange,
    /// What is read and written where there is nothing.
    spare: Arc<AtomicU64>,
    ringer: Option<Arc<dyn DoorbellObserver>>,
}

impl QueueWords {
    /// The words of some memory, of which nobody is told.
    #[must_use]
    pub fn from_memory(memory: MemoryRange) -> Self {
        Self { memory, spare: Arc::default(), ringer: None }
    }

    /// At least so many bytes, zeros, aligned to a page.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_heap(bytes: u64) -> Result<Self, OutOfMemory> {
        let bytes = bytes.checked_next_multiple_of(8).and_then(|bytes| usize::try_from(bytes).ok());
        MemoryRange::try_heap(bytes.unwrap_or(usize::MAX)).map(Self::from_memory)
    }

    /// The same words, and he is told.
    #[must_use]
    pub fn with_observer(&self, ringer: Arc<dyn DoorbellObserver>) -> Self {
        Self { ringer: Some(ringer), ..self.clone() }
    }

    /// The memory that they lie in.
    #[must_use]
    pub const fn as_memory(&self) -> &MemoryRange {
        &self.memory
    }

    /// An offset outside is a bug of the caller; it reads and changes a word that nobody else has.
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

/// What a failed exchange reads with.
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

    /// Only bits of doorbells are set, so this is where the executor is told. Sequentially consistent, whatever was asked for: who falls
    /// asleep says so before it looks at the bits once more.
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

    /// One instruction: the accesses around it are sequentially consistent, and so all threads see them in one order.
    #[inline]
    fn store_fenced(&self, at: u64, value: u64) {
        self.word_at(at).store(value, Ordering::SeqCst);
    }

    /// On x86-64 the change of the bits is a locked instruction, and so is what every submitter has done before: each a full fence of the processor, and none that the
    /// compiler moves a store or load across. So the stores need none of their own, which take as long each as all else here.
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
        self.memory.addr() == other.memory.addr()
    }

    fn step_aside(&self, looks: u32) {
        self.pause();
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
