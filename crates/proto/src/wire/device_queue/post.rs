//! Post boxes: what executors tell each other of memory that no network reaches, which is a device's. The bytes come to memory of the host beside it, and its
//! owner brings them there when he is asked to. A word that says so is checked, as it is read while it is written.

use super::layout::LINE_BYTES;
use super::status::EntryStatus;
use crate::rma::atomic::AtomicAction;

/// Requests of one rank to another that may be under way.
pub const POST_PLACES: u64 = 16;

/// Bytes of a request.
pub const REQUEST_BYTES: u64 = 64;

/// Bytes of a reply.
pub const REPLY_BYTES: u64 = 32;

const REQUESTS: u64 = LINE_BYTES;
const REPLIES: u64 = REQUESTS + POST_PLACES * REQUEST_BYTES;
const REQUESTS_OUT: u64 = REPLIES + POST_PLACES * REPLY_BYTES;
const REPLIES_OUT: u64 = REQUESTS_OUT + POST_PLACES * REQUEST_BYTES;

/// Bytes of a box: a rank has one for each.
pub const BOX_BYTES: u64 = REPLIES_OUT + POST_PLACES * REPLY_BYTES;

const _: () = assert!(BOX_BYTES.is_multiple_of(LINE_BYTES));

/// Where the parts of a rank's box for another one are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostBox(u64);

impl PostBox {
    /// The box for a rank, of those that begin there; `None` if it ends behind all addresses.
    #[must_use]
    pub fn new(first: u64, rank: u32) -> Option<Self> {
        let at = first.checked_add(u64::from(rank) * BOX_BYTES)?;
        at.checked_add(BOX_BYTES)?;
        Some(Self(at))
    }

    /// Not 0: that rank could not reply to something, and will not any more.
    #[must_use]
    pub const fn lost_word(self) -> u64 {
        self.0
    }

    /// Not 0: error words of signals of that rank were set beside all links.
    #[must_use]
    pub const fn error_word(self) -> u64 {
        self.0 + 8
    }

    /// A byte whose value no rank uses: flushes of a NIC's writes put it or get it.
    #[must_use]
    pub const fn flush_byte(self) -> u64 {
        self.0 + 64
    }

    /// Where the request of a number comes.
    #[must_use]
    pub const fn request_offset(self, number: u64) -> u64 {
        self.0 + REQUESTS + number % POST_PLACES * REQUEST_BYTES
    }

    /// Where the reply to it comes.
    #[must_use]
    pub const fn reply_offset(self, number: u64) -> u64 {
        self.0 + REPLIES + number % POST_PLACES * REPLY_BYTES
    }

    /// Where it is sent from.
    #[must_use]
    pub const fn request_out(self, number: u64) -> u64 {
        self.0 + REQUESTS_OUT + number % POST_PLACES * REQUEST_BYTES
    }

    /// Where the reply is sent from.
    #[must_use]
    pub const fn reply_out(self, number: u64) -> u64 {
        self.0 + REPLIES_OUT + number % POST_PLACES * REPLY_BYTES
    }
}

/// Most bytes of a room.
const ROOM_MAX: u64 = 64 << 10;
/// Most bytes of all rooms of a part, but for the least that each has.
const ROOMS_MAX: u64 = 64 << 20;

/// Rooms of a part in memory of a device: where its bytes lie while they are on their way out. Each rank has as many as there are requests of it; a request's number is its
/// room's, so a room is used again when the one before has its bytes. The owner's own rooms are for its puts to others.
///
/// Incoming bytes never lie there, and outgoing bytes lie nowhere else: bytes that have come beside the part and are not brought yet would be undone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostRooms {
    first: u64,
    len: u64,
    ranks: u64,
}

impl PostRooms {
    /// The rooms of a window of so many bytes, from there on.
    #[must_use]
    pub fn new(first: u64, ranks: u32, window: u64) -> Self {
        let ranks = u64::from(ranks).max(1);
        let fair = ROOMS_MAX / (ranks * POST_PLACES) / LINE_BYTES * LINE_BYTES;
        let whole = window.min(ROOM_MAX).next_multiple_of(LINE_BYTES);
        Self { first, len: fair.min(whole).max(LINE_BYTES), ranks }
    }

    /// Bytes of a room.
    #[must_use]
    pub const fn room_bytes(self) -> u64 {
        self.len
    }

    /// Bytes of all.
    #[must_use]
    pub const fn total_bytes(self) -> u64 {
        self.ranks * POST_PLACES * self.len
    }

