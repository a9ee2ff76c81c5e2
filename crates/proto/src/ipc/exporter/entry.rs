//! The state of one export, and the tokens of its users. Owned by the exporter, which alone changes it.
//!
//! ```text
//! Exporting --exported--> Live --retired--> Retiring --no user, no holder--> Leaving --polled--> Ending --unexported--> gone
//!      |
//!      +--failed--> gone
//! ```

use super::memory::DriverAllocation;
use super::peer::ImportingPeerId;
use crate::intervals::ByteSpan;
use crate::queue::{LinkedEntry, QueueLinks};
use crate::time::Instant;
use crate::wire::ipc::{ExportName, ExportReference};

/// The state of an export.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ExportState {
    /// A caller is exporting it.
    Exporting,
    /// It can be shared.
    Live,
    /// No lookup finds it any more; a message uses it, or a peer holds it.
    Retiring,
    /// It is to be unexported; no caller has received the command yet.
    Leaving,
    /// A caller is unexporting it.
    Ending,
    /// Its slot has used all generations, and is never used again.
    Spent,
}

/// The right of one message to a peer to use an export, which stays mapped there until the pin is returned. Each pin must be returned once; a dropped
/// pin keeps its export for ever.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use = "a pin that is not released keeps its export for ever"]
pub struct ExportPin {
    pub(super) name: ExportName,
    pub(super) peer: ImportingPeerId,
}

impl ExportPin {
    /// Returns the name of the export; the caller may store its own data by the slot of the name.
    #[must_use]
    pub const fn export_name(&self) -> ExportName {
        self.name
    }
}

/// An export to create without the lock. The caller then calls exactly one of [`MemoryExporter::on_exported`](super::MemoryExporter::on_exported) and
/// [`MemoryExporter::on_export_failed`](super::MemoryExporter::on_export_failed). It counts as a pin.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use = "other messages wait until this export succeeds or fails"]
pub struct PendingExport {
    pub(super) pin: ExportPin,
    pub(super) allocation: DriverAllocation,
    pub(super) part: ByteSpan,
}

impl PendingExport {
    /// Returns the name that the export will have.
    #[must_use]
    pub const fn export_name(&self) -> ExportName {
        self.pin.name
    }

    /// Returns the allocation to export.
    #[must_use]
    pub const fn allocation(&self) -> DriverAllocation {
        self.allocation
    }
}

/// The reference of a message that may be sent.
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use]
pub struct SharedReference {
    /// The pin, to be returned by [`MemoryExporter::finish_message`](super::MemoryExporter::finish_message) when the message is done or its peer is
    /// dead.
    pub pin: ExportPin,
    /// The reference that the message contains.
    pub reference: ExportReference,
    /// Whether the export has to be announced to the peer first; even if the message is abandoned.
    pub announce: bool,
}

/// An export.
#[derive(Clone, Debug, Hash)]
pub(super) struct ExportEntry {
    pub(super) memory: DriverAllocation,
    pub(super) state: ExportState,
    /// Whether a lookup finds it; once false, always false.
    pub(super) listed: bool,
    /// Whether it ends as soon as no message uses it.
    pub(super) passing: bool,
    /// Whether it is passing because it was requested back. A further message that wants to keep it may then use it only if there is room to keep it,
    /// so that the export does end.
    pub(super) asked_back: bool,
    /// Messages that use it, and the caller that exports it.
    pub(super) pins: u32,
    /// Peers to which it was announced and that have not released it.
    pub(super) held: u32,
    /// When the last message was done.
    pub(super) used: Instant,
    /// The epoch of frees up to which its memory is known to exist.
    pub(super) checked: u32,
    /// Its links in the one queue that contains it.
    pub(super) links: QueueLinks,
}

impl ExportEntry {
    /// Creates an export that its first pin creates at the driver.
    pub(super) const fn new(memory: DriverAllocation, passing: bool, now: Instant, checked: u32) -> Self {
        let state = ExportState::Exporting;
        let links = QueueLinks::NONE;
        let listed = true;
        let asked_back = false;
        Self { memory, state, listed, passing, asked_back, pins: 1, held: 0, used: now, checked, links }
    }

    /// Returns whether it may be evicted.
    pub(super) fn is_idle(&self) -> bool {
        self.state == ExportState::Live && self.pins == 0 && !self.passing
    }
}

impl LinkedEntry for ExportEntry {
    fn queue_links(&mut self) -> &mut QueueLinks {
        &mut self.links
    }
}
