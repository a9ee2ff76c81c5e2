//! Keys of entries, and the memory that they name. A key has a number and a generation. So a key of a removed region is rejected, even if
//! another region has its number by then. Called by `entry_ops`; everything that an entry names is checked here before it is used.

use std::fmt;
use std::sync::Arc;

use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::table_capacity::try_hold;
use trunkline_proto::wire::device_queue::{EntryStatus, POST_PLACES, PostRooms};

use trunkline_engine::rma::MemberRank;

/// Most regions of a member at a time, one per heap.
pub const REGIONS_MAX: usize = trunkline_proto::limits::RMA_HEAPS_MAX;

/// Names a region in entries: its number in the low 8 bits, its generation, from 1 on, above. Never 0.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EntryKey(u32);

impl EntryKey {
    const GENERATION_MAX: u32 = (1 << 24) - 1;

    const fn new(number: u8, generation: u32) -> Self {
        Self(number as u32 | generation << 8)
    }

    /// Returns the key as it is stored in an entry.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// Wraps a key from an entry, or from its owner.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the region's number.
    #[must_use]
    pub const fn region_number(self) -> u8 {
        self.0 as u8
    }

    const fn key_generation(self) -> u32 {
        self.0 >> 8
    }
}

/// Copies bytes of a device's memory asynchronously, as the device's copy engines do. Belongs to one executor: completed copies are
/// reported only once.
pub trait DeviceCopier: fmt::Debug + Send + Sync {
    /// Begins to copy `len` bytes, which lie inside of both ranges; one of the ranges is the device's. Returns `false` if there is no room
    /// now.
    fn begin_copy(&self, cookie: u64, from: MemoryLocation<'_>, to: MemoryLocation<'_>, len: u64) -> bool;

    /// Appends the copies that have ended since the last call. `Ok` means that the bytes have arrived.
    fn take_ended(&self, into: &mut Vec<(u64, Result<(), u32>)>);
}

impl DeviceCopier for trunkline_mem::gpu::DeviceCopyQueue {
    fn begin_copy(&self, cookie: u64, from: MemoryLocation<'_>, to: MemoryLocation<'_>, len: u64) -> bool {
        Self::begin_copy(self, cookie, from, to, len)
    }

    fn take_ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        Self::take_ended(self, into);
    }
}

/// The error words of bare signals, in the same region: values of 8 bytes side by side, and an error word per value.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ErrorTable {
    /// Offset of the first value.
    pub values: u64,
    /// Offset of the first error word.
    pub errors: u64,
    /// The number of values.
    pub count: u32,
}

impl ErrorTable {
    fn error_of(&self, value: u64) -> Option<u64> {
        let slots = trunkline_device_queue::SlotLayout::Bare {
            values: self.values,
            errors: self.errors,
            count: self.count,
        };
        slots.error_of(value)
    }
}

/// Memory of this process that entries name.
#[derive(Clone, Debug)]
pub struct EntryRegion {
    /// The bytes.
    pub memory: MemoryRange,
    /// The heap as which the network knows them.
    pub heap: u8,
    /// The error words of its bare signals and counters.
    pub table: ErrorTable,
    /// The copier of its bytes, if the CPU does not access them.
    pub copies: Option<Arc<dyn DeviceCopier>>,
    /// Host memory of the same size, if the CPU does not access the region. `None` without such memory; then no word of the region changes.
    ///
    /// Entries change the region's words here, and [`EntryRegion::copies`] then copies them to the device. So only entries may change these
    /// words, and all executors that do share this memory.
    ///
    /// If the heap is this memory, gets from other processes arrive here first, so their target ranges may contain no words. Puts of other
    /// processes arrive in this memory, not in the region. Puts from the region to other processes leave through rooms here
    /// ([`EntryRegions::add_rooms`]).
    ///
    /// If the heap is the region itself, because a NIC reaches it, there is no such memory: all transfers use the network without a copy,
    /// and signals and counters lie in another region.
    pub words: Option<MemoryRange>,
}

impl EntryRegion {
    /// Creates a region in host memory.
    #[must_use]
    pub const fn of_host(memory: MemoryRange, heap: u8, table: ErrorTable) -> Self {
        Self { memory, heap, table, copies: None, words: None }
    }
}

/// A region of another member, as that member published it.
#[derive(Clone, Debug)]
pub struct PeerRegion {
    /// Its key at that member.
    pub key: EntryKey,
    /// The length in bytes.
    pub len: u64,
    /// As [`EntryRegion::table`].
    pub table: ErrorTable,
    /// The same bytes in this process, if it maps them. Then operations do not use the network.
    pub near: Option<MemoryRange>,
    /// As [`EntryRegion::copies`], for the mapped bytes.
    pub copies: Option<Arc<dyn DeviceCopier>>,
    /// As [`EntryRegion::words`], for the mapped bytes.
    pub words: Option<MemoryRange>,
}

