//! The division of a directly copied record between its two copiers: four words of its descriptor, in memory that both processes
//! write. The target claims bytes from the front and pulls them, the initiator claims from the back and pushes them, until
//! none remain; either side can close the unclaimed rest. Decides nothing about keys or memory.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Granularity of claims in bytes; only the last unit of a record may be shorter.
const UNIT: u64 = 4096;
/// Most bytes of a record; front and back counts fit their bits with room to spare.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
/// Least bytes of a part when both sides copy, so that the cost of its system call is small.
const PART: u64 = 32 << 10;

/// In the word of claimed units: nothing more may be claimed.
const CLOSED: u64 = 1 << 63;
/// First bit of the count from the back.
const BACK: u32 = 31;
/// Bits of one count.
const COUNT: u64 = (1 << BACK) - 1;
/// In the word of pushed units: the initiator could not write.
const FAILED: u64 = 1 << 63;

/// How much one side claims at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CopyPortion {
    /// Everything: the other side does not copy.
    All,
    /// A quarter of the unclaimed rest, so that both sides end at about the same time.
    Share,
}

/// Progress of a record, as the target sees it when it can claim nothing more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PullOutcome {
    /// All bytes have arrived.
    Here,
    /// The initiator is still writing.
    Coming,
    /// Closed by the initiator, or it could not write.
    Gone,
}

/// The words of one record. The other side may have written any number, so none is trusted.
pub(crate) struct CopyClaim<'a> {
    /// Address of the record's first byte in the target; 0 until the target lets the initiator write.
    pub(crate) grant: &'a AtomicU64,
    /// Units the target has copied.
    pub(crate) pulled: &'a AtomicU64,
    /// Units the initiator has copied, or [`FAILED`].
    pub(crate) pushed: &'a AtomicU64,
    /// Units claimed by each side, and [`CLOSED`].
    pub(crate) taken: &'a AtomicU64,
}

#[derive(Clone, Copy)]
struct ClaimedUnits {
    front: u64,
    back: u64,
    closed: bool,
}

impl ClaimedUnits {
    fn from_word(word: u64) -> Self {
        Self { front: word & COUNT, back: (word >> BACK) & COUNT, closed: word & CLOSED != 0 }
    }

    fn to_word(self) -> u64 {
        self.front | self.back << BACK | if self.closed { CLOSED } else { 0 }
    }

    /// Returns the unclaimed units; 0 if the counts are invalid.
    fn unclaimed_units(self, units: u64) -> u64 {
        units.saturating_sub(self.front + self.back)
    }
}

fn unit_count(len: u64) -> u64 {
    // The length may be a peer's, so it is limited to the range of the counts.
    len.min(BYTES_MAX).div_ceil(UNIT)
}

fn portion_units(left: u64, portion: CopyPortion) -> u64 {
    match portion {
        CopyPortion::All => left,
        // At least the units that justify a system call.
        CopyPortion::Share => (left / 4).max(PART / UNIT).min(left),
    }
}

