//! The clear-to-send record: the address of one buffer of a receive, written by the receiver into the sender's mailbox. Its words arrive in any
//! order, and it carries a check; a record whose check fails has not arrived. Where a comm has several links, a second line of the same size follows
//! each record, with the addresses for the links after the first. Layout: "Clear-to-send record" of docs/wire.md.

use crate::limits::{LINKS_MAX, MAILBOX_SLOTS, RECV_BUFFERS_MAX};
use crate::wire::frame::RemoteRegion;
use crate::wire::imm::BufferToken;

/// Words of 8 bytes per line.
pub const WORDS: usize = 8;

/// Size of a line in bytes.
pub const BYTES: usize = WORDS * 8;

/// Number of lines of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecordLines {
    /// One: the comm has one link.
    One,
    /// Two: the comm has several links.
    Two,
}

impl RecordLines {
    /// Returns the number of lines for a comm with that many links.
    #[must_use]
    pub const fn for_links(links: usize) -> Self {
        if links > 1 { Self::Two } else { Self::One }
    }

    #[inline]
    const fn line_shift(self) -> u32 {
        match self {
            Self::One => 0,
            Self::Two => 1,
        }
    }

    /// Returns the size of a record in bytes.
    #[must_use]
    pub const fn record_bytes(self) -> usize {
        BYTES << self.line_shift()
    }

    /// Returns the size in bytes of the mailbox of a comm that shares no links.
    #[must_use]
    pub const fn mailbox_bytes(self) -> usize {
        MAILBOX_SLOTS * RECV_BUFFERS_MAX * self.record_bytes()
    }
}

/// The check mixes the words with these: the first fraction bits of pi. Thanks to them a mailbox that was never written contains no valid record of
/// receive number 0, and no multiplication has a factor of 0 by default.
const SALT: [u64; WORDS] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
];

/// A clear-to-send record. Its first word contains number, index and count; its last word the number again (bits 0-31) and the check (bits 32-63).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CtsRecord {
    /// Word 0, bits 0-31: the number of the receive.
    pub number: u32,
    /// Word 0, bits 32-35: the index of the buffer in the receive, below `count`.
    pub index: u8,
    /// Word 0, bits 36-39, minus one: number of buffers of the receive, 1 to 8.
    pub count: u8,
    /// Word 1: remote address of the buffer.
    pub addr: u64,
    /// Word 2: length of the buffer in bytes.
    pub len: u64,
    /// Word 3, bits 0-31: tag of the buffer.
    pub tag: u32,
    /// Word 3, bits 32-55: the token that the immediate has to carry.
    pub token: BufferToken,
    /// Word 4: remote key of the buffer, on link 0.
    pub key: u64,
}

/// The second line of a record: the addresses of the buffer for the links after the first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CtsSecondLine {
    /// Word 0, bits 0-31: the number of the receive.
    pub number: u32,
    /// Word 0, bits 32-35: the index of the buffer in the receive.
    pub index: u8,
    /// Words 1 to 6: key and address on links 1, 2 and 3; zeros for links that the comm does not have.
    pub places: [RemoteRegion; LINKS_MAX - 1],
}

/// Bit 40 of the first word is set in a second line only, so that neither line is valid as the other.
const SECOND: u64 = 1 << 40;

/// Returns the offset in bytes of the record of buffer `index` of receive `number`, in the mailbox of a comm that shares no links. The records of
/// first buffers are adjacent: most receives have one buffer, so a mailbox touches few pages.
#[inline]
#[must_use]
pub const fn record_offset(number: u32, index: usize, lines: RecordLines) -> u64 {
    ((index * MAILBOX_SLOTS + number as usize % MAILBOX_SLOTS) as u64 * BYTES as u64) << lines.line_shift()
}

/// Returns the receive number in a record's first word, valid or not: the only load of a send that is not clear.
#[inline]
#[must_use]
pub const fn head_number(word: u64) -> u32 {
    word as u32
}

