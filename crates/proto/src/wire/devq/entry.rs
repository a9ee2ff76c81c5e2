//! An entry of a device queue: 64 bytes, eight words.

use super::{halves, word};

/// Bytes that a WRITE may carry itself.
pub const INLINE_BYTES_MAX: usize = 24;

/// Longest WRITE or READ.
pub const LENGTH_MAX: u64 = 1 << 30;

/// What an entry asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The work.
    pub work: Work,
    /// What must have ended before it begins.
    pub fence: Fence,
    /// The producer's, for traces.
    pub tag: u16,
    /// More will follow at once, so nobody need hurry.
    pub more: bool,
}

/// What must have ended before an entry begins, beyond what always must.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Fence {
    /// Nothing.
    #[default]
    None,
    /// Earlier reads and atomics of the queue.
    ReadsAndAtomics,
    /// All earlier entries of the queue.
    All,
}

/// Bytes of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Local {
    /// Where, as the region counts.
    pub addr: u64,
    /// The region.
    pub key: u32,
}

/// Bytes of another process, or of this one for a counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    /// Its rank.
    pub peer: u32,
    /// Where, as the region counts.
    pub addr: u64,
    /// The region.
    pub key: u32,
}

/// Bytes in an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inline {
    bytes: [u8; INLINE_BYTES_MAX],
    len: u8,
}

impl Inline {
    /// The bytes; `None` if there are more than fit.
    #[must_use]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, len: from.len() as u8 })
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    fn words(&self) -> [u64; 3] {
        let at =
            |n: usize| self.bytes.iter().skip(8 * n).take(8).rev().fold(0, |w, b| w << 8 | u64::from(*b));
        [at(0), at(1), at(2)]
    }

    /// `None` if there are too many, or bytes behind the last one.
    fn from_words(words: [u64; 3], len: u64) -> Option<Self> {
        let mut bytes = [0; INLINE_BYTES_MAX];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        let len = u8::try_from(len).ok()?;
        let rest = bytes.get(usize::from(len)..)?;
        rest.iter().all(|byte| *byte == 0).then_some(Self { bytes, len })
    }
}

/// How a word of 8 bytes is changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Atomic {
    /// Adds, wrapping.
    Add(u64),
    /// Replaces it if it equals `expect`.
    SwapIf {
        /// Only then.
        expect: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds, and no carry passes a set bit of `boundaries`: each is the highest bit of a number of its own.
    AddMasked {
        /// What is added.
        add: u64,
        /// Highest bits of the numbers in the word.
        boundaries: u64,
    },
    /// Replaces it.
    Set(u64),
    /// Raises it, if it is less.
    Max(u64),
}

impl Atomic {
    /// The word afterwards.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::Add(add) => old.wrapping_add(add),
            Self::SwapIf { expect, swap } => {
                if old == expect {
                    swap
                } else {
                    old
                }
            }
            // The bits below the boundaries cannot carry out of their number; the highest ones are added without carry.
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

    /// Whether the completion brings the value before.
    #[must_use]
    pub const fn fetches(self) -> bool {
        matches!(self, Self::Add(_) | Self::SwapIf { .. } | Self::AddMasked { .. })
    }
}

/// The work of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// Nothing, in its turn.
    Nop,
    /// Bytes from here to there.
    Write {
        /// From.
        from: Local,
        /// To.
        to: Remote,
        /// At most [`LENGTH_MAX`].
        len: u64,
        /// What the other side is told when they are there.
        imm: Option<u32>,
    },
    /// Bytes of the entry.
    WriteInline {
        /// The bytes.
        bytes: Inline,
        /// To.
        to: Remote,
    },
    /// Bytes from there to here.
    Read {
        /// To.
        into: Local,
        /// From.
        from: Remote,
        /// At most [`LENGTH_MAX`].
        len: u64,
    },
    /// A change of a word.
    Atomic {
        /// The word.
        at: Remote,
        /// The change.
        change: Atomic,
        /// Whether a poison word stands behind it.
        poisoned: bool,
    },
    /// Holds the queue until another one's entry has completed.
    Wait {
        /// The number of that queue.
        queue: u32,
        /// The entry.
        index: u64,
    },
    /// Makes what was read or written here visible to the device.
    Show,
    /// Tells the other side a number.
    Notify {
        /// The rank.
        peer: u32,
        /// The number.
        imm: u32,
    },
    /// Completes when all before have.
    Barrier,
}

/// An entry could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EntryError {
    /// It is not the one of this index.
    #[error("the entry says {found:#x} where {expected:#x} belongs")]
    Sequence {
        /// What is there.
        found: u32,
        /// What belongs there.
        expected: u32,
    },
    /// Its check does not fit its words.
    #[error("the entry's check is {found:#x}, and {expected:#x} by its words")]
    Check {
        /// What is there.
        found: u32,
        /// What belongs there.
        expected: u32,
    },
    /// There is no such operation.
    #[error("no operation has the number {0}")]
    Operation(u8),
    /// The flags do not fit each other or the operation.
    #[error("flags {0:#x} do not fit the operation")]
    Flags(u8),
    /// It is too long.
    #[error("{0} bytes in one entry")]
    Length(u64),
    /// The word is not aligned.
    #[error("a word at {0:#x} is not aligned")]
    Unaligned(u64),
    /// What the operation does not use is not zero.
    #[error("byte {0} of the entry is used by no such operation")]
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
    /// Those that any entry may have.
    pub(super) const OF_ALL: u8 = COMPLETES | FENCE_READS_AND_ATOMICS | FENCE_ALL | MORE;
}

