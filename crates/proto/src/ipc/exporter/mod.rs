//! The exporting end: it owns the memory, and alone decides which allocations are exported, to which peers, and for how long.
//!
//! - [`MemoryExporter::lookup_export`] finds an export and changes nothing.
//! - [`MemoryExporter::share_memory`] pins an export for a message ([`ShareDecision::Sent`]). If none exists, the caller has to create it
//!   ([`ShareDecision::Export`]), wait for another caller that does ([`ShareDecision::Coming`]), or send the message another way
//!   ([`ShareDecision::Fallback`]). Like `lookup_export`, it takes the driver's current answer for the address: an address alone may belong to memory
//!   that was freed and allocated again.
//! - [`MemoryExporter::finish_message`] ends a message.
//! - [`MemoryExporter::poll`] returns exports to end and queries for the driver. The caller calls it after any other call and at
//!   [`MemoryExporter::next_deadline`].
//! - [`MemoryExporter::take_due_names`] returns names to retire, for each peer whose stream has room; [`MemoryExporter::on_retired`] takes the peer's
//!   reply.
//! - Only [`MemoryExporter::grow_budget`] and [`MemoryExporter::shrink_budget`] change the budget. [`MemoryExporter::trim_exports`],
//!   [`MemoryExporter::drain_peer`], [`MemoryExporter::release_allocation`], [`MemoryExporter::on_memory_freed`] and [`MemoryExporter::close`] end
//!   exports.
//!
//! Live exports have no byte in common. When a new allocation is seen, an export that overlaps it, or has its address and another id, is retired. A
//! retired export is not found any more. It ends once no message uses it and every peer has released it or is dead; its bytes count until then,
//! because the driver still holds them. An export that a message uses is never retired at the peer of that message.
//!
//! A lookup takes logarithmic time in the number of exports, and a few steps for the export found last. A hit allocates nothing. Invalid events are
//! rejected and change nothing.

mod counts;
mod drain;
mod entry;
mod events;
mod eviction;
mod memory;
mod peer;
mod retire;
mod share;

pub use counts::{ExportAmount, ExportUsage, ExporterCounts, FallbackReason};
pub use entry::{ExportPin, ExportState, PendingExport, SharedReference};
pub use events::{AllocationQuery, ExporterCommand, ExporterEventError};
pub use memory::{DriverAllocation, DriverAllocationId};
pub use peer::ImportingPeerId;
pub use share::{ExportLookup, ExportRequest, ExportRequestError, ShareDecision};

use self::entry::ExportEntry;
use self::peer::{HoldPhase, ImportingPeer};
use crate::intervals::IntervalTree;
use crate::limits::{EXPORTS_MAX, IPC_PEERS_MAX};
use crate::queue::LinkedQueue;
use crate::slots::{SlotId, SlotTable};
use crate::time::{Duration, Instant};
use crate::wire::ipc::ExportName;

/// The slot number that stands for no export.
const NONE: u32 = u32::MAX;

/// The limits of an exporter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExporterConfig {
    /// The budget for kept exports and zombies together. At most [`EXPORTS_MAX`] entries less `passing`; a larger number counts as that.
    pub budget: ExportAmount,
    /// Number of additional exports that end with the last message that uses them; at most half of [`EXPORTS_MAX`].
    pub passing: usize,
    /// How long an unused export is kept; `None` for no limit.
    pub idle: Option<Duration>,
    /// Whether exports do not keep memory from being freed, as where peers copy by system calls; their bytes then count as 0.
    pub weightless: bool,
}

impl ExporterConfig {
    /// The default time for which an unused export is kept.
    pub const IDLE: Duration = Duration::from_secs(30);

    /// Returns the amount that one export of that memory counts.
    fn amount_of(&self, memory: DriverAllocation) -> ExportAmount {
        ExportAmount::one_export(if self.weightless { 0 } else { memory.span.len() })
    }
}

/// All exports of a process.
#[derive(Clone, Debug)]
pub struct MemoryExporter {
    config: ExporterConfig,
    entries: SlotTable<ExportEntry>,
    /// The exports that a lookup finds, by their addresses: the slots of their names.
    index: IntervalTree<(), u32>,
    /// The export that was shared last.
    recent: Option<RecentExport>,
    peers: SlotTable<ImportingPeer>,
    /// Exports that may be evicted, least recently used first.
    idle: LinkedQueue,
    /// Exports to be unexported, before [`MemoryExporter::poll`] has returned them.
    leaving: LinkedQueue,
    live: ExportAmount,
    passing: ExportAmount,
    zombies: ExportAmount,
    /// Largest sum of live, passing and zombie bytes so far.
    peak: u64,
    /// Incremented whenever memory was freed.
    epoch: u32,
    /// The next slot to check for freed memory.
    sweep: u32,
    closing: bool,
    counts: ExporterCounts,
}

/// A live export that a lookup finds, with all data that a hit needs.
#[derive(Clone, Copy, Debug)]
struct RecentExport {
    name: ExportName,
    memory: DriverAllocation,
}

/// The limit of [`IPC_PEERS_MAX`] peers is reached, or memory for another peer cannot be allocated.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "cannot share memory with another process: {IPC_PEERS_MAX} is the limit, or there is no memory for one more"
)]
pub struct TooManyPeers;

