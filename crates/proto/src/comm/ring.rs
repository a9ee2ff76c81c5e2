//! The places of clear-to-send records that the receiving end of a member writes, and whether there is room for more. The sender's
//! mailbox is a ring (docs/wire.md, "Members"), and no record may overwrite one that the sender may still read. The message receiver
//! calls it; it writes nothing itself.
//!
//! The sender may read the records of a receive until the receive is done and the sender has read them. Consider the receives that
//! are done and older than all outstanding ones. Among these, only receives that eager messages filled can be unread, and credits limit
//! their number. So the check needs only the distance between the oldest outstanding receive and the end of the ring.

use crate::limits::{MAILBOX_SLOTS, RANGE_RECVS};
use crate::wire::cts::RecordLines;
use crate::wire::layout::MailboxLayout;

/// Receives whose places are kept: more than can be outstanding or unread.
const KNOWN: usize = MAILBOX_SLOTS;

/// The places of a member's receives.
#[derive(Debug)]
pub struct CtsRing {
    layout: MailboxLayout,
    /// The oldest receive that may be outstanding, as of the last check.
    oldest: u32,
    /// The end up to which places are free, as of the last check.
    free: u32,
    /// Buffers before each receive, by its number; wrapping.
    before: [u32; KNOWN],
    /// Buffers of all receives so far; wrapping.
    end: u32,
}

impl CtsRing {
    /// Returns the places for receives from `number` on, whose records have `lines` lines each.
    #[must_use]
    pub const fn new(number: u32, lines: RecordLines) -> Self {
        let layout = MailboxLayout::for_member(lines);
        // The first receive makes the first check.
        Self { layout, oldest: number, free: number, before: [0; KNOWN], end: number }
    }

    /// Reserves places for receive `number`, the next one, of `count` buffers; false while the sender may still read one of the places.
    /// `outstanding` returns whether the receive of a number is not done. It is false for each that is [`RANGE_RECVS`] or more older.
    #[inline]
    pub fn reserve_places(&mut self, number: u32, count: usize, outstanding: impl Fn(u32) -> bool) -> bool {
        self.before[number as usize % KNOWN] = self.end;
        let end = self.end.wrapping_add(count as u32);
        // The places that are free as of the last check need no further check.
        if self.is_beyond(end) {
            self.forget_done(number, outstanding);
            if self.is_beyond(end) {
                return false;
            }
        }
        self.end = end;
        true
    }

    /// Whether there is no room up to that end, as of the last check.
    #[inline]
    fn is_beyond(&self, end: u32) -> bool {
        self.free.wrapping_sub(end).cast_signed() < 0
    }

    #[cold]
    #[inline(never)]
    fn forget_done(&mut self, number: u32, outstanding: impl Fn(u32) -> bool) {
        let behind = number.wrapping_sub(self.oldest).min(RANGE_RECVS as u32 - 1);
        self.oldest = number.wrapping_sub(behind);
        while self.oldest != number && !outstanding(self.oldest) {
            self.oldest = self.oldest.wrapping_add(1);
        }
        self.free = self.buffers_before(self.oldest).wrapping_add(self.layout.buffer_window());
    }

    /// Returns the byte offset of a buffer's record.
    #[inline]
    #[must_use]
    pub fn record_offset(&self, number: u32, index: usize) -> u64 {
        self.layout.record_offset(self.layout.first_offset(self.buffers_before(number)), index)
    }

    /// Buffers of all receives before this one, which must be one of the last [`MAILBOX_SLOTS`].
    #[inline]
    #[must_use]
    pub fn buffers_before(&self, number: u32) -> u32 {
        self.before[number as usize % KNOWN]
    }

    /// Whether no later receive has reused a place of this receive, which must be one of the last [`MAILBOX_SLOTS`].
    #[must_use]
    pub fn holds_receive(&self, number: u32) -> bool {
        let behind = self.end.wrapping_sub(self.buffers_before(number));
        behind <= self.layout.record_count()
    }

    /// Number of places in the ring.
    #[must_use]
    pub const fn record_capacity(&self) -> u32 {
        self.layout.record_count()
    }
}
