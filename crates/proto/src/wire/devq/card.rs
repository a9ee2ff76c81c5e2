//! What each rank tells all others of its part of a window before anybody is written to. Made and read by `trunkline::device`, which carries it by an
//! all-gather of the job.

use crate::limits::RAILS_MAX;
use crate::mutant::Mutant;
use crate::wire::dial::Heap;
use crate::wire::frame::Region;

/// Words of a card: the configuration, the key, and three for each rail that there may be.
pub const CARD_WORDS: usize = CONFIG_WORDS + 1 + 3 * RAILS_MAX;

/// Words of a configuration, which only those who give it understand.
pub const CONFIG_WORDS: usize = 8;

/// A rank's part of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowCard {
    /// How the rank was told to make it.
    pub config: [u64; CONFIG_WORDS],
    /// The key of its region, as entries have it.
    pub key: u32,
    /// No network reaches the part: the heaps are memory of the host beside it, and its owner is asked by his post box.
    pub is_posted: bool,
    heaps: [Heap; RAILS_MAX],
    rails: usize,
}

/// A card that cannot be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CardError {
    /// No region has this key.
    #[error("no region has the key {0:#x}")]
    Key(u64),
    /// There are rails, or words of them, behind the last one; or there is none.
    #[error("rails are left out")]
    Rails,
    /// The part is shorter than a window of that configuration, or longer.
    #[error("a part of {0} bytes, where all have as many")]
    Length(u64),
    /// It lies around the end of all addresses.
    #[error("bytes from {0:#x} on end behind all addresses")]
    Address(u64),
}

const NOWHERE: Heap = Heap { len: 0, region: Region { key: 0, addr: 0 } };

impl WindowCard {
    /// Of a part that is reached so over each rail; `None` without any, or with more than there may be.
    #[must_use]
    pub fn new(config: [u64; CONFIG_WORDS], key: u32, told: &[Heap]) -> Option<Self> {
        let mut heaps = [NOWHERE; RAILS_MAX];
        heaps.get_mut(..told.len()).filter(|told| !told.is_empty())?.copy_from_slice(told);
        Some(Self { config, key, is_posted: false, heaps, rails: told.len() })
    }

    /// The same of a part that is reached by its post box, or is not.
    #[must_use]
    pub const fn posted(self, is_posted: bool) -> Self {
        Self { is_posted, ..self }
    }

    /// How the part is reached, over each of its rank's rails.
    #[must_use]
    pub fn heaps(&self) -> &[Heap] {
        self.heaps.get(..self.rails).unwrap_or_default()
    }

    /// As it is told.
    #[must_use]
    pub fn to_words(&self) -> [u64; CARD_WORDS] {
        let mut words = [0; CARD_WORDS];
        let (config, rest) = words.split_at_mut(CONFIG_WORDS);
        config.copy_from_slice(&self.config);
        if let [key, rails @ ..] = rest {
            *key = u64::from(self.key) | u64::from(self.is_posted) << 32;
            for (words, heap) in rails.chunks_exact_mut(3).zip(self.heaps()) {
                words.copy_from_slice(&[heap.len, heap.region.key, heap.region.addr]);
            }
        }
        words
    }

    /// One that another rank has told, whose part has `len` bytes if the configuration is ours.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn from_words(words: &[u64; CARD_WORDS], len: u64, mutant: Mutant) -> Result<Self, CardError> {
        let mut config = [0; CONFIG_WORDS];
        config.copy_from_slice(&words[..CONFIG_WORDS]);
        let told = words[CONFIG_WORDS];
        // Generations count from 1.
        let is_posted = told >> 32 == 1;
        let key = u32::try_from(told & !(1 << 32)).ok();
        let key = key.filter(|key| key >> 8 != 0).ok_or(CardError::Key(told))?;
        let (mut heaps, mut rails, mut ends) = ([NOWHERE; RAILS_MAX], 0, false);
        for (words, heap) in words[CONFIG_WORDS + 1..].chunks_exact(3).zip(&mut heaps) {
            let &[bytes, key, addr] = words else { continue };
            if [bytes, key, addr] == [0; 3] {
                ends = true;
                continue;
            }
            if ends {
                return Err(CardError::Rails);
            }
            if bytes != len && !mutant.is("card-takes-any-length") {
                return Err(CardError::Length(bytes));
            }
            if addr.checked_add(bytes).is_none() {
                return Err(CardError::Address(addr));
            }
            *heap = Heap { len: bytes, region: Region { key, addr } };
            rails += 1;
        }
        if rails == 0 { Err(CardError::Rails) } else { Ok(Self { config, key, is_posted, heaps, rails }) }
    }
}
