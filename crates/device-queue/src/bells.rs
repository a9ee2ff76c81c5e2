//! Doorbells: one for each queue, side by side in a page, with a bit for each. The engine polls the bits and so reads no doorbell of an
//! idle queue.

use core::sync::atomic::Ordering::{Acquire, Release};

use trunkline_proto::wire::device_queue::{DoorbellLayout, ShapeError};

use crate::memory::{StoredWord, WordMemory};

/// A page of doorbells. Producers ring, one engine polls.
#[derive(Clone, Copy, Debug)]
pub struct BellPage<M> {
    memory: M,
    bells: DoorbellLayout,
    /// Offset of the first doorbell.
    first: u64,
}

/// One doorbell of a page.
#[derive(Clone, Copy, Debug)]
pub struct QueueDoorbell<M> {
    page: BellPage<M>,
    /// Offset of the doorbell.
    at: u64,
    /// Offset of the word with its bit, and the bit.
    bit: (u64, u64),
}

impl<M: WordMemory> BellPage<M> {
    /// Creates a page of `count` doorbells. No other thread may use the memory yet.
    ///
    /// # Errors
    /// [`ShapeError`], if `count` is out of range, or the memory is too small.
    pub fn create(memory: M, count: u32) -> Result<Self, ShapeError> {
        Self::lay_out(memory, DoorbellLayout::new(count)?)
    }

    /// As [`create`](Self::create), with a byte for each doorbell in place of a bit. A device without atomics on host memory sets a byte by
    /// a plain store.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_for_devices(memory: M, count: u32) -> Result<Self, ShapeError> {
        Self::lay_out(memory, DoorbellLayout::new(count)?.by_bytes())
    }

    fn lay_out(memory: M, bells: DoorbellLayout) -> Result<Self, ShapeError> {
        let have = memory.byte_len();
        let need = bells.page_bytes();
        if have < need {
            return Err(ShapeError::Short { have, need });
        }
        for (at, word) in bells.to_words().iter().enumerate() {
            memory.put(at as u64 * 8, *word);
        }
        for group in 0..bells.group_count() {
            memory.store(bells.bit_place(bells.bell_of(group, 0)).0, 0, Release);
        }
        Ok(Self { memory, bells, first: bells.bell_offset(0) })
    }

    /// Opens a page that another thread or process has created.
    ///
    /// # Errors
    /// [`ShapeError`], if the memory contains no valid page.
    pub fn open(memory: M) -> Result<Self, ShapeError> {
        let have = memory.byte_len();
        let mut words = [0; 8];
        if have < 64 {
            return Err(ShapeError::Short { have, need: 64 });
        }
        for (at, word) in words.iter_mut().enumerate() {
            *word = memory.get(at as u64 * 8);
        }
        let bells = DoorbellLayout::from_words(&words, have)?;
        Ok(Self { memory, bells, first: bells.bell_offset(0) })
    }

    /// Returns the number of doorbells.
    #[must_use]
    pub fn bell_count(&self) -> u32 {
        self.bells.bell_count()
    }

    /// Returns a doorbell, for its queue; `None` if `number` is out of range.
    pub fn doorbell_at(&self, number: u32) -> Option<QueueDoorbell<M>>
    where
        M: Clone,
    {
        let at = self.bells.bell_offset(number);
        let bit = self.bells.bit_place(number);
        (number < self.bell_count()).then(|| QueueDoorbell { page: self.clone(), at, bit })
    }

    /// Sets a doorbell to a queue's first index, before any producer uses it.
    pub(crate) fn reset_bell(&self, number: u32, first: u64) {
        self.memory.store(self.bells.bell_offset(number), first, Release);
    }

    /// Takes and clears the bits of a group. Each set bit is a doorbell, by [`DoorbellLayout::bell_of`], that was rung since the last call.
    pub fn take_group(&self, group: u32) -> u64 {
        let at = DoorbellLayout::group_offset(group);
        // An idle page is only read: a swap would move the line away from its producers in every pass.
        if self.memory.load(at, Acquire) == 0 {
            return 0;
        }
        self.memory.swap(at, 0, Acquire)
    }

    /// Reads a doorbell. After its bit was taken, the value is at least as large as the one stored before that bit was set.
    pub fn read_bell(&self, number: u32) -> u64 {
        self.memory.load(self.first + u64::from(number) * 8, Acquire)
    }

    /// Returns the words of the page, for tests and tools that inspect the protocol.
    #[must_use]
    pub const fn as_memory(&self) -> &M {
        &self.memory
    }

    /// Returns the layout of the page.
    #[must_use]
    pub const fn doorbell_layout(&self) -> DoorbellLayout {
        self.bells
    }

    /// Returns the number of words with bits.
    #[must_use]
    pub fn group_count(&self) -> u32 {
        self.bells.group_count()
    }
}

impl<M: WordMemory> QueueDoorbell<M> {
    /// Stores `end` in the doorbell, so the engine may execute all entries before it, and sets its bit. A full fence precedes the store,
    /// and another follows it.
    #[inline]
    pub(crate) fn ring(&self, end: u64) {
        self.page.memory.store_fenced(self.at, end);
        self.mark_queue();
    }

    /// Returns whether one word contains the bits of both doorbells.
    #[inline]
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.bit.0 == other.bit.0 && self.page.memory.is_same(&other.page.memory)
    }

    /// As [`ring`](Self::ring), for two doorbells that are [side by side](Self::is_beside).
    #[inline]
    pub(crate) fn ring_both(&self, end: u64, other: &Self, others_end: u64) {
        let bits = self.bit.1 | other.bit.1;
        let words = [StoredWord { at: self.at, value: end }, StoredWord { at: other.at, value: others_end }];
        self.page.memory.store_both_fenced(words, self.bit.0, bits);
    }

    /// Has the engine poll the queue without submitting more entries.
    #[inline]
    pub(crate) fn mark_queue(&self) {
        self.page.memory.fetch_or(self.bit.0, self.bit.1, Release);
    }
}
