//! Doorbells: one for each queue, side by side in a page, with bits that tell the engine which to look at. So nobody looks at idle queues.

use core::sync::atomic::Ordering::{Acquire, Release};

use trunkline_proto::mutant::Mutant;
use trunkline_proto::wire::device_queue::{Bells, ShapeError};

use crate::memory::Memory;

/// A page of doorbells. Producers ring, one engine looks.
#[derive(Clone, Copy, Debug)]
pub struct BellPage<M> {
    memory: M,
    bells: Bells,
    /// Where the first doorbell lies.
    first: u64,
    mutant: Mutant,
}

/// One doorbell of a page.
#[derive(Clone, Copy, Debug)]
pub struct Bell<M> {
    page: BellPage<M>,
    /// Where the doorbell lies.
    at: u64,
    /// The word of its bit, and the bit.
    bit: (u64, u64),
}

impl<M: Memory> BellPage<M> {
    /// Makes a page of `count` doorbells. Nobody else may use the memory yet.
    ///
    /// # Errors
    /// [`ShapeError`], if there is no such page, or the memory is too small.
    pub fn create(memory: M, count: u32, mutant: Mutant) -> Result<Self, ShapeError> {
        Self::make(memory, Bells::new(count)?, mutant)
    }

    /// The same, with a byte for each doorbell in place of a bit: a device sets it by a store, where its atomics do not reach.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_for_devices(memory: M, count: u32, mutant: Mutant) -> Result<Self, ShapeError> {
        Self::make(memory, Bells::new(count)?.by_bytes(), mutant)
    }

    fn make(memory: M, bells: Bells, mutant: Mutant) -> Result<Self, ShapeError> {
        let have = memory.bytes();
        let need = bells.bytes();
        if have < need {
            return Err(ShapeError::Short { have, need });
        }
        for (at, word) in bells.to_words().iter().enumerate() {
            memory.put(at as u64 * 8, *word);
        }
        for group in 0..bells.groups() {
            memory.store(bells.bit(bells.bell_of(group, 0)).0, 0, Release);
        }
        Ok(Self { memory, bells, first: bells.bell(0), mutant })
    }

    /// Finds a page that somebody else has made.
    ///
    /// # Errors
    /// [`ShapeError`], if there is none.
    pub fn open(memory: M, mutant: Mutant) -> Result<Self, ShapeError> {
        let have = memory.bytes();
        let mut words = [0; 8];
        if have < 64 {
            return Err(ShapeError::Short { have, need: 64 });
        }
        for (at, word) in words.iter_mut().enumerate() {
            *word = memory.get(at as u64 * 8);
        }
        let bells = Bells::from_words(&words, have)?;
        Ok(Self { memory, bells, first: bells.bell(0), mutant })
    }

    /// How many doorbells.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.bells.count()
    }

    /// A doorbell, for its queue; `None` if there are fewer.
    pub fn bell(&self, number: u32) -> Option<Bell<M>>
    where
        M: Clone,
    {
        let at = self.bells.bell(number);
        let bit = self.bells.bit(number);
        (number < self.count()).then(|| Bell { page: self.clone(), at, bit })
    }

    /// Sets a doorbell to a queue's first index, before anybody uses it.
    pub(crate) fn reset(&self, number: u32, first: u64) {
        self.memory.store(self.bells.bell(number), first, Release);
    }

    /// Takes the bits of a group, each of which is a doorbell's by [`Bells::bell_of`]: whose have been rung since.
    pub fn take(&self, group: u32) -> u64 {
        let at = Bells::group(group);
        // An idle page is only read.
        if self.memory.load(at, Acquire) == 0 {
            return 0;
        }
        self.memory.swap(at, 0, Acquire)
    }

    /// What a doorbell says. For whose bits were taken, that is no less than what was rung before.
    pub fn look(&self, number: u32) -> u64 {
        self.memory.load(self.first + u64::from(number) * 8, Acquire)
    }

    /// Its words, for those who look at the protocol from outside: tests and tools.
    #[must_use]
    pub const fn words(&self) -> &M {
        &self.memory
    }

    /// How it is laid out.
    #[must_use]
    pub const fn bells(&self) -> Bells {
        self.bells
    }

    /// Words of bits.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.bells.groups()
    }
}

impl<M: Memory> Bell<M> {
    /// Tells the engine that it may execute what is before `end`. A full fence stands before the doorbell is stored, and one behind it.
    #[inline]
    pub(crate) fn ring(&self, end: u64) {
        if self.page.mutant.is("devq-bit-before-bell") {
            self.nudge();
            return self.page.memory.store_fenced(self.at, end);
        }
        self.store(end);
        if !self.page.mutant.is("devq-no-bit") {
            self.nudge();
        }
    }

    #[inline]
    fn store(&self, end: u64) {
        match self.page.mutant.is("devq-no-full-fence") {
            true => self.page.memory.store(self.at, end, Release),
            false => self.page.memory.store_fenced(self.at, end),
        }
    }

    /// Whether one word has the bits of both.
    #[inline]
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.bit.0 == other.bit.0 && self.page.memory.is_same(&other.page.memory)
    }

    /// As [`ring`](Self::ring) of both, which are [side by side](Self::is_beside).
    #[inline]
    pub(crate) fn ring_both(&self, end: u64, other: &Self, others_end: u64) {
        let half = self.page.mutant.is("devq-marks-one-of-two");
        let bits = (self.bit.0, if half { self.bit.1 } else { self.bit.1 | other.bit.1 });
        if self.page.mutant.is("devq-no-full-fence") {
            self.store(end);
            other.store(others_end);
            self.page.memory.or(bits.0, bits.1, Release);
            return;
        }
        self.page.memory.store_both_fenced([(self.at, end), (other.at, others_end)], bits);
    }

    /// Has the engine look at the queue, without telling it of more.
    #[inline]
    pub(crate) fn nudge(&self) {
        self.page.memory.or(self.bit.0, self.bit.1, Release);
    }
}
