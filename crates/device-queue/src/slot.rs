//! Signals and counters: words that others change, at addresses that the caller gives.
//!
//! What fails before it gets there is told by an error word: behind the value in a slot of 16 bytes, in a table where values of 8 bytes lie side by
//! side. A slot begins anew by remembering what it had: nothing is written to the value, so no addition is ever lost.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use trunkline_proto::wire::device_queue::PoisonWord;

use crate::budget::WaitBudget;
use crate::error::WaitError;
use crate::memory::WordMemory;
use crate::queue::DeviceQueue;

/// What a signal or counter is waited to be, less its base.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SlotCondition {
    /// Equal.
    Equal(u64),
    /// Not equal.
    NotEqual(u64),
    /// Greater or equal.
    AtLeast(u64),
    /// Greater.
    MoreThan(u64),
    /// Less or equal.
    AtMost(u64),
    /// Less.
    LessThan(u64),
}

impl SlotCondition {
    /// Whether a value is as wanted.
    #[inline]
    #[must_use]
    pub const fn is_met_by(self, value: u64) -> bool {
        match self {
            Self::Equal(other) => value == other,
            Self::NotEqual(other) => value != other,
            Self::AtLeast(other) => value >= other,
            Self::MoreThan(other) => value > other,
            Self::AtMost(other) => value <= other,
            Self::LessThan(other) => value < other,
        }
    }
}

/// Most pauses between two looks at a slot that many are to raise.
const SPARED_MAX: u64 = 16;

impl SlotCondition {
    /// Pauses that a waiter can make before it is likely to find what it waits for: each look takes the line from whoever raises it, so of
    /// several that are missing not each one is looked for.
    #[inline]
    const fn spared_pauses(self, value: u64) -> u64 {
        let missing = match self {
            Self::AtLeast(other) | Self::Equal(other) => other.saturating_sub(value),
            _ => 0,
        };
        let spared = missing.saturating_sub(1);
        if spared < SPARED_MAX { spared } else { SPARED_MAX }
    }
}

/// Where slots lie in a memory. All offsets are the caller's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SlotLayout {
    /// Values of 8 bytes side by side, and a table of as many error words.
    Bare {
        /// The first value.
        values: u64,
        /// The first error word.
        errors: u64,
        /// How many there are.
        count: u32,
    },
    /// Slots of 16 bytes: value and poison.
    Poisoned {
        /// The first slot.
        slots: u64,
        /// How many there are.
        count: u32,
    },
}

/// Looks whether slots together have come to `value`: what they are, if so.
///
/// # Errors
/// [`WaitError::Poisoned`], if they have not, and something that was to come to one of them has failed.
pub fn poll_sum<M: WordMemory>(
    memory: &M,
    slots: impl Iterator<Item = SignalSlot> + Clone,
    value: u64,
) -> Result<Option<u64>, WaitError> {
    let sum = || {
        let sum = slots.clone().fold(0, |sum: u64, slot| sum.wrapping_add(slot.read_value(memory)));
        (sum >= value).then_some(sum)
    };
    let found = sum();
    if found.is_some() {
        return Ok(found);
    }
    let Some(poison) = slots.clone().find_map(|slot| slot.read_poison(memory)) else { return Ok(None) };
    // What came before the failure may have come since the look.
    sum().map_or(Err(WaitError::Poisoned(poison)), |found| Ok(Some(found)))
}

impl SlotLayout {
    /// A slot; `None` if there are fewer.
    #[must_use]
    pub const fn slot_at(&self, number: u32) -> Option<SignalSlot> {
        match *self {
            Self::Bare { values, errors, count } if number < count => Some(SignalSlot {
                value: values + number as u64 * 8,
                error: errors + number as u64 * 8,
                base: None,
            }),
            Self::Poisoned { slots, count } if number < count => {
                Some(SignalSlot::with_poison_word(slots + number as u64 * 16))
            }
            _ => None,
        }
    }

    /// The error word of the slot whose value lies at `value`; `None` if no slot's does. For the executor.
    #[must_use]
    pub fn error_of(&self, value: u64) -> Option<u64> {
        let (first, stride, count) = match *self {
            Self::Bare { values, count, .. } => (values, 8, count),
            Self::Poisoned { slots, count } => (slots, 16, count),
        };
        let distance = value.checked_sub(first).filter(|distance| distance.is_multiple_of(stride))?;
        let number = u32::try_from(distance / stride).ok().filter(|number| *number < count)?;
        self.slot_at(number).map(|slot| slot.error)
    }
}

/// One signal or counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SignalSlot {
    /// The value.
    pub value: u64,
    /// The word that tells of a failure.
    pub error: u64,
    /// The word with its base, if it ever begins anew. Only its owner changes that.
    pub base: Option<u64>,
}

impl SignalSlot {
    /// A slot of 16 bytes.
    #[must_use]
    pub const fn with_poison_word(at: u64) -> Self {
        Self { value: at, error: at + 8, base: None }
    }

