//! The end that maps: it obeys, pins what it uses, and says that something is unmapped only when it is.
//!
//! - [`MemoryImporter::on_announce`]: an exporter says what may be mapped; nothing is mapped for that. [`MemoryImporter::pin_reference`]: a message names
//!   bytes; they are pinned, even if the announcement is still on its way.
//! - [`MemoryImporter::resolve_address`]: where those bytes are, in a certain place ([`ResolveOutcome::At`]); or the caller is to map them first
//!   ([`ResolveOutcome::Map`], then [`MemoryImporter::on_mapped`] or [`MemoryImporter::on_map_failed`]), or to ask again ([`ResolveOutcome::Wait`]), or they cannot be
//!   mapped ([`ResolveOutcome::Failed`]). [`MemoryImporter::release_pin`]: they are used no more.
//! - [`MemoryImporter::on_retire`]: the exporter wants something back. [`MemoryImporter::poll`], after any call: what is to be unmapped; then
//!   [`MemoryImporter::on_unmapped`]. [`MemoryImporter::take_retired_names`], when the stream to the exporter has room: what it can be told.
//! - [`MemoryImporter::end_source`]: an exporter is dead, or this process shares no more with it.
//!
//! An import is mapped once in each place, by whoever comes first, and unmapped when its exporter says so and nobody uses it. What a
//! new one overlaps is stale, as live allocations of one exporter do not: it is unmapped first, and the new one not mapped if that
//! is in use; nor is what is stale mapped in the place of the new one. A name that is mapped takes a few steps to resolve, however many there are, and allocates nothing.
//!
//! What the other process says is not believed: names of other generations, repetitions and bytes outside of an allocation are
//! refused and change nothing.

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

/// What a process has mapped of others.
#[derive(Clone, Debug)]
pub struct MemoryImporter {
    sources: SlotTable<ImportSource>,
    /// What is to be unmapped and nobody was told to.
    unmapping: VecDeque<MappingId>,
    counts: ImporterCounts,
}

/// One exporter, as seen from here.
#[derive(Clone, Debug)]
struct ImportSource {
    /// By the slots of names.
    entries: Vec<ImportEntry>,
    /// Where those lie at the exporter that are mapped, or are being: their slots.
    spans: IntervalTree<(), u32>,
    /// Announcements so far.
    announced: u64,
    /// Names that are waited for.
    awaited: usize,
    /// What the exporter can be told to be unmapped.
    retired: VecDeque<ExportName>,
    /// Mappings to be unmapped, or being.
    closing: usize,
    /// Uses that have not ended.
    pins: u64,
    /// Whether nothing more comes of it.
    ended: bool,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ImporterCounts {
    /// Names that were mapped when they were resolved.
    pub hits: u64,
    /// Mappings begun.
    pub opens: u64,
    /// Mappings that could not be made.
    pub failures: u64,
    /// Mappings ended.
    pub closes: u64,
    /// Mappings ended, or not begun, because a stale one lay in the way.
    pub stale: u64,
    /// References that came before their announcement.
    pub ahead: u64,
    /// References that were refused.
    pub refused: u64,
}

/// What there is.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ImporterUsage {
    /// Names that may be mapped, or are to be forgotten.
    pub imports: usize,
    /// Names that are waited for.
    pub awaited: usize,
    /// Mappings in any state.
    pub mappings: usize,
    /// Their bytes, each mapping's by itself.
    pub bytes: u64,
    /// Of them, those to be unmapped, or being.
    pub closing: usize,
    /// Uses that have not ended.
    pub pins: u64,
}

/// There are as many exporters as there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("memory of {IPC_PEERS_MAX} processes is known already")]
pub struct TooManySources;

impl Default for MemoryImporter {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryImporter {
    /// One that knows nobody.
    #[must_use]
    pub fn new() -> Self {
        let sources = SlotTable::new(IPC_PEERS_MAX);
        let unmapping = VecDeque::new();
        Self { sources, unmapping, counts: ImporterCounts::default() }
    }

    /// An exporter comes.
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

    /// Whether nothing is left of an exporter that has ended: nothing mapped, nobody who uses it. Only then may a BYE be said to it.
    #[must_use]
    pub fn is_gone(&self, source: SourceId) -> bool {
        self.sources.get(source.0).is_none()
    }

    /// What has happened so far.
    #[must_use]
    pub const fn counts(&self) -> ImporterCounts {
        self.counts
    }

    /// What there is of one exporter.
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
    /// The import of that name.
    #[inline]
    fn entry(&self, name: ExportName) -> Option<&ImportEntry> {
        let SlotId { slot, generation } = name.slot_id();
        self.entries.get(slot as usize).filter(|entry| entry.generation == generation)
    }

    fn entry_mut(&mut self, name: ExportName) -> Option<&mut ImportEntry> {
        let SlotId { slot, generation } = name.slot_id();
        self.entries.get_mut(slot as usize).filter(|entry| entry.generation == generation)
    }

    /// The place of that name, made if there is none.
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
    /// All that decides what can happen from now on.
    pub(in crate::ipc) fn print(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        for (id, source) in self.sources.iter() {
            (id, &source.entries, source.awaited, &source.retired).hash(hasher);
            (source.closing, source.pins, source.ended).hash(hasher);
        }
        self.unmapping.hash(hasher);
    }

    /// Puts an item behind the queue that may be of no mapping.
    pub(in crate::ipc) fn queue_unmap(&mut self, mapping: MappingId) {
        self.unmapping.push_back(mapping);
    }

    pub(in crate::ipc) fn overuse(&mut self, source: SourceId, name: ExportName, pins: u32) {
        let entry = self.sources.get_mut(source.0).and_then(|of| of.entry_mut(name));
        entry.into_iter().for_each(|entry| entry.pins = pins);
    }
}
