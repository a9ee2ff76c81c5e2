//! Requests of messages for their memory: lookup, pin, and the export of memory that has none.

use super::counts::FallbackReason;
use super::entry::{ExportEntry, ExportPin, ExportState, PendingExport, SharedReference};
use super::memory::DriverAllocation;
use super::peer::{HoldPhase, ImportingPeerId};
use super::{ExporterEventError, MemoryExporter, RecentExport};
use crate::intervals::ByteSpan;
use crate::limits::IPC_PINS_MAX;
use crate::time::Instant;
use crate::wire::ipc::{ExportName, ExportReference};

/// A message's request for its memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportRequest {
    /// The peer to which the message is sent.
    pub peer: ImportingPeerId,
    /// Its bytes, by their addresses.
    pub part: ByteSpan,
    /// The allocation that contains them, as the driver has just reported it.
    pub memory: DriverAllocation,
    /// Whether a new export ends with the message, whatever the budget; otherwise it is kept if the budget allows it.
    pub passing: bool,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExportLookup {
    /// The memory is exported.
    Hit(ExportName),
    /// The memory is being exported.
    Coming,
    /// No export has these bytes.
    Absent,
    /// Another allocation was exported at this address.
    Stale,
}

/// How a message is sent.
#[derive(Debug, Eq, PartialEq)]
#[must_use]
pub enum ShareDecision {
    /// By this reference.
    Sent(SharedReference),
    /// After the caller has executed this export.
    Export(PendingExport),
    /// After another caller has executed the export: the caller repeats the request.
    Coming,
    /// Another way; the fallback is counted.
    Fallback(FallbackReason),
}

/// A request is invalid; the exporter is unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExportRequestError {
    /// The peer is dead, or has left.
    #[error("the peer was removed")]
    Gone,
    /// Its bytes are not all inside the allocation.
    #[error("the bytes exceed their allocation")]
    Outside,
}

impl MemoryExporter {
    /// Returns the export of those bytes, which are in `memory` as the driver has just reported. Changes nothing.
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

    /// Not inlined, so that a hit on the export found last stays short.
    #[inline(never)]
    fn lookup_indexed(&self, part: ByteSpan, memory: DriverAllocation) -> ExportLookup {
        // Exports do not overlap: only this one can contain the first byte.
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

    /// Pins the export of a message's memory, or begins an export if there is room.
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

    /// Counts a message whose bytes are in several adjacent allocations, so that no single export contains them.
    pub fn pass_over(&mut self) -> ShareDecision {
        self.fall_back(FallbackReason::NotExported)
    }

    fn share_found(&mut self, name: ExportName, ask: &ExportRequest) -> ShareDecision {
        let id = name.slot_id();
        // The driver has just reported the allocation: its memory exists.
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

    /// Records the export that was shared last.
    fn remember_recent(&mut self, name: ExportName) {
        let Some(entry) = self.entries.get(name.slot_id()) else { return };
        self.recent = Some(RecentExport { name, memory: entry.memory });
    }

    /// Adds a message to a live export.
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

    /// Retires exports at the addresses of a new allocation, and begins its export if there is room.
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

    /// Retires every export that overlaps the allocation: its memory was freed.
    fn retire_overlapping(&mut self, memory: DriverAllocation) {
        while let Some((_, slot)) = self.index.find_overlapping(&(), memory.span) {
            self.end_stale(slot);
        }
    }

    /// Records that an export was created, and returns how its message is sent.
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

    /// Records that an export failed and the driver holds nothing of it. Its message is sent another way.
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

/// Returns those bytes as offsets from the first byte of the whole.
#[inline]
fn offset_span(part: ByteSpan, whole: ByteSpan) -> Option<ByteSpan> {
    ByteSpan::new(part.start().checked_sub(whole.start())?, part.len())
}
