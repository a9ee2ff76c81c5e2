//! The importing end: it follows the exporter, pins the bytes of operations, and sends RETIRED only after everything of a name is unmapped.
//!
//! - [`MemoryImporter::on_announce`] records an announcement and maps nothing. [`MemoryImporter::pin_reference`] pins the bytes of a message, even
//!   before their announcement has arrived.
//! - [`MemoryImporter::resolve_address`] returns the address of those bytes in a place ([`ResolveOutcome::At`]). Otherwise the caller has to map them
//!   first ([`ResolveOutcome::Map`], then [`MemoryImporter::on_mapped`] or [`MemoryImporter::on_map_failed`]), repeat the request
//!   ([`ResolveOutcome::Wait`]), or end the operation ([`ResolveOutcome::Failed`]). [`MemoryImporter::release_pin`] returns the pin.
//! - [`MemoryImporter::on_retire`] retires imports. [`MemoryImporter::poll`], after any call, returns mappings to unmap;
//!   [`MemoryImporter::on_unmapped`] takes the result. [`MemoryImporter::take_retired_names`] returns names for RETIRED, when the stream to the
//!   exporter has room.
//! - [`MemoryImporter::end_source`] ends an exporter that is dead, or with which this process stops sharing.
//!
//! An import is mapped once in each place, by the first operation that needs it. It is unmapped when its exporter retires it and no operation uses
//! it. Live allocations of one exporter do not overlap, so an import that overlaps a newer one is stale. The stale mapping is unmapped first; while
//! an operation uses it, the new import is not mapped. A stale import is never mapped over a newer one. Resolving a mapped name takes constant time
//! and allocates nothing.
//!
//! The other process is not trusted: names of other generations, repetitions and bytes outside of an allocation are rejected and change nothing.

mod entry;
mod events;
mod map;
mod retire;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub use entry::{ImportPin, ImportState, MappingId, MappingKind, MappingPlace, SourceId};
pub use events::{AnnounceError, ArriveError, NoMapping, RetireError};
pub use map::{MapRefusal, ResolveError, ResolveOutcome};
pub use retire::UnmapCommand;

use self::entry::ImportEntry;
use crate::intervals::IntervalTree;
use crate::limits::IPC_PEERS_MAX;
use crate::slots::{SlotId, SlotTable};
use crate::wire::ipc::ExportName;

/// All mappings of a process of other processes' memory.
#[derive(Clone, Debug)]
pub struct MemoryImporter {
    sources: SlotTable<ImportSource>,
    /// Mappings to unmap, before [`MemoryImporter::poll`] has returned them.
    unmapping: VecDeque<MappingId>,
    counts: ImporterCounts,
}

/// The importer's state of one exporter.
#[derive(Clone, Debug)]
struct ImportSource {
    /// Its imports, by the slots of their names.
    entries: Vec<ImportEntry>,
    /// The exporter's address ranges of imports that are mapped or being mapped, with their slots.
    spans: IntervalTree<(), u32>,
    /// Number of announcements so far.
    announced: u64,
    /// Number of names whose announcement is outstanding.
    awaited: usize,
    /// Names to send in RETIRED.
    retired: VecDeque<ExportName>,
    /// Mappings to be unmapped, or being unmapped.
    closing: usize,
    /// Pins that have not been returned.
    pins: u64,
    /// Whether the exporter has ended.
    ended: bool,
}

/// Event counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ImporterCounts {
    /// Names that were mapped when they were resolved.
    pub hits: u64,
    /// Mappings begun.
    pub opens: u64,
    /// Mappings that failed.
    pub failures: u64,
    /// Mappings ended.
    pub closes: u64,
    /// Mappings ended, or not begun, because of an overlapping stale one.
    pub stale: u64,
    /// References that arrived before their announcement.
    pub ahead: u64,
    /// References that were rejected.
    pub refused: u64,
}

/// Current amounts.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ImporterUsage {
    /// Names that may be mapped, or are being retired.
    pub imports: usize,
    /// Names whose announcement is outstanding.
    pub awaited: usize,
    /// Mappings in any state.
    pub mappings: usize,
    /// Their bytes, where each mapping counts separately.
    pub bytes: u64,
    /// Those mappings to be unmapped, or being unmapped.
    pub closing: usize,
    /// Pins that have not been returned.
    pub pins: u64,
}

