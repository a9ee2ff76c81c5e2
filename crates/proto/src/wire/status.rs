//! The status page: the state that a process shows to other programs. The engine writes it, `trunkline top` parses copies of it. Pure layout ("Status
//! page" of docs/wire.md): this module neither maps the page nor copies rows while they change.

use alloc::string::String;
use alloc::vec::Vec;

use crate::counters::{Counters, MessageCounts, ProcessTally};
use crate::id::ProcessId;

pub mod control;
pub mod group;
pub mod links;
pub mod node;
pub mod number;
pub mod usage;

pub use control::ControlStreams;
pub use group::{GroupMembership, QueueGroupRecord};
pub use links::RowLinks;
pub use number::Number;
pub use usage::NicUsage;

/// Name of the memory file.
pub const NAME: &str = "trunkline.status";
/// The version of this layout.
pub const VERSION: u32 = 5;
/// Size of the head in bytes.
pub const HEAD_BYTES: usize = 4096;
/// Size of a row in bytes.
pub const ROW_BYTES: usize = 256;
/// Words of a row.
pub const ROW_WORDS: usize = ROW_BYTES / 8;
/// Most rows of a page.
pub const ROWS_MAX: usize = 65535;
/// Most NICs named on a page.
pub const NICS_MAX: usize = 16;
/// Size in bytes of the name of a fabric or NIC; the last byte is 0.
pub const NAME_BYTES: usize = 32;

/// The first word of a page, once it is ready.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TRKLSTAT");

/// Indexes of the words of the head that are written repeatedly.
pub mod head {
    /// The magic number.
    pub const MAGIC: usize = 0;
    /// Number of rows that were ever used.
    pub const USED: usize = 3;
    /// Code of the last fault.
    pub const FAULT: usize = 9;
    /// Time of the last fault.
    pub const FAULT_AT: usize = 10;
    /// Number of groups of shared queue pairs.
    pub const GROUPS: usize = 11;
    /// The first tally.
    pub const TALLIES: usize = 16;
    /// Control streams to other hosts.
    pub const CONTROL: usize = 28;
    /// Number of words up to the last of these, rounded up.
    pub const WORDS: usize = 32;
}

/// Indexes of the words of a row.
pub mod row {
    /// Odd while words 1 to 15 change.
    pub const SEQUENCE: usize = 0;
    /// The first counter.
    pub const COUNTS: usize = 16;
}

const FABRIC_AT: usize = 96;
const NICS_AT: usize = 256;
const RIDE: usize = 6;
const BASES: usize = 8;

/// Returns the size in bytes of a page with that many rows.
#[must_use]
pub const fn page_bytes(rows: usize) -> usize {
    HEAD_BYTES + rows * ROW_BYTES
}

/// Why bytes are not a page of this version.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// They are too short.
    #[error("it is cut short: {0} bytes")]
    Short(usize),
    /// The first word is not [`MAGIC`].
    #[error("it does not begin as a status page does, or is not ready yet")]
    Magic,
    /// The version is different.
    #[error("it has version {0}, this program reads version {VERSION}; use the program of the same build")]
    Version(u32),
    /// Its sizes are invalid.
    #[error("its sizes are invalid: {0} bytes of head, {1} bytes a row, {2} rows, {3} used")]
    Sizes(u32, u32, u32, u64),
    /// The length of its file differs from its sizes.
    #[error("its sizes give {expected} bytes, the file has {found}")]
    Length {
        /// The length by its sizes, in bytes.
        expected: usize,
        /// The length of the file, in bytes.
        found: usize,
    },
    /// It has more NICs than [`NICS_MAX`].
    #[error("it has {0} NICs, the limit is {NICS_MAX}")]
    Nics(u32),
    /// A name is empty, too long, or contains bytes that are not printable ASCII.
    #[error("a name in it is not printable")]
    Name,
    /// The record of a comm in a row is invalid.
    #[error("a row in it begins with the invalid word {0:#x}")]
    Row(u64),
    /// The links of a comm are invalid.
    #[error("a row in it has the invalid links {0:#x}")]
    Links(u64),
    /// The group or the member of a comm is invalid.
    #[error("a row in it has the invalid group {0:#x} or member {1:#x}")]
    Ride(u64, u64),
    /// The record of a group is invalid.
    #[error("a record of a group in it begins with the invalid word {0:#x}")]
    Group(u64),
    /// The number of groups is 2^32 or more.
    #[error("it has {0} groups of queue pairs, which is out of range")]
    Groups(u64),
}

