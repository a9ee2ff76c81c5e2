//! Events of messages, peers and the driver, and the commands that follow.

use super::counts::FallbackReason;
use super::entry::{ExportPin, ExportState};
use super::memory::DriverAllocation;
use super::peer::{HoldPhase, ImportingPeerId, PeerExport};
use super::{MemoryExporter, NONE};
use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::time::Instant;
use crate::wire::ipc::{CopyOutcome, ExportName, ExportNames, NAMES_MAX};

/// A command that the caller executes without the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum ExporterCommand {
    /// Return the export to the driver, then call [`MemoryExporter::on_unexported`]. The caller handles a failure: it repeats the call or gives up.
    Unexport(ExportName),
    /// Query the driver for the allocation, then call [`MemoryExporter::on_queried`].
    Query(AllocationQuery),
}

/// A query of the driver: whether an export's memory still exists.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AllocationQuery {
    pub(super) name: ExportName,
    pub(super) span: ByteSpan,
    pub(super) epoch: u32,
}

impl AllocationQuery {
    /// Returns the address to query: the first byte of an allocation.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.span.start()
    }
}

/// An event is invalid; the exporter is unchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExporterEventError {
    /// No such export exists, or it is in another state.
    #[error("no export has that name, or it is in another state")]
    NoExport,
    /// The peer has been removed.
    #[error("the peer was removed")]
    NoPeer,
    /// The peer released an export that it was not requested to release.
    #[error("a peer released an export that it was not requested to release")]
    NotTold,
}

impl MemoryExporter {
    /// Ends a message: its peer reported an outcome, or never will. If the peer could not map the memory, this message and some later ones are sent
    /// another way. Does nothing for a peer that is dead or has left.
    pub fn finish_message(&mut self, pin: ExportPin, outcome: CopyOutcome, now: Instant) {
        let id = pin.name.slot_id();
        if outcome == CopyOutcome::NotMapped {
            self.counts.fall_back(FallbackReason::NotMapped);
        }
        let Some(peer) = self.peers.get_mut(pin.peer.0) else { return };
        let Some(toward) = peer.toward.get_mut(id.slot as usize) else { return };
        match outcome {
            CopyOutcome::NotMapped => toward.on_map_failed(),
            CopyOutcome::Copied => toward.on_map_succeeded(),
            CopyOutcome::Ended => {}
        }
        toward.pins = toward.pins.saturating_sub(1);
        let over = self.entries.get(id).is_none_or(|entry| entry.state != ExportState::Live);
        let goes = toward.held == HoldPhase::Draining || toward.held == HoldPhase::Announced && over;
        if toward.pins == 0 && goes {
            peer.queue_retire(id.slot);
        }
        self.unpin_export(id, now);
    }

    /// Removes one user of an export.
    pub(super) fn unpin_export(&mut self, id: SlotId, now: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let was = entry.pins;
        entry.pins = was.saturating_sub(1);
        if was == 0 {
            return;
        }
        if entry.pins == 0 {
            self.on_last_unpin(id, now);
            self.unexport_if_unused(id);
        }
    }

    /// Returns names that the peer has to retire, for one message; `None` if there are none. Call it when there is room for the message.
    pub fn take_due_names(&mut self, peer: ImportingPeerId) -> Option<ExportNames> {
        let peer = self.peers.get_mut(peer.0)?;
        let first = ExportName::new(self.entries.entry_at(*peer.due.front()?)?.0)?;
        let mut names = [first; NAMES_MAX];
        let mut len = 0;
        while let Some(&slot) = peer.due.front()
            && let Some(place) = names.get_mut(len)
        {
            peer.due.pop_front();
            *place = self.entries.entry_at(slot).and_then(|(id, _)| ExportName::new(id)).unwrap_or(first);
            len += 1;
            if let Some(toward) = peer.toward.get_mut(slot as usize) {
                toward.held = HoldPhase::Told;
            }
        }
        ExportNames::new(names.get(..len)?)
    }

    /// Records that a peer has released these exports.
    ///
    /// # Errors
    /// [`ExporterEventError`] if the peer was not requested to release one of them, or lists one twice. Then none counts, and the peer is to be
    /// treated as broken.
    pub fn on_retired(
        &mut self,
        peer: ImportingPeerId,
        names: &ExportNames,
    ) -> Result<(), ExporterEventError> {
        let Some(known) = self.peers.get(peer.0) else { return Err(ExporterEventError::NoPeer) };
        let told = |name: &ExportName| {
            let toward = known.toward.get(name.slot_id().slot as usize);
            self.entries.get(name.slot_id()).is_some()
                && toward.is_some_and(|toward| toward.held == HoldPhase::Told)
        };
        let twice = |(at, name): (usize, &ExportName)| names.get()[..at].contains(name);
        if !names.get().iter().all(told) || names.get().iter().enumerate().any(twice) {
            return Err(ExporterEventError::NotTold);
        }
        for name in names.get() {
            let id = name.slot_id();
            let Some(toward) =
                self.peers.get_mut(peer.0).and_then(|peer| peer.toward.get_mut(id.slot as usize))
            else {
                continue;
            };
            *toward = PeerExport::default();
            if let Some(entry) = self.entries.get_mut(id) {
                entry.held = entry.held.saturating_sub(1);
            }
            self.unexport_if_unused(id);
        }
        Ok(())
    }

    /// Returns the next command. Call it after any other call, and at [`MemoryExporter::next_deadline`], until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<ExporterCommand> {
        self.expire_idle(now);
        if let Some(id) = self.leaving.front() {
            self.leaving.unlink_entry(&mut self.entries, id);
            self.entries.get_mut(id)?.state = ExportState::Ending;
            return Some(ExporterCommand::Unexport(ExportName::new(id)?));
        }
        let epoch = self.epoch;
        let Some(id) = self.find_listed(self.sweep, |entry| entry.checked != epoch) else {
            self.sweep = NONE;
            return None;
        };
        self.sweep = id.slot + 1;
        let span = self.entries.get(id)?.memory.span;
        Some(ExporterCommand::Query(AllocationQuery { name: ExportName::new(id)?, span, epoch }))
    }

    /// Records that the driver has ended an export: its bytes no longer count.
    ///
    /// # Errors
    /// [`ExporterEventError`] if no [`ExporterCommand::Unexport`] was returned for it.
    pub fn on_unexported(&mut self, name: ExportName) -> Result<(), ExporterEventError> {
        let entry = self.entries.get(name.slot_id()).filter(|entry| entry.state == ExportState::Ending);
        let Some(entry) = entry else { return Err(ExporterEventError::NoExport) };
        self.zombies -= self.config.amount_of(entry.memory);
        self.remove(name.slot_id());
        Ok(())
    }

    /// Takes the driver's answer to an [`AllocationQuery`]; `None` if no allocation has the address. The export is retired unless the answer is the
    /// exported allocation.
    pub fn on_queried(&mut self, query: AllocationQuery, now_there: Option<DriverAllocation>) {
        let Some(entry) = self.entries.get_mut(query.name.slot_id()).filter(|entry| entry.listed) else {
            return;
        };
        if now_there == Some(entry.memory) {
            entry.checked = query.epoch;
            return;
        }
        self.end_stale(query.name.slot_id().slot);
    }
}
