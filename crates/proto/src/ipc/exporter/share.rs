//! A message asks for its memory: what is found, what is missing, and what is exported for it.

use super::counts::FallbackReason;
use super::entry::{ExportEntry, ExportPin, ExportState, PendingExport, SharedReference};
use super::memory::DriverAllocation;
use super::peer::{HoldPhase, ImportingPeerId};
use super::{ExporterEventError, MemoryExporter, RecentExport};
use crate::intervals::ByteSpan;
use crate::limits::IPC_PINS_MAX;
use crate::time::Instant;
use crate::wire::ipc::{ExportName, ExportReference};

/// What a message asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportRequest {
    /// To whom it goes.
    pub peer: ImportingPeerId,
    /// Its bytes, by their addresses.
    pub part: ByteSpan,
    /// The allocation that has them, as the driver said just now.
    pub memory: DriverAllocation,
    /// Whether an export that is made for it goes with it, whatever the budget; otherwise it is kept as far as that allows.
    pub passing: bool,
}

/// What a look-up finds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExportLookup {
    /// It is exported.
    Hit(ExportName),
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
pub enum ShareDecision {
    /// It may go.
    Sent(SharedReference),
    /// Carry this out first.
    Export(PendingExport),
    /// Another caller carries it out: ask again.
    Coming,
    /// It goes another way; this is counted.
    Fallback(FallbackReason),
}

/// A message asks for what cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExportRequestError {
    /// That peer is dead, or has left.
    #[error("the peer is gone")]
    Gone,
    /// Its bytes are not all of that allocation.
    #[error("bytes outside of their allocation")]
    Outside,
}

impl MemoryExporter {
    /// The export of those bytes, which are of `memory` as the driver said just now, if there is one. Changes nothing.
    #[inline]
    #[must_use]
    pub fn lookup_export(&self, part: ByteSpan, memory: DriverAllocation) -> ExportLookup {
        if let Some(recent) = &self.recent
            && recent.memory.span.contains(part)
            && memory == recent.memory
        {
            return ExportLookup::Hit(recent.name);
        }
        self.lookup_indexed(part, memory)
    }

    /// Not inlined, so that the one that was found last costs less.
    #[inline(never)]
    fn lookup_indexed(&self, part: ByteSpan, memory: DriverAllocation) -> ExportLookup {
        // No two overlap: none but this can have its first byte.
        let Some((span, slot)) = self.index.last_from(&(), part.start()) else { return ExportLookup::Absent };
        let Some((id, entry)) = self.entries.entry_at(slot).filter(|_| span.contains(part)) else {
            return ExportLookup::Absent;
        };
        if memory != entry.memory {
            return ExportLookup::Stale;
        }
        match ExportName::new(id) {
            Some(name) if entry.state == ExportState::Live => ExportLookup::Hit(name),
            _ => ExportLookup::Coming,
        }
    }

    /// A message asks for its memory. What is found is pinned; what is not is begun, if there is room.
    ///
    /// # Errors
    /// [`ExportRequestError`].
    pub fn share_memory(
        &mut self,
        ask: &ExportRequest,
        now: Instant,
    ) -> Result<ShareDecision, ExportRequestError> {
        if self.peers.get(ask.peer.0).is_none() {
            return Err(ExportRequestError::Gone);
        }
        if !ask.memory.span.contains(ask.part) {
            return Err(ExportRequestError::Outside);
        }
        Ok(match self.lookup_export(ask.part, ask.memory) {
            ExportLookup::Hit(name) => self.share_found(name, ask),
            ExportLookup::Coming => ShareDecision::Coming,
            ExportLookup::Absent | ExportLookup::Stale => self.begin_export(ask, now),
        })
    }

    /// A message of bytes that no one export is of: they lie in several allocations, one behind the other. It is counted.
    pub fn pass_over(&mut self) -> ShareDecision {
        self.fall_back(FallbackReason::NotExported)
    }

    fn share_found(&mut self, name: ExportName, ask: &ExportRequest) -> ShareDecision {
        let id = name.slot_id();
        // The driver was asked just now: its memory is there.
        self.entries.get_mut(id).into_iter().for_each(|entry| entry.checked = self.epoch);
        self.remember_recent(name);
        let room = if ask.passing { Ok(()) } else { self.keep_passing(id) };
        match room.and_then(|()| self.pin_export(name, ask)) {
            Ok(sent) => {
                self.counts.hits += 1;
                self.counts.announced += u64::from(sent.announce);
                ShareDecision::Sent(sent)
            }
            Err(why) => self.fall_back(why),
        }
    }

    /// It is the one that was shared last.
    fn remember_recent(&mut self, name: ExportName) {
        let Some(entry) = self.entries.get(name.slot_id()) else { return };
        self.recent = Some(RecentExport { name, memory: entry.memory });
    }

