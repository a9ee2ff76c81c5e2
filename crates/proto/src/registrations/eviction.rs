//! What is kept though nobody uses it, and what goes when that is too much. Whatever the limits are changed to, no more is idle
//! than they allow once the call returns.

use super::PinDownCache;
use super::entry::{EntryId, RegistrationPhase};
use super::lookup::{RegistrationError, RegistrationLookup};
use crate::limits::REGISTRATIONS_MAX;

/// How much may be kept that nobody uses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct IdleLimit {
    /// Bytes of all of them. One that is longer alone is not kept; 0: none is.
    pub bytes: u64,
    /// How many; 0: none is kept.
    pub entries: usize,
}

impl IdleLimit {
    /// Nothing is kept: what nobody uses is closed at once.
    pub const NONE: Self = Self { bytes: 0, entries: 0 };
}

impl PinDownCache {
    /// From now on so much may be kept that nobody uses; what is beyond is to be closed.
    pub fn set_idle(&mut self, idle: IdleLimit) {
        self.config.idle = idle;
        self.trim_idle();
    }

    /// From now on there may be so many registrations. Idle ones that are beyond are to be closed, those in use as soon as
    /// they are not.
    pub fn set_entries(&mut self, entries: usize) {
        self.config.entries = entries;
        self.trim_idle();
    }

    /// Registrations that there may be.
    pub(super) fn entry_limit(&self) -> usize {
        self.config.entries.min(REGISTRATIONS_MAX)
    }

    /// Nobody uses it any more.
    pub(super) fn make_idle(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id.0) else { return };
        if !entry.listed || entry.span.len() > self.config.idle.bytes {
            return self.queue_close(id);
        }
        self.idle_bytes += entry.span.len();
        self.idle.push(&mut self.entries, id.0);
        self.trim_idle();
    }

    /// An idle one is not idle any more.
    pub(super) fn remove_idle(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id.0) else { return };
        self.idle_bytes -= entry.span.len();
        self.idle.unlink_entry(&mut self.entries, id.0);
    }

    /// It is to be closed: nobody uses it, and it is in no queue.
    pub(super) fn queue_close(&mut self, id: EntryId) {
        self.unlist_entry(id);
        let Some(entry) = self.entries.get_mut(id.0) else { return };
        entry.state = RegistrationPhase::Leaving;
        self.leaving.push(&mut self.entries, id.0);
        self.closing += 1;
    }

    /// Idle ones go, the least recently used first, until there are no more than may be.
    fn trim_idle(&mut self) {
        while self.is_over() && self.evict_oldest() {}
    }

    fn is_over(&self) -> bool {
        let idle = self.config.idle;
        let kept = self.idle.len() > idle.entries || self.idle_bytes > idle.bytes;
        kept || self.entries.len() - self.closing > self.entry_limit()
    }

    /// The least recently used idle one goes, if there is any.
    fn evict_oldest(&mut self) -> bool {
        let Some(id) = self.idle.front().map(EntryId) else { return false };
        self.remove_idle(id);
        self.queue_close(id);
        self.counts.evicted += 1;
        true
    }

    /// There is no room for one more.
    pub(super) fn make_room(&mut self) -> Result<RegistrationLookup, RegistrationError> {
        // One at a time: while a NIC closes one, those who need room come back.
        if self.closing > 0 || self.evict_oldest() {
            Ok(RegistrationLookup::Later)
        } else {
            Err(RegistrationError::Full(self.entry_limit()))
        }
    }
}
