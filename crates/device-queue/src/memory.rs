//! Memory as the protocol needs it. All modules access it by offsets that the layout defines.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use trunkline_proto::wire::device_queue::is_before;

/// A word to be written: its offset and its value.
#[derive(Clone, Copy, Debug)]
pub struct StoredWord {
    /// The offset, a multiple of 8.
    pub at: u64,
    /// The word's new value.
    pub value: u64,
}

/// Words of 8 bytes by their offset, shared with other threads, processes or devices.
///
/// An offset is a multiple of 8 and below [`byte_len`](Self::byte_len). Any other offset is a bug of the caller and may panic, as a slice
/// index does. The interface passes values only, so no reference to shared bytes ever exists.
pub trait WordMemory {
    /// Returns the length in bytes.
    fn byte_len(&self) -> u64;

    /// Reads a word that other threads may change concurrently.
    fn load(&self, at: u64, order: Ordering) -> u64;

    /// Writes a word that other threads may access concurrently.
    fn store(&self, at: u64, value: u64, order: Ordering);

    /// Adds, wrapping, and returns the old value.
    fn fetch_add(&self, at: u64, value: u64, order: Ordering) -> u64;

    /// Sets bits and returns the old value.
    fn fetch_or(&self, at: u64, bits: u64, order: Ordering) -> u64;

    /// Replaces the word and returns the old value.
    fn swap(&self, at: u64, value: u64, order: Ordering) -> u64;

    /// Replaces the word if it equals `expect`, and returns the old value.
    ///
    /// # Errors
    /// The current value, if it differs.
    fn compare_exchange(&self, at: u64, expect: u64, new: u64, order: Ordering) -> Result<u64, u64>;

    /// Orders this thread's accesses by a fence.
    fn fence(&self, order: Ordering);

    /// Reads a word that no thread changes concurrently if all follow the protocol: one of an entry or of a header.
    fn get(&self, at: u64) -> u64;

    /// Writes a word that no thread accesses concurrently if all follow the protocol.
    fn put(&self, at: u64, value: u64);

    /// Reads the eight words of an entry, each as [`get`](Self::get) does.
    #[inline]
    fn get_entry(&self, at: u64) -> [u64; 8] {
        core::array::from_fn(|word| self.get(at + word as u64 * 8))
    }

    /// Writes the eight words of an entry, each as [`put`](Self::put) does.
    #[inline]
    fn put_entry(&self, at: u64, words: &[u64; 8]) {
        for (word, value) in words.iter().enumerate() {
            self.put(at + word as u64 * 8, *value);
        }
    }

    /// Writes a word with a full fence before and after it, for accesses that are themselves sequentially consistent. An implementation may
    /// use a sequentially consistent store where that store orders those accesses.
    #[inline]
    fn store_fenced(&self, at: u64, value: u64) {
        self.fence(Ordering::SeqCst);
        self.store(at, value, Ordering::Release);
        self.fence(Ordering::SeqCst);
    }

    /// Stores two words, each as [`store_fenced`](Self::store_fenced) does, and then sets `bits` of a third word at `bits_at`. Fences
    /// precede both stores, and follow both stores and the bits. An implementation whose atomic read-modify-writes are full fences may use
    /// those, after an exchange before the stores.
    #[inline]
    fn store_both_fenced(&self, words: [StoredWord; 2], bits_at: u64, bits: u64) {
        for StoredWord { at, value } in words {
            self.store_fenced(at, value);
        }
        self.fetch_or(bits_at, bits, Ordering::Release);
    }

    /// Writes a completion: first a head that marks it as being written, then the value, then the final head.
    #[inline]
    fn put_completion(&self, at: u64, [writing, value, head]: [u64; 3]) {
        self.store(at, writing, Ordering::Relaxed);
        self.fence(Ordering::Release);
        self.store(at + 8, value, Ordering::Relaxed);
        self.store(at, head, Ordering::Release);
    }

    /// Returns whether both are the same words. An implementation that cannot compare returns `false`.
    #[inline]
    fn is_same(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }

    /// Yields the processor to other threads between two polls of a wait.
    fn pause(&self);

    /// Yields to threads that may be stopped between two steps of the protocol; `looks` counts the polls so far. The caller's number of
    /// polls is bounded. Memory that is notified when its threads sleep puts the caller to sleep here, so that
    /// [`QueueReservation::cancel`](crate::QueueReservation::cancel) polls for a tenth of a second.
    #[inline]
    fn step_aside(&self, looks: u32) {
        let _ = looks;
        self.pause();
    }

    /// Raises a counter to `to`, if `to` is ahead of it, and returns the old value. Counters wrap, so this is not a maximum; a device whose
    /// counters never reach the wrap may use one.
    #[inline]
    fn advance_counter(&self, at: u64, to: u64, order: Ordering) -> u64 {
        let mut seen = self.load(at, Ordering::Relaxed);
        loop {
            // The exchange is made also if the value stays the same, so that it has the memory order that was requested.
            let new = if is_before(seen, to) { to } else { seen };
            match self.compare_exchange(at, seen, new, order) {
                Ok(old) => return old,
                Err(other) => seen = other,
            }
        }
    }
}

