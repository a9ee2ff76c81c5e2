//! An entry of a device queue: 64 bytes, eight words ("Entry" of docs/wire.md).

use super::inline::InlineBytes;
use super::{join_halves, split_halves};

mod plain;

/// Longest WRITE or READ, in bytes.
pub const LENGTH_MAX: u64 = 1 << 30;

/// An entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueEntry {
    /// Its operation.
    pub work: EntryWork,
    /// The operations that must have completed before it starts.
    pub fence: EntryFence,
    /// Offset 6, 2 bytes: chosen by the producer, for traces.
    pub tag: u16,
    /// Flag 32: further entries follow immediately, so the executor need not hurry.
    pub more: bool,
}

/// The operations that must have completed before an entry starts, in addition to the order that always holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EntryFence {
    /// None.
    #[default]
    None,
    /// Flag 2: earlier reads and atomics of the queue.
    ReadsAndAtomics,
    /// Flag 4: all earlier entries of the queue.
    All,
}

/// An address of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LocalAddress {
    /// Its address in the region.
    pub addr: u64,
    /// The key of the region.
    pub key: u32,
}

/// An address of another process, or of this process for a counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerAddress {
    /// Offset 56, 4 bytes: the rank.
    pub peer: u32,
    /// Offset 16, 8 bytes: its address in the region.
    pub addr: u64,
    /// Offset 28, 4 bytes: the key of the region.
    pub key: u32,
}

/// The value that is added to a counter of this process when an entry has completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CounterUpdate {
    /// The counter's word, 8 bytes and aligned.
    pub at: LocalAddress,
    /// The added value.
    pub value: u32,
    /// Whether a poison word follows the counter.
    pub poisoned: bool,
}

/// The change of a word of 8 bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicChange {
    /// 3 (ADD): adds, wrapping.
    Add(u64),
    /// 4 (SWAP_IF): replaces the word if it equals `expect`.
    SwapIf {
        /// The expected value.
        expect: u64,
        /// The new value.
        swap: u64,
    },
    /// 5 (ADD_MASKED): adds, and no carry passes a set bit of `boundaries`: each set bit is the highest bit of a separate number.
    AddMasked {
        /// The added value.
        add: u64,
        /// The highest bits of the numbers in the word.
        boundaries: u64,
    },
    /// 6 (SET): replaces the word.
    Set(u64),
    /// 7 (MAX): replaces the word if the value is greater.
    Max(u64),
}

impl AtomicChange {
    /// Returns the new word.
    #[must_use]
    pub const fn apply_to(self, old: u64) -> u64 {
        match self {
            Self::Add(add) => old.wrapping_add(add),
            Self::SwapIf { expect, swap } => {
                if old == expect {
                    swap
                } else {
                    old
                }
            }
            // Bits below a boundary cannot carry out of their number; the highest bits are added without carry.
            Self::AddMasked { add, boundaries } => {
                (old & !boundaries).wrapping_add(add & !boundaries) ^ ((old ^ add) & boundaries)
            }
            Self::Set(value) => value,
            Self::Max(value) => {
                if value > old {
                    value
                } else {
                    old
                }
            }
        }
    }

    /// Returns whether the completion contains the old value.
    #[must_use]
    pub const fn is_fetching(self) -> bool {
        matches!(self, Self::Add(_) | Self::SwapIf { .. } | Self::AddMasked { .. })
    }
}

