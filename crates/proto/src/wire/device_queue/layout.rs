//! The layout of a queue and of a doorbell page ("Queue" and "Doorbell page" of docs/wire.md): offsets in bytes, headers and state words.

use super::{is_before, join_halves, split_halves};

/// Version of the layout.
pub const VERSION: u16 = 1;

/// Least depth of a queue, in entries.
pub const DEPTH_MIN: u32 = 2;

/// Greatest depth of a queue: beyond it, the 16 bits of an index on a NIC would be ambiguous.
pub const DEPTH_MAX: u32 = 32_768;

/// Size of an entry in bytes.
pub const ENTRY_BYTES: u64 = 64;

/// Size of a completion in bytes.
pub const COMPLETION_BYTES: u64 = 16;

/// Size in bytes of a line: threads that change words of different lines do not disturb each other.
pub const LINE_BYTES: u64 = 128;

/// Most doorbells of a page.
pub const BELLS_MAX: u32 = 65_536;

const MAGIC: u64 = u64::from_le_bytes(*b"TLDEVQUE");
const BELL_MAGIC: u64 = u64::from_le_bytes(*b"TLDEVBEL");
const CHECKED: u32 = 1;
const OF_DEVICE: u32 = 2;
const BY_BYTES: u32 = 1;

/// Offsets of a queue's words, in bytes.
pub mod at {
    use super::LINE_BYTES;

    /// First index that is not reserved.
    pub const RESERVED: u64 = LINE_BYTES;
    /// First index that is not published.
    pub const READY: u64 = 2 * LINE_BYTES;
    /// First index that needs no doorbell yet.
    pub const SUBMITTED: u64 = 3 * LINE_BYTES;
    /// The frontier that a producer read last.
    pub const SHADOW: u64 = 4 * LINE_BYTES;
    /// The number of completed entries.
    pub const FRONTIER: u64 = 5 * LINE_BYTES;
    /// Why all users of the queue stop; 0 while it works.
    pub const ABORT: u64 = 6 * LINE_BYTES;
    /// The number of the companion queue.
    pub const COMPANION: u64 = ABORT + 8;
    /// For a queue of a device: why the device requests an abort; the engine sets the abort word from it.
    pub const ABORT_ASKED: u64 = ABORT + 16;
    /// For a queue of a device: whether the device requests a companion.
    pub const COMPANION_ASKED: u64 = ABORT + 24;
    /// Whether the queue has failed, and the status.
    pub const ERROR: u64 = 7 * LINE_BYTES;
    /// The index of the first entry that failed.
    pub const FIRST_BAD: u64 = ERROR + 8;
    /// The executor's reason, and the epoch.
    pub const REASON: u64 = ERROR + 16;
    /// The ring of entries.
    pub const RING: u64 = 8 * LINE_BYTES;
}

const _: () = {
    assert!(at::RING == 1024 && at::ERROR == 896 && at::FRONTIER == 640);
    assert!(ENTRY_BYTES == 8 * 8 && COMPLETION_BYTES == 2 * 8);
    assert!(DEPTH_MIN.is_power_of_two() && DEPTH_MAX.is_power_of_two() && DEPTH_MAX <= 1 << 15);
    assert!(at::REASON + 8 <= at::ERROR + 64);
};

/// The shape of a queue: all fields of its header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueShape {
    depth: u32,
    number: u32,
    epoch: u32,
    bell: u32,
    checked: bool,
    of_device: bool,
}

