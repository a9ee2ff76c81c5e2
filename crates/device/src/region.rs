//! Keys of entries, and the memory that they stand for. A key has a number and a generation, so that one whose region has ended finds
//! nothing, though the number is another region's by then. What an entry says is checked here before anything is done with it.

use std::fmt;
use std::sync::Arc;

use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::reserve::OutOfMemory;
use trunkline_proto::table_capacity::try_hold;
use trunkline_proto::wire::device_queue::{EntryStatus, POST_PLACES, PostRooms};

use trunkline_engine::rma::MemberRank;

/// Regions of a member that there may be at a time: a heap each.
pub const REGIONS_MAX: usize = trunkline_proto::limits::RMA_HEAPS_MAX;

/// Names a region in entries: its number in the low 8 bits, its generation, from 1 on, above. Never 0.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EntryKey(u32);

impl EntryKey {
    const GENERATION_MAX: u32 = (1 << 24) - 1;

    const fn new(number: u8, generation: u32) -> Self {
        Self(number as u32 | generation << 8)
    }

    /// As it stands in an entry.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// One that stood in an entry, or came from its owner.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The number.
    #[must_use]
    pub const fn region_number(self) -> u8 {
        self.0 as u8
    }

    const fn key_generation(self) -> u32 {
        self.0 >> 8
    }
}

/// How bytes of a device's memory are moved by the device: asynchronously, as its copy engines do. Of one executor: what ends is told to nobody else.
pub trait DeviceCopier: fmt::Debug + Send + Sync {
    /// Begins to copy `len` bytes that are inside of both; one of them is the device's. False: not now.
    fn begin_copy(&self, cookie: u64, from: MemoryLocation<'_>, to: MemoryLocation<'_>, len: u64) -> bool;

    /// Adds the copies that have ended since: their bytes are there, or why not.
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

/// Where the error words of bare signals are, in the same region: values of 8 bytes side by side, and as many error words.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ErrorTable {
    /// The first value.
    pub values: u64,
    /// The first error word.
    pub errors: u64,
    /// How many there are.
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
    /// The heap that they are to the network.
    pub heap: u8,
    /// Where its bare signals and counters have their error words.
    pub table: ErrorTable,
    /// Who moves its bytes, where the CPU does not.
    pub copies: Option<Arc<dyn DeviceCopier>>,
    /// Where the CPU does not touch it: as many bytes of the host in which entries change its words, and from which [`EntryRegion::copies`] then brings
    /// them. So entries alone change those, and all executors that do have the same bytes here. Without it no word of it changes. If the heap is these
    /// bytes, gets from other processes arrive by way of them: bytes that are, hold no words. Puts of others arrive in these bytes, and not to the
    /// region. Puts from the region to other processes leave by way of rooms there ([`EntryRegions::add_rooms`]). If the heap is the region itself, as a
    /// NIC reaches it, there are no such bytes: all goes over the network without a copy, and signals and counters lie in another region.
    pub words: Option<MemoryRange>,
}

impl EntryRegion {
    /// Memory of the host.
    #[must_use]
    pub const fn of_host(memory: MemoryRange, heap: u8, table: ErrorTable) -> Self {
        Self { memory, heap, table, copies: None, words: None }
    }
}

/// A region of another member, as that has told of it.
#[derive(Clone, Debug)]
pub struct PeerRegion {
    /// Its key there.
    pub key: EntryKey,
    /// Bytes.
    pub len: u64,
    /// As [`EntryRegion::table`].
    pub table: ErrorTable,
    /// The same bytes in this process, if it has them: nothing goes over the network then.
    pub near: Option<MemoryRange>,
    /// Of those, as [`EntryRegion::copies`].
    pub copies: Option<Arc<dyn DeviceCopier>>,
    /// Of those, as [`EntryRegion::words`].
    pub words: Option<MemoryRange>,
}

impl WordsRegion {
    /// The region of the words and where it has the byte of that address, if it is theirs.
    fn locate_word(&self, addr: u64) -> Option<(&EntryRegion, u64)> {
        Some((&self.region, addr.checked_sub(self.first)?))
    }
}

impl PeerRegion {
    /// A region that is reached over the network, or whose bytes are in memory of the host in this process.
    #[must_use]
    pub const fn of_host(key: EntryKey, len: u64, table: ErrorTable, near: Option<MemoryRange>) -> Self {
        Self { key, len, table, near, copies: None, words: None }
    }
}

/// Words of a region that lie apart from its bytes: signals and counters of a device's region that the network reaches, in memory of the host. Entries name them by the
/// region's key and the addresses from [`WordsRegion::first`] on.
#[derive(Clone, Debug)]
pub struct WordsRegion {
    /// The address in the region of the first of these bytes; the bytes of the region itself end there.
    pub first: u64,
    /// The memory, and the heap that it is.
    pub region: EntryRegion,
}

/// The same of another member's region, as that has told of it.
#[derive(Clone, Copy, Debug)]
pub struct FarWords {
    /// As [`WordsRegion::first`].
    pub first: u64,
    /// The heap there.
    pub heap: u8,
    /// Bytes.
    pub len: u64,
}

/// Where an entry's bytes are.
#[derive(Clone, Debug)]
pub enum EntryLocation<'a> {
    /// In this process.
    Here {
        /// The memory.
        memory: &'a MemoryRange,
        /// The first byte in it.
        at: u64,
        /// The heap, if it is a region of this process.
        heap: Option<u8>,
        /// Who moves its bytes, where the CPU does not.
        copies: Option<&'a Arc<dyn DeviceCopier>>,
        /// Where its words are changed, where the CPU does not touch it.
        words: Option<&'a MemoryRange>,
    },
    /// In memory of this process's device that the network reaches: words and bytes that are given by value go over the network.
    Reached {
        /// The memory.
        memory: &'a MemoryRange,
        /// The first byte in it, and in the heap.
        at: u64,
        /// The heap.
        heap: u8,
        /// Who moves its bytes.
        copies: &'a Arc<dyn DeviceCopier>,
    },
    /// At the member.
    There {
        /// The heap.
        heap: u8,
        /// The first byte in it.
        at: u64,
    },
}

