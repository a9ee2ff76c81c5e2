//! Where the words of a queue and of a doorbell page lie.

use super::{is_before, join_halves, split_halves};

/// Version of the layout.
pub const VERSION: u16 = 1;

/// Least depth of a queue.
pub const DEPTH_MIN: u32 = 2;

/// Greatest depth: with more, 16 bits would not tell two indices of a queue apart on a NIC.
pub const DEPTH_MAX: u32 = 32_768;

/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 64;

/// Bytes of a completion.
pub const COMPLETION_BYTES: u64 = 16;

/// Bytes of a line that threads change without disturbing the next one.
pub const LINE_BYTES: u64 = 128;

/// Doorbells of a page.
pub const BELLS_MAX: u32 = 65_536;

const MAGIC: u64 = u64::from_le_bytes(*b"TLDEVQUE");
const BELL_MAGIC: u64 = u64::from_le_bytes(*b"TLDEVBEL");
const CHECKED: u32 = 1;
const OF_DEVICE: u32 = 2;
const BY_BYTES: u32 = 1;

/// Offsets of a queue's words.
pub mod at {
    use super::LINE_BYTES;

    /// First index that nobody has taken.
    pub const RESERVED: u64 = LINE_BYTES;
    /// First index that is not published.
    pub const READY: u64 = 2 * LINE_BYTES;
    /// First index that no doorbell is to cover.
    pub const SUBMITTED: u64 = 3 * LINE_BYTES;
    /// What a producer last saw of the frontier.
    pub const SHADOW: u64 = 4 * LINE_BYTES;
    /// How many have completed.
    pub const FRONTIER: u64 = 5 * LINE_BYTES;
    /// Why everybody is to stop.
    pub const ABORT: u64 = 6 * LINE_BYTES;
    /// Which queue is the companion.
    pub const COMPANION: u64 = ABORT + 8;
    /// Why a device asks everybody to stop; the engine makes it an abort.
    pub const ABORT_ASKED: u64 = ABORT + 16;
    /// Whether a device asks for a companion.
    pub const COMPANION_ASKED: u64 = ABORT + 24;
    /// Whether the queue has failed, and the status.
    pub const ERROR: u64 = 7 * LINE_BYTES;
    /// The first entry that failed.
    pub const FIRST_BAD: u64 = ERROR + 8;
    /// The executor's reason, and the epoch.
    pub const REASON: u64 = ERROR + 16;
    /// The ring.
    pub const RING: u64 = 8 * LINE_BYTES;
}

const _: () = {
    assert!(at::RING == 1024 && at::ERROR == 896 && at::FRONTIER == 640);
    assert!(ENTRY_BYTES == 8 * 8 && COMPLETION_BYTES == 2 * 8);
    assert!(DEPTH_MIN.is_power_of_two() && DEPTH_MAX.is_power_of_two() && DEPTH_MAX <= 1 << 15);
    assert!(at::REASON + 8 <= at::ERROR + 64);
};

/// What a queue is: all that its header says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueShape {
    depth: u32,
    number: u32,
    epoch: u32,
    bell: u32,
    checked: bool,
    of_device: bool,
}

/// A queue or doorbell page is not as it should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ShapeError {
    /// The depth is no power of two from 2 to 32,768.
    #[error("a depth of {0}; it is a power of two from {DEPTH_MIN} to {DEPTH_MAX}")]
    Depth(u32),
    /// There are no such many doorbells in a page.
    #[error("{0} doorbells in a page; there are 1 to {BELLS_MAX}")]
    Bells(u32),
    /// The memory is too small for it.
    #[error("{have} bytes of memory, {need} are needed")]
    Short {
        /// What is there.
        have: u64,
        /// What it takes.
        need: u64,
    },
    /// It is something else.
    #[error("no queue and no doorbells, but {0:#x}")]
    Magic(u64),
    /// It is of another version.
    #[error("version {0} of device queues; this is {VERSION}")]
    Version(u16),
    /// A word that is known from the others says otherwise, or what is reserved is not zero.
    #[error("byte {0} of the header is wrong")]
    Header(u64),
    /// The number stands for something else.
    #[error("no queue may have the number {0}")]
    Number(u32),
}

impl QueueShape {
    /// A queue.
    ///
    /// # Errors
    /// [`ShapeError::Depth`], and [`ShapeError::Number`] for the two highest numbers.
    pub const fn new(depth: u32, number: u32, epoch: u32, bell: u32) -> Result<Self, ShapeError> {
        if depth < DEPTH_MIN || depth > DEPTH_MAX || !depth.is_power_of_two() {
            return Err(ShapeError::Depth(depth));
        }
        if number >= u32::MAX - 1 {
            return Err(ShapeError::Number(number));
        }
        Ok(Self { depth, number, epoch, bell, checked: false, of_device: false })
    }

