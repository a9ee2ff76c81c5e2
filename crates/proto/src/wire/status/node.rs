//! The page of memory that an endpoint shares inside a node: numbers, its neighbours (processes of the same host), its exports and their holders. The
//! engine writes it at intervals; `trunkline top` parses copies of it. Pure layout: "Page of shared memory" of docs/wire.md.

use alloc::vec;
use alloc::vec::Vec;

use super::number::Number;
use super::{join_halves, split_halves};
use crate::id::ProcessId;

/// Name of the memory file.
pub const NAME: &str = "trunkline.node";
/// The version of this layout.
pub const VERSION: u32 = 1;
/// The first word of a page, once it is ready.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TRKLNODE");
/// Number of records of neighbours. An endpoint with more neighbours shows the first ones.
pub const NEIGHBOURS: usize = 64;
/// Number of records of exports. An endpoint with more exports shows that many of them.
pub const EXPORTS: usize = 256;
/// Words of a record.
pub const RECORD: usize = 8;
/// Words of the head.
pub const HEAD: usize = 128;
/// Words of the page.
pub const WORDS: usize = EXPORTS_AT + EXPORTS * RECORD;
/// Size of the page in bytes.
pub const BYTES: usize = WORDS * 8;

/// The word that is odd while words from [`CHANGING`] on change.
pub const SEQUENCE: usize = 2;
/// The first word that changes during the life of an endpoint, apart from the sequence.
pub const CHANGING: usize = 8;
/// The first number.
pub const NUMBERS_AT: usize = 16;
/// The first record of a neighbour.
pub const NEIGHBOURS_AT: usize = HEAD;
/// The first record of an export.
pub const EXPORTS_AT: usize = NEIGHBOURS_AT + NEIGHBOURS * RECORD;

const _: () = assert!(NUMBERS_AT + Number::LEN <= HEAD, "the numbers are in the head");

/// The rank of a process that has none.
const NO_RANK: u32 = u32::MAX;

/// Why bytes are not a page of shared memory of this version.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The length is not [`BYTES`].
    #[error("it has {0} bytes, a page of shared memory has {BYTES}")]
    Length(usize),
    /// The first word is not [`MAGIC`].
    #[error("it does not begin as a page of shared memory does, or is not ready yet")]
    Magic,
    /// The version or the size is different.
    #[error("it has version {0}, this program reads version {VERSION}; use the program of the same build")]
    Version(u32),
    /// Every copy was made while the page was written.
    #[error("it changed during every attempt to read it")]
    Unsettled,
    /// A number of records is above its limit.
    #[error("it has {neighbours} records of neighbours and {exports} of exports, which exceeds a limit")]
    Records {
        /// Records of neighbours.
        neighbours: u32,
        /// Records of exports.
        exports: u32,
    },
    /// A record of a neighbour is invalid.
    #[error("a record of a neighbour in it begins with the invalid word {0:#x}")]
    Neighbour(u64),
    /// A record of an export is invalid.
    #[error("a record of an export in it begins with the invalid word {0:#x}")]
    Export(u64),
    /// An export names a holder that has no record.
    #[error("an export in it is held by neighbours {0:#x}, some of which have no record")]
    Holders(u64),
}

/// The owner of a page and its start: words 3 to 7, which do not change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageOwner {
    /// Words 4 and 5: the endpoint's random name.
    pub process: ProcessId,
    /// Word 3, bits 0-31: the process number, as the process itself sees it.
    pub pid: u32,
    /// Word 3, bits 32-63: its rank in the job, if it has one.
    pub rank: Option<u32>,
    /// Word 6: when the page was created, in nanoseconds since 1970.
    pub made_unix: u64,
    /// Word 7: the same instant on the clock of all other times of the page, in nanoseconds.
    pub made: u64,
}

impl PageOwner {
    /// Returns words 3 to 7 of the head.
    #[must_use]
    pub fn to_words(&self) -> [u64; CHANGING - 3] {
        let [low, high] = split_halves(self.process.0);
        [rank_and(self.rank, self.pid), low, high, self.made_unix, self.made]
    }

