//! The end of imports: unmapped when nobody uses them, and only then told.

use super::MemoryImporter;
use super::entry::{ImportEntry, ImportState, MappingId, MappingPhase, SourceId};
use super::events::NoMapping;
use crate::slots::SlotId;
use crate::wire::ipc::{ExportName, ExportNames, NAMES_MAX};

/// Unmap this, without the lock; then say [`MemoryImporter::on_unmapped`]. A failure is the caller's to repeat or to bear.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub struct UnmapCommand {
    /// Which.
    pub mapping: MappingId,
    /// Where its first byte is.
    pub address: u64,
}

impl MemoryImporter {
    /// Returns the mapping to unmap next. To be called after any other call, until there is nothing. An item of the queue that is of no mapping any more is passed
    /// over: the items behind it do not wait for another call.
    pub fn poll(&mut self) -> Option<UnmapCommand> {
        while let Some(mapping) = self.unmapping.pop_front() {
            let unmap = self.begin_unmap(mapping);
            if unmap.is_some() {
                return unmap;
            }
        }
        None
    }

    /// The caller is told to unmap it; `None`: it is of no mapping that is to be unmapped.
    fn begin_unmap(&mut self, mapping: MappingId) -> Option<UnmapCommand> {
        let source = self.sources.get_mut(mapping.source.0)?;
        let found = source.entry_mut(mapping.name)?.mapping_mut(mapping.place)?;
        let MappingPhase::Closing { address, told: told @ false } = &mut found.state else { return None };
        *told = true;
        Some(UnmapCommand { mapping, address: *address })
    }

    /// It is unmapped.
    ///
    /// # Errors
    /// [`NoMapping`] if nobody was told to unmap it.
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

    /// What the exporter can be told to be unmapped everywhere, for one message; `None`: nothing. To be asked when there is room for
    /// the message.
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

    /// That exporter is dead, has said BYE, or is to be told one: everything of it is unmapped, what is in use as soon as it is not.
    /// Nothing it says counts any more. [`MemoryImporter::is_gone`] says when that is done.
    pub fn end_source(&mut self, source: SourceId) {
        let Some(of) = self.sources.get_mut(source.0) else { return };
        of.ended = true;
        of.retired.clear();
        for slot in 0..of.entries.len() {
            self.settle_import(source, slot);
        }
        self.remove_ended_source(source);
    }

    /// An import has changed: if nobody uses it, what failed is forgotten; and what is to go is unmapped, and then told.
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

    /// Every mapping of an import that nobody uses is to be unmapped; how many there are. What is still being mapped is, once it is.
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

    /// An exporter that has ended is forgotten when nothing is left of it.
    pub(super) fn remove_ended_source(&mut self, source: SourceId) {
        let over = |of: &super::ImportSource| {
            of.ended && of.pins == 0 && of.entries.iter().all(|entry| entry.mappings.is_empty())
        };
        if self.sources.get(source.0).is_some_and(over) {
            self.sources.remove(source.0);
        }
    }
}
