//! Where the records of a mailbox lie (docs/wire.md, "Clear-to-send record" and "Members"): by number for a comm that shares
//! nothing, one behind the other for a member of a group. Set up once for a comm; both ends work it out by themselves.

use crate::limits::{EAGER_CREDITS_MAX, MAILBOX_SLOTS, MEMBER_MAILBOX_BYTES, RANGE_RECVS, RECV_BUFFERS_MAX};
use crate::wire::cts::{BYTES, RecordLines};

/// The layout of a mailbox. All offsets are bytes from where it begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MailboxLayout {
    /// Bytes of a record.
    record: u32,
    /// From the record of a buffer to that of the next one of its receive.
    stride: u32,
    /// By how much each further buffer of a receive puts off the next one.
    further: u32,
    /// Bytes in which first records lie, less one.
    firsts: u32,
    /// Bytes of the mailbox, less one.
    all: u32,
}

impl MailboxLayout {
    /// Of a comm by itself: the place of a receive is its number modulo [`MAILBOX_SLOTS`], and records of first buffers lie
    /// together, because most receives have no other and a mailbox takes a few pages then.
    #[must_use]
    pub const fn for_single_comm(lines: RecordLines) -> Self {
        let record = lines.record_bytes() as u32;
        let stride = record * MAILBOX_SLOTS as u32;
        let all = stride * RECV_BUFFERS_MAX as u32 - 1;
        Self { record, stride, further: 0, firsts: stride - 1, all }
    }

    /// Of a member of a group: a ring, in which records follow each other in the order of receives and their buffers.
    #[must_use]
    pub const fn for_member(lines: RecordLines) -> Self {
        let record = lines.record_bytes() as u32;
        let all = MEMBER_MAILBOX_BYTES as u32 - 1;
        Self { record, stride: record, further: record, firsts: all, all }
    }

    /// Where the first record of the first receive is, if that has this number.
    #[inline]
    #[must_use]
    pub const fn first_offset(self, number: u32) -> u32 {
        number.wrapping_mul(self.record) & self.firsts
    }

    /// Where the first record of a receive is, if the one before, with that many buffers, has its own at `first`.
    #[inline]
    #[must_use]
    pub const fn next(self, first: u32, count: usize) -> u32 {
        (first + self.record + (count as u32 - 1) * self.further) & self.firsts
    }

    /// Where the record of buffer `index` is in a receive whose first one is at `first`.
    #[inline]
    #[must_use]
    pub const fn record_offset(self, first: u32, index: usize) -> u64 {
        ((first + index as u32 * self.stride) & self.all) as u64
    }

    /// Records that have a place.
    #[must_use]
    pub const fn record_count(self) -> u32 {
        (self.all + 1) / self.record
    }

    /// Buffers that a member may have outstanding, counted from the oldest receive that is: all places but those of buffers
    /// that eager messages have filled and the sender has not read of.
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
    fn alone_each_receive_lies_where_its_number_says() {
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
    fn the_records_of_a_member_follow_each_other_around_its_mailbox() {
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