impl WordsRegion {
    /// Returns the region of the words and the offset of `addr` there, if the address is one of theirs.
    fn locate_word(&self, addr: u64) -> Option<(&EntryRegion, u64)> {
        Some((&self.region, addr.checked_sub(self.first)?))
    }
}

impl PeerRegion {
    /// Creates a region that is reached over the network, or whose bytes are in host memory of this process.
    #[must_use]
    pub const fn of_host(key: EntryKey, len: u64, table: ErrorTable, near: Option<MemoryRange>) -> Self {
        Self { key, len, table, near, copies: None, words: None }
    }
}

/// Words of a region that lie apart from its bytes: signals and counters in host memory, for a device's region that the network reaches.
/// Entries name them by the region's key and the addresses from [`WordsRegion::first`] on.
#[derive(Clone, Debug)]
pub struct WordsRegion {
    /// The address in the region of the first word; the region's own bytes end there.
    pub first: u64,
    /// The memory of the words, and its heap.
    pub region: EntryRegion,
}

/// The separate words of another member's region, as that member published them.
#[derive(Clone, Copy, Debug)]
pub struct FarWords {
    /// As [`WordsRegion::first`].
    pub first: u64,
    /// The heap of the words at that member.
    pub heap: u8,
    /// The length in bytes.
    pub len: u64,
}

/// The location of an entry's bytes.
#[derive(Clone, Debug)]
pub enum EntryLocation<'a> {
    /// In this process.
    Here {
        /// The memory.
        memory: &'a MemoryRange,
        /// Offset of the first byte in it.
        at: u64,
        /// The heap, if it is a region of this process.
        heap: Option<u8>,
        /// The copier of its bytes, if the CPU does not access them.
        copies: Option<&'a Arc<dyn DeviceCopier>>,
        /// The host memory in which its words change, if the CPU does not access it.
        words: Option<&'a MemoryRange>,
    },
    /// In memory of this process's device that the network reaches. Atomics and inline bytes use the network.
    Reached {
        /// The memory.
        memory: &'a MemoryRange,
        /// Offset of the first byte in it, and in the heap.
        at: u64,
        /// The heap.
        heap: u8,
        /// The copier of its bytes.
        copies: &'a Arc<dyn DeviceCopier>,
    },
    /// At the other member.
    There {
        /// The heap.
        heap: u8,
        /// Offset of the first byte in it.
        at: u64,
    },
}

/// A room in use.
#[derive(Clone, Copy, Debug)]
pub struct RoomTaken {
    heap: u8,
    generation: u32,
    number: u64,
}

#[derive(Debug, Default)]
struct OwnedRegion {
    /// The generation of the current region, or of the last one.
    generation: u32,
    region: Option<EntryRegion>,
    words: Option<WordsRegion>,
    /// Rooms that stage outgoing bytes, and one bit for each room in use.
    rooms: Option<PostRooms>,
    taken: u64,
}

/// A region of another member, and its words if they lie apart.
type FarRegion = (PeerRegion, Option<FarWords>);

/// All regions that entries may name.
#[derive(Debug, Default)]
pub struct EntryRegions {
    own: Vec<OwnedRegion>,
    /// By member, then by number; with words that lie apart.
    far: Vec<Vec<Option<FarRegion>>>,
}

impl EntryRegions {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region under the number of its heap, and returns its key. Returns `None` if the number is in use, its generations are used
    /// up, or memory is missing.
    pub fn add_region(&mut self, region: EntryRegion) -> Option<EntryKey> {
        let at = usize::from(region.heap);
        if self.own.len() <= at {
            try_hold(&mut self.own, at + 1).ok()?;
            self.own.resize_with(at + 1, OwnedRegion::default);
        }
        let own = self.own.get_mut(at).filter(|own| own.region.is_none())?;
        // A generation is never reused: an old key would otherwise name another region.
        let generation = own.generation.checked_add(1).filter(|&next| next <= EntryKey::GENERATION_MAX)?;
        let key = EntryKey::new(region.heap, generation);
        *own = OwnedRegion { generation, region: Some(region), words: None, rooms: None, taken: 0 };
        Some(key)
    }

    /// Removes a region; `None` for an unknown key.
    pub fn remove(&mut self, key: EntryKey) -> Option<EntryRegion> {
        let own = self.own.get_mut(usize::from(key.region_number()))?;
        if own.generation != key.key_generation() {
            return None;
        }
        own.words = None;
        own.region.take()
    }