/// The operation of an entry (1 byte at offset 4), and its fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EntryWork {
    /// 0: no operation, in its order.
    Nop,
    /// 1: writes bytes of this process to a peer.
    Write {
        /// The source.
        from: LocalAddress,
        /// The destination.
        to: PeerAddress,
        /// Length in bytes, at most [`LENGTH_MAX`].
        len: u64,
        /// The immediate that the peer receives when the bytes have been placed.
        imm: Option<u32>,
    },
    /// 1, flag 128: a write that raises a counter of this process once it has completed ([`counter_update`](Self::counter_update)). It has separate
    /// fields instead of a [`CounterUpdate`], because the type is smaller that way.
    WriteCounted {
        /// The source.
        from: LocalAddress,
        /// The destination.
        to: PeerAddress,
        /// Length in bytes, at most [`LENGTH_MAX`].
        len: u32,
        /// The counter's word, 8 bytes and aligned.
        counter: u64,
        /// The key of its region.
        key: u32,
        /// The added value.
        value: u32,
        /// Whether a poison word follows the counter.
        poisoned: bool,
    },
    /// 1, flag 8: writes bytes that the entry contains.
    WriteInline {
        /// The bytes.
        bytes: InlineBytes,
        /// The destination.
        to: PeerAddress,
    },
    /// 2: reads bytes of a peer.
    Read {
        /// The destination.
        into: LocalAddress,
        /// The source.
        from: PeerAddress,
        /// Length in bytes, at most [`LENGTH_MAX`].
        len: u64,
    },
    /// 3 to 7: changes a word of a peer.
    Atomic {
        /// The word.
        at: PeerAddress,
        /// The change.
        change: AtomicChange,
        /// Whether a poison word follows the word.
        poisoned: bool,
    },
    /// 8: holds the queue until an entry of another queue has completed.
    Wait {
        /// The number of that queue.
        queue: u32,
        /// The index of that entry.
        index: u64,
    },
    /// 9: makes bytes that were read or written here visible to the device.
    Show,
    /// 10: sends a number to a peer.
    Notify {
        /// The rank.
        peer: u32,
        /// The number.
        imm: u32,
    },
    /// 11: completes when all entries before it have.
    Barrier,
}

impl EntryWork {
    /// Returns the counter that the operation raises once it has completed.
    #[inline]
    #[must_use]
    pub const fn counter_update(&self) -> Option<CounterUpdate> {
        match *self {
            Self::WriteCounted { counter: addr, key, value, poisoned, .. } => {
                Some(CounterUpdate { at: LocalAddress { addr, key }, value, poisoned })
            }
            _ => None,
        }
    }

    /// Returns how many bytes it moves; 0 for an atomic and for an inline WRITE.
    #[inline]
    #[must_use]
    pub const fn moved_bytes(&self) -> u64 {
        match *self {
            Self::Write { len, .. } | Self::Read { len, .. } => len,
            Self::WriteCounted { len, .. } => len as u64,
            _ => 0,
        }
    }

    /// Returns the same WRITE with a counter; `None` for any other operation, and for more than [`LENGTH_MAX`] bytes.
    #[must_use]
    pub const fn with_counter(self, count: CounterUpdate) -> Option<Self> {
        let Self::Write { from, to, len, imm: None } = self else { return None };
        if len > LENGTH_MAX {
            return None;
        }
        let CounterUpdate { at: LocalAddress { addr: counter, key }, value, poisoned } = count;
        Some(Self::WriteCounted { from, to, len: len as u32, counter, key, value, poisoned })
    }
}

// An entry is copied on its way to the executor.
const _: () = assert!(size_of::<QueueEntry>() <= 64);

/// Why an entry is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum QueueEntryError {
    /// It is not the entry of this index.
    #[error("the entry has sequence word {found:#x}, expected {expected:#x}")]
    Sequence {
        /// The value in the entry.
        found: u32,
        /// The expected value.
        expected: u32,
    },
    /// Its check does not match its words.
    #[error("the entry has check {found:#x}, but its words give {expected:#x}")]
    Check {
        /// The value in the entry.
        found: u32,
        /// The expected value.
        expected: u32,
    },
    /// The operation is unknown.
    #[error("operation {0} is unknown")]
    Operation(u8),
    /// The flags contradict each other or the operation.
    #[error("flags {0:#x} contradict each other or the operation")]
    Flags(u8),
    /// It is too long.
    #[error("{0} bytes exceed the limit of one entry")]
    Length(u64),
    /// The word is not aligned.
    #[error("the word at {0:#x} is not aligned")]
    Unaligned(u64),
    /// A field that the operation does not use is not zero.
    #[error("byte {0} of the entry is not zero, but its operation does not use it")]
    Unused(u8),
}