/// An export and its state, for status displays.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportListing {
    /// Its name.
    pub name: ExportName,
    /// Its memory.
    pub memory: DriverAllocation,
    /// Its state.
    pub state: ExportState,
    /// Whether it ends with the last message that uses it.
    pub passing: bool,
    /// When the last message that used it ended, or when it was created.
    pub used: Instant,
    /// Messages that use it.
    pub pins: u32,
    /// Peers to which it was announced and that have not released it.
    pub holders: u32,
}

impl MemoryExporter {
    /// Creates an exporter without exports.
    #[must_use]
    pub fn new(config: ExporterConfig) -> Self {
        let passing = config.passing.min(EXPORTS_MAX / 2);
        let mut new = Self {
            config: ExporterConfig { budget: ExportAmount::NONE, passing, ..config },
            entries: SlotTable::new(0),
            index: IntervalTree::new(),
            recent: None,
            peers: SlotTable::new(IPC_PEERS_MAX),
            idle: LinkedQueue::new(),
            leaving: LinkedQueue::new(),
            live: ExportAmount::NONE,
            passing: ExportAmount::NONE,
            zombies: ExportAmount::NONE,
            peak: 0,
            epoch: 0,
            sweep: NONE,
            closing: false,
            counts: ExporterCounts::default(),
        };
        new.grow_budget(config.budget);
        new
    }

    /// Adds a process to which exports may be announced.
    ///
    /// # Errors
    /// [`TooManyPeers`].
    pub fn add_peer(&mut self) -> Result<ImportingPeerId, TooManyPeers> {
        // Without memory for its tables, the peer is refused.
        let peer = ImportingPeer::new(self.export_capacity()).map_err(|_| TooManyPeers)?;
        self.peers.insert(peer).map(ImportingPeerId).map_err(|_| TooManyPeers)
    }

    /// Returns how many exports can exist at once, by the largest budget so far.
    const fn export_capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the current budget and the other limits.
    #[must_use]
    pub const fn config(&self) -> ExporterConfig {
        self.config
    }

    /// Returns the event counts so far.
    #[must_use]
    pub const fn counts(&self) -> ExporterCounts {
        self.counts
    }

    /// Returns the current amounts.
    #[must_use]
    pub const fn usage(&self) -> ExportUsage {
        ExportUsage { live: self.live, passing: self.passing, zombies: self.zombies, idle: self.idle.len() }
    }

    /// Returns the largest number of bytes that were exported at once so far, zombies included.
    #[must_use]
    pub const fn peak_bytes(&self) -> u64 {
        self.peak
    }

    /// Sets how long an unused export is kept from now on; `None` for no limit.
    pub const fn set_idle_limit(&mut self, limit: Option<Duration>) {
        self.config.idle = limit;
    }

    /// Iterates over all exports.
    pub fn list_exports(&self) -> impl Iterator<Item = ExportListing> {
        let used = self.entries.iter().filter(|(_, entry)| entry.state != ExportState::Spent);
        used.filter_map(|(id, entry)| {
            let ExportEntry { memory, state, passing, used, pins, held: holders, .. } = *entry;
            Some(ExportListing { name: ExportName::new(id)?, memory, state, passing, used, pins, holders })
        })
    }

    /// Iterates over the peers to which an export was announced and that have not released it, each with the number of its messages that use the
    /// export.
    pub fn export_holders(&self, name: ExportName) -> impl Iterator<Item = (ImportingPeerId, u32)> {
        let known = self.entries.get(name.slot_id()).is_some();
        let toward = move |peer: &ImportingPeer| {
            peer.toward.get(name.slot_id().slot as usize).copied().filter(|_| known)
        };
        let holds = move |(id, peer): (SlotId, &ImportingPeer)| Some((ImportingPeerId(id), toward(peer)?));
        let all = self.peers.iter().filter_map(holds);
        all.filter(|(_, toward)| toward.held != HoldPhase::No).map(|(peer, toward)| (peer, toward.pins))
    }
}

#[cfg(test)]
impl MemoryExporter {
    /// Hashes all state that determines future behaviour.
    pub(in crate::ipc) fn print(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (&self.entries, &self.peers, &self.idle, &self.leaving).hash(hasher);
        (self.live, self.passing, self.zombies, self.epoch, self.closing).hash(hasher);
        (self.config.budget, self.sweep).hash(hasher);
    }

    /// Makes the next use of the slot its last.
    pub(in crate::ipc) fn wear_out(&mut self, slot: u32) {
        self.entries.wear_out(slot);
    }

    pub(in crate::ipc) fn overuse(&mut self, name: ExportName, pins: u32) {
        self.entries.get_mut(name.slot_id()).into_iter().for_each(|entry| entry.pins = pins);
    }

    /// Returns for how many exports the tables have room.
    pub(in crate::ipc) fn room(&self) -> [usize; 4] {
        let of_peers = self.peers.iter().map(|(_, peer)| peer.toward.capacity() + peer.due.capacity());
        [self.entries.room(), self.index.room(), self.entries.capacity(), of_peers.sum()]
    }
}