    fn from_words([who, low, high, made_unix, made]: [u64; CHANGING - 3]) -> Self {
        let process = ProcessId(join_halves([low, high]));
        Self { process, pid: who as u32, rank: rank_of(who), made_unix, made }
    }
}

/// Packs a rank and another number into one word.
fn rank_and(rank: Option<u32>, other: u32) -> u64 {
    u64::from(other) | u64::from(rank.unwrap_or(NO_RANK)) << 32
}

fn rank_of(word: u64) -> Option<u32> {
    Some((word >> 32) as u32).filter(|rank| *rank != NO_RANK)
}

/// The record of a neighbour, a process of the same host that shares memory with this one (8 words).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NeighbourRecord {
    /// Word 0: whether the process has ended (2, otherwise 1); its memory is then being released.
    pub gone: bool,
    /// Word 1, bits 0-31: its process number, as it sees itself; 0 if unknown.
    pub pid: u32,
    /// Word 1, bits 32-63: its rank in the job, if known.
    pub rank: Option<u32>,
    /// Word 2: mappings of its memory in this process.
    pub mappings: u32,
    /// Word 3: size of these mappings in bytes.
    pub mapped_bytes: u64,
    /// Word 4: operations of this process that use them.
    pub pins: u32,
    /// Word 5: exports of this process that it holds.
    pub holds: u32,
    /// Word 6: size of these exports in bytes.
    pub held_bytes: u64,
}

impl NeighbourRecord {
    /// Returns the record.
    #[must_use]
    pub fn to_words(&self) -> [u64; RECORD] {
        let state = if self.gone { 2 } else { 1 };
        [
            state,
            rank_and(self.rank, self.pid),
            self.mappings.into(),
            self.mapped_bytes,
            self.pins.into(),
            self.holds.into(),
            self.held_bytes,
            0,
        ]
    }

    fn from_words(words: &[u64; RECORD]) -> Result<Self, NodeError> {
        let [state, who, mappings, mapped_bytes, pins, holds, held_bytes, _] = *words;
        let gone = match state {
            1 => false,
            2 => true,
            _ => return Err(NodeError::Neighbour(state)),
        };
        let pid = who as u32;
        let rank = rank_of(who);
        let [mappings, pins, holds] = [mappings, pins, holds].map(|word| word as u32);
        Ok(Self { gone, pid, rank, mappings, mapped_bytes, pins, holds, held_bytes })
    }
}

/// The state of an export.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ExportStatus {
    /// 1: the driver is exporting it.
    Exporting,
    /// 2: it is kept for later messages.
    #[default]
    Live,
    /// 3: it is retired, and still used by a message or mapped by a neighbour: a zombie.
    Retiring,
    /// 4: it is retired, and is being returned to the driver.
    Leaving,
}

impl ExportStatus {
    /// Returns the state as one word.
    #[must_use]
    pub const fn short_text(self) -> &'static str {
        match self {
            Self::Exporting => "exporting",
            Self::Live => "live",
            Self::Retiring => "zombie",
            Self::Leaving => "leaving",
        }
    }
}

/// The record of exported memory (8 words).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PageExport {
    /// Word 0, bits 0-7: its state.
    pub stands: ExportStatus,
    /// Word 0, bits 8-31: whether it ends with the last message that uses it (1, otherwise 0).
    pub passing: bool,
    /// Word 0, bits 32-63: the number of its device.
    pub device: u32,
    /// Word 1: address of its first byte in its own process.
    pub base: u64,
    /// Word 2: its length in bytes.
    pub len: u64,
    /// Word 3: the driver's id of the allocation.
    pub allocation: u64,
    /// Word 4, bits 0-31: messages that use it.
    pub pins: u32,
    /// Word 4, bits 32-63: neighbours that hold it, with and without a record.
    pub holders: u32,
    /// Word 5: when the last message that used it ended, or when it was created; by the clock of the page.
    pub used: u64,
    /// Word 6: the neighbours with a record that hold it; bit 0 is the first record.
    pub held_by: u64,
}