/// The limit of [`IPC_PEERS_MAX`] exporters is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("cannot import from another process: the limit of {IPC_PEERS_MAX} is reached")]
pub struct TooManySources;

impl Default for MemoryImporter {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryImporter {
    /// Creates an importer without exporters.
    #[must_use]
    pub fn new() -> Self {
        let sources = SlotTable::new(IPC_PEERS_MAX);
        let unmapping = VecDeque::new();
        Self { sources, unmapping, counts: ImporterCounts::default() }
    }

    /// Adds an exporter.
    ///
    /// # Errors
    /// [`TooManySources`].
    pub fn add_source(&mut self) -> Result<SourceId, TooManySources> {
        let source = ImportSource {
            entries: Vec::new(),
            spans: IntervalTree::new(),
            announced: 0,
            awaited: 0,
            retired: VecDeque::new(),
            closing: 0,
            pins: 0,
            ended: false,
        };
        self.sources.insert(source).map(SourceId).map_err(|_| TooManySources)
    }

    /// Returns whether nothing is left of an exporter that has ended: no mapping and no user. Only then may a BYE be sent to it.
    #[must_use]
    pub fn is_gone(&self, source: SourceId) -> bool {
        self.sources.get(source.0).is_none()
    }

    /// Returns the event counts so far.
    #[must_use]
    pub const fn counts(&self) -> ImporterCounts {
        self.counts
    }

    /// Returns the current amounts of one exporter.
    #[must_use]
    pub fn source_usage(&self, source: SourceId) -> ImporterUsage {
        let Some(source) = self.sources.get(source.0) else { return ImporterUsage::default() };
        let mut usage = ImporterUsage {
            awaited: source.awaited,
            closing: source.closing,
            pins: source.pins,
            ..ImporterUsage::default()
        };
        for entry in &source.entries {
            usage.imports += usize::from(matches!(entry.state, ImportState::Known | ImportState::Retiring));
            usage.mappings += entry.mappings.len();
            let len = entry.span.map_or(0, |span| span.len());
            usage.bytes = usage.bytes.saturating_add(len.saturating_mul(entry.mappings.len() as u64));
        }
        usage
    }
}

impl ImportSource {
    /// Returns the import of that name.
    #[inline]
    fn entry(&self, name: ExportName) -> Option<&ImportEntry> {
        let SlotId { slot, generation } = name.slot_id();
        self.entries.get(slot as usize).filter(|entry| entry.generation == generation)
    }

    fn entry_mut(&mut self, name: ExportName) -> Option<&mut ImportEntry> {
        let SlotId { slot, generation } = name.slot_id();
        self.entries.get_mut(slot as usize).filter(|entry| entry.generation == generation)
    }

    /// Returns the entry of the name's slot, and creates it if it does not exist.
    fn ensure_entry(&mut self, name: ExportName) -> &mut ImportEntry {
        let slot = name.slot_id().slot as usize;
        if slot >= self.entries.len() {
            self.entries.resize(slot + 1, ImportEntry::NONE);
        }
        &mut self.entries[slot]
    }
}

#[cfg(test)]
impl MemoryImporter {
    /// Hashes all state that determines future behaviour.
    pub(in crate::ipc) fn print(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        for (id, source) in self.sources.iter() {
            (id, &source.entries, source.awaited, &source.retired).hash(hasher);
            (source.closing, source.pins, source.ended).hash(hasher);
        }
        self.unmapping.hash(hasher);
    }

    /// Appends an item to the queue, possibly without a mapping.
    pub(in crate::ipc) fn queue_unmap(&mut self, mapping: MappingId) {
        self.unmapping.push_back(mapping);
    }

    pub(in crate::ipc) fn overuse(&mut self, source: SourceId, name: ExportName, pins: u32) {
        let entry = self.sources.get_mut(source.0).and_then(|of| of.entry_mut(name));
        entry.into_iter().for_each(|entry| entry.pins = pins);
    }
}