    /// The same, and its entries carry a check.
    #[must_use]
    pub const fn with_check(self) -> Self {
        Self { checked: true, ..self }
    }

    /// The same, and its producers are threads of a device: the words that they change lie in its own memory, and what they ask for has words of
    /// its own.
    #[must_use]
    pub const fn for_device(self) -> Self {
        Self { of_device: true, ..self }
    }

    /// Entries that it has room for.
    #[inline]
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// By which WAIT names it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Changes each time the memory becomes a queue anew.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The place of its doorbell.
    #[must_use]
    pub const fn bell(&self) -> u32 {
        self.bell
    }

    /// Whether its entries carry a check.
    #[inline]
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.checked
    }

    /// Whether its producers are threads of a device.
    #[inline]
    #[must_use]
    pub const fn is_for_device(&self) -> bool {
        self.of_device
    }

    /// Bytes that it takes, as one piece.
    #[must_use]
    pub const fn queue_bytes(&self) -> u64 {
        at::RING + self.depth as u64 * (ENTRY_BYTES + COMPLETION_BYTES)
    }

    /// Where the entry of an index lies.
    #[inline]
    #[must_use]
    pub const fn entry_offset(&self, index: u64) -> u64 {
        at::RING + (index & (self.depth as u64 - 1)) * ENTRY_BYTES
    }

    /// Where the completion of an index lies.
    #[inline]
    #[must_use]
    pub const fn completion_offset(&self, index: u64) -> u64 {
        at::RING + self.depth as u64 * ENTRY_BYTES + (index & (self.depth as u64 - 1)) * COMPLETION_BYTES
    }

    /// The parity of an index's lap.
    #[inline]
    #[must_use]
    pub const fn owner_bit(&self, index: u64) -> u8 {
        ((index >> self.depth.trailing_zeros()) & 1) as u8
    }

    /// The header's words.
    #[must_use]
    pub fn to_words(&self) -> [u64; 16] {
        let mut words = [0; 16];
        let flags = if self.checked { CHECKED } else { 0 } | if self.of_device { OF_DEVICE } else { 0 };
        words[0] = MAGIC;
        words[1] = join_halves(u32::from(VERSION) | flags << 16, self.epoch);
        words[2] = join_halves(self.depth, self.number);
        words[3] = join_halves(self.bell, 0);
        words[4] = at::RING;
        words[5] = at::RING + u64::from(self.depth) * ENTRY_BYTES;
        words
    }

    /// Reads a header of a queue that lies together in `have` bytes.
    ///
    /// # Errors
    /// [`ShapeError`] says what is wrong.
    pub fn from_words(words: &[u64; 16], have: u64) -> Result<Self, ShapeError> {
        if words[0] != MAGIC {
            return Err(ShapeError::Magic(words[0]));
        }
        let (kind, epoch) = split_halves(words[1]);
        let (depth, number) = split_halves(words[2]);
        if kind as u16 != VERSION {
            return Err(ShapeError::Version(kind as u16));
        }
        let mut shape = Self::new(depth, number, epoch, split_halves(words[3]).0)?;
        shape.checked = kind >> 16 & CHECKED != 0;
        shape.of_device = kind >> 16 & OF_DEVICE != 0;
        let differs = shape.to_words().iter().zip(words).position(|(ours, theirs)| ours != theirs);
        match differs {
            Some(at) => Err(ShapeError::Header(at as u64 * 8)),
            None if have < shape.queue_bytes() => Err(ShapeError::Short { have, need: shape.queue_bytes() }),
            None => Ok(shape),
        }
    }
}

/// The frontier word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FrontierWord(pub u64);

impl FrontierWord {
    const FAILED: u64 = 1 << 63;

    /// All before `index` have completed; `failed`: the error page says something.
    #[must_use]
    pub const fn new(index: u64, failed: bool) -> Self {
        Self(index & !Self::FAILED | if failed { Self::FAILED } else { 0 })
    }

    /// Whether the error page says something.
    #[inline]
    #[must_use]
    pub const fn has_failed(self) -> bool {
        self.0 & Self::FAILED != 0
    }

    /// Whether the entry of an index, less than 2^61 away, has completed.
    #[inline]
    #[must_use]
    pub const fn has_completed(self, index: u64) -> bool {
        is_before(index, self.index_near(index))
    }

    /// The index it stands for, the one of the two that is nearer to `index`.
    #[inline]
    #[must_use]
    pub const fn index_near(self, index: u64) -> u64 {
        // 63 bits of distance, with their sign.
        let ahead = (self.0.wrapping_sub(index) << 1) as i64 >> 1;
        index.wrapping_add(ahead as u64)
    }
}