    /// The same, and its base lies at `base`.
    #[must_use]
    pub const fn with_base(self, base: u64) -> Self {
        Self { base: Some(base), ..self }
    }

    /// What has been added since it began anew.
    #[inline]
    pub fn read_value<M: WordMemory>(&self, memory: &M) -> u64 {
        // The base first: it never is ahead of a value that is read later.
        let base = self.base.map_or(0, |base| memory.load(base, Acquire));
        memory.load(self.value, Acquire).wrapping_sub(base)
    }

    /// Why what was to come here did not, if so.
    pub fn read_poison<M: WordMemory>(&self, memory: &M) -> Option<PoisonWord> {
        PoisonWord::from_word(memory.load(self.error, Acquire))
    }

    /// Begins anew: what has come before counts no more, what comes later does. What it counted, as the number of all that this call has set
    /// aside; `None` without a base, as its value is never written.
    pub fn reset_base<M: WordMemory>(&self, memory: &M) -> Option<u64> {
        let at = self.base?;
        let mut base = memory.load(at, Acquire);
        loop {
            let value = memory.load(self.value, Acquire);
            match memory.compare_exchange(at, base, value, AcqRel) {
                Ok(_) => return Some(value.wrapping_sub(base)),
                Err(other) => base = other,
            }
        }
    }

    /// Takes the poison away, once its owner has put right what failed; `false` if there is another one by now.
    pub fn clear_poison<M: WordMemory>(&self, memory: &M, poison: PoisonWord) -> bool {
        memory.compare_exchange(self.error, poison.to_word(), 0, AcqRel).is_ok()
    }

    /// Looks whether the value is as wanted: `true` if so.
    ///
    /// # Errors
    /// [`WaitError::Poisoned`], if it is not, and something that was to come has failed.
    pub fn check_condition<M: WordMemory>(
        &self,
        memory: &M,
        until: SlotCondition,
    ) -> Result<bool, WaitError> {
        if until.is_met_by(self.read_value(memory)) {
            return Ok(true);
        }
        match self.read_poison(memory) {
            // What came before the failure may have come since the look.
            Some(_) if until.is_met_by(self.read_value(memory)) => Ok(true),
            Some(poison) => Err(WaitError::Poisoned(poison)),
            None => Ok(false),
        }
    }

    /// Waits until the value is as wanted. What was written before it was changed can be read then.
    ///
    /// # Errors
    /// As [`check_condition`](Self::check_condition), and [`WaitError::Timeout`].
    #[inline]
    pub fn wait<M: WordMemory>(
        &self,
        memory: &M,
        until: SlotCondition,
        budget: &mut impl WaitBudget,
    ) -> Result<u64, WaitError> {
        let value = self.read_value(memory);
        if until.is_met_by(value) {
            return Ok(value);
        }
        self.wait_longer(memory, until, budget)
    }

    /// The same once a look has found that it is not as wanted.
    fn wait_longer<M: WordMemory>(
        &self,
        memory: &M,
        until: SlotCondition,
        budget: &mut impl WaitBudget,
    ) -> Result<u64, WaitError> {
        loop {
            if self.check_condition(memory, until)? {
                return Ok(self.read_value(memory));
            }
            if !budget.spend_poll() {
                return Err(WaitError::Timeout);
            }
            memory.pause();
            let value = self.read_value(memory);
            if until.is_met_by(value) {
                return Ok(value);
            }
            (0..until.spared_pauses(value)).for_each(|_| core::hint::spin_loop());
        }
    }

    /// As [`wait`](Self::wait), and ends when everybody who uses a queue is to stop: what was to come may then never have been posted.
    ///
    /// # Errors
    /// As there, and [`WaitError::Aborted`].
    pub fn wait_unless_aborted<M: WordMemory>(
        &self,
        memory: &M,
        until: SlotCondition,
        queue: &DeviceQueue<impl WordMemory>,
        budget: &mut impl WaitBudget,
    ) -> Result<u64, WaitError> {
        loop {
            if self.check_condition(memory, until)? {
                return Ok(self.read_value(memory));
            }
            if let Some(why) = queue.abort_word() {
                return Err(WaitError::Aborted(why));
            }
            if !budget.spend_poll() {
                return Err(WaitError::Timeout);
            }
            memory.pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_as_many_as_are_missing_behind_the_next_one() {
        let spared = |value| SlotCondition::AtLeast(64).spared_pauses(value);
        assert_eq!([64, 63, 62, 50, 0].map(spared), [0, 0, 1, 13, 16]);
        assert_eq!(SlotCondition::Equal(3).spared_pauses(0), 2);
        assert_eq!(SlotCondition::NotEqual(9).spared_pauses(0), 0);
        assert_eq!(SlotCondition::AtLeast(u64::MAX).spared_pauses(0), 16);
    }
}
