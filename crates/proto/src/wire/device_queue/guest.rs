//! The card by which the process of a rank lets kernels in another process of its host use a channel of a window. It contains the memory files to
//! map, the keys of the ranks' parts in entries, and the numbers of the channel's queues. `trunkline::device` encodes and parses it; the program
//! transports it. It contains no secret and grants no right: only a process with access to the rank's process can open its files. Layout: "Windows",
//! guests, of docs/wire.md.

use alloc::vec::Vec;

use super::layout::BELLS_MAX;
use super::window::{WINDOW_LANES_MAX, WindowLayout, WindowShape, WindowShapeError};
use super::{join_halves, split_halves};
use crate::reserve::{OutOfMemory, try_collect, try_vec};

/// Most ranks of a card, and of a world.
pub const GUEST_RANKS_MAX: u32 = 1 << 16;

/// Version of the format.
const VERSION: u32 = 1;
const MAGIC: u32 = u32::from_le_bytes(*b"TLGC");
/// Words before the keys and numbers.
const HEAD_WORDS: usize = 14;

/// A memory file of the process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GuestFile {
    /// Its descriptor in that process.
    pub fd: u32,
    /// Its inode, which distinguishes it from another file.
    pub inode: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A channel of a window, for another process of the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GuestChannelCard {
    /// Word 1, high half: the process that executes the entries.
    pub pid: u32,
    /// Word 2, low half, and words 3 and 4: the file with its queues.
    pub queues: GuestFile,
    /// Word 2, high half, and words 5 and 6: the file with its part of the window.
    pub part: GuestFile,
    /// Words 8 to 13: the shape of the window. The channels, lanes and chunks of its streams are those of the window.
    pub shape: WindowShape,
    /// Word 7, low half: the rank of the part.
    pub rank: u32,
    /// Word 7, high half: the channel.
    pub channel: u32,
    /// Words from 14 on, 4 bytes each: the keys of the ranks' parts in entries, by rank.
    pub keys: Vec<u32>,
    /// Then, from the next word on, 4 bytes each: the numbers of the channel's queues, by lane.
    pub numbers: Vec<u32>,
}

/// Why bytes are not a card.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GuestCardError {
    /// The first word is not that of a card of this version.
    #[error("the bytes begin with {0:#x}, which is not a guest's card of this version")]
    Magic(u64),
    /// The length differs from the one in the card.
    #[error("the card has {0} bytes, which differs from the length in it")]
    Length(usize),
    /// The number of the process or descriptor is out of range.
    #[error("the number {0} of a process or descriptor is out of range")]
    Number(u32),
    /// The shape of the window is invalid.
    #[error(transparent)]
    Shape(#[from] WindowShapeError),
    /// The file is shorter than the window.
    #[error("the file has {have} bytes, the window needs {need}")]
    Short {
        /// The length of the file in bytes.
        have: u64,
        /// The length of the window in bytes.
        need: u64,
    },
    /// The rank, the channel or their number is out of range.
    #[error("rank {rank} of {ranks} or channel {channel} of {lanes} lanes is out of range")]
    Rank {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
        /// The channel.
        channel: u32,
        /// Number of lanes.
        lanes: u32,
    },
    /// The key has no generation.
    #[error("key {0:#x} has no generation")]
    Key(u32),
    /// The number of the queue is out of range, or two lanes have it.
    #[error("queue number {0} is out of range, or two lanes have it")]
    Queue(u32),
    /// The system has no memory for the keys and numbers of the card.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// Unused words are not zero.
    #[error("reserved word {0} is not zero")]
    Unused(usize),
}

impl GuestFile {
    fn from_parts(fd: u32, inode: u64, len: u64) -> Result<Self, GuestCardError> {
        if fd > i32::MAX as u32 {
            return Err(GuestCardError::Number(fd));
        }
        Ok(Self { fd, inode, len })
    }
}

/// Packs pairs of numbers into words; the last word may have one number and a zero.
fn pair_words(numbers: &[u32]) -> impl Iterator<Item = u64> + '_ {
    numbers
        .chunks(2)
        .map(|pair| join_halves(pair.first().copied().unwrap_or(0), pair.get(1).copied().unwrap_or(0)))
}

/// Parses `count` numbers from a word on.
fn read_numbers(words: &[u64], first: usize, count: usize) -> Result<Vec<u32>, GuestCardError> {
    let places = first..first + count.div_ceil(2);
    let words = words.get(places.clone()).unwrap_or_default();
    let mut all: Vec<u32> = try_vec(2 * words.len())?;
    all.extend(words.iter().flat_map(|word| [split_halves(*word).0, split_halves(*word).1]));
    if all.len() > count && all.last() != Some(&0) {
        return Err(GuestCardError::Unused(places.end - 1));
    }
    all.truncate(count);
    Ok(all)
}

