//! Post boxes: requests and replies between executors about memory of a device that no network reaches. The bytes arrive in host memory beside it,
//! and the owner copies them to the device when it is requested to. A request carries a check, because it may be read while it is written. Layout:
//! "Windows", post boxes, of docs/wire.md.

use super::layout::LINE_BYTES;
use super::status::EntryStatus;
use crate::rma::atomic::AtomicAction;

/// Most requests of one rank to another rank that may be pending.
pub const POST_PLACES: u64 = 16;

/// Size of a request in bytes.
pub const REQUEST_BYTES: u64 = 64;

/// Size of a reply in bytes.
pub const REPLY_BYTES: u64 = 32;

const REQUESTS: u64 = LINE_BYTES;
const REPLIES: u64 = REQUESTS + POST_PLACES * REQUEST_BYTES;
const REQUESTS_OUT: u64 = REPLIES + POST_PLACES * REPLY_BYTES;
const REPLIES_OUT: u64 = REQUESTS_OUT + POST_PLACES * REQUEST_BYTES;

/// Size of a box in bytes; a rank has one for each rank.
pub const BOX_BYTES: u64 = REPLIES_OUT + POST_PLACES * REPLY_BYTES;

const _: () = assert!(BOX_BYTES.is_multiple_of(LINE_BYTES));

/// The offsets of the parts of a rank's box for another rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostBox(u64);

impl PostBox {
    /// Returns the box for a rank, given the offset of the first box; `None` if it ends beyond the last address.
    #[must_use]
    pub fn new(first: u64, rank: u32) -> Option<Self> {
        let at = first.checked_add(u64::from(rank) * BOX_BYTES)?;
        at.checked_add(BOX_BYTES)?;
        Some(Self(at))
    }

    /// Returns the offset of a word (8 bytes): not 0 if that rank could not reply to a request, and will not reply any more.
    #[must_use]
    pub const fn lost_word(self) -> u64 {
        self.0
    }

    /// Returns the offset of a word (8 bytes): not 0 if that rank has set error words of its signals without a link.
    #[must_use]
    pub const fn error_word(self) -> u64 {
        self.0 + 8
    }

    /// Returns the offset of a byte whose value no rank uses: a NIC puts or gets it to flush its writes.
    #[must_use]
    pub const fn flush_byte(self) -> u64 {
        self.0 + 64
    }

    /// Returns the offset at which request `number` arrives.
    #[must_use]
    pub const fn request_offset(self, number: u64) -> u64 {
        self.0 + REQUESTS + number % POST_PLACES * REQUEST_BYTES
    }

    /// Returns the offset at which the reply to request `number` arrives.
    #[must_use]
    pub const fn reply_offset(self, number: u64) -> u64 {
        self.0 + REPLIES + number % POST_PLACES * REPLY_BYTES
    }

    /// Returns the offset from which request `number` is sent.
    #[must_use]
    pub const fn request_out(self, number: u64) -> u64 {
        self.0 + REQUESTS_OUT + number % POST_PLACES * REQUEST_BYTES
    }

    /// Returns the offset from which the reply to request `number` is sent.
    #[must_use]
    pub const fn reply_out(self, number: u64) -> u64 {
        self.0 + REPLIES_OUT + number % POST_PLACES * REPLY_BYTES
    }
}

/// Largest room, in bytes.
const ROOM_MAX: u64 = 64 << 10;
/// Largest total of all rooms of a part, in bytes, unless every room has the least size.
const ROOMS_MAX: u64 = 64 << 20;

/// The rooms of a part in memory of a device: host memory that contains outgoing bytes of the part while they are read. Each rank has one room per
/// pending request. A request uses the room of its number, so a room is used again only when its previous bytes have been fetched. The owner's own
/// rooms are for its puts to other ranks.
///
/// Incoming bytes are never stored there, and outgoing bytes nowhere else. Outside the rooms, outgoing bytes would overwrite bytes that have arrived
/// beside the part and are not copied to the device yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostRooms {
    first: u64,
    len: u64,
    ranks: u64,
}

impl PostRooms {
    /// Returns the rooms of a window of `window` bytes; the first one is at offset `first`.
    #[must_use]
    pub fn new(first: u64, ranks: u32, window: u64) -> Self {
        let ranks = u64::from(ranks).max(1);
        let fair = ROOMS_MAX / (ranks * POST_PLACES) / LINE_BYTES * LINE_BYTES;
        let whole = window.min(ROOM_MAX).next_multiple_of(LINE_BYTES);
        Self { first, len: fair.min(whole).max(LINE_BYTES), ranks }
    }

    /// Returns the size of a room in bytes.
    #[must_use]
    pub const fn room_bytes(self) -> u64 {
        self.len
    }

    /// Returns the total size of all rooms in bytes.
    #[must_use]
    pub const fn total_bytes(self) -> u64 {
        self.ranks * POST_PLACES * self.len
    }

    /// Returns the offset of the room of a rank's request.
    #[must_use]
    pub const fn room_offset(self, rank: u32, number: u64) -> u64 {
        self.first + (rank as u64 * POST_PLACES + number % POST_PLACES) * self.len
    }
}

