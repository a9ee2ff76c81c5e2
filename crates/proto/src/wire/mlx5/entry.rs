//! Work entries: a control segment and the segments of the operation, of 16 bytes each.

/// Size of an entry in bytes; a ring has one entry per index.
pub const BYTES: usize = 64;
/// Longest payload of a WRITE inside its entry, in bytes.
pub const INLINE_MAX: usize = 28;
/// Most bytes that one entry moves: 1 GiB. The caller posts several entries for more.
pub const LEN_MAX: u32 = 1 << 30;

/// Numbers of queues have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;
/// The bit of a data segment's length that marks inline bytes (`MLX5_INLINE_SEG`).
const IS_INLINE: u32 = 1 << 31;
/// Requests a completion on success, too (`MLX5_WQE_CTRL_CQ_UPDATE`).
const CQ_UPDATE: u8 = 2 << 2;
const FENCE_SHIFT: u32 = 5;

mod opcode {
    pub(super) const NOP: u8 = 0x00;
    pub(super) const RDMA_WRITE: u8 = 0x08;
    pub(super) const WAIT: u8 = 0x0f;
    pub(super) const RDMA_READ: u8 = 0x10;
    pub(super) const ATOMIC_CS: u8 = 0x11;
    pub(super) const ATOMIC_FA: u8 = 0x12;
    pub(super) const DUMP: u8 = 0x23;
}

/// The operations that must complete before an entry starts: three bits of the control segment.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Mlx5Fence {
    /// None.
    None,
    /// Reads of local memory by earlier entries (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
    Small,
    /// Earlier reads and atomics. Writes need no fence, because a queue pair places them in order.
    ReadsAndAtomics,
    /// All earlier entries.
    Strong,
    /// Both of the first two, as `IBV_SEND_FENCE` (`MLX5_WQE_CTRL_FENCE`).
    Verbs,
}

impl Mlx5Fence {
    const ALL: [Self; 5] = [Self::None, Self::Small, Self::ReadsAndAtomics, Self::Strong, Self::Verbs];

    const fn to_bits(self) -> u8 {
        self as u8
    }
}

/// Bytes of local memory, by the key of their region. Addresses of a zero-based region begin at 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LocalSegment {
    addr: u64,
    key: u32,
    len: u32,
}

impl LocalSegment {
    /// Creates a segment of `len` bytes; `None` for 0 bytes, which no segment can express, or for more than [`LEN_MAX`].
    #[must_use]
    pub const fn new(addr: u64, key: u32, len: u32) -> Option<Self> {
        if len == 0 || len > LEN_MAX { None } else { Some(Self { addr, key, len }) }
    }

    /// Returns the segment of eight bytes that receives an atomic's old value.
    #[must_use]
    pub const fn of_word(addr: u64, key: u32) -> Self {
        Self { addr, key, len: 8 }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the region's key.
    #[must_use]
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// Returns the length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an entry has at least one segment")]
    pub const fn len(&self) -> u32 {
        self.len
    }
}

/// Bytes of remote memory, by the peer's key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemoteSegment {
    /// The address of the first byte; its offset in a zero-based region.
    pub addr: u64,
    /// The region's key.
    pub key: u32,
}

/// One to [`INLINE_MAX`] bytes inside an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InlineSegment {
    bytes: [u8; INLINE_MAX],
    len: u8,
}