impl CopyClaim<'_> {
    /// Resets the words before the record is published.
    pub(crate) fn reset_words(&self) {
        for word in [self.grant, self.pulled, self.pushed, self.taken] {
            // Relaxed, because the stamp of the record publishes them.
            word.store(0, Ordering::Relaxed);
        }
    }

    fn claim_units(
        &self,
        len: u64,
        size: CopyPortion,
        add: impl Fn(&mut ClaimedUnits, u64),
    ) -> Option<(ClaimedUnits, u64)> {
        let total = unit_count(len);
        let mut word = self.taken.load(Ordering::Acquire);
        // An exchange fails only because the other side claimed units or closed, so at most once per unit. The loop ends after that
        // number of attempts even if a hostile peer writes other values.
        for _ in 0..=total {
            let now = ClaimedUnits::from_word(u64::from_le(word));
            let count = portion_units(now.unclaimed_units(total), size);
            if now.closed || count == 0 {
                return None;
            }
            let mut next = now;
            add(&mut next, count);
            match self.taken.compare_exchange(
                word,
                next.to_word().to_le(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some((now, count)),
                Err(other) => word = other,
            }
        }
        None
    }

    /// Allows the initiator to write, the record's first byte to address `at`.
    pub(crate) fn open_push(&self, at: u64) {
        self.grant.store(at.to_le(), Ordering::Release);
    }

    /// Returns where the initiator may write, once it may.
    pub(crate) fn push_address(&self) -> Option<u64> {
        let at = u64::from_le(self.grant.load(Ordering::Acquire));
        (at != 0).then_some(at)
    }

    /// Claims the next bytes for the target, of a record of `len`.
    pub(crate) fn take_front(&self, len: u64, size: CopyPortion) -> Option<Range<u64>> {
        let (before, count) = self.claim_units(len, size, |taken, count| taken.front += count)?;
        let from = before.front * UNIT;
        Some(from..(from + count * UNIT).min(len))
    }

    /// Claims the next bytes for the initiator, of a record of `len`.
    pub(crate) fn take_back(&self, len: u64, size: CopyPortion) -> Option<Range<u64>> {
        let (before, count) = self.claim_units(len, size, |taken, count| taken.back += count)?;
        // `claim_units` counts only unclaimed units, so this stays above 0.
        let end = (unit_count(len) - before.back) * UNIT;
        Some(end - count * UNIT..end.min(len))
    }

    /// Publishes that the target has copied its claims.
    pub(crate) fn pulled_all(&self) {
        let front = ClaimedUnits::from_word(u64::from_le(self.taken.load(Ordering::Relaxed))).front;
        // Release, so that a thread that sees the count also sees the copied bytes.
        self.pulled.store(front.to_le(), Ordering::Release);
    }

    /// Publishes that the initiator has copied its claims, or failed to.
    pub(crate) fn pushed_all(&self, good: bool) {
        let back = ClaimedUnits::from_word(u64::from_le(self.taken.load(Ordering::Relaxed))).back;
        let failed = if good { 0 } else { FAILED };
        self.pushed.store((back | failed).to_le(), Ordering::Release);
    }

    /// Returns the progress once [`CopyClaim::take_front`] returns nothing.
    pub(crate) fn pull_outcome(&self, len: u64) -> PullOutcome {
        let taken = ClaimedUnits::from_word(u64::from_le(self.taken.load(Ordering::Acquire)));
        let pushed = u64::from_le(self.pushed.load(Ordering::Acquire));
        // The target could claim no more, so unclaimed units were closed by the initiator and will never be copied.
        if pushed & FAILED != 0 || taken.unclaimed_units(unit_count(len)) > 0 {
            return PullOutcome::Gone;
        }
        if pushed == taken.back { PullOutcome::Here } else { PullOutcome::Coming }
    }

    /// Whether a part may still be unclaimed.
    pub(crate) fn has_left(&self, len: u64) -> bool {
        let taken = ClaimedUnits::from_word(u64::from_le(self.taken.load(Ordering::Relaxed)));
        !taken.closed && taken.unclaimed_units(unit_count(len)) > 0
    }

    /// Forbids further claims.
    pub(crate) fn close(&self) {
        self.taken.fetch_or(CLOSED.to_le(), Ordering::AcqRel);
    }

    /// Whether the target is inside no copy, once claims are closed.
    pub(crate) fn no_pull(&self) -> bool {
        let pulled = u64::from_le(self.pulled.load(Ordering::Acquire));
        // Equal counts mean that every claimed unit was copied.
        pulled == ClaimedUnits::from_word(u64::from_le(self.taken.load(Ordering::Acquire))).front
    }

    /// Whether the initiator is inside no copy, once claims are closed.
    pub(crate) fn no_push(&self) -> bool {
        let pushed = u64::from_le(self.pushed.load(Ordering::Acquire)) & !FAILED;
        pushed == ClaimedUnits::from_word(u64::from_le(self.taken.load(Ordering::Acquire))).back
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::{BYTES_MAX, CopyClaim, CopyPortion, PullOutcome};

    #[derive(Default)]
    struct Words([AtomicU64; 4]);

    impl Words {
        fn claim(&self) -> CopyClaim<'_> {
            let [grant, pulled, pushed, taken] = &self.0;
            CopyClaim { grant, pulled, pushed, taken }
        }
    }

    proptest! {
        #[test]
        fn every_byte_is_claimed_once(len in 1..=BYTES_MAX, turns: Vec<bool>) {
            let words = Words::default();
            let claim = words.claim();
            let (mut front, mut back) = (0, len);
            for pull in turns.iter().copied().chain(std::iter::repeat(true)) {
                let part = if pull {
                    claim.take_front(len, CopyPortion::Share)
                } else {
                    claim.take_back(len, CopyPortion::Share)
                };
                let Some(part) = part else { break };
                prop_assert!(part.start < part.end);
                if pull {
                    prop_assert_eq!(part.start, front);
                    front = part.end;
                    claim.pulled_all();
                } else {
                    prop_assert_eq!(part.end, back);
                    back = part.start;
                    prop_assert_eq!(claim.pull_outcome(len), if claim.has_left(len) { PullOutcome::Gone } else { PullOutcome::Coming });
                    claim.pushed_all(true);
                }
            }
            prop_assert_eq!(front, back);
            prop_assert_eq!(claim.pull_outcome(len), PullOutcome::Here);
            prop_assert!(claim.no_pull() && claim.no_push());
        }

        #[test]
        fn claimed_parts_lie_inside_for_any_words(len in 1..=BYTES_MAX, taken: u64, pushed: u64) {
            let words = Words::default();
            let claim = words.claim();
            claim.taken.store(taken, Ordering::Relaxed);
            claim.pushed.store(pushed, Ordering::Relaxed);
            for size in [CopyPortion::All, CopyPortion::Share] {
                for part in [claim.take_front(len, size), claim.take_back(len, size)].into_iter().flatten() {
                    prop_assert!(part.start < part.end && part.end <= len);
                }
            }
            let _ = claim.pull_outcome(len);
        }
    }

    #[test]
    fn nothing_is_claimed_after_closing() {
        let words = Words::default();
        let claim = words.claim();
        let part = claim.take_back(1 << 20, CopyPortion::Share);
        assert_eq!(part, Some((768 << 10)..(1 << 20)));
        claim.close();
        assert_eq!(claim.take_front(1 << 20, CopyPortion::All), None);
        assert_eq!(claim.take_back(1 << 20, CopyPortion::Share), None);
        assert_eq!(claim.pull_outcome(1 << 20), PullOutcome::Gone);
        assert!(claim.no_pull() && !claim.no_push(), "the running push is not seen");
        claim.pushed_all(true);
        assert!(claim.no_push());
    }

    #[test]
    fn failed_pushes_are_reported_as_gone() {
        let words = Words::default();
        let claim = words.claim();
        assert!(claim.take_back(4096, CopyPortion::Share).is_some());
        claim.pushed_all(false);
        assert_eq!(claim.pull_outcome(4096), PullOutcome::Gone);
        assert!(claim.no_push());
    }

    #[test]
    fn two_threads_share_a_record() {
        let len = BYTES_MAX - 5;
        for _ in 0..200 {
            let words = Words::default();
            let (front, back) = std::thread::scope(|scope| {
                let mine = words.claim();
                let other = scope.spawn(|| {
                    let claim = words.claim();
                    std::iter::from_fn(|| claim.take_back(len, CopyPortion::Share))
                        .map(|part| part.start)
                        .min()
                });
                let front = std::iter::from_fn(|| mine.take_front(len, CopyPortion::Share))
                    .map(|part| part.end)
                    .max();
                (front.unwrap_or(0), other.join().ok().flatten().unwrap_or(len))
            });
            assert_eq!(front, back, "no gap and no overlap");
        }
    }
}
