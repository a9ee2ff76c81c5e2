//! One export that a process knows, and the tokens of those who hold it. Owned by the exporter, which alone changes it.
//!
//! ```text
//! Exporting --exported--> Live --retired--> Retiring --nobody uses or maps it--> Leaving --told--> Ending --unexported--> gone
//!      |
//!      +--failed--> gone
//! ```

use super::memory::DriverAllocation;
use super::peer::ImportingPeerId;
use crate::intervals::ByteSpan;
use crate::queue::{LinkedEntry, QueueLinks};
use crate::time::Instant;
use crate::wire::ipc::{ExportName, ExportReference};

/// Where an export stands.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ExportState {
    /// Somebody is exporting it.
    Exporting,
    /// It can be shared.
    Live,
    /// Nobody finds it any more; a message uses it, or a peer has it.
    Retiring,
    /// It is to be unexported; nobody has been told to yet.
    Leaving,
    /// Somebody is unexporting it.
    Ending,
    /// Its place has had all generations, and is never used again.
    Spent,
}

/// The right of one message to a peer to use an export: nobody unmaps it there before this is given back. There is one for each
/// that was given; one that is dropped keeps its export for ever.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use = "a pin that is not given back keeps its export for ever"]
pub struct ExportPin {
    pub(super) name: ExportName,
    pub(super) peer: ImportingPeerId,
}

impl ExportPin {
    /// Which export; the place of its name is where the caller may keep what belongs to it.
    #[must_use]
    pub const fn export_name(&self) -> ExportName {
        self.name
    }
}

/// Export this, without the lock; then say [`MemoryExporter::on_exported`](super::MemoryExporter::on_exported) or
/// [`MemoryExporter::on_export_failed`](super::MemoryExporter::on_export_failed), one of the two for certain. It counts as a pin.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use = "others wait for this export"]
pub struct PendingExport {
    pub(super) pin: ExportPin,
    pub(super) allocation: DriverAllocation,
    pub(super) part: ByteSpan,
}

impl PendingExport {
    /// What it will be called.
    #[must_use]
    pub const fn export_name(&self) -> ExportName {
        self.pin.name
    }

    /// What to export.
    #[must_use]
    pub const fn allocation(&self) -> DriverAllocation {
        self.allocation
    }
}

/// A message may go, and name the memory.
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use]
pub struct SharedReference {
    /// To be given back when the message is done, or its peer dead: [`MemoryExporter::finish_message`](super::MemoryExporter::finish_message).
    pub pin: ExportPin,
    /// What the message says.
    pub reference: ExportReference,
    /// Whether the export is to be announced to the peer first; then it must be, even if the message is given up.
    pub announce: bool,
}

/// An export.
#[derive(Clone, Debug, Hash)]
pub(super) struct ExportEntry {
    pub(super) memory: DriverAllocation,
    pub(super) state: ExportState,
    /// Whether who asks finds it; once not, never again.
    pub(super) listed: bool,
    /// Whether it goes as soon as no message uses it.
    pub(super) passing: bool,
    /// Whether that is because it was asked back: then a further message that wants it kept may use it only if there is room to keep
    /// it, so that it does end.
    pub(super) asked_back: bool,
    /// Messages that use it, and who exports it.
    pub(super) pins: u32,
    /// Peers that were told of it and have not let it go.
    pub(super) held: u32,
    /// When the last message was done.
    pub(super) used: Instant,
    /// Up to which epoch of frees it is known to be there.
    pub(super) checked: u32,
    /// Its neighbours in the one queue that it is in.
    pub(super) links: QueueLinks,
}

impl ExportEntry {
    /// One that its first pin exports.
    pub(super) const fn new(memory: DriverAllocation, passing: bool, now: Instant, checked: u32) -> Self {
        let state = ExportState::Exporting;
        let links = QueueLinks::NONE;
        let listed = true;
        let asked_back = false;
        Self { memory, state, listed, passing, asked_back, pins: 1, held: 0, used: now, checked, links }
    }

    /// Whether it waits among those that may be evicted.
    pub(super) fn is_idle(&self) -> bool {
        self.state == ExportState::Live && self.pins == 0 && !self.passing
    }
}

impl LinkedEntry for ExportEntry {
    fn queue_links(&mut self) -> &mut QueueLinks {
        &mut self.links
    }
}