    /// Sets the memory of a region's separate words; `None` for an unknown key.
    pub fn add_words(&mut self, key: EntryKey, words: WordsRegion) -> Option<()> {
        let own = self.own.get_mut(usize::from(key.region_number()));
        let own = own.filter(|own| own.generation == key.key_generation() && own.region.is_some())?;
        own.words = Some(words);
        Some(())
    }

    /// Sets the rooms that stage a region's outgoing bytes, in [`EntryRegion::words`]; `None` for an unknown key.
    pub fn add_rooms(&mut self, key: EntryKey, rooms: PostRooms) -> Option<()> {
        let own = self.own.get_mut(usize::from(key.region_number()));
        let own = own.filter(|own| own.generation == key.key_generation() && own.region.is_some())?;
        own.rooms = Some(rooms);
        Some(())
    }

    /// Acquires a room of a region for a put to another member. Returns the room, its offset and its length; `None` if no room is free now.
    pub fn take_room(&mut self, me: MemberRank, heap: u8) -> Option<(RoomTaken, u64, u64)> {
        let own = self.own.get_mut(usize::from(heap))?;
        let rooms = own.rooms?;
        let number = u64::from(own.taken.trailing_ones());
        if number >= POST_PLACES {
            return None;
        }
        own.taken |= 1 << number;
        Some((
            RoomTaken { heap, generation: own.generation, number },
            rooms.room_offset(me, number),
            rooms.room_bytes(),
        ))
    }

    /// Frees a room.
    pub fn give_room(&mut self, RoomTaken { heap, generation, number }: RoomTaken) {
        // The region may have been replaced meanwhile; the new one has rooms of its own.
        let own = self.own.get_mut(usize::from(heap)).filter(|own| own.generation == generation);
        own.into_iter().for_each(|own| own.taken &= !(1 << number));
    }

    /// Returns whether a region has rooms for outgoing bytes.
    #[must_use]
    pub fn has_rooms(&self, heap: u8) -> bool {
        self.own.get(usize::from(heap)).is_some_and(|own| own.rooms.is_some())
    }

