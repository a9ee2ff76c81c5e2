//! The end of imports: unmapped when no operation uses them, and only then reported as retired.

use super::MemoryImporter;
use super::entry::{ImportEntry, ImportState, MappingId, MappingPhase, SourceId};
use super::events::NoMapping;
use crate::slots::SlotId;
use crate::wire::ipc::{ExportName, ExportNames, NAMES_MAX};

/// A mapping to unmap without the lock; the caller then calls [`MemoryImporter::on_unmapped`]. The caller handles a failure: it repeats the call or
/// gives up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub struct UnmapCommand {
    /// The mapping.
    pub mapping: MappingId,
    /// The address of its first byte.
    pub address: u64,
}

impl MemoryImporter {
    /// Returns the mapping to unmap next. Call it after any other call, until it returns `None`. A queue item without a mapping is skipped, so that
    /// the items behind it do not wait for another call.
    pub fn poll(&mut self) -> Option<UnmapCommand> {
        while let Some(mapping) = self.unmapping.pop_front() {
            let unmap = self.begin_unmap(mapping);
            if unmap.is_some() {
                return unmap;
            }
        }
        None
    }

    /// Begins to unmap; `None` if the item has no mapping that is to be unmapped.
    fn begin_unmap(&mut self, mapping: MappingId) -> Option<UnmapCommand> {
        let source = self.sources.get_mut(mapping.source.0)?;
        let found = source.entry_mut(mapping.name)?.mapping_mut(mapping.place)?;
        let MappingPhase::Closing { address, told: told @ false } = &mut found.state else { return None };
        *told = true;
        Some(UnmapCommand { mapping, address: *address })
    }

    /// Records that a mapping was unmapped.
    ///
    /// # Errors
    /// [`NoMapping`] if no caller was requested to unmap it.
    pub fn on_unmapped(&mut self, mapping: MappingId) -> Result<(), NoMapping> {
        let source = self.sources.get_mut(mapping.source.0).ok_or(NoMapping)?;
        let entry = source.entry_mut(mapping.name).ok_or(NoMapping)?;
        let found = entry.mapping(mapping.place).ok_or(NoMapping)?;
        if !matches!(found.state, MappingPhase::Closing { told: true, .. }) {
            return Err(NoMapping);
        }
        entry.mappings.retain(|other| other.place != mapping.place);
        source.closing -= 1;
        self.counts.closes += 1;
        self.settle_import(mapping.source, mapping.name.slot_id().slot as usize);
        self.remove_ended_source(mapping.source);
        Ok(())
    }

    /// Returns names that are unmapped everywhere, for one RETIRED message; `None` if there are none. Call it when there is room for the message.
    pub fn take_retired_names(&mut self, source: SourceId) -> Option<ExportNames> {
        let source = self.sources.get_mut(source.0)?;
        let first = *source.retired.front()?;
        let mut names = [first; NAMES_MAX];
        let mut len = 0;
        while let Some(place) = names.get_mut(len)
            && let Some(name) = source.retired.pop_front()
        {
            *place = name;
            len += 1;
        }
        ExportNames::new(names.get(..len)?)
    }

    /// Ends an exporter that is dead, has sent BYE, or will be sent BYE. Unmaps everything of it, memory in use as soon as it is unused. Later
    /// messages of it are ignored. [`MemoryImporter::is_gone`] returns true when this is complete.
    pub fn end_source(&mut self, source: SourceId) {
        let Some(of) = self.sources.get_mut(source.0) else { return };
        of.ended = true;
        of.retired.clear();
        for slot in 0..of.entries.len() {
            self.settle_import(source, slot);
        }
        self.remove_ended_source(source);
    }

    /// Updates an import after a change. Once no operation uses it, failed mappings are forgotten; a retired import is unmapped, and then queued for
    /// RETIRED.
    pub(super) fn settle_import(&mut self, source: SourceId, slot: usize) {
        let Some(of) = self.sources.get_mut(source.0) else { return };
        let Some(entry) = of.entries.get_mut(slot).filter(|entry| entry.pins == 0) else { return };
        entry
            .mappings
            .retain(|mapping| !matches!(mapping.state, MappingPhase::Failed | MappingPhase::Refused));
        let goes = entry.state == ImportState::Retiring || of.ended;
        if goes && !entry.mappings.is_empty() {
            self.unmap_all(source, slot);
            return;
        }
        if entry.mappings.is_empty()
            && let Some(span) = entry.span
            && of.spans.find_containing(&(), span).is_some_and(|(_, at)| at as usize == slot)
        {
            of.spans.remove(&(), span);
        }
        if !goes || entry.state == ImportState::Vacant {
            return;
        }
        of.awaited -= usize::from(entry.state == ImportState::Awaited);
        let generation = entry.generation;
        *entry = ImportEntry { generation, ..ImportEntry::NONE };
        let name = ExportName::new(SlotId { slot: slot as u32, generation });
        if !of.ended {
            of.retired.extend(name);
        }
    }

    /// Queues all mappings of an unused import to be unmapped, and returns their number. A mapping that is being created follows once it exists.
    pub(super) fn unmap_all(&mut self, source: SourceId, slot: usize) -> u64 {
        let Some(of) = self.sources.get_mut(source.0) else { return 0 };
        let before = of.closing;
        let Some(entry) = of.entries.get_mut(slot) else { return 0 };
        let Some(name) = ExportName::new(SlotId { slot: slot as u32, generation: entry.generation }) else {
            return 0;
        };
        for mapping in &mut entry.mappings {
            if let MappingPhase::Open { address } = mapping.state {
                mapping.state = MappingPhase::Closing { address, told: false };
                of.closing += 1;
                self.unmapping.push_back(MappingId { source, name, place: mapping.place });
            }
        }
        (of.closing - before) as u64
    }

    /// Removes an exporter that has ended once nothing is left of it.
    pub(super) fn remove_ended_source(&mut self, source: SourceId) {
        let over = |of: &super::ImportSource| {
            of.ended && of.pins == 0 && of.entries.iter().all(|entry| entry.mappings.is_empty())
        };
        if self.sources.get(source.0).is_some_and(over) {
            self.sources.remove(source.0);
        }
    }
}