/// Why a queue or a doorbell page is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ShapeError {
    /// The depth is not a power of two from [`DEPTH_MIN`] to [`DEPTH_MAX`].
    #[error("depth {0} is not a power of two from {DEPTH_MIN} to {DEPTH_MAX}")]
    Depth(u32),
    /// The number of doorbells is 0 or above [`BELLS_MAX`].
    #[error("{0} doorbells per page are out of range (1 to {BELLS_MAX})")]
    Bells(u32),
    /// The memory is too small.
    #[error("the memory has {have} bytes, {need} are needed")]
    Short {
        /// The available bytes.
        have: u64,
        /// The needed bytes.
        need: u64,
    },
    /// The first word is not that of a queue or a doorbell page.
    #[error("the memory begins with {0:#x}, which is neither a queue nor a doorbell page")]
    Magic(u64),
    /// The version is not that of this code.
    #[error("the device queue has version {0}, this process {VERSION}")]
    Version(u16),
    /// A word contradicts the other words, or a reserved word is not zero.
    #[error("byte {0} of the header is invalid")]
    Header(u64),
    /// The number is reserved by the companion word.
    #[error("the queue number {0} is reserved")]
    Number(u32),
}

impl QueueShape {
    /// Creates the shape of a queue.
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

    /// Returns the same shape for a queue whose entries carry a check.
    #[must_use]
    pub const fn with_check(self) -> Self {
        Self { checked: true, ..self }
    }

    /// Returns the same shape for a queue whose producers are threads of a device. The words that they change are in the device's memory, and their
    /// requests have words of their own.
    #[must_use]
    pub const fn for_device(self) -> Self {
        Self { of_device: true, ..self }
    }

    /// Offset 16, 4 bytes: number of entries that fit.
    #[inline]
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Offset 20, 4 bytes: the number by which WAIT names it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Offset 12, 4 bytes: changes each time the memory becomes a new queue.
    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Offset 24, 4 bytes: the index of its doorbell.
    #[must_use]
    pub const fn bell(&self) -> u32 {
        self.bell
    }

    /// Offset 10, flag 1: whether its entries carry a check.
    #[inline]
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.checked
    }

    /// Offset 10, flag 2: whether its producers are threads of a device.
    #[inline]
    #[must_use]
    pub const fn is_for_device(&self) -> bool {
        self.of_device
    }

    /// Returns the size of a contiguous queue in bytes.
    #[must_use]
    pub const fn queue_bytes(&self) -> u64 {
        at::RING + self.depth as u64 * (ENTRY_BYTES + COMPLETION_BYTES)
    }

    /// Returns the offset of the entry of an index.
    #[inline]
    #[must_use]
    pub const fn entry_offset(&self, index: u64) -> u64 {
        at::RING + (index & (self.depth as u64 - 1)) * ENTRY_BYTES
    }

    /// Returns the offset of the completion of an index.
    #[inline]
    #[must_use]
    pub const fn completion_offset(&self, index: u64) -> u64 {
        at::RING + self.depth as u64 * ENTRY_BYTES + (index & (self.depth as u64 - 1)) * COMPLETION_BYTES
    }

    /// Returns the parity of the lap of an index.
    #[inline]
    #[must_use]
    pub const fn owner_bit(&self, index: u64) -> u8 {
        ((index >> self.depth.trailing_zeros()) & 1) as u8
    }

    /// Returns the header's words.
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

    /// Parses the header of a contiguous queue in `have` bytes.
    ///
    /// # Errors
    /// [`ShapeError`] names the invalid field.
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

/// The frontier word: completed entries modulo 2^63 in bits 0-62, failure in bit 63.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FrontierWord(pub u64);

impl FrontierWord {
    const FAILED: u64 = 1 << 63;

    /// Returns the word: all entries before `index` have completed; `failed` if the error page is set.
    #[must_use]
    pub const fn new(index: u64, failed: bool) -> Self {
        Self(index & !Self::FAILED | if failed { Self::FAILED } else { 0 })
    }

    /// Returns whether the error page is set.
    #[inline]
    #[must_use]
    pub const fn has_failed(self) -> bool {
        self.0 & Self::FAILED != 0
    }

    /// Returns whether the entry of an index, less than 2^61 away, has completed.
    #[inline]
    #[must_use]
    pub const fn has_completed(self, index: u64) -> bool {
        is_before(index, self.index_near(index))
    }

    /// Returns the index of the frontier: the one closer to `index` of the two that the word may denote.
    #[inline]
    #[must_use]
    pub const fn index_near(self, index: u64) -> u64 {
        // The distance has 63 bits, with its sign.
        let ahead = (self.0.wrapping_sub(index) << 1) as i64 >> 1;
        index.wrapping_add(ahead as u64)
    }
}

