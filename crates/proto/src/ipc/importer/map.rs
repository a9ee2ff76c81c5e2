//! Resolves the bytes of an operation to an address: found, mapped first, or unavailable.

use super::MemoryImporter;
use super::entry::{ImportMapping, ImportPin, ImportState, MappingId, MappingPhase, MappingPlace};
use super::events::{NoMapping, is_within};
use crate::limits::MAPPINGS_OF_IMPORT_MAX;
use crate::wire::ipc::ExportReference;

/// The result of a request for an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum ResolveOutcome {
    /// The bytes are at that address.
    At(u64),
    /// The caller has to map this first, without the lock, and then calls exactly one of [`MemoryImporter::on_mapped`] and
    /// [`MemoryImporter::on_map_failed`].
    Map(MappingId),
    /// The announcement is outstanding, another operation maps the bytes, or another mapping is unmapped first: the caller repeats the request after
    /// the next event.
    Wait,
    /// The bytes cannot be mapped: the caller ends the operation, and reports that no bytes were copied.
    Failed,
}

/// A request is invalid; the importer is unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResolveError {
    /// Its bytes are not all inside the allocation that was announced for its name: the exporter is broken.
    #[error("a message refers to bytes outside of the announced allocation")]
    Outside,
    /// The exporter is dead, and the memory was not mapped.
    #[error("the exporter has ended")]
    Gone,
}

/// Why a driver refused a mapping.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MapRefusal {
    /// It considers the memory, or memory at that address, mapped already.
    AlreadyMapped,
    /// Any other reason.
    Other,
}

impl MemoryImporter {
    /// Returns the address of an operation's bytes in a place. Existing mappings are found by the name alone.
    ///
    /// # Errors
    /// [`ResolveError`].
    #[inline]
    pub fn resolve_address(
        &mut self,
        of: &ImportPin,
        place: MappingPlace,
    ) -> Result<ResolveOutcome, ResolveError> {
        let Some(source) = self.sources.get(of.source.0) else { return Err(ResolveError::Gone) };
        let slot = of.name.slot_id().slot as usize;
        let Some(entry) = source.entries.get(slot) else { return Err(ResolveError::Gone) };
        if let Some(ImportMapping { state: MappingPhase::Open { address }, .. }) = entry.mapping(place) {
            let reference = ExportReference { name: of.name, part: of.part };
            if !is_within(entry, &reference) {
                return Err(ResolveError::Outside);
            }
            self.counts.hits += 1;
            return Ok(ResolveOutcome::At(address.wrapping_add(of.part.start())));
        }
        self.resolve_unmapped(of, place)
    }

    fn resolve_unmapped(
        &mut self,
        of: &ImportPin,
        place: MappingPlace,
    ) -> Result<ResolveOutcome, ResolveError> {
        let slot = of.name.slot_id().slot as usize;
        let Some(source) = self.sources.get_mut(of.source.0) else { return Err(ResolveError::Gone) };
        let ended = source.ended;
        let closing = source.closing;
        let Some(entry) = source.entries.get_mut(slot) else { return Err(ResolveError::Gone) };
        let reference = ExportReference { name: of.name, part: of.part };
        match entry.state {
            _ if ended => return Err(ResolveError::Gone),
            ImportState::Vacant => return Err(ResolveError::Gone),
            ImportState::Awaited => return Ok(ResolveOutcome::Wait),
            ImportState::Known | ImportState::Retiring if !is_within(entry, &reference) => {
                return Err(ResolveError::Outside);
            }
            ImportState::Known | ImportState::Retiring => {}
        }
        let mapping = MappingId { source: of.source, name: of.name, place };
        match entry.mapping_mut(place) {
            Some(ImportMapping { state: MappingPhase::Failed, .. }) => Ok(ResolveOutcome::Failed),
            Some(ImportMapping { state: MappingPhase::Refused, .. }) if closing > 0 => {
                Ok(ResolveOutcome::Wait)
            }
            Some(ImportMapping { state: state @ MappingPhase::Refused, .. }) => {
                *state = MappingPhase::Opening { again: true };
                self.counts.opens += 1;
                Ok(ResolveOutcome::Map(mapping))
            }
            Some(_) => Ok(ResolveOutcome::Wait),
            None => Ok(self.begin_mapping(mapping)),
        }
    }

