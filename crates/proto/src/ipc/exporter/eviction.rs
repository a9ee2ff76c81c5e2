//! Unused exports that are kept, and their eviction when they are too many or too old. After any change of the budget, the kept exports shrink to it
//! as messages end.

use super::MemoryExporter;
use super::counts::{ExportAmount, FallbackReason};
use super::entry::{ExportPin, ExportState};
use crate::limits::EXPORTS_MAX;
use crate::reserve::OutOfMemory;
use crate::slots::SlotId;
use crate::time::Instant;

impl MemoryExporter {
    /// Raises the budget to at least this amount, by either measure, and allocates the tables for it; no other call allocates them. Without memory,
    /// the budget stays, and messages beyond it are sent another way.
    pub fn grow_budget(&mut self, budget: ExportAmount) {
        let most = EXPORTS_MAX - self.config.passing;
        let entries = self.config.budget.entries.max(budget.entries.min(most));
        let places = self.entries.capacity().max(entries + self.config.passing);
        if self.make_places(places).is_ok() {
            let kept = &mut self.config.budget;
            (kept.entries, kept.bytes) = (entries, kept.bytes.max(budget.bytes));
        }
    }

    /// The peers' tables grow first: they may have more places than the exporter.
    fn make_places(&mut self, places: usize) -> Result<(), OutOfMemory> {
        self.peers.iter_mut().try_for_each(|(_, peer)| peer.grow_exports(places))?;
        self.index.reserve_nodes(places)?;
        self.entries.set_capacity(places)
    }

    /// Lowers the budget to at most this amount, by either measure. If one measure is 0, no export is kept and messages are sent another way. Excess
    /// exports are retired, the least recently used first; those that messages use, as soon as the messages are done. Further messages that want such
    /// an export are sent another way meanwhile, so that it ends however closely messages follow each other. Tables keep their size, because the
    /// generations of names are stored in them.
    pub fn shrink_budget(&mut self, budget: ExportAmount) {
        let kept = &mut self.config.budget;
        kept.entries = kept.entries.min(budget.entries);
        kept.bytes = kept.bytes.min(budget.bytes);
        self.evict_over_budget();
        self.let_pass_until(|exporter| exporter.live.fits_within(exporter.config.budget));
    }

    /// Reduces kept exports to at most `bytes` bytes. Retires unused exports first, the least recently used first, then those that messages use, as
    /// soon as the messages are done. The budget stays unchanged.
    pub fn trim_exports(&mut self, bytes: u64) {
        while self.live.bytes > bytes && self.evict_idle() {}
        self.let_pass_until(|exporter| exporter.live.bytes <= bytes);
    }

    /// Marks exports that messages use as passing, until `is_enough` returns true.
    fn let_pass_until(&mut self, is_enough: impl Fn(&Self) -> bool) {
        for slot in 0..self.entries.used_places() as u32 {
            if is_enough(self) {
                return;
            }
            if let Some((id, entry)) = self.entries.entry_at(slot)
                && !entry.passing
                && entry.listed
            {
                self.let_pass(id);
            }
        }
    }

    /// Lets the export of a pin end with its last user, whatever the budget, because its memory was lent for long and the owner wants it back. A
    /// message that requests it meanwhile with `passing` false keeps it, if there is room.
    pub fn let_go(&mut self, pin: &ExportPin) {
        let id = pin.name.slot_id();
        let used = self.entries.get(id).is_some_and(|entry| entry.listed && entry.pins > 0);
        if used {
            self.let_pass(id);
        }
    }

    /// Returns when [`MemoryExporter::poll`] next has work because of time alone.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let first = self.entries.get(self.idle.front()?)?;
        Some(first.used + self.config.idle?)
    }

    /// Retires exports that were unused for the idle limit.
    pub(super) fn expire_idle(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let Some(id) = self.idle.front() else { return };
            self.counts.expired += 1;
            self.retire_at(id.slot);
        }
    }

    /// Makes room for one more export, or returns why there is none.
    pub(super) fn make_room(&mut self, one: ExportAmount, passing: bool) -> Result<(), FallbackReason> {
        let budget = self.config.budget;
        let room = |there: ExportAmount| {
            if there.fits_within(budget) { Ok(()) } else { Err(FallbackReason::NoRoom) }
        };
        match passing {
            _ if self.closing => Err(FallbackReason::Closing),
            true if self.passing.entries >= self.config.passing => Err(FallbackReason::NoRoom),
            true => Ok(()),
            false if budget.is_none() => Err(FallbackReason::Off),
            false if !one.fits_within(budget) => Err(FallbackReason::TooLong),
            false => {
                while !self.live.combined_with(one).fits_within(budget) && self.evict_idle() {}
                room(self.live.combined_with(self.zombies).combined_with(one))
            }
        }
    }

    /// Handles a message that wants to keep an export which ends with its last message: the export is kept from now on, if there is room. Without
    /// room the message may still use it, unless the budget is 0 or the export was requested back.
    pub(super) fn keep_passing(&mut self, id: SlotId) -> Result<(), FallbackReason> {
        let Some(entry) = self.entries.get(id).filter(|entry| entry.passing) else { return Ok(()) };
        let one = self.config.amount_of(entry.memory);
        let asked_back = entry.asked_back;
        let budget = self.config.budget;
        if !self.live.combined_with(self.zombies).combined_with(one).fits_within(budget) {
            let is_off = budget.is_none();
            let shared = !asked_back && !is_off;
            return if shared {
                Ok(())
            } else {
                Err(if is_off { FallbackReason::Off } else { FallbackReason::NoRoom })
            };
        }
        if let Some(entry) = self.entries.get_mut(id) {
            (entry.passing, entry.asked_back) = (false, false);
            self.passing -= one;
            self.live += one;
        }
        Ok(())
    }

    /// Requests back an export in use: it ends with its last message from now on.
    fn let_pass(&mut self, id: SlotId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let one = self.config.amount_of(entry.memory);
        entry.asked_back = true;
        if core::mem::replace(&mut entry.passing, true) {
            return;
        }
        self.live -= one;
        self.passing += one;
    }

    /// Handles the end of the last message that used an export.
    pub(super) fn on_last_unpin(&mut self, id: SlotId, now: Instant) {
        let Some(entry) = self.entries.get_mut(id).filter(|entry| entry.state == ExportState::Live) else {
            return;
        };
        entry.used = now;
        if entry.passing {
            return self.retire_at(id.slot);
        }
        self.idle.push(&mut self.entries, id);
        self.evict_over_budget();
    }

    fn evict_over_budget(&mut self) {
        while !self.live.fits_within(self.config.budget) && self.evict_idle() {}
    }

    /// Retires the least recently used idle export; returns false if there is none.
    fn evict_idle(&mut self) -> bool {
        let Some(id) = self.idle.front() else { return false };
        self.counts.evicted += 1;
        self.retire_at(id.slot);
        true
    }
}
