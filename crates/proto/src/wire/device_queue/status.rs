//! The status of an entry, and the words that report a failure to waiters on a signal, a counter or a queue.

use super::{join_halves, split_halves};

/// How an entry ended (16 bits).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum EntryStatus {
    /// 0: it completed.
    Done,
    /// 1: an earlier entry of the queue failed. The entry may or may not have taken effect.
    Flushed,
    /// 2: it is not a valid entry.
    BadEntry,
    /// 3: the region does not contain the bytes, or forbids the access.
    Access,
    /// 4: the other process has ended, or no link to it is left.
    PeerDead,
    /// 5: the network failed.
    Network,
    /// 6: the queue was aborted.
    Aborted,
    /// 7: the entry that it waited for failed, or its queue does not exist.
    Awaited,
    /// 8: the region has ended since.
    Stale,
    /// 9: a doorbell was further ahead than the queue's depth.
    BadDoorbell,
    /// 10: a producer abandoned reserved entries.
    Abandoned,
    /// Another number, defined by the executor.
    Other(u16),
}

/// The statuses with names; the index is the number.
const NAMED: [EntryStatus; 11] = [
    EntryStatus::Done,
    EntryStatus::Flushed,
    EntryStatus::BadEntry,
    EntryStatus::Access,
    EntryStatus::PeerDead,
    EntryStatus::Network,
    EntryStatus::Aborted,
    EntryStatus::Awaited,
    EntryStatus::Stale,
    EntryStatus::BadDoorbell,
    EntryStatus::Abandoned,
];

impl EntryStatus {
    /// The number in a completion that is being written; not a status.
    pub(super) const WRITING: u16 = u16::MAX;

    /// Returns the number. `Other` must not contain the number of a named status; the number of a completion that is being written is replaced by
    /// that of [`EntryStatus::Network`].
    #[must_use]
    pub fn to_bits(self) -> u16 {
        match self {
            Self::Other(Self::WRITING) => Self::Network.to_bits(),
            Self::Other(number) => number,
            named => NAMED.iter().position(|one| *one == named).map_or(0, |at| at as u16),
        }
    }

    /// Returns the status of a number.
    #[must_use]
    pub fn from_bits(bits: u16) -> Self {
        NAMED.get(usize::from(bits)).copied().unwrap_or(Self::Other(bits))
    }
}

/// A poison word, or a word of an error table: an operation that was to change a signal or counter has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoisonWord {
    /// Bits 0-15: why; never [`EntryStatus::Done`].
    pub status: EntryStatus,
    /// Bits 32-63: the queue whose entry failed.
    pub queue: u32,
}

impl PoisonWord {
    /// Returns the word.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let status = if self.status == EntryStatus::Done { EntryStatus::Flushed } else { self.status };
        join_halves(status.to_bits().into(), self.queue)
    }

    /// Parses a word; `None` if it is 0, so that no operation has failed. A word that Trunkline never writes is valid as poison.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let (status, queue) = split_halves(word);
        match (word, EntryStatus::from_bits(status as u16)) {
            (0, _) => None,
            (_, EntryStatus::Done) => Some(Self { status: EntryStatus::Flushed, queue }),
            (_, status) => Some(Self { status, queue }),
        }
    }
}

/// The abort word: why all producers and waiters stop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AbortWord {
    /// Bits 0-15: [`EntryStatus::Aborted`], [`EntryStatus::Abandoned`] or a status of the program.
    pub status: EntryStatus,
    /// Bits 32-63: the program's reason, for people.
    pub reason: u32,
}

impl AbortWord {
    /// Returns the word.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let status = if self.status == EntryStatus::Done { EntryStatus::Aborted } else { self.status };
        join_halves(status.to_bits().into(), self.reason)
    }

    /// Parses a word; `None` if it is 0, so that work continues. A word that Trunkline never writes is valid as an abort.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let (status, reason) = split_halves(word);
        match (word, EntryStatus::from_bits(status as u16)) {
            (0, _) => None,
            (_, EntryStatus::Done) => Some(Self { status: EntryStatus::Aborted, reason }),
            (_, status) => Some(Self { status, reason }),
        }
    }
}
