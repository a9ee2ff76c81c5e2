//! The status page: what a process lets others see of itself. The engine writes it, `trunkline top` reads copies of it.
//! Pure layout: mapping it, and reading a row while it changes, is done elsewhere.

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
/// Bytes of the head.
pub const HEAD_BYTES: usize = 4096;
/// Bytes of a row.
pub const ROW_BYTES: usize = 256;
/// Words of a row.
pub const ROW_WORDS: usize = ROW_BYTES / 8;
/// Most rows of a page.
pub const ROWS_MAX: usize = 65535;
/// Most NICs whose names a page holds.
pub const NICS_MAX: usize = 16;
/// Bytes of a name, of a fabric or a NIC.
pub const NAME_BYTES: usize = 32;

/// What a page begins with, once it is ready.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TRKLSTAT");

/// Words of the head that are written again and again.
pub mod head {
    /// The magic number.
    pub const MAGIC: usize = 0;
    /// Rows that were ever used.
    pub const USED: usize = 3;
    /// Code of the last fault.
    pub const FAULT: usize = 9;
    /// When that was.
    pub const FAULT_AT: usize = 10;
    /// Groups of shared queue pairs.
    pub const GROUPS: usize = 11;
    /// The first tally.
    pub const TALLIES: usize = 16;
    /// The control streams to other hosts.
    pub const CONTROL: usize = 28;
    /// Words up to that, and some.
    pub const WORDS: usize = 32;
}

/// Words of a row.
pub mod row {
    /// Odd while words 1 to 15 change.
    pub const SEQUENCE: usize = 0;
    /// The first counted word.
    pub const COUNTS: usize = 16;
}

const FABRIC_AT: usize = 96;
const NICS_AT: usize = 256;
const RIDE: usize = 6;
const BASES: usize = 8;

/// Bytes of a page with so many rows.
#[must_use]
pub const fn page_bytes(rows: usize) -> usize {
    HEAD_BYTES + rows * ROW_BYTES
}

/// Why bytes are no page of this version.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// They end too early.
    #[error("it is cut short: {0} bytes")]
    Short(usize),
    /// They do not begin as a page does.
    #[error("it does not begin as a status page does, or is not ready yet")]
    Magic,
    /// The page has another layout.
    #[error("it has version {0}, this program reads version {VERSION}; use the program of the same build")]
    Version(u32),
    /// Its sizes cannot be.
    #[error("its sizes cannot be: {0} bytes of head, {1} bytes a row, {2} rows, {3} used")]
    Sizes(u32, u32, u32, u64),
    /// Its file has another length than its sizes give.
    #[error("its sizes give {expected} bytes, the file has {found}")]
    Length {
        /// By the sizes.
        expected: usize,
        /// Of the file.
        found: usize,
    },
    /// It names more NICs than there is room for.
    #[error("it has {0} NICs, more than {NICS_MAX}")]
    Nics(u32),
    /// A name is empty, too long, or holds more than printable letters.
    #[error("a name in it is not printable")]
    Name,
    /// A row is not one of a comm.
    #[error("a row in it begins with {0:#x}, which no comm has")]
    Row(u64),
    /// A comm has links that cannot be.
    #[error("a row in it has the links {0:#x}, which no comm has")]
    Links(u64),
    /// A comm rides where none can.
    #[error("a row in it has the group {0:#x} and the member {1:#x}, which no comm has")]
    Ride(u64, u64),
    /// A record is not one of a group.
    #[error("a record of a group in it begins with {0:#x}, which no group has")]
    Group(u64),
    /// It has more groups than a process can have.
    #[error("it has {0} groups of queue pairs")]
    Groups(u64),
}

/// Why a comm is of no more use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultCode {
    /// The peer process is gone.
    PeerDied,
    /// The peer closed its end.
    PeerClosed,
    /// The peer broke the protocol.
    Protocol,
    /// The link failed.
    Link,
    /// Memory was deregistered while messages used it.
    Revoked,
    /// Something this version does not know.
    Other,
}

impl FaultCode {
    /// The code on the page, never 0.
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

    /// The fault of that code; `None` for 0.
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