/// Returns the order of the read of a failed exchange, for the order of a successful one.
pub(crate) const fn of_failure(order: Ordering) -> Ordering {
    match order {
        Ordering::SeqCst => Ordering::SeqCst,
        Ordering::Acquire | Ordering::AcqRel => Ordering::Acquire,
        _ => Ordering::Relaxed,
    }
}

#[inline]
const fn index(at: u64) -> usize {
    debug_assert!(at.is_multiple_of(8));
    (at / 8) as usize
}

/// Memory as a slice of atomics.
impl WordMemory for [AtomicU64] {
    #[inline]
    fn byte_len(&self) -> u64 {
        self.len() as u64 * 8
    }

    #[inline]
    fn load(&self, at: u64, order: Ordering) -> u64 {
        self[index(at)].load(order)
    }

    #[inline]
    fn store(&self, at: u64, value: u64, order: Ordering) {
        self[index(at)].store(value, order);
    }

    #[inline]
    fn fetch_add(&self, at: u64, value: u64, order: Ordering) -> u64 {
        self[index(at)].fetch_add(value, order)
    }

    #[inline]
    fn fetch_or(&self, at: u64, bits: u64, order: Ordering) -> u64 {
        self[index(at)].fetch_or(bits, order)
    }

    #[inline]
    fn swap(&self, at: u64, value: u64, order: Ordering) -> u64 {
        self[index(at)].swap(value, order)
    }

    #[inline]
    fn compare_exchange(&self, at: u64, expect: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        self[index(at)].compare_exchange(expect, new, order, of_failure(order))
    }

    #[inline]
    fn fence(&self, order: Ordering) {
        core::sync::atomic::fence(order);
    }

    #[inline]
    fn get(&self, at: u64) -> u64 {
        self[index(at)].load(Ordering::Relaxed)
    }

    #[inline]
    fn put(&self, at: u64, value: u64) {
        self[index(at)].store(value, Ordering::Relaxed);
    }

    #[inline]
    fn pause(&self) {
        core::hint::spin_loop();
    }
}

/// Memory behind a pointer.
macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<T: WordMemory + ?Sized> WordMemory for $pointer {
            #[inline]
            fn byte_len(&self) -> u64 {
                (**self).byte_len()
            }

            #[inline]
            fn load(&self, at: u64, order: Ordering) -> u64 {
                (**self).load(at, order)
            }

            #[inline]
            fn store(&self, at: u64, value: u64, order: Ordering) {
                (**self).store(at, value, order);
            }

            #[inline]
            fn fetch_add(&self, at: u64, value: u64, order: Ordering) -> u64 {
                (**self).fetch_add(at, value, order)
            }

            #[inline]
            fn fetch_or(&self, at: u64, bits: u64, order: Ordering) -> u64 {
                (**self).fetch_or(at, bits, order)
            }

            #[inline]
            fn swap(&self, at: u64, value: u64, order: Ordering) -> u64 {
                (**self).swap(at, value, order)
            }

            #[inline]
            fn compare_exchange(&self, at: u64, expect: u64, new: u64, order: Ordering) -> Result<u64, u64> {
                (**self).compare_exchange(at, expect, new, order)
            }

            #[inline]
            fn fence(&self, order: Ordering) {
                (**self).fence(order);
            }

            #[inline]
            fn get(&self, at: u64) -> u64 {
                (**self).get(at)
            }

            #[inline]
            fn put(&self, at: u64, value: u64) {
                (**self).put(at, value);
            }

            #[inline]
            fn get_entry(&self, at: u64) -> [u64; 8] {
                (**self).get_entry(at)
            }

            #[inline]
            fn put_entry(&self, at: u64, words: &[u64; 8]) {
                (**self).put_entry(at, words);
            }

            #[inline]
            fn store_fenced(&self, at: u64, value: u64) {
                (**self).store_fenced(at, value);
            }

            #[inline]
            fn store_both_fenced(&self, words: [StoredWord; 2], bits_at: u64, bits: u64) {
                (**self).store_both_fenced(words, bits_at, bits);
            }

            #[inline]
            fn put_completion(&self, at: u64, words: [u64; 3]) {
                (**self).put_completion(at, words);
            }

            #[inline]
            fn is_same(&self, other: &Self) -> bool {
                (**self).is_same(other)
            }

            #[inline]
            fn step_aside(&self, looks: u32) {
                (**self).step_aside(looks);
            }

            #[inline]
            fn pause(&self) {
                (**self).pause();
            }
        }
    )*};
}

through!(&T, Arc<T>);

/// Words on this process's heap.
pub type HeapWords = Arc<[AtomicU64]>;

/// Allocates zeroed words of at least `bytes` bytes.
#[must_use]
pub fn allocate_words(bytes: u64) -> HeapWords {
    (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect()
}
