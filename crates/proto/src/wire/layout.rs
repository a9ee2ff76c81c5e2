//! The offsets of records in a mailbox (docs/wire.md, "Clear-to-send record" and "Members"): by receive number for a comm that shares no links,
//! consecutive for a member of a group. Each comm computes its layout once; both ends compute the same one.

use crate::limits::{EAGER_CREDITS_MAX, MAILBOX_SLOTS, MEMBER_MAILBOX_BYTES, RANGE_RECVS, RECV_BUFFERS_MAX};
use crate::wire::cts::{BYTES, RecordLines};

/// The layout of a mailbox. All offsets are in bytes from its start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MailboxLayout {
    /// Size of a record in bytes.
    record: u32,
    /// Distance in bytes from the record of a buffer to that of the next buffer of its receive.
    stride: u32,
    /// Bytes by which each further buffer of a receive moves the next receive.
    further: u32,
    /// Size in bytes of the area of first records, minus one.
    firsts: u32,
    /// Size of the mailbox in bytes, minus one.
    all: u32,
}

impl MailboxLayout {
    /// Returns the layout of a comm that shares no links. A receive's place is its number modulo [`MAILBOX_SLOTS`]. Records of first buffers are
    /// adjacent, because most receives have one buffer and the mailbox then touches few pages.
    #[must_use]
    pub const fn for_single_comm(lines: RecordLines) -> Self {
        let record = lines.record_bytes() as u32;
        let stride = record * MAILBOX_SLOTS as u32;
        let all = stride * RECV_BUFFERS_MAX as u32 - 1;
        Self { record, stride, further: 0, firsts: stride - 1, all }
    }

    /// Returns the layout of a member of a group: a ring, in which records follow each other in the order of receives and their buffers.
    #[must_use]
    pub const fn for_member(lines: RecordLines) -> Self {
        let record = lines.record_bytes() as u32;
        let all = MEMBER_MAILBOX_BYTES as u32 - 1;
        Self { record, stride: record, further: record, firsts: all, all }
    }

    /// Returns the offset of the first record of the first receive, if that has this number.
    #[inline]
    #[must_use]
    pub const fn first_offset(self, number: u32) -> u32 {
        number.wrapping_mul(self.record) & self.firsts
    }

    /// Returns the offset of the first record of a receive, given `first` and the buffer count of the receive before it.
    #[inline]
    #[must_use]
    pub const fn next(self, first: u32, count: usize) -> u32 {
        (first + self.record + (count as u32 - 1) * self.further) & self.firsts
    }

    /// Returns the offset of the record of buffer `index` in a receive whose first record is at `first`.
    #[inline]
    #[must_use]
    pub const fn record_offset(self, first: u32, index: usize) -> u64 {
        ((first + index as u32 * self.stride) & self.all) as u64
    }

    /// Returns the number of records in the mailbox.
    #[must_use]
    pub const fn record_count(self) -> u32 {
        (self.all + 1) / self.record
    }

    /// Returns how many buffers a member may have outstanding, counted from its oldest outstanding receive. These are all places, except for buffers
    /// that eager messages have filled and whose records the sender has not read.
    #[must_use]
    pub const fn buffer_window(self) -> u32 {
        self.record_count() - EAGER_CREDITS_MAX as u32
    }
}

const _: () = assert!(MEMBER_MAILBOX_BYTES.is_power_of_two());
const _: () = assert!(MailboxLayout::for_member(RecordLines::One).record as usize == BYTES);
const _: () = assert!(MailboxLayout::for_member(RecordLines::Two).buffer_window() as usize >= RANGE_RECVS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cts;

    #[test]
    fn single_comm_slot_follows_from_the_receive_number() {
        for lines in [RecordLines::One, RecordLines::Two] {
            let layout = MailboxLayout::for_single_comm(lines);
            let mut number = u32::MAX - 200;
            let mut first = layout.first_offset(number);
            for count in (1..=RECV_BUFFERS_MAX).cycle().take(500) {
                for index in 0..count {
                    assert_eq!(layout.record_offset(first, index), cts::record_offset(number, index, lines));
                }
                (first, number) = (layout.next(first, count), number.wrapping_add(1));
            }
        }
    }

    #[test]
    fn member_records_wrap_around_its_mailbox() {
        for lines in [RecordLines::One, RecordLines::Two] {
            let layout = MailboxLayout::for_member(lines);
            assert_eq!(layout.record_count() as usize * lines.record_bytes(), MEMBER_MAILBOX_BYTES);
            let mut first = layout.first_offset(1);
            let mut at = lines.record_bytes();
            for count in (1..=RECV_BUFFERS_MAX).cycle().take(500) {
                for index in 0..count {
                    assert_eq!(layout.record_offset(first, index), (at % MEMBER_MAILBOX_BYTES) as u64);
                    at += lines.record_bytes();
                }
                first = layout.next(first, count);
            }
        }
    }
}