impl PageExport {
    /// Returns the record.
    #[must_use]
    pub fn to_words(&self) -> [u64; RECORD] {
        let state = match self.stands {
            ExportStatus::Exporting => 1,
            ExportStatus::Live => 2,
            ExportStatus::Retiring => 3,
            ExportStatus::Leaving => 4,
        };
        [
            state | u64::from(self.passing) << 8 | u64::from(self.device) << 32,
            self.base,
            self.len,
            self.allocation,
            u64::from(self.pins) | u64::from(self.holders) << 32,
            self.used,
            self.held_by,
            0,
        ]
    }

    fn from_words(words: &[u64; RECORD], neighbours: usize) -> Result<Self, NodeError> {
        let [first, base, len, allocation, users, used, held_by, _] = *words;
        let wrong = Err(NodeError::Export(first));
        let stands = match first & 0xff {
            1 => ExportStatus::Exporting,
            2 => ExportStatus::Live,
            3 => ExportStatus::Retiring,
            4 => ExportStatus::Leaving,
            _ => return wrong,
        };
        let passing = match first >> 8 & 0xff_ffff {
            0 => false,
            1 => true,
            _ => return wrong,
        };
        let unknown = held_by.checked_shr(neighbours as u32).unwrap_or(0);
        if unknown != 0 {
            return Err(NodeError::Holders(held_by));
        }
        let device = (first >> 32) as u32;
        let pins = users as u32;
        let holders = (users >> 32) as u32;
        Ok(Self { stands, passing, device, base, len, allocation, pins, holders, used, held_by })
    }

    /// Iterates over the records of the neighbours that hold it, by index.
    pub fn holder_records(&self) -> impl Iterator<Item = usize> + use<> {
        let held_by = self.held_by;
        (0..NEIGHBOURS).filter(move |at| held_by >> at & 1 == 1)
    }
}

/// A whole page, as copied.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SharedMemoryPage {
    /// Its owner.
    pub owner: PageOwner,
    /// Word 8: when it was last written, by the clock of the page.
    pub written: u64,
    /// Words from 16 on: the numbers.
    pub numbers: [u64; Number::LEN],
    /// The neighbours with a record, at most [`NEIGHBOURS`].
    pub neighbours: Vec<NeighbourRecord>,
    /// The exports with a record, at most [`EXPORTS`].
    pub exports: Vec<PageExport>,
}

/// Returns word 9 of the head: the numbers of records.
#[must_use]
pub const fn record_counts(neighbours: u32, exports: u32) -> u64 {
    neighbours as u64 | (exports as u64) << 32
}

/// Returns word 1 of the head: version and size of the page.
#[must_use]
pub const fn version_word() -> u64 {
    VERSION as u64 | (BYTES as u64) << 32
}

impl SharedMemoryPage {
    /// Returns one of its numbers.
    #[must_use]
    pub const fn number(&self, which: Number) -> u64 {
        self.numbers[which as usize]
    }