/// Why a comm cannot be used any more (1 byte).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultCode {
    /// 1: the peer process has ended.
    PeerDied,
    /// 2: the peer closed its end.
    PeerClosed,
    /// 3: the peer broke the protocol.
    Protocol,
    /// 4: the link failed.
    Link,
    /// 5: memory was deregistered while messages used it.
    Revoked,
    /// 255, or a code that this version does not know.
    Other,
}

impl FaultCode {
    /// Returns the code on the page, never 0.
    #[must_use]
    pub const fn to_code(self) -> u8 {
        match self {
            Self::PeerDied => 1,
            Self::PeerClosed => 2,
            Self::Protocol => 3,
            Self::Link => 4,
            Self::Revoked => 5,
            Self::Other => 255,
        }
    }

    /// Returns the fault with that code; `None` for 0.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => None,
            1 => Some(Self::PeerDied),
            2 => Some(Self::PeerClosed),
            3 => Some(Self::Protocol),
            4 => Some(Self::Link),
            5 => Some(Self::Revoked),
            _ => Some(Self::Other),
        }
    }

    /// Returns a short description.
    #[must_use]
    pub const fn short_text(self) -> &'static str {
        match self {
            Self::PeerDied => "peer died",
            Self::PeerClosed => "peer closed",
            Self::Protocol => "protocol broken",
            Self::Link => "link failed",
            Self::Revoked => "memory deregistered",
            Self::Other => "another fault",
        }
    }
}

/// The head of a page (4096 bytes).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatusHead {
    /// Offset 20, 4 bytes: number of rows of the page.
    pub rows: u32,
    /// Offset 24, 8 bytes: number of rows that were ever used.
    pub used: u32,
    /// Offset 32, 16 bytes: the id of the process.
    pub process: ProcessId,
    /// Offset 48, 4 bytes: the process number, as the process itself sees it.
    pub pid: u32,
    /// Offset 56, 8 bytes: when the page was created, in nanoseconds since 1970.
    pub made_unix: u64,
    /// Offset 64, 8 bytes: the same instant on the clock of all other times of the page, in nanoseconds.
    pub made: u64,
    /// Offset 72, 8 bytes: the last fault of any comm.
    pub fault: Option<FaultCode>,
    /// Offset 80, 8 bytes: time of the last fault, by the clock of the page.
    pub fault_at: u64,
    /// Offset 96, 32 bytes: the name of the fabric.
    pub fabric: String,
    /// Offset 256, 32 bytes each: the names of the NICs, by number.
    pub nics: Vec<String>,
    /// Offset 1024, 32 bytes each: the resources in use on each NIC.
    pub usage: Vec<NicUsage>,
    /// Offset 88, 8 bytes: number of groups of shared queue pairs, with and without a record.
    pub groups: u32,
    /// Offset 2048, 64 bytes each: the records of groups, by index.
    pub records: [Option<QueueGroupRecord>; group::RECORDS],
    /// Offset 128, 8 bytes each: the counters of the whole process.
    pub tallies: [u64; ProcessTally::LEN],
    /// Offset 224, 8 bytes: the control streams to other hosts.
    pub control: ControlStreams,
}