/// An entry's words, apart.
#[derive(Default)]
struct Fields {
    op: u8,
    flags: u8,
    local: u64,
    remote: u64,
    keys: (u32, u32),
    len: u64,
    operand: u64,
    comparand: u64,
    peer: u32,
}

impl Entry {
    /// The work, without a fence.
    #[must_use]
    pub const fn new(work: Work) -> Self {
        Self { work, fence: Fence::None, tag: 0, more: false }
    }

    /// The same, behind a fence.
    #[must_use]
    pub const fn fenced(self, fence: Fence) -> Self {
        Self { fence, ..self }
    }

    /// The number of its operation.
    #[inline]
    #[must_use]
    pub const fn op(&self) -> u8 {
        match self.work {
            Work::Nop => 0,
            Work::Write { .. } | Work::WriteInline { .. } => 1,
            Work::Read { .. } => 2,
            Work::Atomic { change, .. } => match change {
                Atomic::Add(_) => 3,
                Atomic::SwapIf { .. } => 4,
                Atomic::AddMasked { .. } => 5,
                Atomic::Set(_) => 6,
                Atomic::Max(_) => 7,
            },
            Work::Wait { .. } => 8,
            Work::Show => 9,
            Work::Notify { .. } => 10,
            Work::Barrier => 11,
        }
    }

    /// The entry's words at an index.
    #[must_use]
    pub fn to_words(&self, index: u64, checked: bool) -> [u64; 8] {
        let fields = self.fields();
        let kind = u32::from(fields.op) | u32::from(fields.flags) << 8 | u32::from(self.tag) << 16;
        let mut words = [
            word(sequence(index), kind),
            fields.local,
            fields.remote,
            word(fields.keys.0, fields.keys.1),
            fields.len,
            fields.operand,
            fields.comparand,
            word(fields.peer, 0),
        ];
        if checked {
            words[7] = word(fields.peer, check(&words));
        }
        words
    }

    fn fields(&self) -> Fields {
        let mut fields = Fields { op: self.op(), flags: self.flags(), ..Fields::default() };
        match self.work {
            Work::Nop | Work::Show | Work::Barrier => {}
            Work::Write { from, to, len, imm } => {
                fields.local = from.addr;
                fields.len = len;
                fields.operand = imm.unwrap_or_default().into();
                fields.put(from.key, to);
            }
            Work::WriteInline { bytes, to } => {
                [fields.local, fields.operand, fields.comparand] = bytes.words();
                fields.len = bytes.len.into();
                fields.put(0, to);
            }
            Work::Read { into, from, len } => {
                fields.local = into.addr;
                fields.len = len;
                fields.put(into.key, from);
            }
            Work::Atomic { at, change, .. } => {
                fields.put(0, at);
                (fields.operand, fields.comparand) = match change {
                    Atomic::Add(value) | Atomic::Set(value) | Atomic::Max(value) => (value, 0),
                    Atomic::SwapIf { expect, swap } => (swap, expect),
                    Atomic::AddMasked { add, boundaries } => (add, boundaries),
                };
            }
            Work::Wait { queue, index } => {
                fields.remote = index;
                fields.keys.1 = queue;
            }
            Work::Notify { peer, imm } => {
                fields.peer = peer;
                fields.operand = imm.into();
            }
        }
        fields
    }

    fn flags(&self) -> u8 {
        let fence = match self.fence {
            Fence::None => 0,
            Fence::ReadsAndAtomics => flag::FENCE_READS_AND_ATOMICS,
            Fence::All => flag::FENCE_ALL,
        };
        let of_work = match self.work {
            Work::WriteInline { .. } => flag::INLINE,
            Work::Write { imm: Some(_), .. } => flag::IMMEDIATE,
            Work::Atomic { poisoned: true, .. } => flag::POISONED,
            _ => 0,
        };
        flag::COMPLETES | fence | of_work | if self.more { flag::MORE } else { 0 }
    }