impl InlineSegment {
    /// Creates a segment; `None` if it is empty or too long.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut kept = [0; INLINE_MAX];
        kept.get_mut(..bytes.len()).filter(|to| !to.is_empty())?.copy_from_slice(bytes);
        Some(Self { bytes: kept, len: bytes.len() as u8 })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The operation of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mlx5Work {
    /// No operation, in order.
    Nop,
    /// Writes local bytes to remote memory; `None` for 0 bytes.
    Write(RemoteSegment, Option<LocalSegment>),
    /// Writes bytes of the entry to remote memory.
    WriteInline(RemoteSegment, InlineSegment),
    /// Reads remote bytes into local memory.
    Read(RemoteSegment, LocalSegment),
    /// Adds a number to eight remote bytes, and stores their old value locally.
    FetchAdd {
        /// The word.
        word: RemoteSegment,
        /// The added value.
        add: u64,
        /// The destination of the old value.
        old: LocalSegment,
    },
    /// Replaces eight remote bytes if they have an expected value, and stores their old value locally.
    CompareSwap {
        /// The word.
        word: RemoteSegment,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
        /// The destination of the old value.
        old: LocalSegment,
    },
    /// Holds the queue until a completion queue has had completion number `index`, modulo 2^32: see [`wait_is_over`](super::wait_is_over).
    Wait {
        /// The completion queue, 24 bits.
        cq: u32,
        /// The number of the completion.
        index: u32,
    },
    /// Reads local bytes and discards them, after all earlier writes were placed.
    Dump(LocalSegment),
}

/// A work entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mlx5Entry {
    /// The lowest 16 bits of its index.
    pub index: u16,
    /// The queue pair, 24 bits; further bits are dropped.
    pub qp: u32,
    /// The operations that must complete before it starts.
    pub fence: Mlx5Fence,
    /// Whether its success makes a completion; a failure always does.
    pub signalled: bool,
    /// The operation.
    pub work: Mlx5Work,
}

/// Why 64 bytes are not an entry of the kinds that this module encodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Mlx5EntryError {
    /// The operation is unknown.
    #[error("operation {0:#04x} is unknown")]
    Opcode(u8),
    /// A modifier, a signature, an immediate or another reserved field is not zero.
    #[error("a reserved field of the control segment is not zero")]
    Reserved,
    /// The bits for fence or completion are invalid.
    #[error("flags {0:#04x} are invalid")]
    Flags(u8),
    /// The number of segments of 16 bytes is invalid for the operation.
    #[error("operation {opcode:#04x} cannot have {segments} segments")]
    Segments {
        /// The operation.
        opcode: u8,
        /// The number of segments.
        segments: u8,
    },
    /// The length of a data segment is 0, too large, or not the 8 of an atomic.
    #[error("a data segment has the invalid length {0:#010x}")]
    Length(u32),
    /// The number of a completion queue has more than 24 bits.
    #[error("the number {0:#x} of a completion queue has more than 24 bits")]
    Queue(u32),
}

/// Appends segments of 16 bytes.
struct SegmentWriter {
    bytes: [u8; BYTES],
    at: usize,
}

impl SegmentWriter {
    fn put_bytes<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + N) {
            place.copy_from_slice(&bytes);
        }
        self.at += N;
        self
    }

    fn put_u32(&mut self, value: u32) -> &mut Self {
        self.put_bytes(value.to_be_bytes())
    }

    fn put_u64(&mut self, value: u64) -> &mut Self {
        self.put_bytes(value.to_be_bytes())
    }

    fn put_remote(&mut self, remote: RemoteSegment) -> &mut Self {
        self.put_u64(remote.addr).put_u32(remote.key).put_u32(0)
    }

    fn put_local(&mut self, local: LocalSegment) -> &mut Self {
        self.put_u32(local.len).put_u32(local.key).put_u64(local.addr)
    }
}

/// Reads numbers of an entry at given offsets.
#[derive(Clone, Copy)]
struct EntryFieldReader<'a>(&'a [u8; BYTES]);

impl EntryFieldReader<'_> {
    fn read_array<const N: usize>(self, at: usize) -> [u8; N] {
        core::array::from_fn(|n| self.0.get(at + n).copied().unwrap_or(0))
    }

    fn read_u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.read_array(at))
    }

    fn read_u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.read_array(at))
    }

    fn read_remote(self) -> Result<RemoteSegment, Mlx5EntryError> {
        let remote = RemoteSegment { addr: self.read_u64(16), key: self.read_u32(24) };
        if self.read_u32(28) == 0 { Ok(remote) } else { Err(Mlx5EntryError::Reserved) }
    }

    fn read_local(self, at: usize) -> Result<LocalSegment, Mlx5EntryError> {
        let len = self.read_u32(at);
        LocalSegment::new(self.read_u64(at + 8), self.read_u32(at + 4), len)
            .ok_or(Mlx5EntryError::Length(len))
    }

    fn read_word(self, at: usize) -> Result<LocalSegment, Mlx5EntryError> {
        self.read_local(at)
            .and_then(|local| if local.len == 8 { Ok(local) } else { Err(Mlx5EntryError::Length(local.len)) })
    }

    fn read_inline(self, at: usize) -> Result<InlineSegment, Mlx5EntryError> {
        let said = self.read_u32(at);
        let len = said & !IS_INLINE;
        let bytes: [u8; INLINE_MAX] = self.read_array(at + 4);
        let found = bytes.get(..len as usize).and_then(InlineSegment::new);
        found.filter(|_| said & IS_INLINE != 0).ok_or(Mlx5EntryError::Length(said))
    }
}