/// A room that is taken.
#[derive(Clone, Copy, Debug)]
pub struct RoomTaken {
    heap: u8,
    generation: u32,
    number: u64,
}

#[derive(Debug, Default)]
struct OwnedRegion {
    /// Of the region that is there, or was last.
    generation: u32,
    region: Option<EntryRegion>,
    words: Option<WordsRegion>,
    /// Rooms for bytes on their way out, and which of them are taken, a bit each.
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
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a region on, under the number of its heap; its key. `None` if there is one, its generations are used up, or there is no memory for it.
    pub fn add_region(&mut self, region: EntryRegion) -> Option<EntryKey> {
        let at = usize::from(region.heap);
        if self.own.len() <= at {
            try_hold(&mut self.own, at + 1).ok()?;
            self.own.resize_with(at + 1, OwnedRegion::default);
        }
        let own = self.own.get_mut(at).filter(|own| own.region.is_none())?;
        let generation = own.generation.checked_add(1).filter(|&next| next <= EntryKey::GENERATION_MAX)?;
        let key = EntryKey::new(region.heap, generation);
        *own = OwnedRegion { generation, region: Some(region), words: None, rooms: None, taken: 0 };
        Some(key)
    }

    /// Ends a region; `None` if there is none of that key.
    pub fn remove(&mut self, key: EntryKey) -> Option<EntryRegion> {
        let own = self.own.get_mut(usize::from(key.region_number()))?;
        if own.generation != key.key_generation() {
            return None;
        }
        own.words = None;
        own.region.take()
    }

    /// Says where a region's words lie, if apart from its bytes; `None` if there is none of that key.
    pub fn add_words(&mut self, key: EntryKey, words: WordsRegion) -> Option<()> {
        let own = self.own.get_mut(usize::from(key.region_number()));
        let own = own.filter(|own| own.generation == key.key_generation() && own.region.is_some())?;
        own.words = Some(words);
        Some(())
    }

    /// Says where a region's bytes lie on their way out, in [`EntryRegion::words`]; `None` if there is none of that key.
    pub fn add_rooms(&mut self, key: EntryKey, rooms: PostRooms) -> Option<()> {
        let own = self.own.get_mut(usize::from(key.region_number()));
        let own = own.filter(|own| own.generation == key.key_generation() && own.region.is_some())?;
        own.rooms = Some(rooms);
        Some(())
    }

    /// Takes a room of a region for its puts to others: which, where, and how many bytes it has. `None`: not now.
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

    /// Gives it back.
    pub fn give_room(&mut self, RoomTaken { heap, generation, number }: RoomTaken) {
        let own = self.own.get_mut(usize::from(heap)).filter(|own| own.generation == generation);
        own.into_iter().for_each(|own| own.taken &= !(1 << number));
    }

    /// Whether a region's bytes have rooms on their way out.
    #[must_use]
    pub fn has_rooms(&self, heap: u8) -> bool {
        self.own.get(usize::from(heap)).is_some_and(|own| own.rooms.is_some())
    }

    /// A member has told of a region. It takes the place of an earlier one of its number.
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

    /// A member has ended a region.
    pub fn remove_remote_region(&mut self, member: MemberRank, key: EntryKey) {
        let place =
            self.far.get_mut(member as usize).and_then(|of| of.get_mut(usize::from(key.region_number())));
        if let Some(place) = place.filter(|place| place.as_ref().is_some_and(|(far, _)| far.key == key)) {
            *place = None;
        }
    }

    /// The region of this process whose words are changed in this memory.
    pub fn of_words(&self, words: &MemoryRange) -> Option<&EntryRegion> {
        let is_it =
            |region: &&EntryRegion| region.words.as_ref().is_some_and(|own| own.addr() == words.addr());
        self.own.iter().filter_map(|own| own.region.as_ref()).find(is_it)
    }

    /// A region of this process, for `len` bytes from `addr` on, and where the first one is in its memory. It is the region of the words, if the bytes are
    /// words that lie apart.
    ///
    /// # Errors
    /// The status of the entry: no such region, one that has ended, or not all inside.
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
        check_range(addr, len, own.words.as_ref().map_or(whole, |words| whole.min(words.first)))?;
        Ok((region, addr))
    }

    /// The bytes that an entry names of a member.
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

    /// Whether words of a region of this process lie apart from its bytes.
    #[must_use]
    pub fn has_words_apart(&self, heap: u8) -> bool {
        self.own.get(usize::from(heap)).is_some_and(|own| own.words.is_some())
    }

    /// The place in a heap of bytes that entries name so, whether there are such or not.
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

    /// Where the error word of an entry's word is: behind it, or in the table of its region. `None`: it has none.
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

    /// The region of this process that is a heap.
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
        // It was one, or it never was.
        false if key.key_generation() < generation && key.key_generation() > 0 => Err(EntryStatus::Stale),
        false => Err(EntryStatus::Access),
    }
}

#[inline]
fn check_range(addr: u64, len: u64, size: u64) -> Result<(), EntryStatus> {
    let inside = addr.checked_add(len).is_some_and(|end| end <= size);
    if inside { Ok(()) } else { Err(EntryStatus::Access) }
}
