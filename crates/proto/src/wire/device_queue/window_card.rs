//! The card that each rank gives to all others about its part of a window, before any rank writes to it. `trunkline::device` encodes and parses it,
//! and exchanges it by an all-gather of the job. Layout: "Windows", card, of docs/wire.md.

use crate::limits::RAILS_MAX;
use crate::wire::dial::RemoteHeap;
use crate::wire::frame::RemoteRegion;

/// Words of a card: the configuration, the key, and three words per rail for the part and for words apart from it.
pub const CARD_WORDS: usize = CONFIG_WORDS + 1 + 2 * RAIL_WORDS;

/// Words for all rails.
const RAIL_WORDS: usize = 3 * RAILS_MAX;

/// Words of a configuration, which only the caller interprets.
pub const CONFIG_WORDS: usize = 8;

/// A rank's part of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowCard {
    /// Words 0 to 7: the configuration that the rank was created with.
    pub config: [u64; CONFIG_WORDS],
    /// Word 8, low half: the key of its region, as entries contain it.
    pub key: u32,
    /// Word 8, bit 32: no network reaches the part. Its heaps are host memory beside it, and requests to its owner use the post box.
    pub is_posted: bool,
    /// Word 8, bit 33: the part is divided. The network reaches its data, which are in memory of a device and are its heaps; its other words are
    /// apart.
    pub words: Option<WordsCard>,
    heaps: [RemoteHeap; RAILS_MAX],
    rails: usize,
}

/// The words of a divided part: signals, counters, barriers, streams and boxes, in host memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WordsCard {
    /// Word 8, bits 40-47: the number of their heap.
    pub heap: u8,
    /// Word 8, bit 34: whether writes of the rank's NICs to the data may stay invisible to the device until the same NIC has read the written bytes.
    pub needs_flush: bool,
    heaps: [RemoteHeap; RAILS_MAX],
    rails: usize,
}

/// The lengths that all ranks expect of a part, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PartLengths {
    /// Of a part that is not divided.
    pub whole: u64,
    /// Of the data of a divided part.
    pub data: u64,
    /// Of the words of a divided part, which are apart from its data.
    pub words: u64,
}

/// Why a card is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CardError {
    /// The key has no generation, or its flags are invalid.
    #[error("key {0:#x} has no generation, or invalid flags")]
    Key(u64),
    /// Words of a rail follow a missing rail, the words have other rails than the data, or no rail is present.
    #[error("the card leaves out a rail")]
    Rails,
    /// The part does not have the length of a window with that configuration.
    #[error("the part has {0} bytes, which differs from the length that all parts have")]
    Length(u64),
    /// The range reaches beyond the last address.
    #[error("the bytes from {0:#x} on exceed the address range")]
    Address(u64),
}

const NOWHERE: RemoteHeap = RemoteHeap { len: 0, region: RemoteRegion { key: 0, addr: 0 } };

impl WindowCard {
    /// Creates the card of a part with one heap per rail; `None` without heaps, or with more than [`RAILS_MAX`].
    #[must_use]
    pub fn new(config: [u64; CONFIG_WORDS], key: u32, told: &[RemoteHeap]) -> Option<Self> {
        let mut heaps = [NOWHERE; RAILS_MAX];
        heaps.get_mut(..told.len()).filter(|told| !told.is_empty())?.copy_from_slice(told);
        Some(Self { config, key, is_posted: false, words: None, heaps, rails: told.len() })
    }

    /// Returns the same card for a part whose words are apart from its data; `None` unless both have the same number of rails.
    #[must_use]
    pub fn with_words_apart(self, heap: u8, needs_flush: bool, told: &[RemoteHeap]) -> Option<Self> {
        let mut heaps = [NOWHERE; RAILS_MAX];
        heaps.get_mut(..told.len()).filter(|told| told.len() == self.rails)?.copy_from_slice(told);
        Some(Self { words: Some(WordsCard { heap, needs_flush, heaps, rails: told.len() }), ..self })
    }

    /// Returns the same card for a part that is reached by its post box, or not.
    #[must_use]
    pub const fn with_posted(self, is_posted: bool) -> Self {
        Self { is_posted, ..self }
    }

    /// Returns the heaps of the part, by rail of its rank.
    #[must_use]
    pub fn heaps(&self) -> &[RemoteHeap] {
        self.heaps.get(..self.rails).unwrap_or_default()
    }