/// Returns the number of segments of a WRITE with `len` inline bytes.
const fn inline_segments(len: u8) -> u8 {
    2 + (4 + len).div_ceil(16)
}

impl Mlx5Work {
    /// Returns the operation's code and its number of segments.
    const fn opcode_and_segments(&self) -> (u8, u8) {
        match self {
            Self::Nop => (opcode::NOP, 1),
            Self::Write(_, None) => (opcode::RDMA_WRITE, 2),
            Self::Write(_, Some(_)) => (opcode::RDMA_WRITE, 3),
            Self::WriteInline(_, inline) => (opcode::RDMA_WRITE, inline_segments(inline.len)),
            Self::Read(..) => (opcode::RDMA_READ, 3),
            Self::FetchAdd { .. } => (opcode::ATOMIC_FA, 4),
            Self::CompareSwap { .. } => (opcode::ATOMIC_CS, 4),
            Self::Wait { .. } => (opcode::WAIT, 2),
            Self::Dump(_) => (opcode::DUMP, 2),
        }
    }

    fn write_segments(&self, out: &mut SegmentWriter) {
        match *self {
            Self::Nop | Self::Write(_, None) => {}
            Self::Write(_, Some(local)) | Self::Read(_, local) | Self::Dump(local) => {
                out.put_local(local);
            }
            Self::WriteInline(_, inline) => {
                out.put_u32(u32::from(inline.len) | IS_INLINE).put_bytes(inline.bytes);
            }
            Self::FetchAdd { add, old, .. } => {
                out.put_u64(add).put_u64(0).put_local(old);
            }
            Self::CompareSwap { compare, swap, old, .. } => {
                out.put_u64(swap).put_u64(compare).put_local(old);
            }
            Self::Wait { cq, index } => {
                out.put_u64(0).put_u32(index).put_u32(cq & NUMBER_MAX);
            }
        }
    }

    /// Returns the remote segment, for operations that have one.
    const fn remote_segment(&self) -> Option<RemoteSegment> {
        match *self {
            Self::Write(remote, _) | Self::WriteInline(remote, _) | Self::Read(remote, _) => Some(remote),
            Self::FetchAdd { word, .. } | Self::CompareSwap { word, .. } => Some(word),
            Self::Nop | Self::Wait { .. } | Self::Dump(_) => None,
        }
    }