mod flag {
    pub(super) const COMPLETES: u8 = 1;
    pub(super) const FENCE_READS_AND_ATOMICS: u8 = 2;
    pub(super) const FENCE_ALL: u8 = 4;
    pub(super) const INLINE: u8 = 8;
    pub(super) const IMMEDIATE: u8 = 16;
    pub(super) const MORE: u8 = 32;
    pub(super) const POISONED: u8 = 64;
    pub(super) const COUNTED: u8 = 128;
    /// Flags that any entry may have.
    pub(super) const OF_ALL: u8 = COMPLETES | FENCE_READS_AND_ATOMICS | FENCE_ALL | MORE;
}

/// An entry's words, and some of their fields.
struct EntryFields<'w> {
    words: &'w [u64; 8],
    op: u8,
    flags: u8,
    tag: u16,
    keys: (u32, u32),
    peer: u32,
}

impl QueueEntry {
    /// Creates an entry without a fence.
    #[must_use]
    pub const fn new(work: EntryWork) -> Self {
        Self { work, fence: EntryFence::None, tag: 0, more: false }
    }

    /// Returns the same entry with a fence.
    #[must_use]
    pub const fn with_fence(self, fence: EntryFence) -> Self {
        Self { fence, ..self }
    }

    /// Returns the number of its operation.
    #[inline]
    #[must_use]
    pub const fn op_number(&self) -> u8 {
        match self.work {
            EntryWork::Nop => 0,
            EntryWork::Write { .. } | EntryWork::WriteCounted { .. } | EntryWork::WriteInline { .. } => 1,
            EntryWork::Read { .. } => 2,
            EntryWork::Atomic { change, .. } => match change {
                AtomicChange::Add(_) => 3,
                AtomicChange::SwapIf { .. } => 4,
                AtomicChange::AddMasked { .. } => 5,
                AtomicChange::Set(_) => 6,
                AtomicChange::Max(_) => 7,
            },
            EntryWork::Wait { .. } => 8,
            EntryWork::Show => 9,
            EntryWork::Notify { .. } => 10,
            EntryWork::Barrier => 11,
        }
    }

    /// Returns the entry's words at an index.
    #[inline(always)]
    #[must_use]
    pub fn to_words(&self, index: u64, checked: bool) -> [u64; 8] {
        let (op, of_work, [local, remote, keys, len, operand, comparand, peer]) = self.work.to_parts();
        let fence = match self.fence {
            EntryFence::None => 0,
            EntryFence::ReadsAndAtomics => flag::FENCE_READS_AND_ATOMICS,
            EntryFence::All => flag::FENCE_ALL,
        };
        let flags = flag::COMPLETES | fence | of_work | if self.more { flag::MORE } else { 0 };
        let kind = u32::from(op) | u32::from(flags) << 8 | u32::from(self.tag) << 16;
        let mut words =
            [join_halves(entry_sequence(index), kind), local, remote, keys, len, operand, comparand, peer];
        if checked {
            words[7] |= u64::from(entry_check(&words)) << 32;
        }
        words
    }

    /// Parses the entry of an index.
    ///
    /// # Errors
    /// [`QueueEntryError`] names the invalid field.
    #[inline]
    pub fn from_words(words: &[u64; 8], index: u64, checked: bool) -> Result<Self, QueueEntryError> {
        let (found, kind) = split_halves(words[0]);
        if found != entry_sequence(index) {
            return Err(QueueEntryError::Sequence { found, expected: entry_sequence(index) });
        }
        let (peer, found) = split_halves(words[7]);
        let expected = if checked { entry_check(words) } else { 0 };
        if found != expected {
            return Err(QueueEntryError::Check { found, expected });
        }
        let fields = EntryFields {
            words,
            op: kind as u8,
            flags: (kind >> 8) as u8,
            tag: (kind >> 16) as u16,
            keys: split_halves(words[3]),
            peer,
        };
        fields.parse_entry()
    }
}

