//! What an exporter says, and the ends of operations.

use super::entry::{Entry, SourceId, State, Use};
use super::{Importer, Source};
use crate::limits::{IPC_PINS_MAX, NAMES_AWAITED_MAX};
use crate::wire::ipc::{Announce, Name, Names, Reference};

/// An announcement cannot be; nothing was changed. Its exporter is broken, or gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnnounceError {
    /// That exporter has ended.
    #[error("the exporter is gone")]
    Gone,
    /// Its place is taken, or has had later names.
    #[error("an announced name is known, or over")]
    Name(Name),
}

/// A reference cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ArriveError {
    /// That exporter has ended: its operation will never be.
    #[error("the exporter is gone")]
    Gone,
    /// What it names is over, or being ended: the exporter is broken.
    #[error("a message names what is over")]
    Stale(Name),
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
pub struct RetireError(pub Name);

/// News of a mapping that is not there, or stands elsewhere; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no mapping is there, or it stands elsewhere")]
pub struct NoMapping;

impl Importer {
    /// An exporter says what may be mapped. Its handle is the caller's to keep, beside the name, until the name is
    /// [`Importer::retired`] or the exporter gone.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub fn announce(&mut self, source: SourceId, announce: &Announce) -> Result<(), AnnounceError> {
        let takes_any = self.mutant.is("ipc-takes-any-announcement");
        let Some(source) = self.sources.get_mut(source.0).filter(|source| !source.ended) else {
            return Err(AnnounceError::Gone);
        };
        let generation = announce.name.id().generation;
        let name = announce.name;
        let order = source.announced + 1;
        let entry = source.place(name);
        let fits = match entry.state {
            State::Vacant | State::Awaited if takes_any => true,
            State::Vacant => generation >= entry.generation,
            State::Awaited => generation == entry.generation,
            State::Known | State::Retiring => false,
        };
        if !fits {
            return Err(AnnounceError::Name(name));
        }
        let awaited = entry.state == State::Awaited;
        (entry.state, entry.generation, entry.span) = (State::Known, generation, Some(announce.span));
        entry.order = order;
        (source.announced, source.awaited) = (order, source.awaited - usize::from(awaited));
        Ok(())
    }

    /// Whether that was announced, and not retired since.
    #[inline]
    #[must_use]
    pub fn knows(&self, source: SourceId, name: Name) -> bool {
        let of = self.sources.get(source.0);
        let entry = of.and_then(|of| of.entries.get(name.id().slot as usize));
        entry.is_some_and(|of| of.generation == name.id().generation && of.state == State::Known)
    }

    /// A message names bytes: they are pinned until [`Importer::finish`].
    ///
    /// # Errors
    /// [`ArriveError`].
    pub fn arrive(&mut self, source: SourceId, reference: &Reference) -> Result<Use, ArriveError> {
        let mutant = self.mutant;
        let Some(of) = self.sources.get_mut(source.0).filter(|source| !source.ended) else {
            return Err(ArriveError::Gone);
        };
        let name = reference.name;
        let part = reference.part;
        let awaited = of.awaited;
        let entry = of.place(name);
        let same = entry.generation == name.id().generation || mutant.is("ipc-ignores-generations");
        let refused = match entry.state {
            State::Known | State::Awaited if same && entry.pins >= IPC_PINS_MAX => Err(ArriveError::TooMany),
            State::Known if same && !is_within(entry, reference) => Err(ArriveError::Outside),
            State::Known | State::Awaited if same => Ok(()),
            State::Vacant if name.id().generation >= entry.generation => match awaited {
                NAMES_AWAITED_MAX.. if !mutant.is("ipc-awaits-any-number") => Err(ArriveError::TooMany),
                _ => Ok(()),
            },
            _ => Err(ArriveError::Stale(name)),
        };
        if let Err(error) = refused {
            self.counts.refused += 1;
            return Err(error);
        }
        if entry.state == State::Vacant {
            (entry.state, entry.generation) = (State::Awaited, name.id().generation);
            of.awaited += 1;
            self.counts.ahead += 1;
        }
        of.pin(name, mutant.is("ipc-closes-under-use"));
        Ok(Use { source, name, part })
    }

    /// An operation uses its bytes no more. Its exporter may be told DONE from now on, and not before.
    pub fn finish(&mut self, done: Use) {
        let Some(source) = self.sources.get_mut(done.source.0) else { return };
        source.pins = source.pins.saturating_sub(1);
        let slot = done.name.id().slot as usize;
        if let Some(entry) = source.entries.get_mut(slot) {
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins == 0 {
                if self.mutant.is("ipc-unmaps-what-rests") {
                    self.unmap_all(done.source, slot);
                }
                self.settle(done.source, slot);
            }
        }
        self.tidy(done.source);
    }

    /// An exporter wants these to be unmapped and forgotten.
    ///
    /// # Errors
    /// [`RetireError`]. Of an exporter that has ended nothing is an error, and nothing is done.
    pub fn retire(&mut self, source: SourceId, names: &Names) -> Result<(), RetireError> {
        let Some(of) = self.sources.get_mut(source.0).filter(|source| !source.ended) else { return Ok(()) };
        let known = |name: &Name| of.entry(*name).is_some_and(|entry| entry.state == State::Known);
        let twice = |at: usize, name: &Name| names.get()[..at].contains(name);
        let wrong = names.get().iter().enumerate().find(|(at, name)| !known(name) || twice(*at, name));
        if let Some((_, &name)) = wrong {
            return Err(RetireError(name));
        }
        for &name in names.get() {
            let Some(entry) = self.sources.get_mut(source.0).and_then(|of| of.entry_mut(name)) else {
                continue;
            };
            entry.state = State::Retiring;
            let unused = entry.pins == 0;
            if self.mutant.is("ipc-acks-before-closing")
                && let Some(of) = self.sources.get_mut(source.0)
            {
                of.retired.push_back(name);
            }
            if unused {
                self.settle(source, name.id().slot as usize);
            }
        }
        Ok(())
    }
}

impl Source {
    fn pin(&mut self, name: Name, forgets: bool) {
        let entry = self.place(name);
        entry.pins += u32::from(!forgets);
        self.pins += u64::from(!forgets);
    }
}

/// Whether the bytes of a reference are all in what was announced.
pub(super) fn is_within(entry: &Entry, reference: &Reference) -> bool {
    entry.span.is_some_and(|span| reference.part.end() <= span.len())
}
