//! What is kept though nobody uses it, and what goes when that is too much. Whatever the limits are changed to, no more is idle
//! than they allow once the call returns.

use super::Registrations;
use super::ask::{AskError, Asked};
use super::entry::{EntryId, State};
use crate::limits::REGISTRATIONS_MAX;

/// How much may be kept that nobody uses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Idle {
    /// Bytes of all of them. One that is longer alone is not kept; 0: none is.
    pub bytes: u64,
    /// How many; 0: none is kept.
    pub entries: usize,
}

impl Idle {
    /// Nothing is kept: what nobody uses is closed at once.
    pub const NONE: Self = Self { bytes: 0, entries: 0 };
}

impl Registrations {
    /// From now on so much may be kept that nobody uses; what is beyond is to be closed.
    pub fn set_idle(&mut self, idle: Idle) {
        self.config.idle = idle;
        if !self.mutant.is("registrations-stay-over-budget") {
            self.trim();
        }
    }

    /// From now on there may be so many registrations. Idle ones that are beyond are to be closed, those in use as soon as
    /// they are not.
    pub fn set_entries(&mut self, entries: usize) {
        self.config.entries = entries;
        self.trim();
    }

    /// Registrations that there may be.
    pub(super) fn limit(&self) -> usize {
        self.config.entries.min(REGISTRATIONS_MAX)
    }

    /// Nobody uses it any more.
    pub(super) fn rest(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id.0) else { return };
        if !entry.listed || entry.span.len() > self.config.idle.bytes {
            return self.leave(id);
        }
        self.idle_bytes += entry.span.len();
        self.idle.push(&mut self.entries, id.0);
        self.trim();
    }

    /// An idle one is not idle any more.
    pub(super) fn unrest(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id.0) else { return };
        self.idle_bytes -= entry.span.len();
        self.idle.take(&mut self.entries, id.0);
    }

    /// It is to be closed: nobody uses it, and it is in no queue.
    pub(super) fn leave(&mut self, id: EntryId) {
        if !self.mutant.is("registrations-find-the-closing") {
            self.unlist(id);
        }
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        entry.state = State::Leaving;
        self.leaving.push(&mut self.entries, id.0);
        self.closing += 1;
    }

    /// Idle ones go, the least recently used first, until there are no more than may be.
    fn trim(&mut self) {
        while self.is_over() && self.evict() {}
    }

    fn is_over(&self) -> bool {
        let idle = self.config.idle;
        let kept = self.idle.len() > idle.entries || self.idle_bytes > idle.bytes;
        kept || self.entries.len() - self.closing > self.limit()
    }

    /// The least recently used idle one goes, if there is any.
    fn evict(&mut self) -> bool {
        let recent = self.mutant.is("registrations-push-out-the-recent");
        let id = if recent { self.idle.back() } else { self.idle.front() };
        let Some(id) = id.map(EntryId) else { return false };
        self.unrest(id);
        self.leave(id);
        self.counts.evicted += 1;
        true
    }

    /// There is no room for one more.
    pub(super) fn make_room(&mut self) -> Result<Asked, AskError> {
        if self.mutant.is("registrations-evict-pinned") && self.idle.front().is_none() {
            let any = self.entries.iter().find(|(_, entry)| entry.state == State::Ready).map(|(id, _)| id);
            any.into_iter().for_each(|id| self.leave(EntryId(id)));
        }
        // One at a time: while a NIC closes one, those who need room come back.
        if self.closing > 0 || self.evict() { Ok(Asked::Later) } else { Err(AskError::Full(self.limit())) }
    }
}