/// The companion word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompanionWord {
    /// 0: no producer has needed a companion.
    None,
    /// 1: a producer needs one; the host has to create it.
    Asked,
    /// 2^64 - 1: no companion will be created.
    Refused,
    /// 2 + the number of the companion queue.
    Queue(u32),
    /// A word that is never written.
    Invalid(u64),
}

impl CompanionWord {
    /// Returns the word.
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

    /// Parses the word.
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

/// The shape of a doorbell page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DoorbellLayout {
    count: u32,
    by_bytes: bool,
}

impl DoorbellLayout {
    const BITS: u64 = 64;

    /// Creates the shape of a page with `count` doorbells.
    ///
    /// # Errors
    /// [`ShapeError::Bells`].
    pub const fn new(count: u32) -> Result<Self, ShapeError> {
        match count {
            1..=BELLS_MAX => Ok(Self { count, by_bytes: false }),
            _ => Err(ShapeError::Bells(count)),
        }
    }

    /// Returns the same page with a byte in place of each bit, for devices whose atomics do not reach host memory.
    #[must_use]
    pub const fn by_bytes(self) -> Self {
        Self { by_bytes: true, ..self }
    }

    /// Returns whether each doorbell has a byte.
    #[must_use]
    pub const fn is_by_bytes(&self) -> bool {
        self.by_bytes
    }

    /// Returns the number of doorbells.
    #[must_use]
    pub const fn bell_count(&self) -> u32 {
        self.count
    }

    /// Returns how many doorbells a word of bits or bytes covers.
    #[must_use]
    pub const fn of_group(&self) -> u32 {
        1 << self.group_shift()
    }

    /// Returns the binary logarithm of [`of_group`](Self::of_group), so that no doorbell needs a division.
    #[inline]
    const fn group_shift(&self) -> u32 {
        if self.by_bytes { 3 } else { 6 }
    }

    /// Returns the number of words of bits or bytes.
    #[inline]
    #[must_use]
    pub const fn group_count(&self) -> u32 {
        (self.count + self.of_group() - 1) >> self.group_shift()
    }

    /// Returns the offset of the bits or bytes of a group.
    #[inline]
    #[must_use]
    pub const fn group_offset(group: u32) -> u64 {
        Self::BITS + group as u64 * 8
    }

    /// Returns the offset of the word with a doorbell's bit, and the mask of that bit; with bytes, the mask of the lowest bit of its byte.
    #[inline]
    #[must_use]
    pub const fn bit_place(&self, bell: u32) -> (u64, u64) {
        let shift = self.group_shift();
        let group = bell >> shift;
        let place = bell & (self.of_group() - 1);
        (Self::group_offset(group), 1 << (place << (6 - shift)))
    }

    /// Returns the doorbell of bit `bit` of group `group`.
    #[inline]
    #[must_use]
    pub const fn bell_of(&self, group: u32, bit: u32) -> u32 {
        let shift = self.group_shift();
        (group << shift) + (bit >> (6 - shift))
    }

    /// Returns the offset of a doorbell.
    #[inline]
    #[must_use]
    pub const fn bell_offset(&self, bell: u32) -> u64 {
        Self::BITS + (self.group_count() as u64).next_multiple_of(8) * 8 + bell as u64 * 8
    }

    /// Returns the size of the page in bytes.
    #[must_use]
    pub const fn page_bytes(&self) -> u64 {
        self.bell_offset(self.count)
    }

    /// Returns the header's words.
    #[must_use]
    pub const fn to_words(&self) -> [u64; 8] {
        let flags = if self.by_bytes { BY_BYTES } else { 0 };
        [BELL_MAGIC, join_halves(VERSION as u32 | flags << 16, self.count), 0, 0, 0, 0, 0, 0]
    }

    /// Parses the header of a page in `have` bytes.
    ///
    /// # Errors
    /// [`ShapeError`] names the invalid field.
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
