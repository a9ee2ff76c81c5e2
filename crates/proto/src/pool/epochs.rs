//! The epochs of groups, which the sending end makes. None repeats within a process, so that a frame about an older group never
//! matches a newer group in its place.

use core::num::NonZeroU64;

use crate::wire::proof::GroupEpoch;

/// Makes epochs; none repeats within 2^64 - 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochSource(u64);

impl EpochSource {
    /// Starts at a random number, so that a restarted process has other epochs than its predecessor.
    pub(super) const fn from(base: u64) -> Self {
        Self(base)
    }

    /// Returns the next epoch.
    pub(super) fn next_epoch(&mut self) -> GroupEpoch {
        loop {
            self.0 = self.0.wrapping_add(1);
            if let Some(epoch) = NonZeroU64::new(self.0) {
                return GroupEpoch(epoch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_differ_and_skip_zero() {
        let mut epochs = EpochSource::from(u64::MAX - 1);
        assert_eq!([epochs.next_epoch().0.get(), epochs.next_epoch().0.get()], [u64::MAX, 1]);
    }
}