/// The fields that an operation uses.
struct UsedFields {
    /// The used bits of the words after the first one.
    words: [u64; 7],
    /// Flags in addition to [`flag::OF_ALL`].
    flags: u8,
}

impl UsedFields {
    const ALL: u64 = u64::MAX;
    const LOW: u64 = u32::MAX as u64;
    const HIGH: u64 = !Self::LOW;
    const NOTHING: Self = Self { words: [0, 0, 0, 0, 0, 0, Self::HIGH], flags: 0 };
    const WRITE: Self =
        Self { words: [Self::ALL, Self::ALL, Self::ALL, Self::ALL, 0, 0, Self::ALL], flags: 0 };
    const TELLING: Self = Self {
        words: [Self::ALL, Self::ALL, Self::ALL, Self::ALL, Self::LOW, 0, Self::ALL],
        flags: flag::IMMEDIATE,
    };
    const COUNTED: Self = Self { words: [Self::ALL; 7], flags: flag::COUNTED | flag::POISONED };
    const INLINE: Self = Self {
        words: [Self::ALL, Self::ALL, Self::HIGH, Self::ALL, Self::ALL, Self::ALL, Self::ALL],
        flags: flag::INLINE,
    };
    const ATOMIC: Self =
        Self { words: [0, Self::ALL, Self::HIGH, 0, Self::ALL, 0, Self::ALL], flags: flag::POISONED };
    const COMPARING: Self =
        Self { words: [0, Self::ALL, Self::HIGH, 0, Self::ALL, Self::ALL, Self::ALL], flags: flag::POISONED };
    const WAIT: Self = Self { words: [0, Self::ALL, Self::HIGH, 0, 0, 0, Self::HIGH], flags: 0 };
    const NOTIFY: Self = Self { words: [0, 0, 0, 0, Self::LOW, 0, Self::ALL], flags: 0 };

    /// Checks that an entry sets no other fields; the check word was verified before. Inlined into the branch of each operation, where masks are
    /// constant and cost no instructions.
    #[inline(always)]
    fn is_all(&self, words: &[u64; 8], flags: u8) -> Result<(), QueueEntryError> {
        if flags & !(self.flags | flag::OF_ALL) | !flags & flag::COMPLETES != 0 {
            return Err(QueueEntryError::Flags(flags));
        }
        let others = self.words.iter().zip(&words[1..]).fold(0, |others, (used, word)| others | word & !used);
        if others == 0 { Ok(()) } else { Err(self.unused_error(words)) }
    }

    #[cold]
    #[inline(never)]
    fn unused_error(&self, words: &[u64; 8]) -> QueueEntryError {
        let at = self.words.iter().zip(&words[1..]).position(|(used, word)| word & !used != 0);
        QueueEntryError::Unused(at.unwrap_or_default() as u8 * 8 + 8)
    }
}