impl StatusHead {
    /// Returns the head's bytes. Names are adapted to the layout: truncated, and unprintable characters replaced by `?`.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(0, &MAGIC.to_le_bytes());
        put(8, &VERSION.to_le_bytes());
        put(12, &(HEAD_BYTES as u32).to_le_bytes());
        put(16, &(ROW_BYTES as u32).to_le_bytes());
        put(20, &self.rows.to_le_bytes());
        put(24, &u64::from(self.used).to_le_bytes());
        put(32, &self.process.0);
        put(48, &self.pid.to_le_bytes());
        put(52, &(self.nics.len().min(NICS_MAX) as u32).to_le_bytes());
        put(56, &self.made_unix.to_le_bytes());
        put(64, &self.made.to_le_bytes());
        put(72, &u64::from(self.fault.map_or(0, FaultCode::to_code)).to_le_bytes());
        put(80, &self.fault_at.to_le_bytes());
        put(head::GROUPS * 8, &u64::from(self.groups).to_le_bytes());
        put(head::CONTROL * 8, &self.control.to_word().to_le_bytes());
        put(FABRIC_AT, &name_bytes(&self.fabric));
        for (at, tally) in self.tallies.iter().enumerate() {
            put((head::TALLIES + at) * 8, &tally.to_le_bytes());
        }
        for (at, nic) in self.nics.iter().take(NICS_MAX).enumerate() {
            put(NICS_AT + at * NAME_BYTES, &name_bytes(nic));
            let used = self.usage.get(at).copied().unwrap_or_default();
            for (word, value) in used.to_words().iter().enumerate() {
                put(usage::AT + (at * usage::WORDS + word) * 8, &value.to_le_bytes());
            }
        }
        for (at, group) in self.records.iter().enumerate() {
            let words = group.map_or([0; group::WORDS], |group| group.to_words(0));
            for (word, value) in words.iter().enumerate() {
                put(group::AT + (at * group::WORDS + word) * 8, &value.to_le_bytes());
            }
        }
        bytes
    }

    /// Parses a head. The bytes may be from any process.
    ///
    /// # Errors
    /// [`StatusError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StatusError> {
        let bytes: &[u8; HEAD_BYTES] = bytes.first_chunk().ok_or(StatusError::Short(bytes.len()))?;
        let half = |at| u32::from_le_bytes(read_array(bytes, at));
        let word = |at| u64::from_le_bytes(read_array(bytes, at));
        if word(0) != MAGIC {
            return Err(StatusError::Magic);
        }
        if half(8) != VERSION {
            return Err(StatusError::Version(half(8)));
        }
        let rows = half(20);
        let used = word(24);
        let sizes = half(12) as usize == HEAD_BYTES && half(16) as usize == ROW_BYTES;
        if !sizes || rows == 0 || rows as usize > ROWS_MAX || used > u64::from(rows) {
            return Err(StatusError::Sizes(half(12), half(16), rows, used));
        }
        let nics = half(52);
        if nics as usize > NICS_MAX {
            return Err(StatusError::Nics(nics));
        }
        let in_use = |nic: usize| {
            NicUsage::from_words(core::array::from_fn(|at| word(usage::AT + (nic * usage::WORDS + at) * 8)))
        };
        let groups = word(head::GROUPS * 8);
        let groups = u32::try_from(groups).map_err(|_| StatusError::Groups(groups))?;
        let mut records = [None; group::RECORDS];
        for (nth, record) in records.iter_mut().enumerate() {
            let of = |at| word(group::AT + (nth * group::WORDS + at) * 8);
            *record = QueueGroupRecord::from_words(&core::array::from_fn(of))?;
        }
        let nic = |at: usize| parse_name(&read_array(bytes, NICS_AT + at * NAME_BYTES));
        Ok(Self {
            rows,
            used: used as u32,
            process: ProcessId(read_array(bytes, 32)),
            pid: half(48),
            made_unix: word(56),
            made: word(64),
            fault: FaultCode::from_code(bytes[72]),
            fault_at: word(80),
            fabric: parse_name(&read_array(bytes, FABRIC_AT))?,
            nics: (0..nics as usize).map(nic).collect::<Result<_, _>>()?,
            usage: (0..nics as usize).map(in_use).collect(),
            groups,
            records,
            tallies: core::array::from_fn(|at| word((head::TALLIES + at) * 8)),
            control: ControlStreams::from_word(word(head::CONTROL * 8)),
        })
    }

    /// Checks the length of the file that contains the head.
    ///
    /// # Errors
    /// [`StatusError::Length`].
    pub fn check_length(&self, found: usize) -> Result<(), StatusError> {
        let expected = page_bytes(self.rows as usize);
        if found == expected { Ok(()) } else { Err(StatusError::Length { expected, found }) }
    }
}