    /// Adds a region that another member has published. It replaces an earlier one with its number.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_remote_region(
        &mut self,
        member: MemberRank,
        far: PeerRegion,
        words: Option<FarWords>,
    ) -> Result<(), OutOfMemory> {
        let at = member as usize;
        let number = usize::from(far.key.region_number());
        if self.far.len() <= at {
            try_hold(&mut self.far, at + 1)?;
            self.far.resize_with(at + 1, Vec::new);
        }
        let Some(of) = self.far.get_mut(at) else { return Ok(()) };
        if of.len() <= number {
            try_hold(of, number + 1)?;
            of.resize_with(number + 1, || None);
        }
        if let Some(place) = of.get_mut(number) {
            *place = Some((far, words));
        }
        Ok(())
    }

    /// Removes a region that another member has ended.
    pub fn remove_remote_region(&mut self, member: MemberRank, key: EntryKey) {
        let place =
            self.far.get_mut(member as usize).and_then(|of| of.get_mut(usize::from(key.region_number())));
        if let Some(place) = place.filter(|place| place.as_ref().is_some_and(|(far, _)| far.key == key)) {
            *place = None;
        }
    }

    /// Returns the region of this process whose words change in this memory.
    pub fn of_words(&self, words: &MemoryRange) -> Option<&EntryRegion> {
        let is_it =
            |region: &&EntryRegion| region.words.as_ref().is_some_and(|own| own.addr() == words.addr());
        self.own.iter().filter_map(|own| own.region.as_ref()).find(is_it)
    }

    /// Returns the region of this process for `len` bytes from `addr` on, and the offset of the first byte in its memory. For separate
    /// words this is the region of the words.
    ///
    /// # Errors
    /// The status of the entry: the region is unknown, has been removed, or does not contain all bytes.
    #[inline]
    pub fn find_local(&self, key: u32, addr: u64, len: u64) -> Result<(&EntryRegion, u64), EntryStatus> {
        let key = EntryKey::from_bits(key);
        let own = self.own.get(usize::from(key.region_number())).ok_or(EntryStatus::Access)?;
        let region = own.region.as_ref().ok_or(EntryStatus::Stale)?;
        check_generation(key, own.generation)?;
        if let Some((region, at)) = own.words.as_ref().and_then(|words| words.locate_word(addr)) {
            check_range(at, len, region.memory.len() as u64)?;
            return Ok((region, at));
        }
        let whole = region.memory.len() as u64;
        // The addresses of separate words begin at `first`, so no bytes of the region itself may reach beyond it.
        check_range(addr, len, own.words.as_ref().map_or(whole, |words| whole.min(words.first)))?;
        Ok((region, addr))
    }

    /// Returns the location of bytes that an entry names at a member.
    ///
    /// # Errors
    /// As [`EntryRegions::find_local`].
    #[inline]
    pub fn locate_bytes(
        &self,
        me: MemberRank,
        member: MemberRank,
        key: u32,
        addr: u64,
        len: u64,
    ) -> Result<EntryLocation<'_>, EntryStatus> {
        if member == me {
            let (region, at) = self.find_local(key, addr, len)?;
            let EntryRegion { memory, heap, copies, words, .. } = region;
            let copies = copies.as_ref();
            let words = words.as_ref();
            let heap = *heap;
            return Ok(match copies.filter(|_| self.has_words_apart(heap)) {
                Some(copies) => EntryLocation::Reached { memory, at, heap, copies },
                None => EntryLocation::Here { memory, at, heap: Some(heap), copies, words },
            });
        }
        let (far, apart) = self.find_remote(member, key)?;
        if let Some(words) = apart.filter(|words| addr >= words.first) {
            let at = addr - words.first;
            check_range(at, len, words.len)?;
            return Ok(EntryLocation::There { heap: words.heap, at });
        }
        check_range(addr, len, apart.map_or(far.len, |words| far.len.min(words.first)))?;
        Ok(match &far.near {
            Some(memory) => {
                let copies = far.copies.as_ref();
                let words = far.words.as_ref();
                EntryLocation::Here { memory, at: addr, heap: None, copies, words }
            }
            None => EntryLocation::There { heap: far.key.region_number(), at: addr },
        })
    }

    /// Returns whether words of a region of this process lie apart from its bytes.
    #[must_use]
    pub fn has_words_apart(&self, heap: u8) -> bool {
        self.own.get(usize::from(heap)).is_some_and(|own| own.words.is_some())
    }

    /// Returns the heap and offset of bytes that an entry names, without a check that they exist.
    #[must_use]
    pub fn resolve_place(&self, me: MemberRank, member: MemberRank, key: u32, addr: u64) -> (u8, u64) {
        let number = EntryKey::from_bits(key).region_number();
        let apart = if member == me {
            let own = self.own.get(usize::from(number));
            own.and_then(|own| own.words.as_ref()).map(|words| (words.first, words.region.heap))
        } else {
            let apart = self.find_remote(member, key).ok().and_then(|(_, words)| words);
            apart.map(|words| (words.first, words.heap))
        };
        match apart {
            Some((first, heap)) if addr >= first => (heap, addr - first),
            _ => (number, addr),
        }
    }

    fn find_remote(
        &self,
        member: MemberRank,
        key: u32,
    ) -> Result<(&PeerRegion, Option<FarWords>), EntryStatus> {
        let key = EntryKey::from_bits(key);
        let far = self.far.get(member as usize).and_then(|of| of.get(usize::from(key.region_number())));
        let (far, words) = far.and_then(Option::as_ref).ok_or(EntryStatus::Access)?;
        check_generation(key, far.key.key_generation())?;
        Ok((far, *words))
    }

    /// Returns the address of the error word for an entry's word: behind it, or in the table of its region. `None` if it has none.
    #[must_use]
    pub fn error_word(
        &self,
        me: MemberRank,
        member: MemberRank,
        key: u32,
        addr: u64,
        poisoned: bool,
    ) -> Option<u64> {
        if poisoned {
            return addr.checked_add(8);
        }
        let table = match member == me {
            true => self.find_local(key, addr, 8).ok()?.0.table,
            false => self.find_remote(member, key).ok()?.0.table,
        };
        table.error_of(addr)
    }

    /// Returns the region of this process with this heap.
    #[must_use]
    pub fn of_heap(&self, heap: u8) -> Option<&EntryRegion> {
        let region = self.own.get(usize::from(heap)).and_then(|own| own.region.as_ref());
        let words = || self.own.iter().filter_map(|own| own.words.as_ref()).map(|words| &words.region);
        region.or_else(|| words().find(|region| region.heap == heap))
    }
}

fn check_generation(key: EntryKey, generation: u32) -> Result<(), EntryStatus> {
    match key.key_generation() == generation {
        true => Ok(()),
        // A smaller generation existed before; any other was never issued.
        false if key.key_generation() < generation && key.key_generation() > 0 => Err(EntryStatus::Stale),
        false => Err(EntryStatus::Access),
    }
}

#[inline]
fn check_range(addr: u64, len: u64, size: u64) -> Result<(), EntryStatus> {
    // The producer supplies both values and is not trusted, so the sum may overflow.
    let inside = addr.checked_add(len).is_some_and(|end| end <= size);
    if inside { Ok(()) } else { Err(EntryStatus::Access) }
}