    fn parse_work(opcode: u8, segments: u8, fields: EntryFieldReader<'_>) -> Result<Self, Mlx5EntryError> {
        match (opcode, segments) {
            (opcode::NOP, 1) => Ok(Self::Nop),
            (opcode::RDMA_WRITE, 2) => Ok(Self::Write(fields.read_remote()?, None)),
            (opcode::RDMA_WRITE, 3..=4) if segments == 4 || fields.read_u32(32) & IS_INLINE != 0 => {
                let inline = fields.read_inline(32)?;
                let fits = inline_segments(inline.len) == segments;
                if fits {
                    Ok(Self::WriteInline(fields.read_remote()?, inline))
                } else {
                    Err(Mlx5EntryError::Segments { opcode, segments })
                }
            }
            (opcode::RDMA_WRITE, 3) => Ok(Self::Write(fields.read_remote()?, Some(fields.read_local(32)?))),
            (opcode::RDMA_READ, 3) => Ok(Self::Read(fields.read_remote()?, fields.read_local(32)?)),
            (opcode::ATOMIC_FA, 4) if fields.read_u64(40) != 0 => Err(Mlx5EntryError::Reserved),
            (opcode::ATOMIC_FA, 4) => Ok(Self::FetchAdd {
                word: fields.read_remote()?,
                add: fields.read_u64(32),
                old: fields.read_word(48)?,
            }),
            (opcode::ATOMIC_CS, 4) => {
                let word = fields.read_remote()?;
                let old = fields.read_word(48)?;
                Ok(Self::CompareSwap { word, swap: fields.read_u64(32), compare: fields.read_u64(40), old })
            }
            (opcode::WAIT, 2) if fields.read_u64(16) != 0 => Err(Mlx5EntryError::Reserved),
            (opcode::WAIT, 2) => match fields.read_u32(28) {
                cq if cq > NUMBER_MAX => Err(Mlx5EntryError::Queue(cq)),
                cq => Ok(Self::Wait { cq, index: fields.read_u32(24) }),
            },
            (opcode::DUMP, 2) => Ok(Self::Dump(fields.read_local(16)?)),
            (
                opcode::NOP
                | opcode::RDMA_WRITE
                | opcode::RDMA_READ
                | opcode::ATOMIC_FA
                | opcode::ATOMIC_CS
                | opcode::WAIT
                | opcode::DUMP,
                _,
            ) => Err(Mlx5EntryError::Segments { opcode, segments }),
            _ => Err(Mlx5EntryError::Opcode(opcode)),
        }
    }
}