    /// One message more uses a live export.
    fn pin_export(
        &mut self,
        name: ExportName,
        ask: &ExportRequest,
    ) -> Result<SharedReference, FallbackReason> {
        let id = name.slot_id();
        let (Some(entry), Some(peer)) = (self.entries.get_mut(id), self.peers.get_mut(ask.peer.0)) else {
            return Err(FallbackReason::Gone);
        };
        let Some(toward) = peer.toward.get_mut(id.slot as usize) else { return Err(FallbackReason::NoRoom) };
        if toward.is_passed_over() {
            return Err(FallbackReason::PassedOver);
        }
        let announce = match toward.held {
            HoldPhase::No => true,
            HoldPhase::Announced => false,
            HoldPhase::Draining | HoldPhase::Due | HoldPhase::Told => return Err(FallbackReason::Draining),
        };
        if entry.pins >= IPC_PINS_MAX {
            return Err(FallbackReason::Pins);
        }
        let Some(part) = offset_span(ask.part, entry.memory.span) else { return Err(FallbackReason::Gone) };
        if toward.held == HoldPhase::No {
            toward.held = HoldPhase::Announced;
            entry.held += 1;
        }
        let was_idle = entry.is_idle();
        toward.pins += 1;
        entry.pins += 1;
        if was_idle {
            self.idle.unlink_entry(&mut self.entries, id);
        }
        let pin = ExportPin { name, peer: ask.peer };
        Ok(SharedReference { pin, reference: ExportReference { name, part }, announce })
    }

    fn fall_back(&mut self, why: FallbackReason) -> ShareDecision {
        self.counts.fall_back(why);
        ShareDecision::Fallback(why)
    }

    /// An allocation that is not exported: what was at its addresses is over, and it is exported if there is room.
    fn begin_export(&mut self, ask: &ExportRequest, now: Instant) -> ShareDecision {
        let memory = ask.memory;
        self.retire_overlapping(memory);
        let one = self.config.amount_of(memory);
        if let Err(why) = self.make_room(one, ask.passing) {
            return self.fall_back(why);
        }
        let entry = ExportEntry::new(memory, ask.passing, now, self.epoch);
        let name = self.entries.insert(entry).ok().and_then(ExportName::new);
        let Some(name) = name else { return self.fall_back(FallbackReason::NoRoom) };
        let listed = self.index.insert((), memory.span, name.slot_id().slot);
        debug_assert!(listed, "two live exports of {memory:?}");
        if ask.passing {
            self.passing += one
        } else {
            self.live += one
        }
        self.peak = self.peak.max(self.live.combined_with(self.passing).combined_with(self.zombies).bytes);
        self.counts.misses += 1;
        let pin = ExportPin { name, peer: ask.peer };
        ShareDecision::Export(PendingExport { pin, allocation: memory, part: ask.part })
    }

    /// Whatever has a byte of that allocation is another one that is gone.
    fn retire_overlapping(&mut self, memory: DriverAllocation) {
        while let Some((_, slot)) = self.index.find_overlapping(&(), memory.span) {
            self.end_stale(slot);
        }
    }

    /// It was exported. What becomes of the message that it was made for.
    ///
    /// # Errors
    /// [`ExporterEventError`] if the token is of another exporter.
    pub fn on_exported(
        &mut self,
        export: PendingExport,
        now: Instant,
    ) -> Result<ShareDecision, ExporterEventError> {
        let PendingExport { pin, allocation, part } = export;
        let id = pin.name.slot_id();
        let entry = self.entries.get_mut(id).filter(|entry| entry.state == ExportState::Exporting);
        let Some(entry) = entry else { return Err(ExporterEventError::NoExport) };
        entry.state = ExportState::Live;
        let listed = entry.listed;
        if !listed {
            self.begin_retiring(id);
        }
        let ask = ExportRequest { peer: pin.peer, part, memory: allocation, passing: true };
        let pinned = if listed { self.pin_export(pin.name, &ask) } else { Err(FallbackReason::Gone) };
        let shared = match pinned {
            Ok(sent) => {
                self.counts.announced += u64::from(sent.announce);
                self.remember_recent(pin.name);
                ShareDecision::Sent(sent)
            }
            Err(why) => self.fall_back(why),
        };
        self.unpin_export(id, now);
        Ok(shared)
    }

    /// It could not be exported; nothing of it is left at the driver. Its message goes another way.
    ///
    /// # Errors
    /// [`ExporterEventError`] if the token is of another exporter.
    pub fn on_export_failed(&mut self, export: PendingExport) -> Result<FallbackReason, ExporterEventError> {
        let id = export.pin.name.slot_id();
        let entry = self.entries.get(id).filter(|entry| entry.state == ExportState::Exporting);
        let Some(entry) = entry else { return Err(ExporterEventError::NoExport) };
        let one = self.config.amount_of(entry.memory);
        let passing = entry.passing;
        self.unlist_export(id);
        if passing {
            self.passing -= one
        } else {
            self.live -= one
        }
        self.remove(id);
        self.counts.fall_back(FallbackReason::NotExported);
        Ok(FallbackReason::NotExported)
    }
}

/// Those bytes, counted from the first of the whole.
#[inline]
fn offset_span(part: ByteSpan, whole: ByteSpan) -> Option<ByteSpan> {
    ByteSpan::new(part.start().checked_sub(whole.start())?, part.len())
}
