//! Messages of an exporter, and the ends of operations.

use super::entry::{ImportEntry, ImportPin, ImportState, SourceId};
use super::{ImportSource, MemoryImporter};
use crate::limits::{IPC_PINS_MAX, NAMES_AWAITED_MAX};
use crate::wire::ipc::{ExportAnnouncement, ExportName, ExportNames, ExportReference};

/// An announcement is invalid; the importer is unchanged. Its exporter is broken, or has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnnounceError {
    /// The exporter has ended.
    #[error("the exporter has ended")]
    Gone,
    /// The slot is in use, or has had later names.
    #[error("an announced name is in use, or older than its slot")]
    Name(ExportName),
}

/// A reference is invalid; the importer is unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ArriveError {
    /// The exporter has ended: its operation will never happen.
    #[error("the exporter has ended")]
    Gone,
    /// It names an export that is retired or being retired: the exporter is broken.
    #[error("a message refers to a retired export")]
    Stale(ExportName),
    /// Its bytes are not all inside the allocation: the exporter is broken.
    #[error("a message refers to bytes outside of the announced allocation")]
    Outside,
    /// The maximal number of names awaits announcements, or the import has the maximal number of users: the exporter is broken.
    #[error("too many messages wait for an announcement, or use one import")]
    TooMany,
}

/// A RETIRE names an export that is unknown or was retired before; the importer is unchanged. Its exporter is broken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("RETIRE names an unknown or retired export")]
pub struct RetireError(pub ExportName);

/// An event names a mapping that does not exist, or is in another state; the importer is unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no such mapping exists, or it is in another state")]
pub struct NoMapping;

impl MemoryImporter {
    /// Records an announcement. The caller keeps its handle by the name, until [`MemoryImporter::take_retired_names`] returns the name or the
    /// exporter has ended.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn on_announce(
        &mut self,
        source: SourceId,
        announce: &ExportAnnouncement,
    ) -> Result<(), AnnounceError> {
        let Some(source) = self.sources.get_mut(source.0).filter(|source| !source.ended) else {
            return Err(AnnounceError::Gone);
        };
        let generation = announce.name.slot_id().generation;
        let name = announce.name;
        let order = source.announced + 1;
        let entry = source.ensure_entry(name);
        let fits = match entry.state {
            ImportState::Vacant => generation >= entry.generation,
            ImportState::Awaited => generation == entry.generation,
            ImportState::Known | ImportState::Retiring => false,
        };
        if !fits {
            return Err(AnnounceError::Name(name));
        }
        let awaited = entry.state == ImportState::Awaited;
        (entry.state, entry.generation, entry.span) = (ImportState::Known, generation, Some(announce.span));
        entry.order = order;
        (source.announced, source.awaited) = (order, source.awaited - usize::from(awaited));
        Ok(())
    }

    /// Returns whether the name was announced, and not retired since.
    #[inline]
    #[must_use]
    pub fn is_announced(&self, source: SourceId, name: ExportName) -> bool {
        let of = self.sources.get(source.0);
        let entry = of.and_then(|of| of.entries.get(name.slot_id().slot as usize));
        entry.is_some_and(|of| of.generation == name.slot_id().generation && of.state == ImportState::Known)
    }

    /// Pins the bytes that a message names, until [`MemoryImporter::release_pin`].
    ///
    /// # Errors
    /// [`ArriveError`].
    pub fn pin_reference(
        &mut self,
        source: SourceId,
        reference: &ExportReference,
    ) -> Result<ImportPin, ArriveError> {
        let Some(of) = self.sources.get_mut(source.0).filter(|source| !source.ended) else {
            return Err(ArriveError::Gone);
        };
        let name = reference.name;
        let part = reference.part;
        let awaited = of.awaited;
        let entry = of.ensure_entry(name);
        let same = entry.generation == name.slot_id().generation;
        let refused = match entry.state {
            ImportState::Known | ImportState::Awaited if same && entry.pins >= IPC_PINS_MAX => {
                Err(ArriveError::TooMany)
            }
            ImportState::Known if same && !is_within(entry, reference) => Err(ArriveError::Outside),
            ImportState::Known | ImportState::Awaited if same => Ok(()),
            ImportState::Vacant if name.slot_id().generation >= entry.generation => match awaited {
                NAMES_AWAITED_MAX.. => Err(ArriveError::TooMany),
                _ => Ok(()),
            },
            _ => Err(ArriveError::Stale(name)),
        };
        if let Err(error) = refused {
            self.counts.refused += 1;
            return Err(error);
        }
        if entry.state == ImportState::Vacant {
            (entry.state, entry.generation) = (ImportState::Awaited, name.slot_id().generation);
            of.awaited += 1;
            self.counts.ahead += 1;
        }
        of.pin_import(name);
        Ok(ImportPin { source, name, part })
    }

    /// Returns the pin of an operation that has stopped using its bytes. Only now may the caller send DONE to its exporter.
    pub fn release_pin(&mut self, done: ImportPin) {
        let Some(source) = self.sources.get_mut(done.source.0) else { return };
        source.pins = source.pins.saturating_sub(1);
        let slot = done.name.slot_id().slot as usize;
        if let Some(entry) = source.entries.get_mut(slot) {
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins == 0 {
                self.settle_import(done.source, slot);
            }
        }
        self.remove_ended_source(done.source);
    }

    /// Retires imports on behalf of their exporter.
    ///
    /// # Errors
    /// [`RetireError`]. For an exporter that has ended, returns no error and does nothing.
    pub fn on_retire(&mut self, source: SourceId, names: &ExportNames) -> Result<(), RetireError> {
        let Some(of) = self.sources.get_mut(source.0).filter(|source| !source.ended) else { return Ok(()) };
        let known =
            |name: &ExportName| of.entry(*name).is_some_and(|entry| entry.state == ImportState::Known);
        let twice = |at: usize, name: &ExportName| names.get()[..at].contains(name);
        let wrong = names.get().iter().enumerate().find(|(at, name)| !known(name) || twice(*at, name));
        if let Some((_, &name)) = wrong {
            return Err(RetireError(name));
        }
        for &name in names.get() {
            let Some(entry) = self.sources.get_mut(source.0).and_then(|of| of.entry_mut(name)) else {
                continue;
            };
            entry.state = ImportState::Retiring;
            if entry.pins == 0 {
                self.settle_import(source, name.slot_id().slot as usize);
            }
        }
        Ok(())
    }
}

impl ImportSource {
    fn pin_import(&mut self, name: ExportName) {
        self.ensure_entry(name).pins += 1;
        self.pins += 1;
    }
}

/// Returns whether all bytes of a reference are in the announced allocation.
pub(super) fn is_within(entry: &ImportEntry, reference: &ExportReference) -> bool {
    entry.span.is_some_and(|span| reference.part.end() <= span.len())
}