impl Mlx5Entry {
    /// Returns the entry's bytes; those after its last segment are zero, and the NIC does not read them.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let (opcode, segments) = self.work.opcode_and_segments();
        let flags = self.fence.to_bits() << FENCE_SHIFT | if self.signalled { CQ_UPDATE } else { 0 };
        let mut out = SegmentWriter { bytes: [0; BYTES], at: 0 };
        out.put_u32(u32::from(self.index) << 8 | u32::from(opcode));
        out.put_u32((self.qp & NUMBER_MAX) << 8 | u32::from(segments));
        out.put_bytes([0, 0, 0, flags]).put_u32(0);
        if let Some(remote) = self.work.remote_segment() {
            out.put_remote(remote);
        }
        self.work.write_segments(&mut out);
        out.bytes
    }

    /// Parses 64 bytes of a ring, as a NIC does. Rejects entries that a NIC accepts but no queue of Trunkline posts.
    ///
    /// # Errors
    /// [`Mlx5EntryError`] names the invalid field.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<Self, Mlx5EntryError> {
        let fields = EntryFieldReader(bytes);
        let (what, whose, [signature, one, other, flags]) =
            (fields.read_u32(0), fields.read_u32(4), fields.read_array(8));
        let reserved = what >> 24 != 0 || [signature, one, other] != [0; 3] || fields.read_u32(12) != 0;
        if reserved {
            return Err(Mlx5EntryError::Reserved);
        }
        let fence = Mlx5Fence::ALL.into_iter().find(|fence| fence.to_bits() == flags >> FENCE_SHIFT);
        let rest = flags & ((1 << FENCE_SHIFT) - 1);
        let (Some(fence), 0 | CQ_UPDATE) = (fence, rest) else {
            return Err(Mlx5EntryError::Flags(flags));
        };
        let work = Mlx5Work::parse_work(what as u8, whose as u8, fields)?;
        Ok(Self { index: (what >> 8) as u16, qp: whose >> 8, fence, signalled: rest != 0, work })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THERE: RemoteSegment = RemoteSegment { addr: 0x7f00_1122_3344_5566, key: 0x0a0b_0c0d };

    fn here(len: u32) -> LocalSegment {
        LocalSegment::new(0x1020_3040_5060_7080, 0x0506_0708, len).unwrap()
    }

    fn entry(index: u16, fence: Mlx5Fence, work: Mlx5Work) -> Mlx5Entry {
        Mlx5Entry { index, qp: 0x12_3456, fence, signalled: true, work }
    }

    fn bytes(entry: Mlx5Entry) -> [[u32; 4]; 4] {
        let bytes = entry.to_bytes();
        core::array::from_fn(|segment| {
            core::array::from_fn(|word| {
                let at = 16 * segment + 4 * word;
                u32::from_be_bytes(core::array::from_fn(|n| bytes[at + n]))
            })
        })
    }

    /// A put with a signal and a counter, as device queues post it: two entries, and two entries of the companion.
    #[test]
    fn entries_match_the_layout_of_the_nic() {
        let none = [0; 4];
        let write = bytes(entry(0xfffe, Mlx5Fence::None, Mlx5Work::Write(THERE, Some(here(4096)))));
        let there = [0x7f00_1122, 0x3344_5566, 0x0a0b_0c0d, 0];
        assert_eq!(
            write,
            [[0xff_fe08, 0x1234_5603, 8, 0], there, [4096, 0x0506_0708, 0x1020_3040, 0x5060_7080], none]
        );
        let word = THERE;
        let old = LocalSegment::of_word(0, 0xabcd);
        let signal =
            bytes(entry(0xffff, Mlx5Fence::ReadsAndAtomics, Mlx5Work::FetchAdd { word, add: 3, old }));
        assert_eq!(signal, [[0xff_ff12, 0x1234_5604, 0x48, 0], there, [0, 3, 0, 0], [8, 0xabcd, 0, 0]]);
        let wait = bytes(entry(0, Mlx5Fence::None, Mlx5Work::Wait { cq: 0x65_4321, index: 0x1_ffff }));
        assert_eq!(wait, [[0x0f, 0x1234_5602, 8, 0], [0, 0, 0x1_ffff, 0x65_4321], none, none]);
        let swap = Mlx5Work::CompareSwap { word, compare: 5, swap: 1 << 32 | 6, old };
        assert_eq!(
            bytes(entry(1, Mlx5Fence::Verbs, swap)),
            [[0x111, 0x1234_5604, 0x88, 0], there, [1, 6, 0, 5], [8, 0xabcd, 0, 0]]
        );
    }

    #[test]
    fn entries_without_data_and_with_inline_data() {
        let there = [0x7f00_1122, 0x3344_5566, 0x0a0b_0c0d, 0];
        let empty = Mlx5Work::Write(THERE, None);
        assert_eq!(bytes(entry(2, Mlx5Fence::Small, empty))[..2], [[0x208, 0x1234_5602, 0x28, 0], there]);
        for (len, segments) in [(1, 3), (8, 3), (12, 3), (13, 4), (INLINE_MAX, 4)] {
            let own = [0x5a; INLINE_MAX];
            let work = Mlx5Work::WriteInline(THERE, InlineSegment::new(&own[..len]).unwrap());
            let [control, remote, data, _] = bytes(entry(3, Mlx5Fence::Strong, work));
            assert_eq!((control, remote), ([0x308, 0x1234_5600 | segments, 0x68, 0], there));
            assert_eq!(data[0], 1 << 31 | len as u32);
        }
        assert_eq!(
            bytes(entry(4, Mlx5Fence::None, Mlx5Work::Nop))[..2],
            [[0x400, 0x1234_5601, 8, 0], [0; 4]]
        );
        let dump =
            bytes(Mlx5Entry { signalled: false, ..entry(5, Mlx5Fence::None, Mlx5Work::Dump(here(1))) });
        assert_eq!(dump[..2], [[0x523, 0x1234_5602, 0, 0], [1, 0x0506_0708, 0x1020_3040, 0x5060_7080]]);
        assert!(
            [InlineSegment::new(&[]), InlineSegment::new(&[0; INLINE_MAX + 1])].iter().all(Option::is_none)
        );
        assert!(LocalSegment::new(0, 0, 0).is_none() && LocalSegment::new(0, 0, LEN_MAX + 1).is_none());
        assert!(LocalSegment::new(0, 0, LEN_MAX).is_some());
    }

    /// A change of one field of a valid entry.
    #[test]
    fn invalid_work_entries_are_rejected() {
        let word = THERE;
        let old = LocalSegment::of_word(0, 1);
        let of = |work: Mlx5Work| entry(7, Mlx5Fence::None, work).to_bytes();
        let with = |work: Mlx5Work, at: usize, value: u8| {
            let mut bytes = of(work);
            bytes[at] = value;
            Mlx5Entry::from_bytes(&bytes).err()
        };
        let write = Mlx5Work::Write(THERE, Some(here(64)));
        let add = Mlx5Work::FetchAdd { word, add: 1, old };
        let wait = Mlx5Work::Wait { cq: 1, index: 2 };
        for at in [0, 8, 9, 10, 12, 15, 31] {
            assert_eq!(with(write, at, 1), Some(Mlx5EntryError::Reserved), "{at}");
        }
        assert_eq!(with(write, 3, 0x0a), Some(Mlx5EntryError::Opcode(0x0a)));
        for flags in [1, 2, 4, 0x18, 5 << 5, 0xe8] {
            assert_eq!(with(write, 11, flags), Some(Mlx5EntryError::Flags(flags)));
        }
        for (work, segments) in
            [(write, 1), (write, 5), (Mlx5Work::Nop, 2), (add, 3), (wait, 3), (Mlx5Work::Dump(here(1)), 1)]
        {
            let opcode = of(work)[3];
            assert_eq!(with(work, 7, segments), Some(Mlx5EntryError::Segments { opcode, segments }));
        }
        assert_eq!(with(write, 35, 0), Some(Mlx5EntryError::Length(0)));
        assert_eq!(with(write, 32, 0x40), Some(Mlx5EntryError::Length(0x4000_0040)));
        assert_eq!(with(add, 51, 4), Some(Mlx5EntryError::Length(4)));
        assert_eq!(with(add, 47, 1), Some(Mlx5EntryError::Reserved), "an addition has no value to compare");
        assert_eq!(with(wait, 28, 1), Some(Mlx5EntryError::Queue(1 << 24 | 1)));
        assert_eq!(with(wait, 23, 1), Some(Mlx5EntryError::Reserved));
        let inline = Mlx5Work::WriteInline(THERE, InlineSegment::new(&[1; 8]).unwrap());
        assert_eq!(with(inline, 35, 29), Some(Mlx5EntryError::Length(1 << 31 | 29)));
        assert_eq!(with(inline, 35, 0), Some(Mlx5EntryError::Length(1 << 31)));
        assert_eq!(with(inline, 35, 13), Some(Mlx5EntryError::Segments { opcode: 8, segments: 3 }));
    }

    fn work() -> impl Strategy<Value = Mlx5Work> {
        let remote = || (any::<u64>(), any::<u32>()).prop_map(|(addr, key)| RemoteSegment { addr, key });
        let local = || {
            (any::<u64>(), any::<u32>(), 1..=LEN_MAX).prop_map(|(addr, key, len)| LocalSegment {
                addr,
                key,
                len,
            })
        };
        let word = || (any::<u64>(), any::<u32>()).prop_map(|(addr, key)| LocalSegment::of_word(addr, key));
        let inline = prop::collection::vec(any::<u8>(), 1..=INLINE_MAX)
            .prop_map(|bytes| InlineSegment::new(&bytes).unwrap());
        prop_oneof![
            Just(Mlx5Work::Nop),
            (remote(), prop::option::of(local())).prop_map(|(to, from)| Mlx5Work::Write(to, from)),
            (remote(), inline).prop_map(|(to, bytes)| Mlx5Work::WriteInline(to, bytes)),
            (remote(), local()).prop_map(|(from, to)| Mlx5Work::Read(from, to)),
            (remote(), any::<u64>(), word()).prop_map(|(word, add, old)| Mlx5Work::FetchAdd {
                word,
                add,
                old
            }),
            (remote(), any::<[u64; 2]>(), word())
                .prop_map(|(word, [compare, swap], old)| Mlx5Work::CompareSwap { word, compare, swap, old }),
            (0..=NUMBER_MAX, any::<u32>()).prop_map(|(cq, index)| Mlx5Work::Wait { cq, index }),
            local().prop_map(Mlx5Work::Dump),
        ]
    }

    proptest! {
        #[test]
        fn work_entries_round_trip(
            index: u16, qp in 0..=NUMBER_MAX, fence in prop::sample::select(Mlx5Fence::ALL.to_vec()), signalled: bool, work in work()
        ) {
            let entry = Mlx5Entry { index, qp, fence, signalled, work };
            prop_assert_eq!(Mlx5Entry::from_bytes(&entry.to_bytes()), Ok(entry));
        }
    }
}