/// A request to the owner of a device's memory: kind in word 1, offset in the window in word 2, two numbers in words 3 and 4.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnerAction {
    /// 1: copies bytes that have arrived in host memory to the device.
    Bring {
        /// The offset of the first byte.
        addr: u64,
        /// The length in bytes.
        len: u64,
    },
    /// 2: copies bytes of the device to the request's room, from which they are read.
    Show {
        /// The offset of the first byte.
        addr: u64,
        /// The length in bytes.
        len: u64,
    },
    /// 3 to 9: changes a word in host memory, and copies it to the device.
    Change {
        /// The offset of the word.
        addr: u64,
        /// The change.
        action: AtomicAction,
    },
}

/// A request (8 words): its number plus 1, the action, two zeros and the check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostRequest {
    /// Its number; the requests of a rank to another rank count from 0.
    pub number: u64,
    /// The requested action.
    pub ask: OwnerAction,
}

/// The reply to a request (4 words): its number plus 1, a value, status (low half) and reason (high half), and the check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostReply {
    /// The number of the request.
    pub number: u64,
    /// The old value of the word, or 0; on failure the status and the reason.
    pub how: Result<u64, (EntryStatus, u32)>,
}

/// Returns the check of these words.
fn words_check(words: &[u64]) -> u64 {
    let mix = |sum: u64, word: &u64| {
        let mixed = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    };
    words.iter().fold(0x7472_756e_6b6c_696e, mix)
}

/// Returns the words without the check; `None` unless the check is right and the first word is that of this number.
fn checked_words<const N: usize>(words: &[u64; N], number: u64) -> Option<&[u64]> {
    let (last, rest) = words.split_last()?;
    let is_whole = words_check(rest) == *last;
    (is_whole && rest.first() == Some(&number.wrapping_add(1))).then_some(rest)
}

impl PostRequest {
    /// Returns the last word for these others, for a caller that forges a request.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn request_check(words: &[u64; 8]) -> u64 {
        words.split_last().map_or(0, |(_, rest)| words_check(rest))
    }

    /// Returns the request's words.
    #[must_use]
    pub fn to_words(&self) -> [u64; 8] {
        let (kind, addr, a, b) = match self.ask {
            OwnerAction::Bring { addr, len } => (1, addr, len, 0),
            OwnerAction::Show { addr, len } => (2, addr, len, 0),
            OwnerAction::Change { addr, action } => match action {
                AtomicAction::Fetch => (3, addr, 0, 0),
                AtomicAction::Set(value) => (4, addr, value, 0),
                AtomicAction::Add(value) => (5, addr, value, 0),
                AtomicAction::And(value) => (6, addr, value, 0),
                AtomicAction::Or(value) => (7, addr, value, 0),
                AtomicAction::Xor(value) => (8, addr, value, 0),
                AtomicAction::CompareSwap { expect, swap } => (9, addr, expect, swap),
            },
        };
        let mut words = [self.number.wrapping_add(1), kind, addr, a, b, 0, 0, 0];
        let (last, rest) = words.split_at_mut(7);
        rest.copy_from_slice(&[words_check(last)]);
        words
    }

    /// Parses the request of a number; `None` if it has not arrived completely, or is invalid.
    #[must_use]
    pub fn from_words(words: &[u64; 8], number: u64) -> Option<Self> {
        let &[_, kind, addr, a, b, 0, 0] = checked_words(words, number)? else { return None };
        let change = |action| Some(OwnerAction::Change { addr, action });
        let ask = match (kind, a, b) {
            (1, len, 0) => Some(OwnerAction::Bring { addr, len }),
            (2, len, 0) => Some(OwnerAction::Show { addr, len }),
            (3, 0, 0) => change(AtomicAction::Fetch),
            (4, value, 0) => change(AtomicAction::Set(value)),
            (5, value, 0) => change(AtomicAction::Add(value)),
            (6, value, 0) => change(AtomicAction::And(value)),
            (7, value, 0) => change(AtomicAction::Or(value)),
            (8, value, 0) => change(AtomicAction::Xor(value)),
            (9, expect, swap) => change(AtomicAction::CompareSwap { expect, swap }),
            _ => None,
        };
        Some(Self { number, ask: ask? })
    }
}

