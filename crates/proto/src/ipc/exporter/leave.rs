//! What is asked back, and who goes: memory that is freed, peers that are drained or dead, the exporter itself.

use super::Exporter;
use super::peer::{Held, PeerId};
use crate::intervals::Span;
use crate::slots::SlotId;
use crate::time::Instant;

impl Exporter {
    /// The allocation with that address is asked back, for instance because it will be freed: its export is over. `false` if none has
    /// that address. It is given back when [`Exporter::has`] says no.
    pub fn release(&mut self, address: u64) -> bool {
        let Some((_, slot)) = Span::new(address, 1).and_then(|byte| self.index.containing(&(), byte)) else {
            return false;
        };
        if !self.mutant.is("ipc-releases-nothing") {
            self.retire_at(slot);
        }
        true
    }

    /// Whether an allocation with any of those bytes is exported, or was and is not let go by all.
    #[must_use]
    pub fn has(&self, bytes: Span) -> bool {
        self.list().any(|export| export.memory.span.overlaps(bytes))
    }

    /// A hook's flag was found set: something was freed, nobody knows what. Every export is asked about ([`Command::Query`]), and
    /// those whose memory is gone are over.
    ///
    /// [`Command::Query`]: super::Command::Query
    pub fn freed(&mut self) {
        if self.mutant.is("ipc-ignores-the-flag") {
            return;
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.sweep = 0;
    }

    /// That peer is to let go all that it was told of: what messages to it use, once they are done. Until it has, its messages go
    /// another way; then it may be told again.
    pub fn drain(&mut self, peer: PeerId) {
        let nobody = self.mutant.is("ipc-drains-nothing");
        let Some(peer) = self.peers.get_mut(peer.0).filter(|_| !nobody) else { return };
        for slot in 0..peer.toward.len() {
            let toward = &mut peer.toward[slot];
            if toward.held == Held::Announced {
                toward.held = Held::Draining;
                if toward.pins == 0 {
                    peer.dismiss(slot as u32);
                }
            }
        }
    }

    /// That peer is dead, or has said BYE: it uses and has nothing any more. Pins for it need not be given back, and may be.
    pub fn gone(&mut self, peer: PeerId, now: Instant) {
        let Some(left) = self.peers.remove(peer.0) else { return };
        if self.mutant.is("ipc-forgives-nothing") {
            return;
        }
        for (slot, toward) in left.toward.iter().enumerate().filter(|(_, toward)| toward.held != Held::No) {
            let Some((id, _)) = self.entries.at(slot as u32) else { continue };
            self.forgive(id, toward.pins, now);
        }
    }

    /// A peer that was told of it is gone.
    fn forgive(&mut self, id: SlotId, pins: u32, now: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.held = entry.held.saturating_sub(1);
        entry.pins = entry.pins.saturating_sub(pins);
        if entry.pins == 0 && pins > 0 {
            self.rest(id, now);
        }
        self.settle(id);
    }

    /// Nothing is shared any more, and all exports are over. The rest is as ever, until [`Exporter::is_gone`]; whoever has not let
    /// go by then may be said to be [`Exporter::gone`].
    pub fn close(&mut self) {
        self.closing = true;
        for slot in 0..self.entries.places() as u32 {
            self.retire_at(slot);
        }
    }

    /// Whether nothing is left after [`Exporter::close`].
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.closing && self.list().next().is_none()
    }
}