impl CtsRecord {
    /// Returns the record's words.
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let head = u64::from(self.number)
            | u64::from(self.index & 7) << 32
            | u64::from((self.count.wrapping_sub(1)) & 7) << 36;
        let place = u64::from(self.tag) | u64::from(self.token.to_bits()) << 32;
        let mut words = [head, self.addr, self.len, place, self.key, 0, 0, 0];
        words[7] = tail_word(&words, self.number);
        words
    }

    /// Returns the record's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        bytes_of(&self.to_words())
    }

    /// Parses the record for buffer `index` of receive `number`; `None` if it has not arrived completely.
    #[inline]
    #[must_use]
    pub fn from_words(words: &[u64; WORDS], number: u32, index: u8) -> Option<Self> {
        let head = words[0];
        if head as u32 != number || words[7] != tail_word(words, number) {
            return None;
        }
        let at = (head >> 32 & 15) as u8;
        let count = (head >> 36 & 15) as u8 + 1;
        let sound = head >> 40 == 0 && at == index && at < count && usize::from(count) <= RECV_BUFFERS_MAX;
        sound.then(|| Self::from_unchecked_words(words, number, index))
    }

    /// Parses the words without a check of the record.
    #[inline]
    pub(crate) fn from_unchecked_words(words: &[u64; WORDS], number: u32, index: u8) -> Self {
        Self {
            number,
            index,
            count: (words[0] >> 36 & 7) as u8 + 1,
            addr: words[1],
            len: words[2],
            tag: words[3] as u32,
            token: BufferToken::from_bits((words[3] >> 32) as u32),
            key: words[4],
        }
    }
}

impl CtsSecondLine {
    /// Returns the line's words.
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let head = u64::from(self.number) | u64::from(self.index & 7) << 32 | SECOND;
        let [one, two, three] = self.places;
        let mut words = [head, one.key, one.addr, two.key, two.addr, three.key, three.addr, 0];
        words[7] = tail_word(&words, self.number);
        words
    }

    /// Returns the line's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        bytes_of(&self.to_words())
    }

    /// Parses the line for buffer `index` of receive `number`; `None` if it has not arrived completely.
    #[must_use]
    pub fn from_words(words: &[u64; WORDS], number: u32, index: u8) -> Option<Self> {
        let head = u64::from(number) | u64::from(index) << 32 | SECOND;
        if words[0] != head || words[7] != tail_word(words, number) {
            return None;
        }
        let place = |at: usize| RemoteRegion { key: words[at], addr: words[at + 1] };
        Some(Self { number, index, places: [place(1), place(3), place(5)] })
    }
}

