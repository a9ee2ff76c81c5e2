//! Where the receiving end of a member puts clear-to-send records, and when there is room for more: the sender's mailbox is a
//! ring (docs/wire.md, "Members"), and no record may come to lie over one that the sender may still read.
//!
//! It reads a receive's records until that is done, and until it has read that it is. Of receives that are done and older
//! than all that are not, only those that eager messages filled can be unread, and there are credits for so many. So it is
//! enough to look at what lies between the oldest receive that is outstanding and the end.

use crate::limits::MAILBOX_SLOTS;
use crate::mutant::Mutant;
use crate::wire::cts::Lines;
use crate::wire::layout::Layout;

/// Receives whose places are known: more than may be outstanding or unread.
const KNOWN: usize = MAILBOX_SLOTS;

/// The places of a member's receives.
#[derive(Debug)]
pub struct Ring {
    layout: Layout,
    /// The oldest receive that may be outstanding.
    oldest: u32,
    /// Buffers before each receive, by its number; wrapping.
    before: [u32; KNOWN],
    /// Buffers so far.
    end: u32,
    mutant: Mutant,
}

impl Ring {
    /// For receives from that number on, announced in so many lines.
    #[must_use]
    pub const fn new(number: u32, lines: Lines, mutant: Mutant) -> Self {
        Self { layout: Layout::member(lines), oldest: number, before: [0; KNOWN], end: number, mutant }
    }

    /// Takes places for receive `number`, the next, of `count` buffers; false while one of them may still be read.
    /// `outstanding` tells of a number whether its receive is not done.
    pub fn take(&mut self, number: u32, count: usize, outstanding: impl Fn(u32) -> bool) -> bool {
        while self.oldest != number && !outstanding(self.oldest) {
            self.oldest = self.oldest.wrapping_add(1);
        }
        self.before[number as usize % KNOWN] = self.end;
        let end = self.end.wrapping_add(count as u32);
        let window = match () {
            () if self.mutant.is("ring-forgets-the-unread") => self.layout.records(),
            () if self.mutant.is("ring-has-no-end") => u32::MAX,
            () => self.layout.window(),
        };
        if end.wrapping_sub(self.start(self.oldest)) > window {
            return false;
        }
        self.end = end;
        true
    }

    /// Where the record of a buffer is, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self, number: u32, index: usize) -> u64 {
        let index = if self.mutant.is("ring-piles-buffers") { 0 } else { index };
        self.layout.offset(self.layout.begin(self.start(number)), index)
    }

    /// Buffers before a receive: one of the last [`MAILBOX_SLOTS`].
    #[inline]
    #[must_use]
    pub fn start(&self, number: u32) -> u32 {
        self.before[number as usize % KNOWN]
    }

    /// Whether all places of a receive are still its own; it is one of the last [`MAILBOX_SLOTS`].
    #[must_use]
    pub fn holds(&self, number: u32) -> bool {
        let behind = self.end.wrapping_sub(self.start(number));
        behind <= self.layout.records() || self.mutant.is("ring-holds-what-it-gave-away")
    }

    /// Places there are.
    #[must_use]
    pub const fn records(&self) -> u32 {
        self.layout.records()
    }
}