    /// Parses a copy of a page. The bytes may be from any process.
    ///
    /// # Errors
    /// [`NodeError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NodeError> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        if chunks.len() != WORDS || !rest.is_empty() {
            return Err(NodeError::Length(bytes.len()));
        }
        let word = |at: usize| chunks.get(at).map_or(0, |chunk| u64::from_le_bytes(*chunk));
        if word(0) != MAGIC {
            return Err(NodeError::Magic);
        }
        if word(1) != version_word() {
            return Err(NodeError::Version(word(1) as u32));
        }
        if !word(SEQUENCE).is_multiple_of(2) {
            return Err(NodeError::Unsettled);
        }
        let neighbours = word(9) as u32;
        let exports = (word(9) >> 32) as u32;
        if neighbours as usize > NEIGHBOURS || exports as usize > EXPORTS {
            return Err(NodeError::Records { neighbours, exports });
        }
        let record = |from: usize, nth: usize| core::array::from_fn(|at| word(from + nth * RECORD + at));
        let of = |nth| NeighbourRecord::from_words(&record(NEIGHBOURS_AT, nth));
        let found = (0..neighbours as usize).map(of).collect::<Result<Vec<_>, _>>()?;
        let of = |nth| PageExport::from_words(&record(EXPORTS_AT, nth), neighbours as usize);
        Ok(Self {
            owner: PageOwner::from_words(core::array::from_fn(|at| word(3 + at))),
            written: word(CHANGING),
            numbers: core::array::from_fn(|at| word(NUMBERS_AT + at)),
            neighbours: found,
            exports: (0..exports as usize).map(of).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the page's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![0; WORDS];
        let mut put = |at: usize, what: &[u64]| {
            words.iter_mut().skip(at).zip(what).for_each(|(to, word)| *to = *word);
        };
        put(0, &[MAGIC, version_word(), 2]);
        put(3, &self.owner.to_words());
        let counts = record_counts(self.neighbours.len() as u32, self.exports.len() as u32);
        put(CHANGING, &[self.written, counts]);
        put(NUMBERS_AT, &self.numbers);
        for (nth, neighbour) in self.neighbours.iter().enumerate() {
            put(NEIGHBOURS_AT + nth * RECORD, &neighbour.to_words());
        }
        for (nth, export) in self.exports.iter().enumerate() {
            put(EXPORTS_AT + nth * RECORD, &export.to_words());
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn neighbour() -> impl Strategy<Value = NeighbourRecord> {
        let who = (any::<bool>(), any::<u32>(), prop::option::of(0..u32::MAX));
        (who, any::<[u32; 3]>(), any::<[u64; 2]>()).prop_map(|((gone, pid, rank), few, bytes)| {
            let ([mappings, pins, holds], [mapped_bytes, held_bytes]) = (few, bytes);
            NeighbourRecord { gone, pid, rank, mappings, mapped_bytes, pins, holds, held_bytes }
        })
    }

    fn export() -> impl Strategy<Value = PageExport> {
        let stands =
            [ExportStatus::Exporting, ExportStatus::Live, ExportStatus::Retiring, ExportStatus::Leaving];
        let who = (prop::sample::select(Vec::from(stands)), any::<bool>());
        (who, any::<[u32; 3]>(), any::<[u64; 5]>()).prop_map(|((stands, passing), few, words)| {
            let ([device, pins, holders], [base, len, allocation, used, held_by]) = (few, words);
            PageExport { stands, passing, device, base, len, allocation, pins, holders, used, held_by }
        })
    }

    fn page() -> impl Strategy<Value = SharedMemoryPage> {
        let who = (any::<[u8; 16]>(), any::<u32>(), prop::option::of(0..u32::MAX), any::<[u64; 3]>());
        let numbers = proptest::collection::vec(any::<u64>(), Number::LEN);
        let neighbours = proptest::collection::vec(neighbour(), 0..=NEIGHBOURS);
        let exports = proptest::collection::vec(export(), 0..20);
        (who, numbers, neighbours, exports).prop_map(|(who, numbers, neighbours, mut exports)| {
            let (process, pid, rank, [made_unix, made, written]) = who;
            let known = u64::MAX.checked_shl(neighbours.len() as u32).map_or(u64::MAX, |beyond| !beyond);
            exports.iter_mut().for_each(|export| export.held_by &= known);
            let owner = PageOwner { process: ProcessId(process), pid, rank, made_unix, made };
            let numbers = core::array::from_fn(|at| numbers[at]);
            SharedMemoryPage { owner, written, numbers, neighbours, exports }
        })
    }

    proptest! {
        #[test]
        fn encoded_values_round_trip(page in page()) {
            prop_assert_eq!(SharedMemoryPage::from_bytes(&page.to_bytes()), Ok(page));
        }

        #[test]
        fn parsed_pages_encode_to_the_same_bytes(
            mut bytes in page().prop_map(|page| page.to_bytes()),
            changes in proptest::collection::vec((0..BYTES, any::<u8>()), 0..8),
        ) {
            changes.iter().for_each(|(at, to)| bytes[*at] = *to);
            if let Ok(read) = SharedMemoryPage::from_bytes(&bytes) {
                prop_assert_eq!(SharedMemoryPage::from_bytes(&read.to_bytes()), Ok(read));
            }
        }
    }

    fn example() -> SharedMemoryPage {
        let owner = PageOwner { process: ProcessId([9; 16]), pid: 42, rank: Some(3), made_unix: 5, made: 6 };
        let neighbour = NeighbourRecord {
            pid: 43,
            rank: Some(1),
            mappings: 2,
            mapped_bytes: 8192,
            ..NeighbourRecord::default()
        };
        let export = PageExport {
            stands: ExportStatus::Retiring,
            passing: true,
            device: 7,
            base: 0x1000,
            len: 0x2000,
            allocation: 11,
            pins: 1,
            holders: 2,
            used: 13,
            held_by: 0b10,
        };
        let mut numbers = [0; Number::LEN];
        numbers[Number::Hits as usize] = 99;
        let gone = NeighbourRecord { gone: true, rank: None, ..neighbour };
        SharedMemoryPage {
            owner,
            written: 8,
            numbers,
            neighbours: [neighbour, gone].into(),
            exports: [export].into(),
        }
    }

    #[test]
    fn shared_memory_page_is_laid_out_as_documented() {
        let bytes = example().to_bytes();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes.len(), 21_504);
        assert_eq!(&bytes[..8], b"TRKLNODE");
        assert_eq!((word(8), word(16)), (21_504 << 32 | 1, 2));
        assert_eq!((word(24), word(32)), (3 << 32 | 42, 0x0909_0909_0909_0909));
        assert_eq!([48, 56, 64, 72].map(word), [5, 6, 8, 1 << 32 | 2]);
        assert_eq!(word(128 + 8 * 14), 99, "hits");
        assert_eq!([1024, 1032, 1040, 1048].map(word), [1, 1 << 32 | 43, 2, 8192]);
        assert_eq!([1088, 1096].map(word), [2, u64::from(u32::MAX) << 32 | 43]);
        let export = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| word(5120 + 8 * at));
        assert_eq!(export, [3 | 1 << 8 | 7 << 32, 0x1000, 0x2000, 11, 2 << 32 | 1, 13, 0b10, 0]);
        assert_eq!(example().exports[0].holder_records().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn invalid_pages_are_rejected() {
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = example().to_bytes();
            bytes[at..at + to.len()].copy_from_slice(to);
            SharedMemoryPage::from_bytes(&bytes)
        };
        let bytes = example().to_bytes();
        for len in [0, 8, BYTES - 8, BYTES - 1] {
            assert_eq!(SharedMemoryPage::from_bytes(&bytes[..len]), Err(NodeError::Length(len)));
        }
        assert_eq!(changed(0, b"X"), Err(NodeError::Magic));
        assert_eq!(changed(8, &[2]), Err(NodeError::Version(2)));
        assert_eq!(changed(16, &[3]), Err(NodeError::Unsettled));
        assert_eq!(changed(72, &[65]), Err(NodeError::Records { neighbours: 65, exports: 1 }));
        assert_eq!(changed(76, &[1, 1]), Err(NodeError::Records { neighbours: 2, exports: 257 }));
        assert_eq!(changed(1024, &[0]), Err(NodeError::Neighbour(0)));
        assert_eq!(changed(5120, &[5]), Err(NodeError::Export(7 << 32 | 1 << 8 | 5)));
        assert!(matches!(changed(5121, &[2]), Err(NodeError::Export(_))));
        assert_eq!(changed(5120 + 48, &[0b100]), Err(NodeError::Holders(0b100)));
        assert!(changed(72, &[0]).is_err(), "the record of its holder was removed");
    }
}