fn bytes_of(words: &[u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (out, word) in bytes.chunks_exact_mut(8).zip(words) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the last word. Successive records in a slot differ in few bits, so a sum of the words would not detect mixtures: each pair of words is
/// multiplied.
#[inline]
fn tail_word(words: &[u64; WORDS], number: u32) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let mixed = fold(words[0] ^ SALT[0], words[1] ^ SALT[1])
        ^ fold(words[2] ^ SALT[2], words[3] ^ SALT[3])
        ^ fold(words[4] ^ SALT[4], words[5] ^ SALT[5])
        ^ fold(words[6] ^ SALT[6], u64::from(number) ^ SALT[7]);
    mixed >> 32 << 32 | u64::from(number)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn record(number: u32, addr: u64, len: u64) -> CtsRecord {
        let token = BufferToken::new(77, 3);
        CtsRecord { number, index: 1, count: 2, addr, len, tag: 9, token, key: 5 }
    }

    #[test]
    fn check_matches_the_document() {
        let words = record(7, 0x7000_0000, 4096).to_words();
        assert_eq!(words[..4], [0x11_0000_0007, 0x7000_0000, 4096, 0x1_804d_0000_0009]);
        assert_eq!(words[7], 0x968f_3228_0000_0007);
    }

    #[test]
    fn records_have_distinct_slots_and_adjacent_firsts() {
        for lines in [RecordLines::One, RecordLines::Two] {
            let slots = 0..MAILBOX_SLOTS as u32;
            let record = lines.mailbox_bytes() / (MAILBOX_SLOTS * RECV_BUFFERS_MAX);
            let all = (0..RECV_BUFFERS_MAX).flat_map(|index| slots.clone().map(move |slot| (slot, index)));
            let mut places: Vec<_> = all.map(|(slot, index)| record_offset(slot, index, lines)).collect();
            assert_eq!(places[..MAILBOX_SLOTS].iter().max(), Some(&(((MAILBOX_SLOTS - 1) * record) as u64)));
            places.sort_unstable();
            let every = (0..lines.mailbox_bytes() as u64).step_by(record);
            assert!(places.into_iter().eq(every));
            assert_eq!(record_offset(u32::MAX, 7, lines), record_offset(127, 7, lines));
        }
    }

    #[test]
    fn mixtures_of_an_old_and_a_new_record_are_not_valid() {
        let old = record(7, 0x7000_0000, 4096).to_words();
        let new = record(7 + MAILBOX_SLOTS as u32, 0x7000_2000, 8192).to_words();
        for arrived in 0..(1_u32 << WORDS) - 1 {
            let mut words = old;
            for i in (0..WORDS).filter(|i| arrived >> i & 1 == 1) {
                words[i] = new[i];
            }
            if words != new {
                assert_eq!(CtsRecord::from_words(&words, 7 + MAILBOX_SLOTS as u32, 1), None, "{arrived:08b}");
            }
        }
    }

    #[test]
    fn mixtures_of_an_old_and_a_new_second_line_are_not_valid() {
        let line = |number: u32, key: u64, addr: u64| {
            let at = |rail: u64| RemoteRegion { key: key + rail, addr: addr + rail * 0x1000 };
            CtsSecondLine { number, index: 1, places: [at(0), at(1), at(2)] }.to_words()
        };
        let old = line(7, 0x900a_87d3, 0x7000_0000);
        let new = line(7 + MAILBOX_SLOTS as u32, 0x900a_87d4, 0x7000_2000);
        for arrived in 0..(1_u32 << WORDS) - 1 {
            let mut words = old;
            for i in (0..WORDS).filter(|i| arrived >> i & 1 == 1) {
                words[i] = new[i];
            }
            assert_eq!(CtsSecondLine::from_words(&words, 7 + MAILBOX_SLOTS as u32, 1), None, "{arrived:08b}");
        }
    }

    /// Successive records in a slot: the same region or the next one, addresses and lengths a few bytes apart, tokens a generation or a slot apart.
    #[test]
    fn small_differences_do_not_cancel_out() {
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % below
        };
        for _ in 0..40_000 {
            let base = [0, 0x1000, 0x7f00_0000_0000][draw(3) as usize];
            let mut make = |number: u32| CtsRecord {
                number,
                index: 0,
                count: 1,
                addr: base + draw(64) * [1, 8, 4096][draw(3) as usize],
                len: draw(64) * [1, 64, 4096][draw(3) as usize],
                tag: draw(4) as u32,
                token: BufferToken::new(80 + draw(3) as u16, draw(6) as u16),
                key: 0x900a_87d3_cf90_890a + draw(3),
            };
            let old = make(138).to_words();
            let next = 138 + MAILBOX_SLOTS as u32;
            let new = make(next).to_words();
            for arrived in 0..(1_u32 << WORDS) - 1 {
                let mut words = old;
                for i in (0..WORDS).filter(|i| arrived >> i & 1 == 1) {
                    words[i] = new[i];
                }
                assert!(
                    words == new || CtsRecord::from_words(&words, next, 0).is_none(),
                    "{arrived:08b} of {new:x?} over {old:x?}"
                );
            }
        }
    }

    #[test]
    fn a_mailbox_that_was_never_written_holds_nothing() {
        assert_eq!(CtsRecord::from_words(&[0; WORDS], 0, 0), None);
        assert_eq!(CtsSecondLine::from_words(&[0; WORDS], 0, 0), None);
    }

    proptest! {
        #[test]
        fn values_round_trip(number: u32, addr: u64, len: u64, tag: u32, index in 0..8_u8, bits: u32, key: u64) {
            let token = BufferToken::from_bits(bits);
            let cts = CtsRecord { number, index, count: 8, addr, len, tag, token, key };
            prop_assert_eq!(CtsRecord::from_words(&cts.to_words(), number, index), Some(cts));
            prop_assert_eq!(CtsRecord::from_words(&cts.to_words(), number.wrapping_add(1), index), None);
            prop_assert_eq!(CtsSecondLine::from_words(&cts.to_words(), number, index), None);
        }

        #[test]
        fn second_lines_round_trip(number: u32, index in 0..8_u8, words: [u64; 6]) {
            let place = |at: usize| RemoteRegion { key: words[at], addr: words[at + 1] };
            let others = CtsSecondLine { number, index, places: [place(0), place(2), place(4)] };
            let line = others.to_words();
            prop_assert_eq!(CtsSecondLine::from_words(&line, number, index), Some(others));
            prop_assert_eq!(CtsSecondLine::from_words(&line, number, index ^ 1), None);
            prop_assert_eq!(CtsRecord::from_words(&line, number, index), None);
        }
    }
}