    /// In a few words.
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

/// The head of a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatusHead {
    /// Rows of the page.
    pub rows: u32,
    /// Rows that were ever used.
    pub used: u32,
    /// The process.
    pub process: ProcessId,
    /// Its number, as it sees itself.
    pub pid: u32,
    /// When the page was made: nanoseconds since 1970.
    pub made_unix: u64,
    /// The same instant by the clock of the other times.
    pub made: u64,
    /// The last fault of any comm.
    pub fault: Option<FaultCode>,
    /// When that was, by the same clock.
    pub fault_at: u64,
    /// The fabric.
    pub fabric: String,
    /// The NICs, by number.
    pub nics: Vec<String>,
    /// What each of them has in use.
    pub usage: Vec<NicUsage>,
    /// Groups of shared queue pairs, those without a record included.
    pub groups: u32,
    /// The records of groups, each in its place.
    pub records: [Option<QueueGroupRecord>; group::RECORDS],
    /// What is counted for the whole process.
    pub tallies: [u64; ProcessTally::LEN],
    /// The control streams to other hosts.
    pub control: ControlStreams,
}

impl StatusHead {
    /// Its bytes. Names are changed as far as the layout asks: cut, and strange letters replaced.
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

    /// Reads a head, from bytes that may be anybody's.
    ///
    /// # Errors
    /// [`StatusError`] says what is wrong.
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

    /// Checks the length of the file that the head is in.
    ///
    /// # Errors
    /// [`StatusError::Length`].
    pub fn check_length(&self, found: usize) -> Result<(), StatusError> {
        let expected = page_bytes(self.rows as usize);
        if found == expected { Ok(()) } else { Err(StatusError::Length { expected, found }) }
    }
}

/// `N` bytes at an offset that the layout fixes; zeros beyond the end.
fn read_array<const N: usize>(bytes: &[u8; HEAD_BYTES], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn name_bytes(text: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let letters = text.chars().map(|letter| if letter.is_ascii_graphic() { letter as u8 } else { b'?' });
    // An empty name is no name, and the last byte stays 0.
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

/// How a comm stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommState {
    /// It can be used.
    Open,
    /// It is of no more use.
    Failed,
    /// It is closed; no other has taken its row yet.
    Closed,
}

/// Which way a comm carries messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommDirection {
    /// From this process.
    Send,
    /// To this process.
    Recv,
}

/// The comm that a row is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CommRecord {
    /// How it stands.
    pub state: CommState,
    /// Which way.
    pub direction: CommDirection,
    /// Its links.
    pub links: RowLinks,
    /// Its generation among the comms of the row.
    pub generation: u16,
    /// Why it is of no more use, or what became of its peer.
    pub fault: Option<FaultCode>,
    /// The process at its other end.
    pub peer: ProcessId,
    /// When it was opened, by the clock of the head's times.
    pub opened: u64,
    /// Where it rides on shared queue pairs; of a closed one, where it did.
    pub ride: Option<GroupMembership>,
    /// What the row had counted before it.
    pub before: MessageCounts,
}

impl CommRecord {
    /// Words 0 to 15 of the row, with that sequence number.
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

    /// Reads them; `None` for a row that was never used.
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

/// A row.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StatusRow {
    /// The comm that has it, or had it last; `None` if there was none, or if it changes right now.
    pub comm: Option<CommRecord>,
    /// What was counted for all comms that had it.
    pub counts: MessageCounts,
}

impl StatusRow {
    /// Reads a copy of a row, of which the comm counts only if the sequence number in it is even.
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

    /// Its words.
    #[must_use]
    pub fn to_words(&self) -> [u64; ROW_WORDS] {
        let mut words = [0; ROW_WORDS];
        if let Some(comm) = &self.comm {
            words[..row::COUNTS].copy_from_slice(&comm.to_words(2));
        }
        words[row::COUNTS..row::COUNTS + MessageCounts::LEN].copy_from_slice(&self.counts.to_array());
        words
    }

    /// What was counted for the comm alone.
    #[must_use]
    pub fn comm_counts(&self) -> MessageCounts {
        self.comm.map_or_else(MessageCounts::default, |comm| self.counts.counted_since(comm.before))
    }
}

/// A whole page, as it was copied.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatusSnapshot {
    /// The head.
    pub head: StatusHead,
    /// The rows that were ever used.
    pub rows: Vec<StatusRow>,
}

impl StatusSnapshot {
    /// Reads a copy of a page up to its last used row, from bytes that may be anybody's.
    ///
    /// # Errors
    /// [`StatusError`] says what is wrong.
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

    /// Its bytes, up to the last used row.
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

    /// The counters of the process.
    #[must_use]
    pub fn process_counters(&self) -> Counters {
        Counters::from_rows(&self.head.tallies, self.rows.iter().map(|row| row.counts))
    }
}

#[cfg(test)]
mod tests;
