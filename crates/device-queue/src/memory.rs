//! What the protocol asks of memory. Called by everything here, with offsets that the layout gives.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use trunkline_proto::wire::device_queue::is_before;

/// A word to be written: where it is, and its value.
#[derive(Clone, Copy, Debug)]
pub struct StoredWord {
    /// The offset, a multiple of 8.
    pub at: u64,
    /// The word's new value.
    pub value: u64,
}

/// Words of 8 bytes by their offset, shared with other threads, processes or devices.
///
/// An offset is a multiple of 8. One that is not, or is not below [`byte_len`](Self::byte_len), is a bug of the caller, and may panic as an index
/// of a slice does. Nothing but words goes in and out, so that no reference to shared bytes ever exists.
pub trait WordMemory {
    /// Bytes there are.
    fn byte_len(&self) -> u64;

    /// Reads a word that others may change at the same time.
    fn load(&self, at: u64, order: Ordering) -> u64;

    /// Writes such a word.
    fn store(&self, at: u64, value: u64, order: Ordering);

    /// Adds, wrapping; the value before.
    fn fetch_add(&self, at: u64, value: u64, order: Ordering) -> u64;

    /// Sets bits; the value before.
    fn fetch_or(&self, at: u64, bits: u64, order: Ordering) -> u64;

    /// Replaces; the value before.
    fn swap(&self, at: u64, value: u64, order: Ordering) -> u64;

    /// Replaces the word if it is `expect`.
    ///
    /// # Errors
    /// What it is instead.
    fn compare_exchange(&self, at: u64, expect: u64, new: u64, order: Ordering) -> Result<u64, u64>;

    /// A fence between this thread's accesses.
    fn fence(&self, order: Ordering);

    /// Reads a word that nobody changes at the same time, as far as the protocol holds: an entry's, or a header's.
    fn get(&self, at: u64) -> u64;

    /// Writes such a word.
    fn put(&self, at: u64, value: u64);

    /// The eight words of an entry, as [`get`](Self::get) reads each.
    #[inline]
    fn get_entry(&self, at: u64) -> [u64; 8] {
        core::array::from_fn(|word| self.get(at + word as u64 * 8))
    }

    /// Writes them, as [`put`](Self::put) does each.
    #[inline]
    fn put_entry(&self, at: u64, words: &[u64; 8]) {
        for (word, value) in words.iter().enumerate() {
            self.put(at + word as u64 * 8, *value);
        }
    }

    /// Writes a word with a full fence before and behind it, for accesses that are themselves sequentially consistent: memory whose
    /// sequentially consistent store orders those may use that.
    #[inline]
    fn store_fenced(&self, at: u64, value: u64) {
        self.fence(Ordering::SeqCst);
        self.store(at, value, Ordering::Release);
        self.fence(Ordering::SeqCst);
    }

    /// Stores two words as [`store_fenced`](Self::store_fenced) each, and then sets `bits` of a third one at
    /// `bits_at`: the fences stand before both stores, and behind both and the bits. Memory whose change of a
    /// word is a full fence by itself, behind an exchange before it, may use those.
    #[inline]
    fn store_both_fenced(&self, words: [StoredWord; 2], bits_at: u64, bits: u64) {
        for StoredWord { at, value } in words {
            self.store_fenced(at, value);
        }
        self.fetch_or(bits_at, bits, Ordering::Release);
    }

    /// Writes a completion: the head says at first that it is being written, then the value comes, then the head that tells of it.
    #[inline]
    fn put_completion(&self, at: u64, [writing, value, head]: [u64; 3]) {
        self.store(at, writing, Ordering::Relaxed);
        self.fence(Ordering::Release);
        self.store(at + 8, value, Ordering::Relaxed);
        self.store(at, head, Ordering::Release);
    }

    /// Whether both are the same words. Who cannot tell says no.
    #[inline]
    fn is_same(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }

    /// Lets others go on, between two looks of a wait.
    fn pause(&self);

    /// Lets others go on who may be anywhere between two steps, after so many looks of somebody who cannot wait for ever: memory that is told when its threads
    /// sleep has this one sleep, too, so that [`QueueReservation::cancel`](crate::QueueReservation::cancel) looks for a tenth of a second.
    #[inline]
    fn step_aside(&self, looks: u32) {
        let _ = looks;
        self.pause();
    }

    /// Raises a counter to `to`, if that is ahead of it; the value before. Counters wrap, so this is no maximum; a device whose counters
    /// never get that far may use one.
    #[inline]
    fn advance_counter(&self, at: u64, to: u64, order: Ordering) -> u64 {
        let mut seen = self.load(at, Ordering::Relaxed);
        loop {
            // Also without a change it is a change of the word, so that it has the order that was asked for.
            let new = if is_before(seen, to) { to } else { seen };
            match self.compare_exchange(at, seen, new, order) {
                Ok(old) => return old,
                Err(other) => seen = other,
            }
        }
    }
}

/// What a failed exchange reads with, when a successful one has this order.
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

/// Words of whatever lies somewhere as atomics.
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

/// Memory through something that points to it.
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

/// Words of this process.
pub type HeapWords = Arc<[AtomicU64]>;

/// At least so many bytes of this process, zeros.
#[must_use]
pub fn allocate_words(bytes: u64) -> HeapWords {
    (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect()
}
