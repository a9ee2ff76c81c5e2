//! Signals and counters: words at offsets of the caller, which remote operations change. Called by producers that wait, and by the executor
//! to find error words.
//!
//! An error word reports an operation that failed before it changed its word. It follows the value in a slot of 16 bytes, and lies in a
//! table for bare values of 8 bytes. A reset stores the current value as a base and never writes to the value, so no addition is lost.

use core::sync::atomic::Ordering::{AcqRel, Acquire};

use trunkline_proto::wire::device_queue::PoisonWord;

use crate::budget::WaitBudget;
use crate::error::WaitError;
use crate::memory::WordMemory;
use crate::queue::DeviceQueue;

/// The condition that a signal or counter, less its base, must meet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SlotCondition {
    /// Equal to the value.
    Equal(u64),
    /// Not equal to the value.
    NotEqual(u64),
    /// Greater than or equal to the value.
    AtLeast(u64),
    /// Greater than the value.
    MoreThan(u64),
    /// Less than or equal to the value.
    AtMost(u64),
    /// Less than the value.
    LessThan(u64),
}

impl SlotCondition {
    /// Returns whether `value` meets the condition.
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

/// Most pauses between two polls of a slot that needs several more additions.
const SPARED_MAX: u64 = 16;

impl SlotCondition {
    /// Returns the pauses that a waiter makes before its next poll. Each poll takes the cache line from the threads that raise the slot, so
    /// with several additions missing not each one is worth a poll.
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

/// Layout of slots in a memory. The caller chooses all offsets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SlotLayout {
    /// Values of 8 bytes side by side, and a table with an error word per value.
    Bare {
        /// Offset of the first value.
        values: u64,
        /// Offset of the first error word.
        errors: u64,
        /// Number of slots.
        count: u32,
    },
    /// Slots of 16 bytes: value and poison word.
    Poisoned {
        /// Offset of the first slot.
        slots: u64,
        /// Number of slots.
        count: u32,
    },
}

/// Polls once whether the sum of slots is at least `value`. Returns the sum if so.
///
/// # Errors
/// [`WaitError::Poisoned`], if the sum is smaller, and an operation on one of the slots has failed.
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
    // Additions before the failure may have arrived since the first read, so the sum is read again.
    sum().map_or(Err(WaitError::Poisoned(poison)), |found| Ok(Some(found)))
}

impl SlotLayout {
    /// Returns a slot; `None` if `number` is out of range.
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

    /// Returns the error word of the slot whose value is at offset `value`; `None` if no slot matches. For the executor.
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
    /// Offset of the value.
    pub value: u64,
    /// Offset of the error word.
    pub error: u64,
    /// Offset of its base, if it is ever reset. Only the slot's owner changes the base.
    pub base: Option<u64>,
}

impl SignalSlot {
    /// A slot of 16 bytes at the offset `at`.
    #[must_use]
    pub const fn with_poison_word(at: u64) -> Self {
        Self { value: at, error: at + 8, base: None }
    }

    /// The same slot, with its base at the offset `base`.
    #[must_use]
    pub const fn with_base(self, base: u64) -> Self {
        Self { base: Some(base), ..self }
    }

    /// Returns the sum of additions since the last reset.
    #[inline]
    pub fn read_value<M: WordMemory>(&self, memory: &M) -> u64 {
        // The base is read first: it is then never ahead of the value, which is read later.
        let base = self.base.map_or(0, |base| memory.load(base, Acquire));
        memory.load(self.value, Acquire).wrapping_sub(base)
    }

    /// Returns why an operation on this slot failed, if one has.
    pub fn read_poison<M: WordMemory>(&self, memory: &M) -> Option<PoisonWord> {
        PoisonWord::from_word(memory.load(self.error, Acquire))
    }

    /// Resets the slot: earlier additions no longer count, later ones do. Returns the amount that this call set aside, or `None` without a
    /// base, as the value itself is never written.
    pub fn reset_base<M: WordMemory>(&self, memory: &M) -> Option<u64> {
        let at = self.base?;
        let mut base = memory.load(at, Acquire);
        loop {
            let value = memory.load(self.value, Acquire);
            // A concurrent reset moves the base. The exchange then fails, and this call sets aside the additions since then.
            match memory.compare_exchange(at, base, value, AcqRel) {
                Ok(_) => return Some(value.wrapping_sub(base)),
                Err(other) => base = other,
            }
        }
    }

    /// Clears the poison word, once the owner has repaired the failure. Returns `false` if another poison has replaced it.
    pub fn clear_poison<M: WordMemory>(&self, memory: &M, poison: PoisonWord) -> bool {
        memory.compare_exchange(self.error, poison.to_word(), 0, AcqRel).is_ok()
    }

    /// Polls once whether the value meets the condition.
    ///
    /// # Errors
    /// [`WaitError::Poisoned`], if it does not, and an operation on the slot has failed.
    pub fn check_condition<M: WordMemory>(
        &self,
        memory: &M,
        until: SlotCondition,
    ) -> Result<bool, WaitError> {
        if until.is_met_by(self.read_value(memory)) {
            return Ok(true);
        }
        match self.read_poison(memory) {
            // Additions before the failure may have arrived since the first read.
            Some(_) if until.is_met_by(self.read_value(memory)) => Ok(true),
            Some(poison) => Err(WaitError::Poisoned(poison)),
            None => Ok(false),
        }
    }

    /// Waits until the value meets the condition, and returns the value. Bytes written before the value was changed can be read then.
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

    /// Continues a wait whose first poll failed.
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
            // The value alone is read right after the pause: success then needs no read of the poison word.
            let value = self.read_value(memory);
            if until.is_met_by(value) {
                return Ok(value);
            }
            (0..until.spared_pauses(value)).for_each(|_| core::hint::spin_loop());
        }
    }

    /// As [`wait`](Self::wait), but also ends when `queue` is aborted: the awaited operation may then never have been posted.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`WaitError::Aborted`].
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
    fn spared_pauses_follow_the_missing_count() {
        let spared = |value| SlotCondition::AtLeast(64).spared_pauses(value);
        assert_eq!([64, 63, 62, 50, 0].map(spared), [0, 0, 1, 13, 16]);
        assert_eq!(SlotCondition::Equal(3).spared_pauses(0), 2);
        assert_eq!(SlotCondition::NotEqual(9).spared_pauses(0), 0);
        assert_eq!(SlotCondition::AtLeast(u64::MAX).spared_pauses(0), 16);
    }
}
