//! The clear-to-send record: where one buffer of a receive lies. It arrives in words, in any order, and validates
//! itself; what does not validate has not arrived.

use crate::limits::{MAILBOX_SLOTS, RECV_BUFFERS_MAX};
use crate::wire::imm::Token;

/// Words of a record.
pub const WORDS: usize = 8;

/// Bytes of a record.
pub const BYTES: usize = WORDS * 8;

/// Bytes of a mailbox.
pub const MAILBOX_BYTES: usize = MAILBOX_SLOTS * RECV_BUFFERS_MAX * BYTES;

/// Rails a record has keys for.
pub const RAILS_MAX: usize = 3;

/// Keeps a mailbox that was never written from holding valid records of receive number 0.
const SEED: u64 = u64::from_le_bytes(*b"clearsnd");

/// A clear-to-send record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cts {
    /// The receive's number.
    pub number: u32,
    /// Which of its buffers, below `count`.
    pub index: u8,
    /// Its buffers, 1 to 8.
    pub count: u8,
    /// Remote address of the buffer.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its tag.
    pub tag: u32,
    /// What the immediate must name.
    pub token: Token,
    /// Remote keys by rail.
    pub keys: [u64; RAILS_MAX],
}

/// Byte offset in a mailbox of the record of buffer `index` of receive `number`.
#[inline]
#[must_use]
pub const fn offset(number: u32, index: usize) -> u64 {
    ((number as usize % MAILBOX_SLOTS) * RECV_BUFFERS_MAX + index) as u64 * BYTES as u64
}

/// The receive number in a record's first word, valid or not: the one load of a send that is not clear.
#[inline]
#[must_use]
pub const fn head(word: u64) -> u32 {
    word as u32
}

impl Cts {
    /// The record's words.
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let head = u64::from(self.number)
            | u64::from(self.index & 7) << 32
            | u64::from((self.count.wrapping_sub(1)) & 7) << 36;
        let place = u64::from(self.tag) | u64::from(self.token.to_bits()) << 32;
        let [k0, k1, k2] = self.keys;
        let mut words = [head, self.addr, self.len, place, k0, k1, k2, 0];
        words[7] = tail(&words, self.number);
        words
    }

    /// The record's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for (out, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The record for buffer `index` of receive `number`, if it has arrived whole.
    #[inline]
    #[must_use]
    pub fn from_words(words: &[u64; WORDS], number: u32, index: u8) -> Option<Self> {
        let head = words[0];
        if head as u32 != number || words[7] != tail(words, number) {
            return None;
        }
        let (at, count) = ((head >> 32 & 15) as u8, (head >> 36 & 15) as u8 + 1);
        let sound = head >> 40 == 0 && at == index && at < count && usize::from(count) <= RECV_BUFFERS_MAX;
        sound.then(|| Self::unchecked(words, number, index))
    }

    /// What the words say, arrived whole or not.
    #[inline]
    pub(crate) fn unchecked(words: &[u64; WORDS], number: u32, index: u8) -> Self {
        Self {
            number,
            index,
            count: (words[0] >> 36 & 7) as u8 + 1,
            addr: words[1],
            len: words[2],
            tag: words[3] as u32,
            token: Token::from_bits((words[3] >> 32) as u32),
            keys: [words[4], words[5], words[6]],
        }
    }
}

#[inline]
fn tail(words: &[u64; WORDS], number: u32) -> u64 {
    let mixed = words[0]
        ^ words[1].rotate_left(9)
        ^ words[2].rotate_left(18)
        ^ words[3].rotate_left(27)
        ^ words[4].rotate_left(36)
        ^ words[5].rotate_left(45)
        ^ words[6].rotate_left(54)
        ^ u64::from(number).rotate_left(63)
        ^ SEED;
    let check = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    check << 32 | u64::from(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(number: u32, addr: u64, len: u64) -> Cts {
        let token = Token::new(77, 3);
        Cts { number, index: 1, count: 2, addr, len, tag: 9, token, keys: [5, 6, 7] }
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
                assert_eq!(Cts::from_words(&words, 7 + MAILBOX_SLOTS as u32, 1), None, "{arrived:08b}");
            }
        }
    }

    #[test]
    fn a_mailbox_that_was_never_written_holds_nothing() {
        assert_eq!(Cts::from_words(&[0; WORDS], 0, 0), None);
    }

    proptest! {
        #[test]
        fn reads_back(number: u32, addr: u64, len: u64, tag: u32, index in 0..8_u8, bits: u32, keys: [u64; 3]) {
            let token = Token::from_bits(bits);
            let cts = Cts { number, index, count: 8, addr, len, tag, token, keys };
            prop_assert_eq!(Cts::from_words(&cts.to_words(), number, index), Some(cts));
            prop_assert_eq!(Cts::from_words(&cts.to_words(), number.wrapping_add(1), index), None);
        }
    }
}
