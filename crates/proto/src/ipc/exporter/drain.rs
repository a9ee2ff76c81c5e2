//! What is asked back, and who goes: memory that is freed, peers that are drained or dead, the exporter itself.

use super::MemoryExporter;
use super::peer::{HoldPhase, ImportingPeerId};
use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::time::Instant;

impl MemoryExporter {
    /// The allocation with that address is asked back, for instance because it will be freed: its export is over. `false` if none has
    /// that address. It is given back when [`MemoryExporter::has_export_of`] says no.
    pub fn release_allocation(&mut self, address: u64) -> bool {
        let Some((_, slot)) =
            ByteSpan::new(address, 1).and_then(|byte| self.index.find_containing(&(), byte))
        else {
            return false;
        };
        self.retire_at(slot);
        true
    }

    /// Whether an allocation with any of those bytes is exported, or was and is not let go by all.
    #[must_use]
    pub fn has_export_of(&self, bytes: ByteSpan) -> bool {
        self.list_exports().any(|export| export.memory.span.overlaps(bytes))
    }

    /// A hook's flag was found set: something was freed, nobody knows what. Every export is asked about ([`ExporterCommand::Query`]), and
    /// those whose memory is gone are over.
    ///
    /// [`ExporterCommand::Query`]: super::ExporterCommand::Query
    pub fn on_memory_freed(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.sweep = 0;
    }

    /// That peer is to let go all that it was told of: what messages to it use, once they are done. Until it has, its messages go
    /// another way; then it may be told again.
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

    /// That peer is dead, or has said BYE: it uses and has nothing any more. Pins for it need not be given back, and may be.
    pub fn remove_peer(&mut self, peer: ImportingPeerId, now: Instant) {
        let Some(left) = self.peers.remove(peer.0) else { return };
        for (slot, toward) in
            left.toward.iter().enumerate().filter(|(_, toward)| toward.held != HoldPhase::No)
        {
            let Some((id, _)) = self.entries.entry_at(slot as u32) else { continue };
            self.forget_holder(id, toward.pins, now);
        }
    }

    /// A peer that was told of it is gone.
    fn forget_holder(&mut self, id: SlotId, pins: u32, now: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.held = entry.held.saturating_sub(1);
        entry.pins = entry.pins.saturating_sub(pins);
        if entry.pins == 0 && pins > 0 {
            self.on_last_unpin(id, now);
        }
        self.unexport_if_unused(id);
    }

    /// Nothing is shared any more, and all exports are over. The rest is as ever, until [`MemoryExporter::is_gone`]; whoever has not let
    /// go by then may be said to be [`MemoryExporter::remove_peer`].
    pub fn close(&mut self) {
        self.closing = true;
        for slot in 0..self.entries.used_places() as u32 {
            self.retire_at(slot);
        }
    }

    /// Whether nothing is left after [`MemoryExporter::close`].
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.closing && self.list_exports().next().is_none()
    }
}
