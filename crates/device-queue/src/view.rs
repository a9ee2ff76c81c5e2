//! The data with which a kernel uses a queue through the device header: the addresses of its words. The twin of `View` in
//! `include/trunkline/device/abi.h`. The code that launches kernels creates it and passes its bytes.
//!
//! Nothing here reads or writes memory: addresses are numbers, valid where the kernel runs.

use trunkline_proto::wire::device_queue::{DoorbellLayout, LINE_BYTES, QueueShape, VERSION, at};

/// Bytes of the producers' words, where a device keeps them in its own memory.
pub const WORDS_BYTES: u64 = 4 * LINE_BYTES;

/// Bytes of the claims: words by which the threads of one device determine which of them makes a request first.
pub const CLAIMS_BYTES: u64 = 16;

/// Bytes of the words of a group of threads (`GROUP_WORDS`), initially 0.
pub const GROUP_BYTES: u64 = 128;

/// Flag: entries contain a check word.
const CHECKED: u32 = 1;

/// A queue, as its producers see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct QueueView {
    /// The producers' words.
    pub words: u64,
    /// The frontier, and the lines behind it.
    pub told: u64,
    /// The ring.
    pub ring: u64,
    /// The completions.
    pub completions: u64,
    /// The doorbell.
    pub bell: u64,
    /// The word with the doorbell's bit, or the doorbell's byte.
    pub mark: u64,
    /// The bit; 0 if the doorbell has a byte.
    pub bit: u64,
    /// The claims; 0 if requests use the queue's own words.
    pub claims: u64,
    /// The queue's depth.
    pub depth: u32,
    /// The queue's number.
    pub number: u32,
    /// The queue's epoch.
    pub epoch: u32,
    /// Flags.
    pub flags: u32,
    /// Binary logarithm of the depth.
    pub shift: u32,
    /// Version of the layout.
    pub version: u32,
    /// Always 0.
    pub reserved: [u64; 5],
}

const _: () = assert!(size_of::<QueueView>() == 128 && core::mem::offset_of!(QueueView, depth) == 64);

/// The words in a device's own memory that its producers share, by the addresses that the device uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceWords {
    /// [`WORDS_BYTES`], with the first index at the beginning of each line ([`initial_words`](Self::initial_words)).
    pub words: u64,
    /// [`CLAIMS_BYTES`], initially 0.
    pub claims: u64,
}

impl DeviceWords {
    /// Returns the initial producers' words of a queue whose first index is `first`.
    #[must_use]
    pub const fn initial_words(first: u64) -> [u64; (WORDS_BYTES / 8) as usize] {
        let mut words = [0; (WORDS_BYTES / 8) as usize];
        // Each counter has a line of its own, so that threads that change one do not take the line of another.
        let line = (LINE_BYTES / 8) as usize;
        (words[0], words[line], words[2 * line], words[3 * line]) = (first, first, first, first);
        words
    }
}

impl QueueView {
    /// Creates the view of a queue at the address `queue` with a page of doorbells at `page`. `own` is the device's own memory. Returns
    /// `None` if they do not match: only a device uses a queue made for one, and its doorbell has a byte.
    #[must_use]
    pub fn new(
        shape: &QueueShape,
        queue: u64,
        bells: DoorbellLayout,
        page: u64,
        own: Option<DeviceWords>,
    ) -> Option<Self> {
        let fits = own.is_some() == shape.is_for_device() && shape.bell() < bells.bell_count();
        if !fits || own.is_some() && !bells.is_by_bytes() {
            return None;
        }
        let (word, bit) = bells.bit_place(shape.bell());
        let byte = u64::from(bit.trailing_zeros() / 8);
        let (mark, bit) = if bells.is_by_bytes() { (word + byte, 0) } else { (word, bit) };
        Some(Self {
            words: own.map_or(queue + at::RESERVED, |own| own.words),
            told: queue + at::FRONTIER,
            ring: queue + shape.entry_offset(0),
            completions: queue + shape.completion_offset(0),
            bell: page + bells.bell_offset(shape.bell()),
            mark: page + mark,
            bit,
            claims: own.map_or(0, |own| own.claims),
            depth: shape.depth(),
            number: shape.number(),
            epoch: shape.epoch(),
            flags: if shape.is_checked() { CHECKED } else { 0 },
            shift: shape.depth().trailing_zeros(),
            version: VERSION.into(),
            reserved: [0; 5],
        })
    }
}

impl QueueView {
    /// Returns the view as it lies in memory.
    #[must_use]
    pub fn to_words(&self) -> [u64; 16] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [a, b, c, d, e] = self.reserved;
        [
            self.words,
            self.told,
            self.ring,
            self.completions,
            self.bell,
            self.mark,
            self.bit,
            self.claims,
            pair(self.depth, self.number),
            pair(self.epoch, self.flags),
            pair(self.shift, self.version),
            a,
            b,
            c,
            d,
            e,
        ]
    }
}

/// A queue pair of an NVIDIA NIC, as its producers see it. The twin of `mlx5::QueuePair` in `include/trunkline/device/mlx5.h`.
///
/// The completion queue is as deep as the ring, belongs to this queue pair alone, may overrun, and is initially filled with ones. Indices
/// begin at the value of the producers' words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct QueuePair {
    /// The producers' words and, behind them, the lock: [`QUEUE_PAIR_WORDS_BYTES`].
    pub words: u64,
    /// The send queue: entries of 64 bytes.
    pub ring: u64,
    /// The completion queue: entries of 64 bytes.
    pub cqes: u64,
    /// The send queue's half of the doorbell record, 4 bytes.
    pub record: u64,
    /// The doorbell register.
    pub doorbell: u64,
    /// A word of host memory: the reason of an abort, or 0.
    pub abort: u64,
    /// The claims, by which a device's threads determine which of them aborts first: [`CLAIMS_BYTES`].
    pub claims: u64,
    /// A power of two, up to 32,768.
    pub depth: u32,
    /// Binary logarithm of the depth.
    pub shift: u32,
    /// The queue pair number, 24 bits.
    pub number: u32,
    /// The epoch, for tickets.
    pub epoch: u32,
    /// Number of the completion queue, 24 bits.
    pub cq: u32,
    /// Key of the region that receives the old values of atomics: 8 bytes whose addresses begin at 0.
    pub sink: u32,
    /// Always 0.
    pub reserved: [u64; 6],
}

/// Bytes of a queue pair's words in a device's memory.
pub const QUEUE_PAIR_WORDS_BYTES: u64 = WORDS_BYTES + LINE_BYTES;

const _: () = assert!(size_of::<QueuePair>() == 128 && core::mem::offset_of!(QueuePair, depth) == 56);
