//! The page of memory that an endpoint shares inside a node: numbers, who its neighbours are, what is exported and who holds it. The
//! engine writes it now and then, `trunkline top` reads copies of it. Pure layout; docs/wire.md, "Page of shared memory".

use alloc::vec;
use alloc::vec::Vec;

use super::number::Number;
use super::{join_halves, split_halves};
use crate::id::ProcessId;

/// Name of the memory file.
pub const NAME: &str = "trunkline.node";
/// The version of this layout.
pub const VERSION: u32 = 1;
/// What a page begins with, once it is ready.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TRKLNODE");
/// Records of neighbours. An endpoint that has more shows the first.
pub const NEIGHBOURS: usize = 64;
/// Records of exports. An endpoint that has more shows so many of them.
pub const EXPORTS: usize = 256;
/// Words of a record.
pub const RECORD: usize = 8;
/// Words of the head.
pub const HEAD: usize = 128;
/// Words of the page.
pub const WORDS: usize = EXPORTS_AT + EXPORTS * RECORD;
/// Bytes of the page.
pub const BYTES: usize = WORDS * 8;

/// The word that is odd while others change.
pub const SEQUENCE: usize = 2;
/// The first word that changes while an endpoint lives, but for the sequence.
pub const CHANGING: usize = 8;
/// The first number.
pub const NUMBERS_AT: usize = 16;
/// The first record of a neighbour.
pub const NEIGHBOURS_AT: usize = HEAD;
/// The first record of an export.
pub const EXPORTS_AT: usize = NEIGHBOURS_AT + NEIGHBOURS * RECORD;

const _: () = assert!(NUMBERS_AT + Number::LEN <= HEAD, "the numbers are in the head");

/// Stands for the rank of a process that has none.
const NO_RANK: u32 = u32::MAX;

/// Why bytes are no page of shared memory of this version.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// They end too early, or too late.
    #[error("it has {0} bytes, a page of shared memory has {BYTES}")]
    Length(usize),
    /// They do not begin as a page does.
    #[error("it does not begin as a page of shared memory does, or is not ready yet")]
    Magic,
    /// The page has another layout.
    #[error("it has version {0}, this program reads version {VERSION}; use the program of the same build")]
    Version(u32),
    /// It changes whenever it is looked at.
    #[error("it was being written each time that it was looked at")]
    Unsettled,
    /// It has more records than there is room for.
    #[error(
        "it has {neighbours} records of neighbours and {exports} of exports, more than there is room for"
    )]
    Records {
        /// Of neighbours.
        neighbours: u32,
        /// Of exports.
        exports: u32,
    },
    /// A record is not one of a neighbour.
    #[error("a record of a neighbour in it begins with {0:#x}, which none has")]
    Neighbour(u64),
    /// A record is not one of an export.
    #[error("a record of an export in it begins with {0:#x}, which none has")]
    Export(u64),
    /// An export is held by a neighbour that has no record.
    #[error("an export in it is held by neighbours {0:#x}, some of which have no record")]
    Holders(u64),
}

/// Whose page it is, and since when: what does not change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageOwner {
    /// The endpoint's random name.
    pub process: ProcessId,
    /// The number of its process, as that sees itself.
    pub pid: u32,
    /// Its rank in the job, if it has one.
    pub rank: Option<u32>,
    /// When the page was made: nanoseconds since 1970.
    pub made_unix: u64,
    /// The same instant by the clock of the other times.
    pub made: u64,
}

impl PageOwner {
    /// Words 3 to 7 of the head.
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

/// Both as one word.
fn rank_and(rank: Option<u32>, other: u32) -> u64 {
    u64::from(other) | u64::from(rank.unwrap_or(NO_RANK)) << 32
}

fn rank_of(word: u64) -> Option<u32> {
    Some((word >> 32) as u32).filter(|rank| *rank != NO_RANK)
}

/// Another process that memory is shared with.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NeighbourRecord {
    /// Whether it is gone; what it had is being given back then.
    pub gone: bool,
    /// The number of its process, as that sees itself; 0 if it is not known.
    pub pid: u32,
    /// Its rank in the job, if it is known.
    pub rank: Option<u32>,
    /// Mappings here of its memory.
    pub mappings: u32,
    /// Their bytes.
    pub mapped_bytes: u64,
    /// Operations here that use them.
    pub pins: u32,
    /// Exports of this process that it holds.
    pub holds: u32,
    /// Their bytes.
    pub held_bytes: u64,
}

impl NeighbourRecord {
    /// Its record.
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

/// Where an export stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ExportStatus {
    /// Somebody is exporting it.
    Exporting,
    /// It is kept for later messages.
    #[default]
    Live,
    /// It is over; a message uses it, or a neighbour has it mapped: a zombie.
    Retiring,
    /// It is over, and the driver is to have it back.
    Leaving,
}

impl ExportStatus {
    /// In a word.
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

/// Memory that neighbours were told of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PageExport {
    /// Where it stands.
    pub stands: ExportStatus,
    /// Whether it goes with the last message that uses it.
    pub passing: bool,
    /// The number of its device.
    pub device: u32,
    /// Address of its first byte in its own process.
    pub base: u64,
    /// Its bytes.
    pub len: u64,
    /// What the driver calls the allocation.
    pub allocation: u64,
    /// Messages that use it.
    pub pins: u32,
    /// Neighbours that hold it, those without a record included.
    pub holders: u32,
    /// When the last message that used it was done, or it was made; by the clock of the page.
    pub used: u64,
    /// Which of the neighbours that have a record hold it: bit 0 the first.
    pub held_by: u64,
}

impl PageExport {
    /// Its record.
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

    /// The records of the neighbours that hold it, by number.
    pub fn holder_records(&self) -> impl Iterator<Item = usize> + use<> {
        let held_by = self.held_by;
        (0..NEIGHBOURS).filter(move |at| held_by >> at & 1 == 1)
    }
}

/// A whole page, as it was copied.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SharedMemoryPage {
    /// Whose it is.
    pub owner: PageOwner,
    /// When it was written last, by the clock of the page.
    pub written: u64,
    /// Numbers.
    pub numbers: [u64; Number::LEN],
    /// The neighbours that have a record, at most [`NEIGHBOURS`].
    pub neighbours: Vec<NeighbourRecord>,
    /// The exports that have a record, at most [`EXPORTS`].
    pub exports: Vec<PageExport>,
}

/// Word 9 of the head: how many records there are.
#[must_use]
pub const fn record_counts(neighbours: u32, exports: u32) -> u64 {
    neighbours as u64 | (exports as u64) << 32
}

/// Word 1 of the head.
#[must_use]
pub const fn version_word() -> u64 {
    VERSION as u64 | (BYTES as u64) << 32
}

impl SharedMemoryPage {
    /// One of its numbers.
    #[must_use]
    pub const fn number(&self, which: Number) -> u64 {
        self.numbers[which as usize]
    }

    /// Reads a copy of a page, from bytes that may be anybody's.
    ///
    /// # Errors
    /// [`NodeError`] says what is wrong.
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

    /// Its bytes.
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
        fn what_is_written_is_read(page in page()) {
            prop_assert_eq!(SharedMemoryPage::from_bytes(&page.to_bytes()), Ok(page));
        }

        #[test]
        fn whatever_is_read_is_printed_the_same(
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
    fn the_layout_is_that_of_the_book() {
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
    fn what_is_no_page_is_refused() {
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
        assert!(changed(72, &[0]).is_err(), "its holder has no record any more");
    }
}
