//! News of messages, peers and the driver, and what is to be done next.

use super::counts::FallbackReason;
use super::entry::{ExportPin, ExportState};
use super::memory::DriverAllocation;
use super::peer::{HoldPhase, ImportingPeerId, PeerExport};
use super::{MemoryExporter, NONE};
use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::time::Instant;
use crate::wire::ipc::{CopyOutcome, ExportName, ExportNames, NAMES_MAX};

/// What is to be done, without the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum ExporterCommand {
    /// Give this back to the driver, then say [`MemoryExporter::on_unexported`]. A failure is the caller's to repeat or to bear.
    Unexport(ExportName),
    /// Ask the driver what is there, then say [`MemoryExporter::on_queried`].
    Query(AllocationQuery),
}

/// A question to the driver: whether an export's memory is still there.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AllocationQuery {
    pub(super) name: ExportName,
    pub(super) span: ByteSpan,
    pub(super) epoch: u32,
}

impl AllocationQuery {
    /// The address to ask about: the first byte of an allocation.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.span.start()
    }
}

/// News that cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExporterEventError {
    /// There is no such export, or it stands elsewhere.
    #[error("no export has that name, or it stands elsewhere")]
    NoExport,
    /// There is no such peer any more.
    #[error("the peer is gone")]
    NoPeer,
    /// The peer was not told to let that go.
    #[error("a peer lets go what it was not told to")]
    NotTold,
}

impl MemoryExporter {
    /// A message is done, as its peer says, or will never be. If the peer could not map the memory the message goes again another
    /// way, and some that follow it do, too. Of a dead peer, or one that has left, nothing is left to be given back.
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

    /// One uses it no more.
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

    /// What that peer is to let go, for one message; `None`: nothing. To be asked when there is room for the message.
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

    /// A peer says that it has let these go.
    ///
    /// # Errors
    /// [`ExporterEventError`] if it was not told to let go one of them, or says one twice: then none of it counts, and the peer is broken.
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

    /// What is to be done next. To be asked after any other call, and at [`MemoryExporter::next_deadline`], until there is nothing.
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

    /// The driver has it back: its bytes count no more.
    ///
    /// # Errors
    /// [`ExporterEventError`] if nobody was told to give it back.
    pub fn on_unexported(&mut self, name: ExportName) -> Result<(), ExporterEventError> {
        let entry = self.entries.get(name.slot_id()).filter(|entry| entry.state == ExportState::Ending);
        let Some(entry) = entry else { return Err(ExporterEventError::NoExport) };
        self.zombies -= self.config.amount_of(entry.memory);
        self.remove(name.slot_id());
        Ok(())
    }

    /// What the driver says is at the address of a [`AllocationQuery`]; `None`: nothing. If it is not what was exported, that is over.
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