/// Returns `N` bytes at a fixed offset of the layout; zeros beyond the end.
fn read_array<const N: usize>(bytes: &[u8; HEAD_BYTES], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn name_bytes(text: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let letters = text.chars().map(|letter| if letter.is_ascii_graphic() { letter as u8 } else { b'?' });
    // An empty name is invalid, and the last byte stays 0.
    let letters = letters.chain(text.is_empty().then_some(b'?'));
    for (to, letter) in bytes[..NAME_BYTES - 1].iter_mut().zip(letters) {
        *to = letter;
    }
    bytes
}

fn parse_name(bytes: &[u8; NAME_BYTES]) -> Result<String, StatusError> {
    let len = bytes.iter().position(|&byte| byte == 0).ok_or(StatusError::Name)?;
    let (letters, rest) = bytes.split_at(len);
    if letters.is_empty() || !letters.iter().all(u8::is_ascii_graphic) || rest.iter().any(|&byte| byte != 0) {
        return Err(StatusError::Name);
    }
    Ok(letters.iter().map(|&byte| byte as char).collect())
}

/// The state of a comm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommState {
    /// 1: it can be used.
    Open,
    /// 2: it failed, and cannot be used any more.
    Failed,
    /// 3: it is closed; its row has no other comm yet.
    Closed,
}

/// The direction in which a comm carries messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommDirection {
    /// 1: from this process.
    Send,
    /// 2: to this process.
    Recv,
}

/// The comm of a row (words 0 to 15).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CommRecord {
    /// Word 1, bits 0-7: its state.
    pub state: CommState,
    /// Word 1, bits 8-15: its direction.
    pub direction: CommDirection,
    /// Word 1, bits 16-31, and word 5: its links.
    pub links: RowLinks,
    /// Word 1, bits 32-47: its generation among the comms of the row.
    pub generation: u16,
    /// Word 1, bits 48-55: why it cannot be used any more, or how its peer ended.
    pub fault: Option<FaultCode>,
    /// Words 2 and 3: the peer process.
    pub peer: ProcessId,
    /// Word 4: when it was opened, by the clock of the page.
    pub opened: u64,
    /// Words 6 and 7: its group of shared queue pairs; for a closed comm, its last group.
    pub ride: Option<GroupMembership>,
    /// Words 8 to 14: the counters of the row when the comm was opened.
    pub before: MessageCounts,
}

impl CommRecord {
    /// Returns words 0 to 15 of the row, with that sequence number.
    #[must_use]
    pub fn to_words(&self, sequence: u64) -> [u64; row::COUNTS] {
        let state = match self.state {
            CommState::Open => 1,
            CommState::Failed => 2,
            CommState::Closed => 3,
        };
        let direction = match self.direction {
            CommDirection::Send => 1,
            CommDirection::Recv => 2,
        };
        let fault = u64::from(self.fault.map_or(0, FaultCode::to_code));
        let mut words = [0; row::COUNTS];
        words[row::SEQUENCE] = sequence;
        words[1] = state
            | direction << 8
            | u64::from(self.links.first_nic()) << 16
            | u64::from(self.generation) << 32
            | fault << 48;
        let [low, high] = split_halves(self.peer.0);
        (words[2], words[3], words[4], words[5]) = (low, high, self.opened, self.links.to_word());
        words[RIDE..BASES].copy_from_slice(&GroupMembership::to_words(self.ride));
        words[BASES..BASES + MessageCounts::LEN].copy_from_slice(&self.before.to_array());
        words
    }

