//! Doorbells: one for each queue, side by side in a page, with bits that tell the engine which to look at. So nobody looks at idle queues.

use core::sync::atomic::Ordering::{Acquire, Release};

use trunkline_proto::wire::device_queue::{DoorbellLayout, ShapeError};

use crate::memory::{StoredWord, WordMemory};

/// A page of doorbells. Producers ring, one engine looks.
#[derive(Clone, Copy, Debug)]
pub struct BellPage<M> {
    memory: M,
    bells: DoorbellLayout,
    /// Where the first doorbell lies.
    first: u64,
}

/// One doorbell of a page.
#[derive(Clone, Copy, Debug)]
pub struct QueueDoorbell<M> {
    page: BellPage<M>,
    /// Where the doorbell lies.
    at: u64,
    /// The word of its bit, and the bit.
    bit: (u64, u64),
}

impl<M: WordMemory> BellPage<M> {
    /// Makes a page of `count` doorbells. Nobody else may use the memory yet.
    ///
    /// # Errors
    /// [`ShapeError`], if there is no such page, or the memory is too small.
    pub fn create(memory: M, count: u32) -> Result<Self, ShapeError> {
        Self::lay_out(memory, DoorbellLayout::new(count)?)
    }

    /// The same, with a byte for each doorbell in place of a bit: a device sets it by a store, where its atomics do not reach.
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

    /// Finds a page that somebody else has made.
    ///
    /// # Errors
    /// [`ShapeError`], if there is none.
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

    /// How many doorbells.
    #[must_use]
    pub fn bell_count(&self) -> u32 {
        self.bells.bell_count()
    }

    /// A doorbell, for its queue; `None` if there are fewer.
    pub fn doorbell_at(&self, number: u32) -> Option<QueueDoorbell<M>>
    where
        M: Clone,
    {
        let at = self.bells.bell_offset(number);
        let bit = self.bells.bit_place(number);
        (number < self.bell_count()).then(|| QueueDoorbell { page: self.clone(), at, bit })
    }

    /// Sets a doorbell to a queue's first index, before anybody uses it.
    pub(crate) fn reset_bell(&self, number: u32, first: u64) {
        self.memory.store(self.bells.bell_offset(number), first, Release);
    }

    /// Takes the bits of a group, each of which is a doorbell's by [`DoorbellLayout::bell_of`]: whose have been rung since.
    pub fn take_group(&self, group: u32) -> u64 {
        let at = DoorbellLayout::group_offset(group);
        // An idle page is only read.
        if self.memory.load(at, Acquire) == 0 {
            return 0;
        }
        self.memory.swap(at, 0, Acquire)
    }

    /// What a doorbell says. For whose bits were taken, that is no less than what was rung before.
    pub fn read_bell(&self, number: u32) -> u64 {
        self.memory.load(self.first + u64::from(number) * 8, Acquire)
    }

    /// Its words, for those who look at the protocol from outside: tests and tools.
    #[must_use]
    pub const fn as_memory(&self) -> &M {
        &self.memory
    }

    /// How it is laid out.
    #[must_use]
    pub const fn doorbell_layout(&self) -> DoorbellLayout {
        self.bells
    }

    /// Words of bits.
    #[must_use]
    pub fn group_count(&self) -> u32 {
        self.bells.group_count()
    }
}

impl<M: WordMemory> QueueDoorbell<M> {
    /// Tells the engine that it may execute what is before `end`. A full fence stands before the doorbell is stored, and one behind it.
    #[inline]
    pub(crate) fn ring(&self, end: u64) {
        self.page.memory.store_fenced(self.at, end);
        self.mark_queue();
    }

    /// Whether one word has the bits of both.
    #[inline]
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.bit.0 == other.bit.0 && self.page.memory.is_same(&other.page.memory)
    }

    /// As [`ring`](Self::ring) of both, which are [side by side](Self::is_beside).
    #[inline]
    pub(crate) fn ring_both(&self, end: u64, other: &Self, others_end: u64) {
        let bits = self.bit.1 | other.bit.1;
        let words = [StoredWord { at: self.at, value: end }, StoredWord { at: other.at, value: others_end }];
        self.page.memory.store_both_fenced(words, self.bit.0, bits);
    }

    /// Has the engine look at the queue, without telling it of more.
    #[inline]
    pub(crate) fn mark_queue(&self) {
        self.page.memory.fetch_or(self.bit.0, self.bit.1, Release);
    }
}