    /// Reads the entry of an index.
    ///
    /// # Errors
    /// [`EntryError`] says what is wrong.
    #[inline]
    pub fn from_words(words: &[u64; 8], index: u64, checked: bool) -> Result<Self, EntryError> {
        let (found, kind) = halves(words[0]);
        if found != sequence(index) {
            return Err(EntryError::Sequence { found, expected: sequence(index) });
        }
        let (peer, found) = halves(words[7]);
        let expected = if checked { check(words) } else { 0 };
        if found != expected {
            return Err(EntryError::Check { found, expected });
        }
        let fields = Fields {
            op: kind as u8,
            flags: (kind >> 8) as u8,
            local: words[1],
            remote: words[2],
            keys: halves(words[3]),
            len: words[4],
            operand: words[5],
            comparand: words[6],
            peer,
        };
        let fence = match fields.flags & (flag::FENCE_READS_AND_ATOMICS | flag::FENCE_ALL) {
            0 => Fence::None,
            flag::FENCE_READS_AND_ATOMICS => Fence::ReadsAndAtomics,
            flag::FENCE_ALL => Fence::All,
            _ => return Err(EntryError::Flags(fields.flags)),
        };
        let work = fields.work()?;
        let used = Used::by(&work);
        if fields.flags & flag::COMPLETES == 0 || fields.flags & !(used.flags | flag::OF_ALL) != 0 {
            return Err(EntryError::Flags(fields.flags));
        }
        let others = |at: usize| words[at + 1] & !used.words[at] != 0;
        if (0..7).fold(false, |any, at| any | others(at)) {
            let at = (0..7).position(others).unwrap_or_default();
            return Err(EntryError::Unused(at as u8 * 8 + 8));
        }
        Ok(Self { work, fence, tag: (kind >> 16) as u16, more: fields.flags & flag::MORE != 0 })
    }
}

/// What an operation uses of an entry.
struct Used {
    /// Bits of the words behind the first one.
    words: [u64; 7],
    /// Flags, beside those of all.
    flags: u8,
}

impl Used {
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

    /// By the work. The check, if there is one, was looked at before.
    #[inline]
    const fn by(work: &Work) -> &'static Self {
        match work {
            Work::Nop | Work::Show | Work::Barrier => &Self::NOTHING,
            Work::Write { imm: None, .. } | Work::Read { .. } => &Self::WRITE,
            Work::Write { imm: Some(_), .. } => &Self::TELLING,
            Work::WriteInline { .. } => &Self::INLINE,
            Work::Atomic { change: Atomic::SwapIf { .. } | Atomic::AddMasked { .. }, .. } => &Self::COMPARING,
            Work::Atomic { .. } => &Self::ATOMIC,
            Work::Wait { .. } => &Self::WAIT,
            Work::Notify { .. } => &Self::NOTIFY,
        }
    }
}

impl Fields {
    fn put(&mut self, local_key: u32, remote: Remote) {
        self.remote = remote.addr;
        self.keys = (local_key, remote.key);
        self.peer = remote.peer;
    }

    fn here(&self) -> Local {
        Local { addr: self.local, key: self.keys.0 }
    }

    fn there(&self) -> Remote {
        Remote { peer: self.peer, addr: self.remote, key: self.keys.1 }
    }

    /// The work, as far as the fields that it uses say; the others are looked at by the caller.
    #[inline]
    fn work(&self) -> Result<Work, EntryError> {
        Ok(match self.op {
            0 => Work::Nop,
            1 if self.flags & flag::INLINE != 0 => {
                let bytes = Inline::from_words([self.local, self.operand, self.comparand], self.len);
                Work::WriteInline { bytes: bytes.ok_or(EntryError::Length(self.len))?, to: self.there() }
            }
            1 => {
                let imm = (self.flags & flag::IMMEDIATE != 0).then_some(self.operand as u32);
                Work::Write { from: self.here(), to: self.there(), len: self.length()?, imm }
            }
            2 => Work::Read { into: self.here(), from: self.there(), len: self.length()? },
            3 => self.atomic(Atomic::Add(self.operand))?,
            4 => self.atomic(Atomic::SwapIf { expect: self.comparand, swap: self.operand })?,
            5 => self.atomic(Atomic::AddMasked { add: self.operand, boundaries: self.comparand })?,
            6 => self.atomic(Atomic::Set(self.operand))?,
            7 => self.atomic(Atomic::Max(self.operand))?,
            8 => Work::Wait { queue: self.keys.1, index: self.remote },
            9 => Work::Show,
            10 => Work::Notify { peer: self.peer, imm: self.operand as u32 },
            11 => Work::Barrier,
            op => return Err(EntryError::Operation(op)),
        })
    }

    #[inline]
    fn length(&self) -> Result<u64, EntryError> {
        if self.len > LENGTH_MAX { Err(EntryError::Length(self.len)) } else { Ok(self.len) }
    }

    #[inline]
    fn atomic(&self, change: Atomic) -> Result<Work, EntryError> {
        if !self.remote.is_multiple_of(8) {
            return Err(EntryError::Unaligned(self.remote));
        }
        Ok(Work::Atomic { at: self.there(), change, poisoned: self.flags & flag::POISONED != 0 })
    }
}

const fn sequence(index: u64) -> u32 {
    (index as u32).wrapping_add(1)
}

/// The other fifteen words of 4 bytes, exclusive-ored with each other and with `DEVQ`.
#[inline(never)]
fn check(words: &[u64; 8]) -> u32 {
    let all = words.iter().fold(0, |all, word| all ^ halves(*word).0 ^ halves(*word).1);
    all ^ halves(words[7]).1 ^ u32::from_le_bytes(*b"DEVQ")
}
