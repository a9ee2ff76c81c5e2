//! What an exporter counts: what has happened, and what there is. Plain numbers, for whoever shows them.

use core::ops::{AddAssign, SubAssign};

/// Why a message goes without sharing. Each is counted, so that no fallback goes unseen.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FallbackReason {
    /// The budget is 0.
    Off,
    /// The allocation alone is longer than the budget.
    TooLong,
    /// What is in use, or not let go by all peers yet, leaves no room.
    NoRoom,
    /// The peer could not map it lately.
    PassedOver,
    /// The peer is letting it go.
    Draining,
    /// It has as many users as there may be.
    Pins,
    /// The exporter ends.
    Closing,
    /// The driver does not export it.
    NotExported,
    /// The peer could not map it: its message goes again.
    NotMapped,
    /// The memory was freed while it was exported.
    Gone,
}

impl FallbackReason {
    /// All of them, in order.
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

/// Exports, and the bytes of their allocations.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ExportAmount {
    /// How many.
    pub entries: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl ExportAmount {
    /// Nothing.
    pub const NONE: Self = Self { entries: 0, bytes: 0 };

    /// One export of so many bytes.
    #[must_use]
    pub const fn one_export(bytes: u64) -> Self {
        Self { entries: 1, bytes }
    }

    /// Whether it is within the other, by both measures.
    #[must_use]
    pub const fn fits_within(self, other: Self) -> bool {
        self.entries <= other.entries && self.bytes <= other.bytes
    }

    /// Whether there may be none of it: one of the two is 0.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.entries == 0 || self.bytes == 0
    }

    /// Both together.
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

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ExporterCounts {
    /// Messages that found their memory exported.
    pub hits: u64,
    /// Of them, those whose peer had to be told first.
    pub announced: u64,
    /// Exports begun.
    pub misses: u64,
    /// Exports retired to keep to a budget, or because they were asked back.
    pub evicted: u64,
    /// Exports retired because nobody had used them for long.
    pub expired: u64,
    /// Exports retired because their memory had been freed.
    pub stale: u64,
    /// Messages that went without sharing, by [`FallbackReason`].
    fallbacks: [u64; FallbackReason::ALL.len()],
}

impl ExporterCounts {
    /// Messages that went without sharing for that reason.
    #[must_use]
    pub const fn fallback_count(&self, why: FallbackReason) -> u64 {
        self.fallbacks[why as usize]
    }

    /// Messages that went without sharing.
    #[must_use]
    pub fn all_fallbacks(&self) -> u64 {
        self.fallbacks.iter().sum()
    }

    pub(super) const fn fall_back(&mut self, why: FallbackReason) {
        self.fallbacks[why as usize] += 1;
    }
}

/// What there is.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ExportUsage {
    /// What is kept for later messages, in use or not.
    pub live: ExportAmount,
    /// What goes with the last message that uses it.
    pub passing: ExportAmount,
    /// What is over, and cannot be given back before all peers have let it go: zombies.
    pub zombies: ExportAmount,
    /// Of the live ones, how many no message uses.
    pub idle: usize,
}
