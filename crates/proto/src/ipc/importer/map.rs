//! Where the bytes are that an operation uses: found, mapped, or not to be had.

use super::Importer;
use super::entry::{Entry, Mapped, Mapping, MappingId, Place, State, Use};
use super::news::{NoMapping, is_within};
use crate::limits::MAPPINGS_OF_IMPORT_MAX;
use crate::wire::ipc::Reference;

/// What becomes of an operation that asks for its bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Resolved {
    /// They are at that address.
    At(u64),
    /// Map this first, without the lock; then say [`Importer::mapped`] or [`Importer::map_failed`], one of the two for certain.
    Map(MappingId),
    /// The announcement is on its way, another operation maps them, or something else is unmapped first: ask again after news.
    Wait,
    /// They cannot be mapped: end this, and say that nothing was copied.
    Failed,
}

/// An operation asks for what cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResolveError {
    /// Its bytes are not all of the allocation that was announced for its name: the exporter is broken.
    #[error("a message names bytes outside of what was announced")]
    Outside,
    /// The exporter is dead, and this was not mapped.
    #[error("the exporter is gone")]
    Gone,
}

/// Why a driver did not map.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// It takes the memory, or memory at that address, for mapped already.
    AlreadyMapped,
    /// Something else.
    Other,
}

impl Importer {
    /// Where the bytes of an operation are, in that place. What is mapped is found by its name alone.
    ///
    /// # Errors
    /// [`ResolveError`].
    #[inline]
    pub fn resolve(&mut self, of: &Use, place: Place) -> Result<Resolved, ResolveError> {
        let Some(source) = self.sources.get(of.source.0) else { return Err(ResolveError::Gone) };
        let slot = of.name.id().slot as usize;
        let Some(entry) = source.entries.get(slot) else { return Err(ResolveError::Gone) };
        if let Some(Mapping { state: Mapped::Open { address }, .. }) = self.find(entry, place) {
            let reference = Reference { name: of.name, part: of.part };
            if !is_within(entry, &reference) && !self.mutant.is("ipc-believes-references") {
                return Err(ResolveError::Outside);
            }
            self.counts.hits += 1;
            return Ok(Resolved::At(address.wrapping_add(of.part.start())));
        }
        self.resolve_unmapped(of, place)
    }

    /// The mapping that serves who asks for that place.
    #[inline]
    fn find(&self, entry: &Entry, place: Place) -> Option<Mapping> {
        if self.mutant.is("ipc-maps-for-any-device") {
            return entry.mappings.iter().find(|mapping| mapping.place.way == place.way).copied();
        }
        if self.mutant.is("ipc-maps-in-any-way") {
            return entry.mappings.iter().find(|mapping| mapping.place.device == place.device).copied();
        }
        entry.mapping(place).copied()
    }

    fn resolve_unmapped(&mut self, of: &Use, place: Place) -> Result<Resolved, ResolveError> {
        let slot = of.name.id().slot as usize;
        let again = self.mutant.is("ipc-maps-each-time");
        let Some(source) = self.sources.get_mut(of.source.0) else { return Err(ResolveError::Gone) };
        let ended = source.ended;
        let closing = source.closing;
        let Some(entry) = source.entries.get_mut(slot) else { return Err(ResolveError::Gone) };
        let reference = Reference { name: of.name, part: of.part };
        match entry.state {
            _ if ended => return Err(ResolveError::Gone),
            State::Vacant => return Err(ResolveError::Gone),
            State::Awaited if self.mutant.is("ipc-fails-what-comes-ahead") => return Ok(Resolved::Failed),
            State::Awaited => return Ok(Resolved::Wait),
            State::Known | State::Retiring if !is_within(entry, &reference) => {
                return Err(ResolveError::Outside);
            }
            State::Known | State::Retiring => {}
        }
        let mapping = MappingId { source: of.source, name: of.name, place };
        match entry.mapping_mut(place) {
            Some(Mapping { state: Mapped::Failed, .. }) => Ok(Resolved::Failed),
            Some(Mapping { state: Mapped::Refused, .. }) if closing > 0 => Ok(Resolved::Wait),
            Some(Mapping { state: state @ Mapped::Refused, .. }) => {
                *state = Mapped::Opening { again: true };
                self.counts.opens += 1;
                Ok(Resolved::Map(mapping))
            }
            Some(_) if !again => Ok(Resolved::Wait),
            _ => Ok(self.begin(mapping)),
        }
    }