impl GuestChannelCard {
    /// Returns the layout of the window.
    ///
    /// # Errors
    /// [`WindowShapeError`]; never for a card that was parsed.
    pub fn window_layout(&self) -> Result<WindowLayout, WindowShapeError> {
        WindowLayout::new(self.shape)
    }

    /// Returns the card's bytes: a multiple of 8 bytes, whose number the first 16 contain.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { queues, part, shape, .. } = self;
        let words = HEAD_WORDS + self.keys.len().div_ceil(2) + self.numbers.len().div_ceil(2);
        let head: [u64; HEAD_WORDS] = [
            join_halves(MAGIC, VERSION),
            join_halves(words as u32, self.pid),
            join_halves(queues.fd, part.fd),
            queues.inode,
            queues.len,
            part.inode,
            part.len,
            join_halves(self.rank, self.channel),
            join_halves(shape.ranks, shape.lanes),
            shape.bytes,
            join_halves(shape.signals, shape.counters),
            join_halves(shape.barriers, shape.channels),
            join_halves(shape.depth, 0),
            shape.chunk,
        ];
        let all = head.into_iter().chain(pair_words(&self.keys)).chain(pair_words(&self.numbers));
        all.flat_map(u64::to_le_bytes).collect()
    }

    /// Returns the length of a card in bytes, from its first 16 bytes.
    ///
    /// # Errors
    /// [`GuestCardError::Magic`], [`GuestCardError::Length`].
    pub fn len_of(head: &[u8; 16]) -> Result<usize, GuestCardError> {
        let (words, _) = head.as_chunks::<8>();
        let &[magic, count] = words else { return Err(GuestCardError::Length(head.len())) };
        let magic = u64::from_le_bytes(magic);
        if magic != join_halves(MAGIC, VERSION) {
            return Err(GuestCardError::Magic(magic));
        }
        let bytes = split_halves(u64::from_le_bytes(count)).0 as usize * 8;
        let most = (HEAD_WORDS + GUEST_RANKS_MAX as usize / 2 + WINDOW_LANES_MAX as usize / 2) * 8;
        if bytes <= HEAD_WORDS * 8 || bytes > most { Err(GuestCardError::Length(bytes)) } else { Ok(bytes) }
    }

    /// Parses a card. Its sender is not trusted: a parsed card can be used without further checks, except whether its files exist.
    ///
    /// # Errors
    /// [`GuestCardError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GuestCardError> {
        let wrong = GuestCardError::Length(bytes.len());
        if Self::len_of(bytes.first_chunk().ok_or(wrong)?)? != bytes.len() {
            return Err(wrong);
        }
        let words = try_collect(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)))?;
        let &head: &[u64; HEAD_WORDS] = words.first_chunk().ok_or(wrong)?;
        let [_, count, files, queues_inode, queues_len, part_inode, part_len, whose, sizes, rest @ ..] = head;
        let [data, signals, barriers, depth, chunk] = rest;
        let pid = split_halves(count).1;
        let files = split_halves(files);
        if pid == 0 || pid > i32::MAX as u32 {
            return Err(GuestCardError::Number(pid));
        }
        let ((rank, channel), (ranks, lanes)) = (split_halves(whose), split_halves(sizes));
        let ((signals, counters), (barriers, channels)) = (split_halves(signals), split_halves(barriers));
        let (depth, unused) = split_halves(depth);
        if unused != 0 {
            return Err(GuestCardError::Unused(12));
        }
        let is_inside = rank < ranks && ranks <= GUEST_RANKS_MAX && (1..=WINDOW_LANES_MAX).contains(&lanes);
        if !is_inside || (channels > 0 && channel >= channels) {
            return Err(GuestCardError::Rank { rank, ranks, channel, lanes });
        }
        let shape =
            WindowShape { ranks, bytes: data, signals, counters, barriers, channels, lanes, depth, chunk };
        let need = WindowLayout::new(shape)?.window_bytes();
        if part_len < need {
            return Err(GuestCardError::Short { have: part_len, need });
        }
        let at = HEAD_WORDS + (ranks as usize).div_ceil(2);
        if at + (lanes as usize).div_ceil(2) != words.len() {
            return Err(wrong);
        }
        let keys = read_numbers(&words, HEAD_WORDS, ranks as usize)?;
        // Generations count from 1.
        if let Some(key) = keys.iter().find(|key| *key >> 8 == 0) {
            return Err(GuestCardError::Key(*key));
        }
        let numbers = read_numbers(&words, at, lanes as usize)?;
        let is_other = |(nth, number): (usize, &u32)| *number >= BELLS_MAX || numbers[..nth].contains(number);
        if let Some((_, number)) = numbers.iter().enumerate().find(|&one| is_other(one)) {
            return Err(GuestCardError::Queue(*number));
        }
        let queues = GuestFile::from_parts(files.0, queues_inode, queues_len)?;
        let part = GuestFile::from_parts(files.1, part_inode, part_len)?;
        Ok(Self { pid, queues, part, shape, rank, channel, keys, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> GuestChannelCard {
        let shape = WindowShape {
            ranks: 3,
            bytes: 4096,
            signals: 2,
            counters: 1,
            barriers: 1,
            channels: 2,
            lanes: 2,
            depth: 4,
            chunk: 64,
        };
        let len = WindowLayout::new(shape).unwrap().window_bytes();
        GuestChannelCard {
            pid: 17,
            queues: GuestFile { fd: 5, inode: 99, len: 1 << 20 },
            part: GuestFile { fd: 6, inode: 100, len },
            shape,
            rank: 1,
            channel: 1,
            keys: alloc::vec![0x100, 0x201, 0x300],
            numbers: alloc::vec![7, 9],
        }
    }

    fn read(card: &GuestChannelCard) -> Result<GuestChannelCard, GuestCardError> {
        GuestChannelCard::from_bytes(&card.to_bytes())
    }

    #[test]
    fn card_round_trips() {
        let card = card();
        assert_eq!(read(&card), Ok(card.clone()));
        let bytes = card.to_bytes();
        assert_eq!(GuestChannelCard::len_of(bytes.first_chunk().unwrap()), Ok(bytes.len()));
        assert_eq!(bytes.len(), (HEAD_WORDS + 2 + 1) * 8);
        assert_eq!(&bytes[..8], b"TLGC\x01\0\0\0");
    }

    #[test]
    fn invalid_values_are_rejected() {
        let short = GuestFile { len: card().part.len - 1, ..card().part };
        assert!(matches!(
            read(&GuestChannelCard { part: short, ..card() }),
            Err(GuestCardError::Short { .. })
        ));
        let twice = GuestChannelCard { numbers: alloc::vec![7, 7], ..card() };
        assert_eq!(read(&twice), Err(GuestCardError::Queue(7)));
        let many = GuestChannelCard { numbers: alloc::vec![7, BELLS_MAX], ..card() };
        assert_eq!(read(&many), Err(GuestCardError::Queue(BELLS_MAX)));
        assert_eq!(read(&GuestChannelCard { pid: 0, ..card() }), Err(GuestCardError::Number(0)));
        let fd = GuestFile { fd: 1 << 31, ..card().queues };
        assert_eq!(read(&GuestChannelCard { queues: fd, ..card() }), Err(GuestCardError::Number(1 << 31)));
        assert!(matches!(read(&GuestChannelCard { rank: 3, ..card() }), Err(GuestCardError::Rank { .. })));
        assert!(matches!(read(&GuestChannelCard { channel: 2, ..card() }), Err(GuestCardError::Rank { .. })));
        let keys = GuestChannelCard { keys: alloc::vec![0x100, 1, 0x300], ..card() };
        assert_eq!(read(&keys), Err(GuestCardError::Key(1)));
        let fewer = GuestChannelCard { keys: alloc::vec![0x100], ..card() };
        assert!(matches!(read(&fewer), Err(GuestCardError::Length(_))));
        let shape = WindowShape { bytes: u64::MAX, ..card().shape };
        assert!(matches!(read(&GuestChannelCard { shape, ..card() }), Err(GuestCardError::Shape(_))));
    }

    #[test]
    fn bytes_of_other_formats_are_not_cards() {
        let bytes = card().to_bytes();
        let parse = GuestChannelCard::from_bytes;
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{len}");
        }
        assert!(parse(&[&bytes[..], &[0; 8]].concat()).is_err());
        let mut other = bytes.clone();
        other[4] = 2;
        assert!(matches!(parse(&other), Err(GuestCardError::Magic(_))));
        // The half after the last key, and the half after the number of chunks.
        for at in [(HEAD_WORDS + 1) * 8 + 4, 12 * 8 + 4] {
            let mut other = bytes.clone();
            other[at] = 1;
            assert!(matches!(parse(&other), Err(GuestCardError::Unused(_))), "{at}");
        }
    }
}
