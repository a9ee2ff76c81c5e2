//! A message asks for its memory: what is found, what is missing, and what is exported for it.

use super::counts::Why;
use super::entry::{Entry, Export, Pin, Sent, State};
use super::memory::Allocation;
use super::peer::{Held, PeerId};
use super::{Exporter, NewsError, Recent};
use crate::intervals::Span;
use crate::limits::IPC_PINS_MAX;
use crate::slots::SlotId;
use crate::time::Instant;
use crate::wire::ipc::{Name, Reference};

/// What a message asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    /// To whom it goes.
    pub peer: PeerId,
    /// Its bytes, by their addresses.
    pub part: Span,
    /// The allocation that has them, as the driver said just now.
    pub memory: Allocation,
    /// Whether an export that is made for it goes with it, whatever the budget; otherwise it is kept as far as that allows.
    pub passing: bool,
}

/// What a look-up finds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    /// It is exported.
    Hit(Name),
    /// It is being exported.
    Coming,
    /// Nothing is exported there.
    Absent,
    /// Another allocation was exported there.
    Stale,
}

/// What becomes of a message.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub enum Shared {
    /// It may go.
    Sent(Sent),
    /// Carry this out first.
    Export(Export),
    /// Another caller carries it out: ask again.
    Coming,
    /// It goes another way; this is counted.
    Fallback(Why),
}

/// A message asks for what cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ShareError {
    /// That peer is dead, or has left.
    #[error("the peer is gone")]
    Gone,
    /// Its bytes are not all of that allocation.
    #[error("bytes outside of their allocation")]
    Outside,
}

impl Exporter {
    /// The export of those bytes, which are of `memory` as the driver said just now, if there is one. Changes nothing.
    #[inline]
    #[must_use]
    pub fn lookup(&self, part: Span, memory: Allocation) -> Found {
        if let Some(recent) = &self.recent
            && recent.memory.span.contains(part)
            && memory == recent.memory
        {
            return Found::Hit(recent.name);
        }
        self.lookup_indexed(part, memory)
    }

    /// Not inlined, so that the one that was found last costs less.
    #[inline(never)]
    fn lookup_indexed(&self, part: Span, memory: Allocation) -> Found {
        // No two overlap: none but this can have its first byte.
        let Some((span, slot)) = self.index.last_from(&(), part.start()) else { return Found::Absent };
        let Some((id, entry)) = self.entries.at(slot).filter(|_| span.contains(part)) else {
            return Found::Absent;
        };
        self.judge(id, entry, memory)
    }

    /// Whether what is exported is what is asked for.
    #[inline]
    fn judge(&self, id: SlotId, entry: &Entry, now: Allocation) -> Found {
        if now != entry.memory && !self.believes(now, entry.memory) {
            return Found::Stale;
        }
        match Name::new(id) {
            Some(name) if entry.state == State::Live => Found::Hit(name),
            _ => Found::Coming,
        }
    }

    /// Planted bugs: an address is enough.
    #[inline]
    fn believes(&self, now: Allocation, then: Allocation) -> bool {
        let half = now.id.0 as u32 == then.id.0 as u32 && self.mutant.is("ipc-looks-at-half-the-id");
        (self.mutant.is("ipc-trusts-addresses") || half) && now.span == then.span
    }

