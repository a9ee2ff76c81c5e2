//! Numbers of groups that the asking end makes. Never the same twice in a process, so that what was said of an older
//! group is not taken for the newer one in its place.

use core::num::NonZeroU64;

use crate::wire::proof::GroupEpoch;

/// Gives epochs, none twice within 2^64 - 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochSource(u64);

impl EpochSource {
    /// From a random number on, so that those of a process that took the place of another are others.
    pub(super) const fn from(base: u64) -> Self {
        Self(base)
    }

    /// The next one.
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