    /// Returns the card's words.
    #[must_use]
    pub fn to_words(&self) -> [u64; CARD_WORDS] {
        let mut words = [0; CARD_WORDS];
        let (config, rest) = words.split_at_mut(CONFIG_WORDS);
        config.copy_from_slice(&self.config);
        if let [key, rails @ ..] = rest {
            *key = u64::from(self.key) | u64::from(self.is_posted) << POSTED_BIT;
            let (part, apart) = rails.split_at_mut(RAIL_WORDS);
            write_rails(self.heaps(), part);
            if let Some(words) = &self.words {
                *key |= 1 << DIVIDED_BIT
                    | u64::from(words.needs_flush) << FLUSH_BIT
                    | u64::from(words.heap) << WORDS_SHIFT;
                write_rails(words.heaps(), apart);
            }
        }
        words
    }

    /// Parses the card of another rank. `lengths` are those of the own configuration.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn from_words(words: &[u64; CARD_WORDS], lengths: PartLengths) -> Result<Self, CardError> {
        let mut config = [0; CONFIG_WORDS];
        config.copy_from_slice(&words[..CONFIG_WORDS]);
        let told = words[CONFIG_WORDS];
        let is = |bit: u32| told >> bit & 1 == 1;
        let is_posted = is(POSTED_BIT);
        let is_divided = is(DIVIDED_BIT);
        let needs_flush = is(FLUSH_BIT);
        let heap = (told >> WORDS_SHIFT) as u8;
        let key = told as u32;
        let known = u64::from(key)
            | u64::from(is_posted) << POSTED_BIT
            | u64::from(is_divided) << DIVIDED_BIT
            | u64::from(needs_flush) << FLUSH_BIT
            | u64::from(heap) << WORDS_SHIFT;
        let is_one = if is_divided { !is_posted } else { !needs_flush && heap == 0 };
        // Generations count from 1.
        if known != told || !is_one || key >> 8 == 0 {
            return Err(CardError::Key(told));
        }
        let (part, apart) = words[CONFIG_WORDS + 1..].split_at(RAIL_WORDS);
        let len = if is_divided { lengths.data } else { lengths.whole };
        let (heaps, rails) = read_rails(part, len)?;
        let words = match is_divided {
            true => {
                let (heaps, apart) = read_rails(apart, lengths.words)?;
                if apart != rails {
                    return Err(CardError::Rails);
                }
                Some(WordsCard { heap, needs_flush, heaps, rails })
            }
            false if apart.iter().any(|word| *word != 0) => return Err(CardError::Rails),
            false => None,
        };
        Ok(Self { config, key, is_posted, words, heaps, rails })
    }
}

impl WordsCard {
    /// Returns the heaps of the words, by rail of their rank.
    #[must_use]
    pub fn heaps(&self) -> &[RemoteHeap] {
        self.heaps.get(..self.rails).unwrap_or_default()
    }
}

/// Bits of the word of the key, above the key.
const POSTED_BIT: u32 = 32;
const DIVIDED_BIT: u32 = 33;
const FLUSH_BIT: u32 = 34;
/// The lowest bit of the number of the words' heap in the word of the key.
const WORDS_SHIFT: u32 = 40;

fn write_rails(heaps: &[RemoteHeap], words: &mut [u64]) {
    for (words, heap) in words.chunks_exact_mut(3).zip(heaps) {
        words.copy_from_slice(&[heap.len, heap.region.key, heap.region.addr]);
    }
}

fn read_rails(words: &[u64], len: u64) -> Result<([RemoteHeap; RAILS_MAX], usize), CardError> {
    let mut heaps = [NOWHERE; RAILS_MAX];
    let mut rails = 0;
    let mut ends = false;
    for (words, heap) in words.chunks_exact(3).zip(&mut heaps) {
        let &[bytes, key, addr] = words else { continue };
        if [bytes, key, addr] == [0; 3] {
            ends = true;
            continue;
        }
        if ends {
            return Err(CardError::Rails);
        }
        if bytes != len {
            return Err(CardError::Length(bytes));
        }
        if addr.checked_add(bytes).is_none() {
            return Err(CardError::Address(addr));
        }
        *heap = RemoteHeap { len: bytes, region: RemoteRegion { key, addr } };
        rails += 1;
    }
    if rails == 0 { Err(CardError::Rails) } else { Ok((heaps, rails)) }
}
