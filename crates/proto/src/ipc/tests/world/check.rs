//! The invariants of a world: after each step, at rest, and at the end. Also the hash that distinguishes worlds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::vec::Vec;

use super::{Held, IDLE, ImportingPeerId, Steps, World};
use crate::ipc::exporter::{ExportAmount, ExportState};

impl World {
    /// Checks the invariants that hold at any time.
    pub(super) fn check(&self) {
        if !self.alive {
            return;
        }
        let usage = self.exporter.usage();
        let exported = self.exports.iter().map(|(_, memory)| memory.span.len());
        let coming = self.exporting.iter().map(|one| one.export.allocation().span.len());
        let there = usage.live.combined_with(usage.passing).combined_with(usage.zombies);
        let expected = ExportAmount {
            entries: self.exports.len() + self.exporting.len(),
            bytes: exported.chain(coming).sum(),
        };
        assert_eq!(there, expected, "{usage:?}");
        let budget = self.exporter.config().budget;
        assert!(usage.live.fits_within(budget), "{usage:?} with a budget of {budget:?}");
        let live: Vec<_> =
            self.exporter.list_exports().filter(|export| export.state == ExportState::Live).collect();
        for (at, export) in live.iter().enumerate() {
            let other = live[..at].iter().find(|other| other.memory.span.overlaps(export.memory.span));
            assert!(other.is_none(), "{export:?} and {other:?} are both live");
        }
        for (name, _) in &self.exports {
            let holders: Vec<_> = self.exporter.export_holders(*name).collect();
            for peer in self.peers.iter().filter(|peer| peer.alive && !peer.gone) {
                let uses = self.sending.iter().filter(|one| one.pin.export_name() == *name);
                let uses = uses.filter(|one| self.peers[one.peer].id == peer.id).count() as u32;
                let known = holders.iter().find(|(holder, _)| *holder == peer.id);
                let is_mapped = peer.held.iter().any(|held| held.mapping.name == *name);
                assert!(
                    known.is_some() || !is_mapped,
                    "{name:?} is mapped, but neither end has an entry of it"
                );
                assert_eq!(known.map_or(0, |(_, pins)| *pins), uses, "messages that use {name:?}");
            }
        }
        for peer in self.peers.iter().filter(|peer| peer.alive) {
            let pins = peer.importer.source_usage(peer.source).pins;
            assert_eq!(pins, peer.operations.len() as u64, "messages that use anything");
        }
    }

    /// Checks the invariants that hold without pending steps: no message is pending.
    pub(in super::super) fn check_at_rest(&self) {
        if !self.alive {
            return;
        }
        let usage = self.exporter.usage();
        assert_eq!(
            (usage.zombies, usage.passing),
            (ExportAmount::NONE, ExportAmount::NONE),
            "{usage:?}, but no message uses an export"
        );
        assert_eq!(usage.idle, usage.live.entries, "{usage:?}, but no message uses an export");
        let off = self.exporter.config().budget.is_none();
        assert!(!off || usage.live == ExportAmount::NONE, "{usage:?} with a budget of 0");
        let hooked = self.setup.hooked && !self.freed;
        for peer in self.peers.iter().filter(|peer| peer.alive && hooked) {
            let there = |held: &&Held| self.buffers.iter().flatten().any(|memory| memory.id == held.id);
            let gone = peer.held.iter().find(|held| !there(held));
            assert!(gone.is_none(), "{gone:?} is still mapped after it was freed");
        }
    }

    /// Hashes the final state and the events, without names and without the order of events.
    pub(in super::super) fn outcome(&self) -> u64 {
        let place = |id: ImportingPeerId| self.peers.iter().position(|peer| peer.id == id);
        let mut exports = Vec::new();
        for export in self.exporter.list_exports() {
            let mut holders: Vec<_> =
                self.exporter.export_holders(export.name).map(|(peer, pins)| (place(peer), pins)).collect();
            holders.sort_unstable();
            exports.push((export.memory.id, export.state, export.passing, export.pins, holders));
        }
        exports.sort_unstable_by_key(|export| export.0);
        let mut hasher = DefaultHasher::new();
        (exports, self.exporter.usage(), &self.buffers, self.alive, self.now).hash(&mut hasher);
        for peer in &self.peers {
            let mut held: Vec<_> =
                peer.held.iter().map(|held| (held.id, held.mapping.place, held.address)).collect();
            held.sort_unstable();
            (held, peer.importer.source_usage(peer.source), peer.alive, peer.gone).hash(&mut hasher);
        }
        let Steps { copied, fallbacks, opens, exports } = self.steps;
        (copied, fallbacks, opens, exports, self.sent).hash(&mut hasher);
        hasher.finish()
    }

    /// Executes all pending steps; then frees all memory, lets time pass, and checks that nothing is left.
    pub(in super::super) fn finish(mut self) {
        let mut steps = 0;
        let mut last = false;
        loop {
            while let Some(&step) = self.pending().first() {
                self.step(step);
                steps += 1;
                assert!(steps < 100_000, "the pending steps do not end: {step:?}");
            }
            if last {
                break;
            }
            assert!(self.exporting.is_empty());
            for (at, peer) in self.peers.iter().enumerate() {
                assert!(!peer.alive || peer.operations.is_empty(), "{:?} wait at {at}", peer.operations);
                let sends = self.sending.iter().any(|one| one.peer == at && self.alive && peer.alive);
                assert!(!sends, "{:?} are not done", self.sending);
            }
            self.buffers.fill(None);
            self.now = self.now + IDLE;
            self.go_on();
            last = true;
        }
        for peer in self.peers.iter().filter(|peer| peer.alive) {
            assert_eq!(peer.held.len(), 0, "{:?}", peer.held);
            assert!(peer.importer.source_usage(peer.source).mappings == 0);
            assert!(self.alive && !peer.leaving || peer.importer.is_gone(peer.source));
        }
        if self.alive {
            assert_eq!(self.exports, []);
            self.exporter.close();
            assert!(self.exporter.is_gone());
        }
    }

    /// Returns a hash that is equal for worlds with the same possible futures.
    pub(in super::super) fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.exporter.print(&mut hasher);
        (self.alive, self.now, self.allocations, self.freed, &self.buffers).hash(&mut hasher);
        (&self.exporting, &self.exports, &self.sending).hash(&mut hasher);
        for peer in &self.peers {
            (peer.alive, peer.leaving, peer.said, peer.gone, &peer.operations, &peer.opening, &peer.held)
                .hash(&mut hasher);
            (&peer.references, &peer.handles, &peer.opened).hash(&mut hasher);
            for message in peer.announcements.iter().chain(&peer.answers) {
                message.to_bytes().hash(&mut hasher);
            }
            peer.importer.print(&mut hasher);
        }
        hasher.finish()
    }
}