    /// Nothing is mapped in that place: it is begun, if nothing lies in the way.
    fn begin(&mut self, mapping: MappingId) -> Resolved {
        let Some(source) = self.sources.get_mut(mapping.source.0) else { return Resolved::Failed };
        let slot = mapping.name.id().slot;
        let Some(entry) = source.entries.get(slot as usize) else { return Resolved::Failed };
        let Some(span) = entry.span.filter(|_| entry.mappings.len() < MAPPINGS_OF_IMPORT_MAX) else {
            return Resolved::Failed;
        };
        let blind = self.mutant.is("ipc-maps-over-stale");
        let other = source.spans.overlapping(&(), span).filter(|(_, other)| *other != slot && !blind);
        if let Some((_, other)) = other {
            return self.clear(mapping, other as usize);
        }
        let _first = source.spans.insert((), span, slot);
        if let Some(entry) = source.entries.get_mut(slot as usize) {
            entry.mappings.push(Mapping { place: mapping.place, state: Mapped::Opening { again: false } });
        }
        self.counts.opens += 1;
        Resolved::Map(mapping)
    }

    /// What lies in the way is stale, or what asks is. In the first case it is unmapped first, unless somebody uses it.
    fn clear(&mut self, mapping: MappingId, other: usize) -> Resolved {
        let of = |slot: usize| self.sources.get(mapping.source.0).and_then(|source| source.entries.get(slot));
        let Some((asks, other_is)) = of(mapping.name.id().slot as usize).zip(of(other)) else {
            return Resolved::Failed;
        };
        let used = other_is.pins > 0 && !self.mutant.is("ipc-clears-under-use");
        let newer = other_is.order > asks.order && !self.mutant.is("ipc-clears-the-newer");
        if used || newer {
            self.counts.stale += 1;
            return Resolved::Failed;
        }
        self.counts.stale += self.unmap_all(mapping.source, other);
        Resolved::Wait
    }

    /// It is mapped, its first byte at that address.
    ///
    /// # Errors
    /// [`NoMapping`] if nobody was told to map it.
    pub fn mapped(&mut self, mapping: MappingId, address: u64) -> Result<(), NoMapping> {
        let slot = mapping.name.id().slot as usize;
        *self.opening(mapping)? = Mapped::Open { address };
        self.settle(mapping.source, slot);
        Ok(())
    }

    /// It could not be mapped, and nothing of it is left. Those who ask for it now are told, and who comes later tries anew.
    ///
    /// # Errors
    /// [`NoMapping`] if nobody was told to map it.
    pub fn map_failed(&mut self, mapping: MappingId, why: Refusal) -> Result<(), NoMapping> {
        if self.mutant.is("ipc-drops-failures") {
            return self.mapped(mapping, 0);
        }
        let closing = self.sources.get(mapping.source.0).map_or(0, |source| source.closing);
        let state = self.opening(mapping)?;
        *state = match (&*state, why) {
            (Mapped::Opening { again: false }, Refusal::AlreadyMapped) if closing > 0 => Mapped::Refused,
            _ => Mapped::Failed,
        };
        self.counts.failures += 1;
        if self.mutant.is("ipc-tries-for-ever")
            && let Some(of) = self.sources.get_mut(mapping.source.0)
            && let Some(entry) = of.entry_mut(mapping.name)
        {
            entry.mappings.retain(|other| other.place != mapping.place);
        }
        self.settle(mapping.source, mapping.name.id().slot as usize);
        self.tidy(mapping.source);
        Ok(())
    }

    fn opening(&mut self, mapping: MappingId) -> Result<&mut Mapped, NoMapping> {
        let source = self.sources.get_mut(mapping.source.0).ok_or(NoMapping)?;
        let entry = source.entry_mut(mapping.name).ok_or(NoMapping)?;
        let found = entry.mapping_mut(mapping.place).ok_or(NoMapping)?;
        if matches!(found.state, Mapped::Opening { .. }) { Ok(&mut found.state) } else { Err(NoMapping) }
    }
}