/// The companion word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompanionWord {
    /// Nobody has needed one.
    None,
    /// Somebody does; the host is to make it.
    Asked,
    /// There will be none.
    Refused,
    /// The number of the queue.
    Queue(u32),
    /// No such word is ever written.
    Invalid(u64),
}

impl CompanionWord {
    /// The word.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Asked => 1,
            Self::Refused => u64::MAX,
            Self::Queue(number) => number as u64 + 2,
            Self::Invalid(word) => word,
        }
    }

    /// What the word says.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Asked,
            u64::MAX => Self::Refused,
            word if word - 2 < u32::MAX as u64 - 1 => Self::Queue((word - 2) as u32),
            word => Self::Invalid(word),
        }
    }
}

/// What a page of doorbells is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DoorbellLayout {
    count: u32,
    by_bytes: bool,
}

impl DoorbellLayout {
    const BITS: u64 = 64;

    /// So many doorbells.
    ///
    /// # Errors
    /// [`ShapeError::Bells`].
    pub const fn new(count: u32) -> Result<Self, ShapeError> {
        match count {
            1..=BELLS_MAX => Ok(Self { count, by_bytes: false }),
            _ => Err(ShapeError::Bells(count)),
        }
    }

    /// The same, and each has a byte in place of a bit, for devices whose atomics do not reach the host's memory.
    #[must_use]
    pub const fn by_bytes(self) -> Self {
        Self { by_bytes: true, ..self }
    }

    /// Whether each has a byte.
    #[must_use]
    pub const fn is_by_bytes(&self) -> bool {
        self.by_bytes
    }

    /// How many.
    #[must_use]
    pub const fn bell_count(&self) -> u32 {
        self.count
    }

    /// Doorbells of a word of bits or bytes.
    #[must_use]
    pub const fn of_group(&self) -> u32 {
        1 << self.group_shift()
    }

    /// Binary logarithm of [`of_group`](Self::of_group): nothing is divided for a doorbell.
    #[inline]
    const fn group_shift(&self) -> u32 {
        if self.by_bytes { 3 } else { 6 }
    }

    /// Words of bits or bytes.
    #[inline]
    #[must_use]
    pub const fn group_count(&self) -> u32 {
        (self.count + self.of_group() - 1) >> self.group_shift()
    }

    /// Where the bits or bytes of a group lie.
    #[inline]
    #[must_use]
    pub const fn group_offset(group: u32) -> u64 {
        Self::BITS + group as u64 * 8
    }

    /// Where the bit of a doorbell lies, and which it is; of a byte the lowest one.
    #[inline]
    #[must_use]
    pub const fn bit_place(&self, bell: u32) -> (u64, u64) {
        let shift = self.group_shift();
        let group = bell >> shift;
        let place = bell & (self.of_group() - 1);
        (Self::group_offset(group), 1 << (place << (6 - shift)))
    }

    /// The doorbell of the bit `bit` of the group `group`.
    #[inline]
    #[must_use]
    pub const fn bell_of(&self, group: u32, bit: u32) -> u32 {
        let shift = self.group_shift();
        (group << shift) + (bit >> (6 - shift))
    }

    /// Where a doorbell lies.
    #[inline]
    #[must_use]
    pub const fn bell_offset(&self, bell: u32) -> u64 {
        Self::BITS + (self.group_count() as u64).next_multiple_of(8) * 8 + bell as u64 * 8
    }

    /// Bytes of the page.
    #[must_use]
    pub const fn page_bytes(&self) -> u64 {
        self.bell_offset(self.count)
    }

    /// The header's words.
    #[must_use]
    pub const fn to_words(&self) -> [u64; 8] {
        let flags = if self.by_bytes { BY_BYTES } else { 0 };
        [BELL_MAGIC, join_halves(VERSION as u32 | flags << 16, self.count), 0, 0, 0, 0, 0, 0]
    }

    /// Reads the header of a page in `have` bytes.
    ///
    /// # Errors
    /// [`ShapeError`] says what is wrong.
    pub fn from_words(words: &[u64; 8], have: u64) -> Result<Self, ShapeError> {
        if words[0] != BELL_MAGIC {
            return Err(ShapeError::Magic(words[0]));
        }
        let (version, count) = split_halves(words[1]);
        if version as u16 != VERSION {
            return Err(ShapeError::Version(version as u16));
        }
        let mut bells = Self::new(count)?;
        bells.by_bytes = version >> 16 & BY_BYTES != 0;
        let differs = bells.to_words().iter().zip(words).position(|(ours, theirs)| ours != theirs);
        match differs {
            Some(at) => Err(ShapeError::Header(at as u64 * 8)),
            None if have < bells.page_bytes() => Err(ShapeError::Short { have, need: bells.page_bytes() }),
            None => Ok(bells),
        }
    }
}
