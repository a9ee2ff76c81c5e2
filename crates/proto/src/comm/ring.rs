//! Where the receiving end of a member puts clear-to-send records, and when there is room for more: the sender's mailbox is a
//! ring (docs/wire.md, "Members"), and no record may come to lie over one that the sender may still read.
//!
//! It reads a receive's records until that is done, and until it has read that it is. Of receives that are done and older
//! than all that are not, only those that eager messages filled can be unread, and there are credits for so many. So it is
//! enough to look at what lies between the oldest receive that is outstanding and the end.

use crate::limits::{MAILBOX_SLOTS, RANGE_RECVS};
use crate::wire::cts::RecordLines;
use crate::wire::layout::MailboxLayout;

/// Receives whose places are known: more than may be outstanding or unread.
const KNOWN: usize = MAILBOX_SLOTS;

/// The places of a member's receives.
#[derive(Debug)]
pub struct CtsRing {
    layout: MailboxLayout,
    /// The oldest receive that may be outstanding, as far as that was asked.
    oldest: u32,
    /// The end up to which places are free for as long as nobody asks again.
    free: u32,
    /// Buffers before each receive, by its number; wrapping.
    before: [u32; KNOWN],
    /// Buffers so far.
    end: u32,
}

impl CtsRing {
    /// For receives from that number on, announced in so many lines.
    #[must_use]
    pub const fn new(number: u32, lines: RecordLines) -> Self {
        let layout = MailboxLayout::for_member(lines);
        // Asked with the first receive.
        Self { layout, oldest: number, free: number, before: [0; KNOWN], end: number }
    }

    /// Takes places for receive `number`, the next, of `count` buffers; false while one of them may still be read.
    /// `outstanding` tells of a number whether its receive is not done; none is that is [`RANGE_RECVS`] older or more.
    #[inline]
    pub fn reserve_places(&mut self, number: u32, count: usize, outstanding: impl Fn(u32) -> bool) -> bool {
        self.before[number as usize % KNOWN] = self.end;
        let end = self.end.wrapping_add(count as u32);
        // Whose place is free beyond doubt need not be asked about.
        if self.is_beyond(end) {
            self.forget_done(number, outstanding);
            if self.is_beyond(end) {
                return false;
            }
        }
        self.end = end;
        true
    }

    /// Whether there is no room, as far as is known, up to that end.
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

    /// Where the record of a buffer is, in bytes.
    #[inline]
    #[must_use]
    pub fn record_offset(&self, number: u32, index: usize) -> u64 {
        self.layout.record_offset(self.layout.first_offset(self.buffers_before(number)), index)
    }

    /// Buffers before a receive: one of the last [`MAILBOX_SLOTS`].
    #[inline]
    #[must_use]
    pub fn buffers_before(&self, number: u32) -> u32 {
        self.before[number as usize % KNOWN]
    }

    /// Whether all places of a receive are still its own; it is one of the last [`MAILBOX_SLOTS`].
    #[must_use]
    pub fn holds_receive(&self, number: u32) -> bool {
        let behind = self.end.wrapping_sub(self.buffers_before(number));
        behind <= self.layout.record_count()
    }

    /// Places there are.
    #[must_use]
    pub const fn record_capacity(&self) -> u32 {
        self.layout.record_count()
    }
}
