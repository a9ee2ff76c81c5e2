//! What an exporter says, and the ends of operations.

use super::entry::{ImportEntry, ImportPin, ImportState, SourceId};
use super::{ImportSource, MemoryImporter};
use crate::limits::{IPC_PINS_MAX, NAMES_AWAITED_MAX};
use crate::wire::ipc::{ExportAnnouncement, ExportName, ExportNames, ExportReference};

/// An announcement cannot be; nothing was changed. Its exporter is broken, or gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnnounceError {
    /// That exporter has ended.
    #[error("the exporter is gone")]
    Gone,
    /// Its place is taken, or has had later names.
    #[error("an announced name is known, or over")]
    Name(ExportName),
}

/// A reference cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ArriveError {
    /// That exporter has ended: its operation will never be.
    #[error("the exporter is gone")]
    Gone,
    /// What it names is over, or being ended: the exporter is broken.
    #[error("a message names what is over")]
    Stale(ExportName),
    /// Its bytes are not all of the allocation: the exporter is broken.
    #[error("a message names bytes outside of what was announced")]
    Outside,
    /// As many names as may be are waited for, or the import has as many users as may be: the exporter is broken.
    #[error("too many messages wait for their memory")]
    TooMany,
}

/// Something is to be retired that is not known, or was before; nothing was changed. Its exporter is broken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("what is not known is to be unmapped")]
pub struct RetireError(pub ExportName);

/// News of a mapping that is not there, or stands elsewhere; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no mapping is there, or it stands elsewhere")]
pub struct NoMapping;

impl MemoryImporter {
    /// An exporter says what may be mapped. Its handle is the caller's to keep, beside the name, until the name is
    /// [`MemoryImporter::take_retired_names`] or the exporter gone.
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

    /// Whether that was announced, and not retired since.
    #[inline]
    #[must_use]
    pub fn is_announced(&self, source: SourceId, name: ExportName) -> bool {
        let of = self.sources.get(source.0);
        let entry = of.and_then(|of| of.entries.get(name.slot_id().slot as usize));
        entry.is_some_and(|of| of.generation == name.slot_id().generation && of.state == ImportState::Known)
    }

    /// A message names bytes: they are pinned until [`MemoryImporter::release_pin`].
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

    /// An operation uses its bytes no more. Its exporter may be told DONE from now on, and not before.
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

    /// An exporter wants these to be unmapped and forgotten.
    ///
    /// # Errors
    /// [`RetireError`]. Of an exporter that has ended nothing is an error, and nothing is done.
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

/// Whether the bytes of a reference are all in what was announced.
pub(super) fn is_within(entry: &ImportEntry, reference: &ExportReference) -> bool {
    entry.span.is_some_and(|span| reference.part.end() <= span.len())
}
