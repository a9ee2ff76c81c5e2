//! The end of an export: lookups do not find it, its peers release it, and then the driver ends it.

use super::MemoryExporter;
use super::entry::{ExportEntry, ExportState};
use super::peer::HoldPhase;
use crate::slots::SlotId;

impl MemoryExporter {
    /// Hides an export from lookups; it ends once no message uses it and no peer holds it.
    pub(super) fn retire_at(&mut self, slot: u32) {
        let Some((id, entry)) = self.entries.entry_at(slot).filter(|(_, entry)| entry.listed) else { return };
        let idle = entry.is_idle();
        let live = entry.state == ExportState::Live;
        self.unlist_export(id);
        if idle {
            self.idle.unlink_entry(&mut self.entries, id);
        }
        // An export that is being created is retired when its caller reports the result.
        if live {
            self.begin_retiring(id);
        }
    }

    /// Retires an export whose memory has changed.
    pub(super) fn end_stale(&mut self, slot: u32) {
        self.counts.stale += 1;
        self.retire_at(slot);
    }

    pub(super) fn unlist_export(&mut self, id: SlotId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if !core::mem::take(&mut entry.listed) {
            return;
        }
        let span = entry.memory.span;
        self.index.remove(&(), span);
        if self.recent.is_some_and(|recent| recent.name.slot_id() == id) {
            self.recent = None;
        }
    }

    /// Retires a live export that is in no queue: peers that know it have to release it, once no message uses it there.
    pub(super) fn begin_retiring(&mut self, id: SlotId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let one = self.config.amount_of(entry.memory);
        entry.state = ExportState::Retiring;
        if entry.passing {
            self.passing -= one
        } else {
            self.live -= one
        }
        self.zombies += one;
        if entry.held > 0 {
            for (_, peer) in self.peers.iter_mut() {
                let toward = peer.toward.get(id.slot as usize).copied().unwrap_or_default();
                let told = matches!(toward.held, HoldPhase::Announced | HoldPhase::Draining);
                if told && toward.pins == 0 {
                    peer.queue_retire(id.slot);
                }
            }
        }
        self.unexport_if_unused(id);
    }

    /// Queues a retired export for the driver, if no message uses it and no peer holds it.
    pub(super) fn unexport_if_unused(&mut self, id: SlotId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if entry.state == ExportState::Retiring && entry.pins == 0 && entry.held == 0 {
            entry.state = ExportState::Leaving;
            self.leaving.push(&mut self.entries, id);
        }
    }

    /// Removes an export. A slot that has used all generations stays occupied, so that no name occurs twice.
    pub(super) fn remove(&mut self, id: SlotId) {
        if id.generation != u32::MAX {
            self.entries.remove(id);
        } else if let Some(entry) = self.entries.get_mut(id) {
            entry.state = ExportState::Spent;
        }
    }

    /// Returns the first export from a slot on that a lookup finds and `is` accepts.
    pub(super) fn find_listed(&self, from: u32, is: impl Fn(&ExportEntry) -> bool) -> Option<SlotId> {
        let mut places =
            (from..self.entries.used_places() as u32).filter_map(|slot| self.entries.entry_at(slot));
        places.find(|(_, entry)| entry.listed && is(entry)).map(|(id, _)| id)
    }
}
