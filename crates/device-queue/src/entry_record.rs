//! What a consumer keeps of an entry that has begun and not completed. Called by `consumer` alone.

use trunkline_proto::wire::device_queue::{EntryStatus, PeerAddress};

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum EntryKind {
    /// Nothing waits for it but what waits for all.
    #[default]
    Other,
    Write,
    Read,
    Atomic,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum EntryStage {
    /// Not begun, or over.
    #[default]
    Free,
    Running(EntryKind),
    /// It failed, and its word is to be poisoned.
    Failed(EntryStatus),
    /// The executor does that.
    Poisoning(EntryStatus),
    /// Its turn to complete comes when those before have.
    Ended(EntryStatus, u64),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EntryRecord {
    pub(crate) state: EntryStage,
    pub(crate) op: u8,
    /// What is to be poisoned if it fails.
    pub(crate) target: Option<(PeerAddress, bool)>,
    /// What is added there once the entry has completed; else the entry itself changes it.
    pub(crate) counts: Option<u32>,
    pub(crate) reason: u32,
}
