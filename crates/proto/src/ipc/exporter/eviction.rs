//! What is kept though no message uses it, and what goes when that is too much or too old. Whatever the budget is changed to, what
//! is kept comes down to it as messages are done.

use super::MemoryExporter;
use super::counts::{ExportAmount, FallbackReason};
use super::entry::{ExportPin, ExportState};
use crate::limits::EXPORTS_MAX;
use crate::reserve::OutOfMemory;
use crate::slots::SlotId;
use crate::time::Instant;

impl MemoryExporter {
    /// From now on at least so much may be kept, by either measure. Allocates the memory for that; nothing else does. Without memory for it the
    /// budget stays, and messages beyond it take another way.
    pub fn grow_budget(&mut self, budget: ExportAmount) {
        let most = EXPORTS_MAX - self.config.passing;
        let entries = self.config.budget.entries.max(budget.entries.min(most));
        let places = self.entries.capacity().max(entries + self.config.passing);
        if self.make_places(places).is_ok() {
            let kept = &mut self.config.budget;
            (kept.entries, kept.bytes) = (entries, kept.bytes.max(budget.bytes));
        }
    }

    /// The peers' tables first: they may have more places than there are.
    fn make_places(&mut self, places: usize) -> Result<(), OutOfMemory> {
        self.peers.iter_mut().try_for_each(|(_, peer)| peer.grow_exports(places))?;
        self.index.reserve_nodes(places)?;
        self.entries.set_capacity(places)
    }

    /// From now on at most so much may be kept, by either measure; 0 of one: nothing, and messages go another way. What is beyond
    /// is retired, the least recently used first; what messages use, as soon as they are done, and further ones go another way
    /// meanwhile, so that this comes however closely they follow each other. Tables keep their size, as the generations of names
    /// live in them.
    pub fn shrink_budget(&mut self, budget: ExportAmount) {
        let kept = &mut self.config.budget;
        kept.entries = kept.entries.min(budget.entries);
        kept.bytes = kept.bytes.min(budget.bytes);
        self.evict_over_budget();
        self.let_pass_until(|exporter| exporter.live.fits_within(exporter.config.budget));
    }

    /// Asks memory back: of what is kept, at most so many bytes stay. The least recently used goes first; then what messages use,
    /// as soon as they are done. The budget stays as it is.
    pub fn trim_exports(&mut self, bytes: u64) {
        while self.live.bytes > bytes && self.evict_idle() {}
        self.let_pass_until(|exporter| exporter.live.bytes <= bytes);
    }

    /// Of what messages use, so much goes with the last of them that it is enough.
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

    /// The export of a pin goes with whoever uses it last, however much may be kept: who lent it for long wants it back. Whoever asks for it
    /// meanwhile and wants it kept has it kept, if there is room.
    pub fn let_go(&mut self, pin: &ExportPin) {
        let id = pin.name.slot_id();
        let used = self.entries.get(id).is_some_and(|entry| entry.listed && entry.pins > 0);
        if used {
            self.let_pass(id);
        }
    }

    /// When [`MemoryExporter::poll`] next has something to do by time alone.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let first = self.entries.get(self.idle.front()?)?;
        Some(first.used + self.config.idle?)
    }

    /// What no message has used for long goes.
    pub(super) fn expire_idle(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let Some(id) = self.idle.front() else { return };
            self.counts.expired += 1;
            self.retire_at(id.slot);
        }
    }

    /// Whether there is room for one more.
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

    /// A message that wants it kept finds one that goes with its last message: it is kept from now on, if there is room. Without,
    /// the message may use it all the same; but not if nothing may be kept, or if it was asked back.
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

    /// One that is in use is asked back: it goes with its last message from now on.
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

    /// The last message that used it is done.
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

    /// The least recently used one that no message uses goes, if there is any.
    fn evict_idle(&mut self) -> bool {
        let Some(id) = self.idle.front() else { return false };
        self.counts.evicted += 1;
        self.retire_at(id.slot);
        true
    }
}
