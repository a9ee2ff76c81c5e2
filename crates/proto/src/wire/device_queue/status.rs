//! How an entry ended, and the words by which that reaches who waits for something else.

use super::{join_halves, split_halves};

/// How an entry ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum EntryStatus {
    /// It is done.
    Done,
    /// An earlier entry of the queue failed. It may or may not have taken effect.
    Flushed,
    /// It is no entry.
    BadEntry,
    /// The region does not contain the bytes, or forbids it.
    Access,
    /// The other process is gone, or no link leads to it any more.
    PeerDead,
    /// The network gave up.
    Network,
    /// The queue was aborted.
    Aborted,
    /// What it waited for failed, or there is no such queue.
    Awaited,
    /// The region has ended since.
    Stale,
    /// A doorbell was further than the queue is deep.
    BadDoorbell,
    /// Somebody reserved entries and left.
    Abandoned,
    /// Another one, of the executor's own.
    Other(u16),
}

/// The numbers of those that have names, in their order.
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
    /// What a completion says while it is being written; no status.
    pub(super) const WRITING: u16 = u16::MAX;

    /// The number on the wire. `Other` never stands for one that has a name, nor for the one of a completion that is being written.
    #[must_use]
    pub fn to_bits(self) -> u16 {
        match self {
            Self::Other(Self::WRITING) => Self::Network.to_bits(),
            Self::Other(number) => number,
            named => NAMED.iter().position(|one| *one == named).map_or(0, |at| at as u16),
        }
    }

    /// The status of a number.
    #[must_use]
    pub fn from_bits(bits: u16) -> Self {
        NAMED.get(usize::from(bits)).copied().unwrap_or(Self::Other(bits))
    }
}

/// A poison word, or a word of an error table: what was to change a signal or counter has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoisonWord {
    /// Why; never [`EntryStatus::Done`].
    pub status: EntryStatus,
    /// The queue whose entry failed.
    pub queue: u32,
}

impl PoisonWord {
    /// The word.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let status = if self.status == EntryStatus::Done { EntryStatus::Flushed } else { self.status };
        join_halves(status.to_bits().into(), self.queue)
    }

    /// What the word says; `None`: nothing has failed. A word that nobody of us writes is poison as well.
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

/// The abort word: why everybody is to stop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AbortWord {
    /// The kind: [`EntryStatus::Aborted`], [`EntryStatus::Abandoned`] or one of the program's own.
    pub status: EntryStatus,
    /// The program's reason, for people.
    pub reason: u32,
}

impl AbortWord {
    /// The word.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let status = if self.status == EntryStatus::Done { EntryStatus::Aborted } else { self.status };
        join_halves(status.to_bits().into(), self.reason)
    }

    /// What the word says; `None`: go on. A word that nobody of us writes is an abort as well.
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
