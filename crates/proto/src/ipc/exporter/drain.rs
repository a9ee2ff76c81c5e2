//! Releases on request: of memory that will be freed, of peers that drain or end, and of the whole exporter.

use super::MemoryExporter;
use super::peer::{HoldPhase, ImportingPeerId};
use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::time::Instant;

impl MemoryExporter {
    /// Retires the export of the allocation that contains the address, for instance because it will be freed. Returns false if no export contains it.
    /// The release is complete when [`MemoryExporter::has_export_of`] returns false.
    pub fn release_allocation(&mut self, address: u64) -> bool {
        let Some((_, slot)) =
            ByteSpan::new(address, 1).and_then(|byte| self.index.find_containing(&(), byte))
        else {
            return false;
        };
        self.retire_at(slot);
        true
    }

    /// Returns whether an allocation with any of those bytes is exported, or was and is not released by all peers.
    #[must_use]
    pub fn has_export_of(&self, bytes: ByteSpan) -> bool {
        self.list_exports().any(|export| export.memory.span.overlaps(bytes))
    }

    /// Handles a free hook's flag: some memory was freed. [`MemoryExporter::poll`] then returns an [`ExporterCommand::Query`] for every export, and
    /// exports of freed memory are retired.
    ///
    /// [`ExporterCommand::Query`]: super::ExporterCommand::Query
    pub fn on_memory_freed(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.sweep = 0;
    }

    /// Makes a peer release all exports that were announced to it; those that messages to it use, once the messages are done. Until then, messages to
    /// the peer that need them are sent another way. Afterwards they may be announced again.
    pub fn drain_peer(&mut self, peer: ImportingPeerId) {
        let Some(peer) = self.peers.get_mut(peer.0) else { return };
        for slot in 0..peer.toward.len() {
            let toward = &mut peer.toward[slot];
            if toward.held == HoldPhase::Announced {
                toward.held = HoldPhase::Draining;
                if toward.pins == 0 {
                    peer.queue_retire(slot as u32);
                }
            }
        }
    }

    /// Removes a peer that is dead or has sent BYE, with everything that it used or held. Its pins may be returned, but need not be.
    pub fn remove_peer(&mut self, peer: ImportingPeerId, now: Instant) {
        let Some(left) = self.peers.remove(peer.0) else { return };
        for (slot, toward) in
            left.toward.iter().enumerate().filter(|(_, toward)| toward.held != HoldPhase::No)
        {
            let Some((id, _)) = self.entries.entry_at(slot as u32) else { continue };
            self.forget_holder(id, toward.pins, now);
        }
    }

    /// Removes a peer from the holders of an export.
    fn forget_holder(&mut self, id: SlotId, pins: u32, now: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.held = entry.held.saturating_sub(1);
        entry.pins = entry.pins.saturating_sub(pins);
        if entry.pins == 0 && pins > 0 {
            self.on_last_unpin(id, now);
        }
        self.unexport_if_unused(id);
    }

    /// Stops sharing and retires all exports. Other calls continue as before, until [`MemoryExporter::is_gone`]. Peers that have not released
    /// everything by then may be removed with [`MemoryExporter::remove_peer`].
    pub fn close(&mut self) {
        self.closing = true;
        for slot in 0..self.entries.used_places() as u32 {
            self.retire_at(slot);
        }
    }

    /// Returns whether no export is left after [`MemoryExporter::close`].
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.closing && self.list_exports().next().is_none()
    }
}