    /// A message asks for its memory. What is found is pinned; what is not is begun, if there is room.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn share(&mut self, ask: &Ask, now: Instant) -> Result<Shared, ShareError> {
        if self.peers.get(ask.peer.0).is_none() {
            return Err(ShareError::Gone);
        }
        if !ask.memory.span.contains(ask.part) {
            return Err(ShareError::Outside);
        }
        Ok(match self.lookup(ask.part, ask.memory) {
            Found::Hit(name) => self.hit(name, ask),
            Found::Coming => Shared::Coming,
            Found::Absent | Found::Stale => self.begin(ask, now),
        })
    }

    /// A message of bytes that no one export is of: they lie in several allocations, one behind the other. It is counted.
    pub fn pass_over(&mut self) -> Shared {
        self.fall_back(Why::NotExported)
    }

    fn hit(&mut self, name: Name, ask: &Ask) -> Shared {
        let id = name.id();
        // The driver was asked just now: its memory is there.
        self.entries.get_mut(id).into_iter().for_each(|entry| entry.checked = self.epoch);
        self.remember(name);
        let room = if ask.passing { Ok(()) } else { self.adopt(id) };
        match room.and_then(|()| self.pin(name, ask)) {
            Ok(sent) => {
                self.counts.hits += 1;
                self.counts.announced += u64::from(sent.announce);
                Shared::Sent(sent)
            }
            Err(why) => self.fall_back(why),
        }
    }

    /// It is the one that was shared last.
    fn remember(&mut self, name: Name) {
        let Some(entry) = self.entries.get(name.id()) else { return };
        self.recent = Some(Recent { name, memory: entry.memory });
    }

    /// One message more uses a live export.
    fn pin(&mut self, name: Name, ask: &Ask) -> Result<Sent, Why> {
        let id = name.id();
        let (Some(entry), Some(peer)) = (self.entries.get_mut(id), self.peers.get_mut(ask.peer.0)) else {
            return Err(Why::Gone);
        };
        let Some(toward) = peer.toward.get_mut(id.slot as usize) else { return Err(Why::NoRoom) };
        if toward.is_passed_over() {
            return Err(Why::PassedOver);
        }
        let announce = match toward.held {
            Held::No => entry.held == 0 || !self.mutant.is("ipc-tells-one-peer"),
            Held::Announced => self.mutant.is("ipc-announces-each-time"),
            Held::Draining | Held::Due | Held::Told => return Err(Why::Draining),
        };
        if entry.pins >= IPC_PINS_MAX {
            return Err(Why::Pins);
        }
        let Some(part) = offset(ask.part, entry.memory.span) else { return Err(Why::Gone) };
        if toward.held == Held::No {
            toward.held = Held::Announced;
            entry.held += 1;
        }
        let was_idle = entry.is_idle();
        if !self.mutant.is("ipc-sends-unpinned") {
            toward.pins += 1;
            entry.pins += 1;
            if was_idle {
                self.idle.take(&mut self.entries, id);
            }
        }
        let pin = Pin { name, peer: ask.peer };
        Ok(Sent { pin, reference: Reference { name, part }, announce })
    }

    fn fall_back(&mut self, why: Why) -> Shared {
        self.counts.fall_back(why);
        Shared::Fallback(why)
    }

    /// An allocation that is not exported: what was at its addresses is over, and it is exported if there is room.
    fn begin(&mut self, ask: &Ask, now: Instant) -> Shared {
        let memory = ask.memory;
        self.displace(memory);
        let one = self.config.one(memory);
        if let Err(why) = self.make_room(one, ask.passing) {
            return self.fall_back(why);
        }
        let entry = Entry::new(memory, ask.passing, now, self.epoch);
        let name = self.entries.insert(entry).ok().and_then(Name::new);
        let Some(name) = name else { return self.fall_back(Why::NoRoom) };
        let listed = self.index.insert((), memory.span, name.id().slot);
        debug_assert!(listed, "two live exports of {memory:?}");
        if ask.passing {
            self.passing += one
        } else {
            self.live += one
        }
        self.peak = self.peak.max(self.live.and(self.passing).and(self.zombies).bytes);
        self.counts.misses += 1;
        let pin = Pin { name, peer: ask.peer };
        Shared::Export(Export { pin, allocation: memory, part: ask.part })
    }

    /// Whatever has a byte of that allocation is another one that is gone.
    fn displace(&mut self, memory: Allocation) {
        if self.mutant.is("ipc-keeps-stale-neighbours") {
            let same = self.index.containing(&(), memory.span).filter(|(span, _)| *span == memory.span);
            if let Some((_, slot)) = same {
                self.retire_at(slot);
            }
            return;
        }
        while let Some((_, slot)) = self.index.overlapping(&(), memory.span) {
            self.end_stale(slot);
        }
    }

    /// It was exported. What becomes of the message that it was made for.
    ///
    /// # Errors
    /// [`NewsError`] if the token is of another exporter.
    pub fn exported(&mut self, export: Export, now: Instant) -> Result<Shared, NewsError> {
        let Export { pin, allocation, part } = export;
        let id = pin.name.id();
        let entry = self.entries.get_mut(id).filter(|entry| entry.state == State::Exporting);
        let Some(entry) = entry else { return Err(NewsError::NoExport) };
        entry.state = State::Live;
        let listed = entry.listed;
        if !listed {
            self.condemn(id);
        }
        let ask = Ask { peer: pin.peer, part, memory: allocation, passing: true };
        let pinned = if listed { self.pin(pin.name, &ask) } else { Err(Why::Gone) };
        let shared = match pinned {
            Ok(sent) => {
                self.counts.announced += u64::from(sent.announce);
                self.remember(pin.name);
                Shared::Sent(sent)
            }
            Err(why) => self.fall_back(why),
        };
        self.unpin(id, now);
        Ok(shared)
    }

    /// It could not be exported; nothing of it is left at the driver. Its message goes another way.
    ///
    /// # Errors
    /// [`NewsError`] if the token is of another exporter.
    pub fn export_failed(&mut self, export: Export) -> Result<Why, NewsError> {
        let id = export.pin.name.id();
        let entry = self.entries.get(id).filter(|entry| entry.state == State::Exporting);
        let Some(entry) = entry else { return Err(NewsError::NoExport) };
        let one = self.config.one(entry.memory);
        let passing = entry.passing;
        if self.mutant.is("ipc-keeps-what-failed") {
            self.entries.get_mut(id).into_iter().for_each(|entry| entry.state = State::Live);
            self.unpin(id, Instant::default());
            return Ok(Why::NotExported);
        }
        self.unlist(id);
        if passing {
            self.passing -= one
        } else {
            self.live -= one
        }
        self.remove(id);
        self.counts.fall_back(Why::NotExported);
        Ok(Why::NotExported)
    }
}

/// Those bytes, counted from the first of the whole.
#[inline]
fn offset(part: Span, whole: Span) -> Option<Span> {
    Span::new(part.start().checked_sub(whole.start())?, part.len())
}