impl EntryWork {
    /// Returns the number of the operation, its flags, and the words after the first one.
    #[inline(always)]
    fn to_parts(self) -> (u8, u8, [u64; 7]) {
        match self {
            Self::Nop => (0, 0, [0; 7]),
            Self::Write { from, to, len, imm } => {
                let keys = join_halves(from.key, to.key);
                let flags = if imm.is_some() { flag::IMMEDIATE } else { 0 };
                let imm = imm.unwrap_or_default().into();
                (1, flags, [from.addr, to.addr, keys, len, imm, 0, to.peer.into()])
            }
            Self::WriteCounted { from, to, len, counter, key, value, poisoned } => {
                let keys = join_halves(from.key, to.key);
                let count = join_halves(key, value);
                let flags = flag::COUNTED | if poisoned { flag::POISONED } else { 0 };
                (1, flags, [from.addr, to.addr, keys, len.into(), counter, count, to.peer.into()])
            }
            Self::WriteInline { bytes, to } => {
                let [first, second, third] = bytes.to_words();
                let len = bytes.as_bytes().len() as u64;
                (
                    1,
                    flag::INLINE,
                    [first, to.addr, join_halves(0, to.key), len, second, third, to.peer.into()],
                )
            }
            Self::Read { into, from, len } => {
                (2, 0, [into.addr, from.addr, join_halves(into.key, from.key), len, 0, 0, from.peer.into()])
            }
            Self::Atomic { at, change, poisoned } => {
                let (op, operand, comparand) = match change {
                    AtomicChange::Add(value) => (3, value, 0),
                    AtomicChange::SwapIf { expect, swap } => (4, swap, expect),
                    AtomicChange::AddMasked { add, boundaries } => (5, add, boundaries),
                    AtomicChange::Set(value) => (6, value, 0),
                    AtomicChange::Max(value) => (7, value, 0),
                };
                let flags = if poisoned { flag::POISONED } else { 0 };
                (op, flags, [0, at.addr, join_halves(0, at.key), 0, operand, comparand, at.peer.into()])
            }
            Self::Wait { queue, index } => (8, 0, [0, index, join_halves(0, queue), 0, 0, 0, 0]),
            Self::Show => (9, 0, [0; 7]),
            Self::Notify { peer, imm } => (10, 0, [0, 0, 0, 0, imm.into(), 0, peer.into()]),
            Self::Barrier => (11, 0, [0; 7]),
        }
    }
}