    /// Parses words 0 to 15; `None` for a row that was never used.
    fn from_words(words: &[u64; ROW_WORDS]) -> Result<Option<Self>, StatusError> {
        let bits = words[1];
        if bits == 0 {
            return Ok(None);
        }
        let state = match bits & 0xff {
            1 => CommState::Open,
            2 => CommState::Failed,
            3 => CommState::Closed,
            _ => return Err(StatusError::Row(bits)),
        };
        let direction = match bits >> 8 & 0xff {
            1 => CommDirection::Send,
            2 => CommDirection::Recv,
            _ => return Err(StatusError::Row(bits)),
        };
        if bits >> 56 != 0 {
            return Err(StatusError::Row(bits));
        }
        let links = RowLinks::from_word((bits >> 16) as u16, words[5]).ok_or(StatusError::Links(words[5]))?;
        Ok(Some(Self {
            state,
            direction,
            links,
            generation: (bits >> 32) as u16,
            fault: FaultCode::from_code((bits >> 48) as u8),
            peer: ProcessId(join_halves([words[2], words[3]])),
            opened: words[4],
            ride: GroupMembership::from_words([words[RIDE], words[RIDE + 1]])?,
            before: MessageCounts::from_array(core::array::from_fn(|at| words[BASES + at])),
        }))
    }
}

fn split_halves(bytes: [u8; 16]) -> [u64; 2] {
    let bits = u128::from_le_bytes(bytes);
    [bits as u64, (bits >> 64) as u64]
}

fn join_halves([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

/// A row (32 words).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StatusRow {
    /// The comm of the row, or its last one; `None` if there was none, or if the row is changing.
    pub comm: Option<CommRecord>,
    /// Words from 16 on: counters of all comms that had the row.
    pub counts: MessageCounts,
}

impl StatusRow {
    /// Parses a copy of a row. The comm is parsed only if the sequence number is even.
    ///
    /// # Errors
    /// [`StatusError::Row`].
    pub fn from_words(words: &[u64; ROW_WORDS]) -> Result<Self, StatusError> {
        let settled = words[row::SEQUENCE].is_multiple_of(2);
        Ok(Self {
            comm: if settled { CommRecord::from_words(words)? } else { None },
            counts: MessageCounts::from_array(core::array::from_fn(|at| words[row::COUNTS + at])),
        })
    }

    /// Returns the row's words.
    #[must_use]
    pub fn to_words(&self) -> [u64; ROW_WORDS] {
        let mut words = [0; ROW_WORDS];
        if let Some(comm) = &self.comm {
            words[..row::COUNTS].copy_from_slice(&comm.to_words(2));
        }
        words[row::COUNTS..row::COUNTS + MessageCounts::LEN].copy_from_slice(&self.counts.to_array());
        words
    }

    /// Returns the counters of the current comm alone.
    #[must_use]
    pub fn comm_counts(&self) -> MessageCounts {
        self.comm.map_or_else(MessageCounts::default, |comm| self.counts.counted_since(comm.before))
    }
}

/// A whole page, as copied.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatusSnapshot {
    /// The head.
    pub head: StatusHead,
    /// The rows that were ever used.
    pub rows: Vec<StatusRow>,
}

impl StatusSnapshot {
    /// Parses a copy of a page up to its last used row. The bytes may be from any process.
    ///
    /// # Errors
    /// [`StatusError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StatusError> {
        let head = StatusHead::from_bytes(bytes)?;
        let short = StatusError::Short(bytes.len());
        let rows = bytes.get(HEAD_BYTES..page_bytes(head.used as usize)).ok_or(short)?;
        let (rows, _) = rows.as_chunks::<ROW_BYTES>();
        let row = |bytes: &[u8; ROW_BYTES]| {
            let (words, _) = bytes.as_chunks::<8>();
            let mut copy = [0; ROW_WORDS];
            for (to, word) in copy.iter_mut().zip(words) {
                *to = u64::from_le_bytes(*word);
            }
            StatusRow::from_words(&copy)
        };
        Ok(Self { rows: rows.iter().map(row).collect::<Result<_, _>>()?, head })
    }

    /// Returns the bytes up to the last used row.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.to_bytes().to_vec();
        for row in &self.rows {
            for word in row.to_words() {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    /// Returns the counters of the process.
    #[must_use]
    pub fn process_counters(&self) -> Counters {
        Counters::from_rows(&self.head.tallies, self.rows.iter().map(|row| row.counts))
    }
}

#[cfg(test)]
mod tests;
