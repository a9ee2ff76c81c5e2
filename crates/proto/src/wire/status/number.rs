//! The numbers on a page of shared memory, with their names. Programs that print a page use this table.

use crate::counters::CounterKind;

/// The label of a number.
#[derive(Clone, Copy, Debug)]
pub struct NumberLabel {
    /// Its name; numbers that differ only by reason have the same name and follow each other.
    pub name: &'static str,
    /// The reason, its words joined by `_`, or empty.
    pub reason: &'static str,
    /// Whether it only grows.
    pub kind: CounterKind,
    /// Its meaning, as a text for people.
    pub help: &'static str,
}

macro_rules! numbers {
    ($($variant:ident $kind:ident $name:literal $(for $reason:literal)? $help:literal,)*) => {
        /// A number on a page of shared memory; its value is the index of its word after the first number.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(usize)]
        pub enum Number {
            $(#[doc = $help] $variant,)*
        }

        impl Number {
            /// All numbers, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// How many numbers exist.
            pub const LEN: usize = Self::ALL.len();

            /// Returns its label.
            #[must_use]
            pub const fn called(self) -> NumberLabel {
                match self {
                    $(Self::$variant => {
                        NumberLabel { name: $name, reason: concat!($($reason)?), kind: CounterKind::$kind, help: $help }
                    })*
                }
            }
        }
    };
}

numbers! {
    BudgetEntries Gauge "budget_entries" "Exports that may be kept, at most.",
    BudgetBytes Gauge "budget_bytes" "Bytes of exports that may be kept, at most.",
    IdleNs Gauge "idle_limit_ns" "For how long an export is kept that no message uses; 2^64-1: for ever.",
    LiveEntries Gauge "live_entries" "Exports that are kept for later messages, in use or not.",
    LiveBytes Gauge "live_bytes" "Their bytes.",
    PassingEntries Gauge "passing_entries" "Exports that end with the last message that uses them.",
    PassingBytes Gauge "passing_bytes" "Their bytes.",
    ZombieEntries Gauge "zombie_entries" "Ended exports that not all peers have released.",
    ZombieBytes Gauge "zombie_bytes" "Their bytes.",
    IdleEntries Gauge "idle_entries" "Kept exports that no message uses.",
    PinnedEntries Gauge "pinned_entries" "Exports that messages use now.",
    Pins Gauge "pins" "Messages that use exports now.",
    PeakBytes Gauge "peak_bytes" "Most bytes that were exported at once, zombies included.",
    Neighbours Gauge "neighbours" "Processes with which memory was shared, including those that have ended.",
    Hits Total "hits" "Messages that found their memory exported.",
    Announced Total "announced" "Of the hits, those whose peer had to receive an announcement first.",
    Misses Total "misses" "Exports begun.",
    Evicted Total "evicted" "Exports retired to keep to a budget, or because the memory was released.",
    Expired Total "expired" "Exports retired because no message had used them for the idle limit.",
    Stale Total "stale" "Exports retired because their memory had been freed.",
    FallbackOff Total "fallbacks" for "no_budget" "Messages that were sent without sharing, by reason.",
    FallbackTooLong Total "fallbacks" for "longer_than_the_budget" "Messages that were sent without sharing, by reason.",
    FallbackNoRoom Total "fallbacks" for "no_room" "Messages that were sent without sharing, by reason.",
    FallbackPassedOver Total "fallbacks" for "not_mapped_lately" "Messages that were sent without sharing, by reason.",
    FallbackDraining Total "fallbacks" for "being_let_go" "Messages that were sent without sharing, by reason.",
    FallbackPins Total "fallbacks" for "too_many_users" "Messages that were sent without sharing, by reason.",
    FallbackClosing Total "fallbacks" for "closing" "Messages that were sent without sharing, by reason.",
    FallbackNotExported Total "fallbacks" for "not_exported" "Messages that were sent without sharing, by reason.",
    FallbackNotMapped Total "fallbacks" for "not_mapped" "Messages that were sent without sharing, by reason.",
    FallbackGone Total "fallbacks" for "freed" "Messages that were sent without sharing, by reason.",
    Exports Total "exports" "Handles that the driver created.",
    Unexports Total "unexports" "Handles that the driver closed.",
    ExportFailures Total "export_failures" "Handles that the driver did not create or close.",
    Maps Total "maps" "Mappings that the driver made.",
    Unmaps Total "unmaps" "Mappings that the driver ended.",
    MapFailures Total "map_failures" "Mappings that the driver did not make.",
    UnmapFailures Total "unmap_failures" "Mappings that the driver did not end at the first try.",
    Leaks Total "leaks" "Of the failures to unmap, mappings that the driver never ended.",
    Broken Total "broken" "Neighbours that violated the protocol.",
    MapHits Total "map_hits" "Messages that found their memory mapped here.",
    MapStale Total "map_stale" "Mappings ended, or not begun, because a stale one overlapped.",
    RefusedReferences Total "references_refused" "References of neighbours that were refused.",
    Eager Total "messages_eager" "Messages that were copied whole through a ring.",
    Mapped Total "messages_mapped" "Messages that this process copied in one operation, as their receiver or their sender.",
    Staged Total "messages_staged" "Messages that were sent in pieces.",
    Unmapped Total "messages_fallbacks" "Of the staged messages, those whose memory could not be exported, mapped or copied in one operation.",
    Early Total "messages_early" "Messages that arrived before their receives were posted.",
    ByReceiver Total "messages_by_receiver" "Of the messages that this process copied in one operation, those that it received.",
    BySender Total "messages_by_sender" "Of the messages that this process copied in one operation, those that it sent.",
}

impl Number {
    /// The first number of those that count messages sent without sharing: one per reason, in the order of
    /// [`FallbackReason::ALL`](crate::ipc::exporter::FallbackReason::ALL).
    pub const FALLBACKS: usize = Self::FallbackOff as usize;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::exporter::FallbackReason;

    #[test]
    fn every_reason_has_its_number() {
        for (at, why) in FallbackReason::ALL.into_iter().enumerate() {
            let number = Number::ALL[Number::FALLBACKS + at];
            let called = number.called();
            let debug = alloc::format!("{number:?}");
            assert_eq!((called.name, debug), ("fallbacks", alloc::format!("Fallback{why:?}")));
            assert!(!called.reason.is_empty());
        }
        let after = Number::ALL[Number::FALLBACKS + FallbackReason::ALL.len()];
        assert_eq!(after.called().name, "exports");
    }

    #[test]
    fn names_are_distinct() {
        for (at, number) in Number::ALL.iter().enumerate() {
            assert_eq!(*number as usize, at);
            let called = number.called();
            let same = |other: &&Number| {
                other.called().name == called.name && other.called().reason == called.reason
            };
            assert_eq!(Number::ALL.iter().filter(same).count(), 1, "{}", called.name);
        }
    }
}
