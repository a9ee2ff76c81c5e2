//! The end that has the memory: it alone decides what is exported, who is told, and when that is over.
//!
//! - [`MemoryExporter::lookup_export`] finds an export and changes nothing. [`MemoryExporter::share_memory`] pins one for a message ([`ShareDecision::Sent`]), or says
//!   what is missing: an export that the caller is to make ([`ShareDecision::Export`]), another caller's export
//!   ([`ShareDecision::Coming`]); or that this message goes another way ([`ShareDecision::Fallback`]). Both are told what the driver
//!   says of the address just now: an address alone may be that of memory that was freed and given to another owner.
//! - [`MemoryExporter::finish_message`]: the message is done. [`MemoryExporter::poll`], after any call and at [`MemoryExporter::next_deadline`]: what is to be
//!   unexported or asked of the driver. [`MemoryExporter::take_due_names`], for each peer whose stream has room: what it is to let go.
//!   [`MemoryExporter::on_retired`]: it has.
//! - [`MemoryExporter::grow_budget`] and [`MemoryExporter::shrink_budget`], and nothing else, change what may be kept. [`MemoryExporter::trim_exports`],
//!   [`MemoryExporter::drain_peer`], [`MemoryExporter::release_allocation`], [`MemoryExporter::on_memory_freed`] and [`MemoryExporter::close`] ask something back.
//!
//! Live exports have no byte in common. What overlaps a new allocation, or has its address and another id, is retired when the new
//! one is seen. What is retired is found no more, and is over once no message uses it and every peer has let it go or is dead;
//! until then its bytes count, as the driver has them. An export that a message uses is never retired at the peer of that message.
//!
//! A look-up takes as many steps as the logarithm of the number of exports, or a few if it is the one found last. A hit allocates
//! nothing. News that do not fit are refused and change nothing.

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

/// No export.
const NONE: u32 = u32::MAX;

/// What an exporter may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExporterConfig {
    /// What may be kept, what is not let go yet included; more than [`EXPORTS_MAX`] entries are as many as that, less `passing`.
    pub budget: ExportAmount,
    /// Exports besides that go with the last message that uses them; at most half of [`EXPORTS_MAX`].
    pub passing: usize,
    /// For how long an export is kept that no message uses; `None`: for ever.
    pub idle: Option<Duration>,
    /// Whether an export keeps no memory from being freed, as where others copy by the kernel's calls: its bytes count as none then.
    pub weightless: bool,
}

impl ExporterConfig {
    /// For how long an export is kept by default that no message uses.
    pub const IDLE: Duration = Duration::from_secs(30);

    /// What one export of that memory counts.
    fn amount_of(&self, memory: DriverAllocation) -> ExportAmount {
        ExportAmount::one_export(if self.weightless { 0 } else { memory.span.len() })
    }
}

/// What a process has exported.
#[derive(Clone, Debug)]
pub struct MemoryExporter {
    config: ExporterConfig,
    entries: SlotTable<ExportEntry>,
    /// Those that are found, by their addresses: the places of their names.
    index: IntervalTree<(), u32>,
    /// The one that was shared last.
    recent: Option<RecentExport>,
    peers: SlotTable<ImportingPeer>,
    /// Those that may be evicted, the least recently used in front.
    idle: LinkedQueue,
    /// Those to be unexported that nobody has been told of.
    leaving: LinkedQueue,
    live: ExportAmount,
    passing: ExportAmount,
    zombies: ExportAmount,
    /// Most bytes of all three so far.
    peak: u64,
    /// Goes up whenever memory was freed.
    epoch: u32,
    /// The next place to look at whether its memory is still there.
    sweep: u32,
    closing: bool,
    counts: ExporterCounts,
}

/// A live export that can be found, with all that a hit looks at.
#[derive(Clone, Copy, Debug)]
struct RecentExport {
    name: ExportName,
    memory: DriverAllocation,
}

/// There are as many peers as there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("memory is shared with {IPC_PEERS_MAX} processes already, or there is no memory for one more")]
pub struct TooManyPeers;

/// An export, as it stands: for those who show it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportListing {
    /// Its name.
    pub name: ExportName,
    /// Its memory.
    pub memory: DriverAllocation,
    /// Where it stands.
    pub state: ExportState,
    /// Whether it goes with the last message that uses it.
    pub passing: bool,
    /// When the last message that used it was done, or it was made.
    pub used: Instant,
    /// Messages that use it.
    pub pins: u32,
    /// Peers that were told of it and have not let it go.
    pub holders: u32,
}

impl MemoryExporter {
    /// One that has exported nothing.
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

    /// A process comes that may be told of exports.
    ///
    /// # Errors
    /// [`TooManyPeers`].
    pub fn add_peer(&mut self) -> Result<ImportingPeerId, TooManyPeers> {
        // Without memory for one more there is room for none.
        let peer = ImportingPeer::new(self.export_capacity()).map_err(|_| TooManyPeers)?;
        self.peers.insert(peer).map(ImportingPeerId).map_err(|_| TooManyPeers)
    }

    /// Exports that there can be at once, by the largest budget so far.
    const fn export_capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// What may be kept, and the rest.
    #[must_use]
    pub const fn config(&self) -> ExporterConfig {
        self.config
    }

    /// What has happened so far.
    #[must_use]
    pub const fn counts(&self) -> ExporterCounts {
        self.counts
    }

    /// What there is.
    #[must_use]
    pub const fn usage(&self) -> ExportUsage {
        ExportUsage { live: self.live, passing: self.passing, zombies: self.zombies, idle: self.idle.len() }
    }

    /// Most bytes that were exported at once so far, zombies included.
    #[must_use]
    pub const fn peak_bytes(&self) -> u64 {
        self.peak
    }

    /// For how long an export is kept from now on that no message uses; `None`: for ever.
    pub const fn set_idle_limit(&mut self, limit: Option<Duration>) {
        self.config.idle = limit;
    }

    /// Every export, as it stands.
    pub fn list_exports(&self) -> impl Iterator<Item = ExportListing> {
        let used = self.entries.iter().filter(|(_, entry)| entry.state != ExportState::Spent);
        used.filter_map(|(id, entry)| {
            let ExportEntry { memory, state, passing, used, pins, held: holders, .. } = *entry;
            Some(ExportListing { name: ExportName::new(id)?, memory, state, passing, used, pins, holders })
        })
    }

    /// The peers that were told of an export and have not let it go, each with the number of messages to it that use it.
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
    /// All that decides what can happen from now on.
    pub(in crate::ipc) fn print(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (&self.entries, &self.peers, &self.idle, &self.leaving).hash(hasher);
        (self.live, self.passing, self.zombies, self.epoch, self.closing).hash(hasher);
        (self.config.budget, self.sweep).hash(hasher);
    }

    /// The place's next use is its last.
    pub(in crate::ipc) fn wear_out(&mut self, slot: u32) {
        self.entries.wear_out(slot);
    }

    pub(in crate::ipc) fn overuse(&mut self, name: ExportName, pins: u32) {
        self.entries.get_mut(name.slot_id()).into_iter().for_each(|entry| entry.pins = pins);
    }

    /// For how many exports tables have room.
    pub(in crate::ipc) fn room(&self) -> [usize; 4] {
        let of_peers = self.peers.iter().map(|(_, peer)| peer.toward.capacity() + peer.due.capacity());
        [self.entries.room(), self.index.room(), self.entries.capacity(), of_peers.sum()]
    }
}