impl PostReply {
    /// Returns the last word for these others, for a caller that forges a reply.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn reply_check(words: &[u64; 4]) -> u64 {
        words.split_last().map_or(0, |(_, rest)| words_check(rest))
    }

    /// Returns the reply's words.
    #[must_use]
    pub fn to_words(&self) -> [u64; 4] {
        let (value, status, reason) = match self.how {
            Ok(value) => (value, EntryStatus::Done, 0),
            Err((status, reason)) => (0, status, reason),
        };
        let status = u64::from(status.to_bits()) | u64::from(reason) << 32;
        let first = [self.number.wrapping_add(1), value, status];
        [first[0], first[1], first[2], words_check(&first)]
    }

    /// Parses the reply of a number; `None` if it has not arrived completely, or is invalid.
    #[must_use]
    pub fn from_words(words: &[u64; 4], number: u64) -> Option<Self> {
        let &[_, value, status] = checked_words(words, number)? else { return None };
        let how = match EntryStatus::from_bits(status as u16) {
            EntryStatus::Done => Ok(value),
            failed => Err((failed, (status >> 32) as u32)),
        };
        let reply = Self { number, how };
        // A value with a failure, or a reason without one, is invalid.
        (reply.to_words()[..3] == words[..3]).then_some(reply)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asks() -> impl Strategy<Value = OwnerAction> {
        let action = prop_oneof![
            Just(AtomicAction::Fetch),
            any::<u64>().prop_map(AtomicAction::Set),
            any::<u64>().prop_map(AtomicAction::Add),
            any::<u64>().prop_map(AtomicAction::And),
            any::<u64>().prop_map(AtomicAction::Or),
            any::<u64>().prop_map(AtomicAction::Xor),
            any::<(u64, u64)>().prop_map(|(expect, swap)| AtomicAction::CompareSwap { expect, swap }),
        ];
        prop_oneof![
            any::<(u64, u64)>().prop_map(|(addr, len)| OwnerAction::Bring { addr, len }),
            any::<(u64, u64)>().prop_map(|(addr, len)| OwnerAction::Show { addr, len }),
            (any::<u64>(), action).prop_map(|(addr, action)| OwnerAction::Change { addr, action }),
        ]
    }

    #[test]
    fn post_boxes_are_adjacent_and_bounded() {
        for (ranks, window, len) in [
            (1, 0, 128),
            (2, 100, 128),
            (2, 4097, 4224),
            (64, 1 << 30, 64 << 10),
            (100, 1 << 30, 41_856),
            (65_536, 1 << 30, 128),
        ] {
            let rooms = PostRooms::new(1 << 20, ranks, window);
            assert_eq!(rooms.room_bytes(), len, "{ranks} ranks, {window} bytes");
            assert_eq!(
                [rooms.room_offset(0, 0), rooms.room_offset(0, 17), rooms.room_offset(1, 0)],
                [0, 1, 16].map(|nth| (1 << 20) + nth * len)
            );
            let last = rooms.room_offset(ranks - 1, 15) + len;
            assert_eq!(last, (1 << 20) + rooms.total_bytes());
            assert!(rooms.total_bytes() <= ROOMS_MAX || len == LINE_BYTES);
        }
    }

    proptest! {
        #[test]
        fn post_messages_round_trip(number: u64, ask in asks(), how in any::<Result<u64, (u16, u32)>>()) {
            let request = PostRequest { number, ask };
            prop_assert_eq!(PostRequest::from_words(&request.to_words(), number), Some(request));
            prop_assert_eq!(PostRequest::from_words(&request.to_words(), number ^ 16), None);
            let how = how.map_err(|(status, reason)| (EntryStatus::from_bits(status % 1000 + 1), reason));
            let reply = PostReply { number, how };
            prop_assert_eq!(PostReply::from_words(&reply.to_words(), number), Some(reply));
        }

                /// A slot may contain words of its old and of its new content.
        #[test]
        fn partly_written_message_is_not_read(number: u64, asks in (asks(), asks()), mask in 1_u8..255) {
            let old = PostRequest { number, ask: asks.0 }.to_words();
            let new = PostRequest { number: number.wrapping_add(POST_PLACES), ask: asks.1 }.to_words();
            let mut words = new;
            for at in (0..8).filter(|at| mask & 1 << at != 0) {
                words[at] = old[at];
            }
            let read = PostRequest::from_words(&words, number.wrapping_add(POST_PLACES));
            prop_assert!(words == new || read.is_none());
        }
    }

    #[test]
    fn reply_has_a_value_or_a_failure() {
        let reads = |value, status: u64| {
            let mut words = [8, value, status, 0];
            words[3] = PostReply::reply_check(&words);
            PostReply::from_words(&words, 7).map(|reply| reply.how)
        };
        assert_eq!((reads(5, 0), reads(0, 3 | 9 << 32)), (Some(Ok(5)), Some(Err((EntryStatus::Access, 9)))));
        for (value, status) in [(5, 3), (5, 1 << 32), (0, 1 << 16), (0, 0xffff)] {
            assert_eq!(reads(value, status), None, "{value} {status:#x}");
        }
    }

    #[test]
    fn boxes_are_laid_out_as_documented() {
        let of = PostBox::new(4096, 2).unwrap();
        assert_eq!((BOX_BYTES, of.lost_word(), of.error_word()), (3200, 4096 + 6400, 4096 + 6408));
        let at = of.lost_word();
        assert_eq!((of.request_offset(17), of.reply_offset(17)), (at + 128 + 64, at + 1152 + 32));
        assert_eq!((of.request_out(15), of.reply_out(0)), (at + 1664 + 15 * 64, at + 2688));
        assert_eq!(PostBox::new(u64::MAX - 100, 0), None);
        assert!(PostRequest::from_words(&[0; 8], 0).is_none(), "an unwritten slot was read as a request");
    }
}