    /// The room of a rank's request.
    #[must_use]
    pub const fn room_offset(self, rank: u32, number: u64) -> u64 {
        self.first + (rank as u64 * POST_PLACES + number % POST_PLACES) * self.len
    }
}

/// What is asked of the owner of a device's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnerAction {
    /// To bring bytes that have come to the host's memory to the device's.
    Bring {
        /// The first.
        addr: u64,
        /// How many.
        len: u64,
    },
    /// To bring the device's bytes to the request's room, where they will be read.
    Show {
        /// The first.
        addr: u64,
        /// How many.
        len: u64,
    },
    /// To change a word, and bring it.
    Change {
        /// Where it is.
        addr: u64,
        /// How.
        action: AtomicAction,
    },
}

/// A request and its number; those of a rank to another one count from 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostRequest {
    /// The number.
    pub number: u64,
    /// What is asked.
    pub ask: OwnerAction,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostReply {
    /// Its number.
    pub number: u64,
    /// What the word was, or 0; else why not, and the reason.
    pub how: Result<u64, (EntryStatus, u32)>,
}

/// What is to stand behind these words.
fn words_check(words: &[u64]) -> u64 {
    let mix = |sum: u64, word: &u64| {
        let mixed = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    };
    words.iter().fold(0x7472_756e_6b6c_696e, mix)
}

/// The words, if their check is right and the first one is that of this number.
fn checked_words<const N: usize>(words: &[u64; N], number: u64) -> Option<&[u64]> {
    let (last, rest) = words.split_last()?;
    let is_whole = words_check(rest) == *last;
    (is_whole && rest.first() == Some(&number.wrapping_add(1))).then_some(rest)
}

impl PostRequest {
    /// What the last word is behind these others, for who makes up a request.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn request_check(words: &[u64; 8]) -> u64 {
        words.split_last().map_or(0, |(_, rest)| words_check(rest))
    }

    /// As it lies in its place.
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

    /// The request of a number; `None`: it is not there, or not all of it, or says what none says.
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
    /// What the last word is behind these others, for who makes up a reply.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn reply_check(words: &[u64; 4]) -> u64 {
        words.split_last().map_or(0, |(_, rest)| words_check(rest))
    }

    /// As it lies in its place.
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

    /// The reply of a number; `None`: it is not there, or not all of it, or says what none says.
    #[must_use]
    pub fn from_words(words: &[u64; 4], number: u64) -> Option<Self> {
        let &[_, value, status] = checked_words(words, number)? else { return None };
        let how = match EntryStatus::from_bits(status as u16) {
            EntryStatus::Done => Ok(value),
            failed => Err((failed, (status >> 32) as u32)),
        };
        let reply = Self { number, how };
        // A value beside a failure, or a reason beside none, is nothing that anybody says.
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
    fn rooms_lie_side_by_side_and_are_bounded() {
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
        fn what_is_read_is_what_was_written(number: u64, ask in asks(), how in any::<Result<u64, (u16, u32)>>()) {
            let request = PostRequest { number, ask };
            prop_assert_eq!(PostRequest::from_words(&request.to_words(), number), Some(request));
            prop_assert_eq!(PostRequest::from_words(&request.to_words(), number ^ 16), None);
            let how = how.map_err(|(status, reason)| (EntryStatus::from_bits(status % 1000 + 1), reason));
            let reply = PostReply { number, how };
            prop_assert_eq!(PostReply::from_words(&reply.to_words(), number), Some(reply));
        }

        /// A place holds words of what it was before and of what it becomes.
        #[test]
        fn what_is_half_written_is_not_there(number: u64, asks in (asks(), asks()), mask in 1_u8..255) {
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
    fn a_reply_says_a_value_or_a_failure() {
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
    fn boxes_lie_as_documented() {
        let of = PostBox::new(4096, 2).unwrap();
        assert_eq!((BOX_BYTES, of.lost_word(), of.error_word()), (3200, 4096 + 6400, 4096 + 6408));
        let at = of.lost_word();
        assert_eq!((of.request_offset(17), of.reply_offset(17)), (at + 128 + 64, at + 1152 + 32));
        assert_eq!((of.request_out(15), of.reply_out(0)), (at + 1664 + 15 * 64, at + 2688));
        assert_eq!(PostBox::new(u64::MAX - 100, 0), None);
        assert!(PostRequest::from_words(&[0; 8], 0).is_none(), "nothing has come there");
    }
}
