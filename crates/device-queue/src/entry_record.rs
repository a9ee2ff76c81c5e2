//! The consumer's record of an entry that has begun and not completed. Used by `consumer` alone.

use trunkline_proto::wire::device_queue::{EntryStatus, PeerAddress};

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum EntryKind {
    /// Only a fence or a barrier for all entries waits for it.
    #[default]
    Other,
    Write,
    Read,
    Atomic,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum EntryStage {
    /// Not begun, or completed.
    #[default]
    Free,
    Running(EntryKind),
    /// It failed, and its word must be poisoned.
    Failed(EntryStatus),
    /// The executor poisons its word.
    Poisoning(EntryStatus),
    /// It has ended, and completes after all entries before it.
    Ended(EntryStatus, u64),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EntryRecord {
    pub(crate) state: EntryStage,
    pub(crate) op: u8,
    /// The word to poison if the entry fails, and whether a poison word follows it.
    pub(crate) target: Option<(PeerAddress, bool)>,
    /// The increment of that word once the entry has completed; `None` if the entry itself changes the word.
    pub(crate) counts: Option<u32>,
    pub(crate) reason: u32,
}