    /// Begins a mapping in a place that has none, unless an overlapping mapping exists.
    fn begin_mapping(&mut self, mapping: MappingId) -> ResolveOutcome {
        let Some(source) = self.sources.get_mut(mapping.source.0) else { return ResolveOutcome::Failed };
        let slot = mapping.name.slot_id().slot;
        let Some(entry) = source.entries.get(slot as usize) else { return ResolveOutcome::Failed };
        let Some(span) = entry.span.filter(|_| entry.mappings.len() < MAPPINGS_OF_IMPORT_MAX) else {
            return ResolveOutcome::Failed;
        };
        let other = source.spans.find_overlapping(&(), span).filter(|(_, other)| *other != slot);
        if let Some((_, other)) = other {
            return self.clear(mapping, other as usize);
        }
        let _first = source.spans.insert((), span, slot);
        if let Some(entry) = source.entries.get_mut(slot as usize) {
            entry
                .mappings
                .push(ImportMapping { place: mapping.place, state: MappingPhase::Opening { again: false } });
        }
        self.counts.opens += 1;
        ResolveOutcome::Map(mapping)
    }

    /// Handles an overlapping mapping: either it is stale, or the request is. A stale mapping is unmapped first, unless an operation uses it.
    fn clear(&mut self, mapping: MappingId, other: usize) -> ResolveOutcome {
        let of = |slot: usize| self.sources.get(mapping.source.0).and_then(|source| source.entries.get(slot));
        let Some((asks, other_is)) = of(mapping.name.slot_id().slot as usize).zip(of(other)) else {
            return ResolveOutcome::Failed;
        };
        if other_is.pins > 0 || other_is.order > asks.order {
            self.counts.stale += 1;
            return ResolveOutcome::Failed;
        }
        self.counts.stale += self.unmap_all(mapping.source, other);
        ResolveOutcome::Wait
    }

    /// Records that a mapping was created with its first byte at that address.
    ///
    /// # Errors
    /// [`NoMapping`] if no caller was requested to map it.
    pub fn on_mapped(&mut self, mapping: MappingId, address: u64) -> Result<(), NoMapping> {
        let slot = mapping.name.slot_id().slot as usize;
        *self.opening_mapping(mapping)? = MappingPhase::Open { address };
        self.settle_import(mapping.source, slot);
        Ok(())
    }

    /// Records that a mapping failed and nothing of it is left. Current requests get the failure; later ones try again.
    ///
    /// # Errors
    /// [`NoMapping`] if no caller was requested to map it.
    pub fn on_map_failed(&mut self, mapping: MappingId, why: MapRefusal) -> Result<(), NoMapping> {
        let closing = self.sources.get(mapping.source.0).map_or(0, |source| source.closing);
        let state = self.opening_mapping(mapping)?;
        *state = match (&*state, why) {
            (MappingPhase::Opening { again: false }, MapRefusal::AlreadyMapped) if closing > 0 => {
                MappingPhase::Refused
            }
            _ => MappingPhase::Failed,
        };
        self.counts.failures += 1;
        self.settle_import(mapping.source, mapping.name.slot_id().slot as usize);
        self.remove_ended_source(mapping.source);
        Ok(())
    }

    fn opening_mapping(&mut self, mapping: MappingId) -> Result<&mut MappingPhase, NoMapping> {
        let source = self.sources.get_mut(mapping.source.0).ok_or(NoMapping)?;
        let entry = source.entry_mut(mapping.name).ok_or(NoMapping)?;
        let found = entry.mapping_mut(mapping.place).ok_or(NoMapping)?;
        if matches!(found.state, MappingPhase::Opening { .. }) {
            Ok(&mut found.state)
        } else {
            Err(NoMapping)
        }
    }
}
