//! The event counts and the current amounts of an exporter, for status displays.

use core::ops::{AddAssign, SubAssign};

/// Why a message is sent without sharing. Each fallback is counted, so that none is unnoticed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FallbackReason {
    /// The budget is 0.
    Off,
    /// The allocation alone exceeds the budget.
    TooLong,
    /// Exports in use, and exports that peers have not released, leave no room.
    NoRoom,
    /// The peer recently failed to map it.
    PassedOver,
    /// The peer is retiring it.
    Draining,
    /// It has the maximal number of users.
    Pins,
    /// The exporter is closing.
    Closing,
    /// The driver does not export it.
    NotExported,
    /// The peer could not map it: the message is sent again.
    NotMapped,
    /// The memory was freed while it was being exported.
    Gone,
}

impl FallbackReason {
    /// All reasons, in order.
    pub const ALL: [Self; 10] = [
        Self::Off,
        Self::TooLong,
        Self::NoRoom,
        Self::PassedOver,
        Self::Draining,
        Self::Pins,
        Self::Closing,
        Self::NotExported,
        Self::NotMapped,
        Self::Gone,
    ];
}

/// A number of exports, and the bytes of their allocations.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ExportAmount {
    /// Number of exports.
    pub entries: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl ExportAmount {
    /// Nothing.
    pub const NONE: Self = Self { entries: 0, bytes: 0 };

    /// Returns the amount of one export of that many bytes.
    #[must_use]
    pub const fn one_export(bytes: u64) -> Self {
        Self { entries: 1, bytes }
    }

    /// Returns whether it is within the other, by both measures.
    #[must_use]
    pub const fn fits_within(self, other: Self) -> bool {
        self.entries <= other.entries && self.bytes <= other.bytes
    }

    /// Returns whether one measure is 0, so that no export fits.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.entries == 0 || self.bytes == 0
    }

    /// Returns the sum of both.
    #[must_use]
    pub const fn combined_with(self, other: Self) -> Self {
        Self { entries: self.entries + other.entries, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl AddAssign for ExportAmount {
    fn add_assign(&mut self, other: Self) {
        *self = self.combined_with(other);
    }
}

impl SubAssign for ExportAmount {
    fn sub_assign(&mut self, other: Self) {
        self.entries -= other.entries;
        self.bytes -= other.bytes;
    }
}

/// Event counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ExporterCounts {
    /// Messages that found their memory exported.
    pub hits: u64,
    /// Those hits whose export had to be announced to the peer first.
    pub announced: u64,
    /// Exports begun.
    pub misses: u64,
    /// Exports retired because of a budget, or because they were requested back.
    pub evicted: u64,
    /// Exports retired because they were unused for the idle limit.
    pub expired: u64,
    /// Exports retired because their memory had been freed.
    pub stale: u64,
    /// Messages sent without sharing, by [`FallbackReason`].
    fallbacks: [u64; FallbackReason::ALL.len()],
}

impl ExporterCounts {
    /// Returns the number of messages sent without sharing for that reason.
    #[must_use]
    pub const fn fallback_count(&self, why: FallbackReason) -> u64 {
        self.fallbacks[why as usize]
    }

    /// Returns the number of messages sent without sharing.
    #[must_use]
    pub fn all_fallbacks(&self) -> u64 {
        self.fallbacks.iter().sum()
    }

    pub(super) const fn fall_back(&mut self, why: FallbackReason) {
        self.fallbacks[why as usize] += 1;
    }
}

/// Current amounts.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ExportUsage {
    /// Exports kept for later messages, in use or not.
    pub live: ExportAmount,
    /// Exports that end with the last message that uses them.
    pub passing: ExportAmount,
    /// Zombies: retired exports that a message uses or a peer has not released.
    pub zombies: ExportAmount,
    /// Live exports that no message uses.
    pub idle: usize,
}