/// Each operation creates the whole entry in its own branch: building it after a common branch would take twice the instructions.
impl EntryFields<'_> {
    #[inline]
    const fn local_address(&self) -> LocalAddress {
        LocalAddress { addr: self.words[1], key: self.keys.0 }
    }

    #[inline]
    const fn remote_address(&self) -> PeerAddress {
        PeerAddress { peer: self.peer, addr: self.words[2], key: self.keys.1 }
    }

    const fn operand(&self) -> u64 {
        self.words[5]
    }

    const fn comparand(&self) -> u64 {
        self.words[6]
    }

    #[inline]
    fn parse_entry(&self) -> Result<QueueEntry, QueueEntryError> {
        match self.op {
            0 => self.finish_entry(EntryWork::Nop, &UsedFields::NOTHING),
            1 => self.parse_write(),
            2 => {
                let into = self.local_address();
                let from = self.remote_address();
                let len = self.parse_length()?;
                self.finish_entry(EntryWork::Read { into, from, len }, &UsedFields::WRITE)
            }
            3 => self.parse_atomic(AtomicChange::Add(self.operand()), &UsedFields::ATOMIC),
            4 => {
                let change = AtomicChange::SwapIf { expect: self.comparand(), swap: self.operand() };
                self.parse_atomic(change, &UsedFields::COMPARING)
            }
            5 => {
                let change = AtomicChange::AddMasked { add: self.operand(), boundaries: self.comparand() };
                self.parse_atomic(change, &UsedFields::COMPARING)
            }
            6 => self.parse_atomic(AtomicChange::Set(self.operand()), &UsedFields::ATOMIC),
            7 => self.parse_atomic(AtomicChange::Max(self.operand()), &UsedFields::ATOMIC),
            8 => self.finish_entry(
                EntryWork::Wait { queue: self.keys.1, index: self.words[2] },
                &UsedFields::WAIT,
            ),
            9 => self.finish_entry(EntryWork::Show, &UsedFields::NOTHING),
            10 => self.finish_entry(
                EntryWork::Notify { peer: self.peer, imm: self.operand() as u32 },
                &UsedFields::NOTIFY,
            ),
            11 => self.finish_entry(EntryWork::Barrier, &UsedFields::NOTHING),
            op => Err(QueueEntryError::Operation(op)),
        }
    }

    #[inline]
    fn parse_write(&self) -> Result<QueueEntry, QueueEntryError> {
        match self.flags & (flag::INLINE | flag::COUNTED | flag::IMMEDIATE) {
            0 => {
                let from = self.local_address();
                let to = self.remote_address();
                let len = self.parse_length()?;
                self.finish_entry(EntryWork::Write { from, to, len, imm: None }, &UsedFields::WRITE)
            }
            flag::COUNTED => {
                let (key, value) = split_halves(self.comparand());
                let counter = check_aligned(self.operand())?;
                let poisoned = self.flags & flag::POISONED != 0;
                // The length is at most LENGTH_MAX.
                let from = self.local_address();
                let to = self.remote_address();
                let len = self.parse_length()? as u32;
                self.finish_entry(
                    EntryWork::WriteCounted { from, to, len, counter, key, value, poisoned },
                    &UsedFields::COUNTED,
                )
            }
            flag::IMMEDIATE => {
                let from = self.local_address();
                let to = self.remote_address();
                let len = self.parse_length()?;
                self.finish_entry(
                    EntryWork::Write { from, to, len, imm: Some(self.operand() as u32) },
                    &UsedFields::TELLING,
                )
            }
            _ if self.flags & flag::INLINE != 0 => {
                let bytes =
                    InlineBytes::from_words([self.words[1], self.operand(), self.comparand()], self.words[4]);
                let bytes = bytes.ok_or(QueueEntryError::Length(self.words[4]))?;
                self.finish_entry(
                    EntryWork::WriteInline { bytes, to: self.remote_address() },
                    &UsedFields::INLINE,
                )
            }
            _ => Err(QueueEntryError::Flags(self.flags)),
        }
    }

    #[inline(always)]
    fn parse_atomic(&self, change: AtomicChange, used: &UsedFields) -> Result<QueueEntry, QueueEntryError> {
        check_aligned(self.words[2])?;
        let at = self.remote_address();
        let poisoned = self.flags & flag::POISONED != 0;
        self.finish_entry(EntryWork::Atomic { at, change, poisoned }, used)
    }

    /// Creates the entry of an operation, and checks that no other fields are set.
    #[inline(always)]
    fn finish_entry(&self, work: EntryWork, used: &UsedFields) -> Result<QueueEntry, QueueEntryError> {
        let fence = match self.flags & (flag::FENCE_READS_AND_ATOMICS | flag::FENCE_ALL) {
            0 => EntryFence::None,
            flag::FENCE_READS_AND_ATOMICS => EntryFence::ReadsAndAtomics,
            flag::FENCE_ALL => EntryFence::All,
            _ => return Err(QueueEntryError::Flags(self.flags)),
        };
        used.is_all(self.words, self.flags)?;
        Ok(QueueEntry { work, fence, tag: self.tag, more: self.flags & flag::MORE != 0 })
    }

    #[inline]
    const fn parse_length(&self) -> Result<u64, QueueEntryError> {
        let len = self.words[4];
        if len > LENGTH_MAX { Err(QueueEntryError::Length(len)) } else { Ok(len) }
    }
}

#[inline]
const fn check_aligned(addr: u64) -> Result<u64, QueueEntryError> {
    if addr.is_multiple_of(8) { Ok(addr) } else { Err(QueueEntryError::Unaligned(addr)) }
}

#[inline]
const fn entry_sequence(index: u64) -> u32 {
    (index as u32).wrapping_add(1)
}

/// Returns the exclusive or of the other fifteen words of 4 bytes and of `DEVQ`.
#[inline(never)]
fn entry_check(words: &[u64; 8]) -> u32 {
    let all = words.iter().fold(0, |all, word| all ^ split_halves(*word).0 ^ split_halves(*word).1);
    all ^ split_halves(words[7]).1 ^ u32::from_le_bytes(*b"DEVQ")
}
