//! The table of regions of one NIC, and the registrar that fills it. Rails find keys here, inside their guard,
//! without a lock; registering and deregistering take one. A key is 64 random bits whose low bits choose the slot, and
//! is compared in full.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use trunkline_fabric::{
    AccessRights, DeregisterError, ExportedDmaBuf, LocalKey, MemoryRegistrar, RegionKeys, RegionPurpose,
    RegisterError, RemoteKey,
};
use trunkline_mem::{MappedMemory, MemoryKind, MemoryRange, OutOfMemory, copy_shared, copy_shared_words};
use trunkline_proto::reserve::{try_filled, try_filled_with};

use crate::nic::{SharedFabric, SoftNic};

/// Rights of a region, as bits.
pub(crate) mod right {
    /// Remote writes.
    pub(crate) const WRITE: u32 = 1;
    /// Remote reads.
    pub(crate) const READ: u32 = 2;
    /// Remote atomics.
    pub(crate) const ATOMIC: u32 = 4;
    /// Not a right: writes may be held back.
    pub(crate) const RELAXED: u32 = 8;
    /// Not a right: system calls of other processes can reach it.
    pub(crate) const DIRECT: u32 = 16;
    /// Not a right: the bytes are mapped write-combined, and are reached only by [`RegionTable::copy_in`](super::RegionTable::copy_in) and its siblings.
    pub(crate) const MAPPED: u32 = 32;
}

/// Keys of retired regions that a NIC keeps. Beyond that the oldest becomes unknown. Twice the number that the receives of 128
/// connections can name at once, 32 of 8 buffers each.
const RETIRED_MAX: usize = 65_536;

/// Bytes of a mapping that are copied at a time.
pub(crate) const PIECE: usize = 4096;

/// One region. The keys are published last and withdrawn first; the rest changes only while both are 0 and no guard
/// that saw them is held.
#[repr(align(64))]
struct RegionSlot {
    remote: AtomicU64,
    local: AtomicU64,
    start: AtomicUsize,
    len: AtomicU64,
    base: AtomicU64,
    rights: AtomicU32,
}

/// Bytes of a region that passed all checks; usable until the guard is left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedPlace {
    /// First byte.
    pub(crate) at: *mut u8,
    /// Rights of the region.
    pub(crate) rights: u32,
}

/// All regions of one NIC.
pub(crate) struct RegionTable {
    slots: Box<[RegionSlot]>,
    max: u32,
    live: Mutex<LiveRegions>,
    retired: Mutex<RetiredKeys>,
    virtual_addresses: bool,
}

/// Remote keys of regions that allowed writes and were retired, oldest first. Read only for a key that names no region.
#[derive(Default)]
struct RetiredKeys {
    order: VecDeque<u64>,
    keys: HashSet<u64>,
}

impl RetiredKeys {
    fn add_key(&mut self, key: u64) {
        if self.order.len() == RETIRED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
        self.order.push_back(key);
        self.keys.insert(key);
    }
}

/// The part that only registering and deregistering use.
struct LiveRegions {
    /// By local key: the slot, and the memory, which stays mapped while it is listed here.
    regions: HashMap<u64, (usize, MemoryRange)>,
    /// Slots in use, also those whose keys are already withdrawn.
    taken: Box<[bool]>,
}

impl RegionTable {
    /// Creates an empty table for `max` regions.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(max: u32, virtual_addresses: bool) -> Result<Self, OutOfMemory> {
        // Twice the number of slots, so that a random key finds a free one within a few draws.
        let count = (max.max(1) as usize * 2).next_power_of_two();
        let slot = || RegionSlot {
            remote: AtomicU64::new(0),
            local: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            len: AtomicU64::new(0),
            base: AtomicU64::new(0),
            rights: AtomicU32::new(0),
        };
        Ok(Self {
            slots: try_filled_with(count, slot)?,
            max,
            live: Mutex::new(LiveRegions { regions: HashMap::new(), taken: try_filled(false, count)? }),
            retired: Mutex::default(),
            virtual_addresses,
        })
    }

    #[inline]
    fn slot_of(&self, key: u64) -> &RegionSlot {
        &self.slots[(key as usize) & (self.slots.len() - 1)]
    }

    /// Finds `len` bytes at remote address `addr` by a remote key, with the rights `need`. Call inside a guard.
    #[inline]
    pub(crate) fn find_remote(&self, key: u64, addr: u64, len: u64, need: u32) -> Option<CheckedPlace> {
        let slot = self.slot_of(key);
        // Acquire pairs with the release in `insert`, so that a slot whose key matches has valid bounds.
        let found = slot.remote.load(Ordering::Acquire);
        if found == 0 || found != key {
            return None;
        }
        let rights = slot.rights.load(Ordering::Relaxed);
        if rights & need != need {
            return None;
        }
        let offset = addr.wrapping_sub(slot.base.load(Ordering::Relaxed));
        place_in_slot(slot, offset, len, rights)
    }

    /// Finds `len` bytes at `offset` by a local key. Call inside a guard.
    #[inline]
    pub(crate) fn find_local(&self, key: u64, offset: u64, len: u64) -> Option<CheckedPlace> {
        let slot = self.slot_of(key);
        // 0 marks a free slot, so it must never match.
        if key == 0 || slot.local.load(Ordering::Acquire) != key {
            return None;
        }
        place_in_slot(slot, offset, len, slot.rights.load(Ordering::Relaxed))
    }

    /// The local key of the region that has a remote key. Call inside a guard.
    pub(crate) fn local_key(&self, remote: u64) -> Option<u64> {
        let slot = self.slot_of(remote);
        let local = slot.local.load(Ordering::Acquire);
        (local != 0 && slot.remote.load(Ordering::Acquire) == remote).then_some(local)
    }

    /// Adds a region of these bytes; peers that use virtual addresses address the first one as `named`.
    fn insert(&self, memory: &MemoryRange, named: usize, rights: u32) -> Result<RegionKeys, RegisterError> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.regions.len() >= self.max as usize {
            return Err(RegisterError::Exhausted(self.max));
        }
        let entry_bytes = size_of::<(u64, (usize, MemoryRange))>();
        // Reserved before the keys are published, because after that no step may fail.
        live.regions
            .try_reserve(1)
            .map_err(|_| OutOfMemory { bytes: (live.regions.len() + 1) * entry_bytes })?;
        let low = self.slots.len() as u64 - 1;
        let mut words;
        let index = loop {
            words = random_words().map_err(|source| RegisterError::System { what: "getrandom", source })?;
            let index = (words[0] as usize) & (self.slots.len() - 1);
            // A local key shares its low bits with the remote one; its other bits must not all be 0.
            if words[0] != 0 && words[1] > low && !live.taken[index] {
                break index;
            }
        };
        let [remote, second] = words;
        let local = (second & !low) | (remote & low);
        let base = if self.virtual_addresses { named as u64 } else { 0 };
        let slot = &self.slots[index];
        // The keys are stored last, so that a thread that finds one also sees the other fields.
        slot.start.store(memory.addr(), Ordering::Relaxed);
        slot.len.store(memory.len() as u64, Ordering::Relaxed);
        slot.base.store(base, Ordering::Relaxed);
        slot.rights.store(rights, Ordering::Relaxed);
        slot.remote.store(remote, Ordering::Release);
        slot.local.store(local, Ordering::Release);
        live.taken[index] = true;
        live.regions.insert(local, (index, memory.clone()));
        Ok(RegionKeys { local: LocalKey(local), remote: RemoteKey(remote), remote_base: base })
    }

    /// Returns the bytes from a place on, if they are mapped write-combined. Call inside a guard.
    #[cold]
    fn find_mapping(&self, place: CheckedPlace, len: usize) -> Option<MappedMemory> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.regions.values().find_map(|(_, memory)| {
            let offset = place.at.addr().checked_sub(memory.addr())? as u64;
            let part = memory.as_mapped()?.sub_range(offset, len as u64);
            part.ok()
        })
    }

    /// Copies bytes to a place; aligned words of a few bytes whole, if `whole`. Call inside a guard.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, and the place was checked for `len` bytes.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, place: CheckedPlace, from: *const u8, len: usize, whole: bool) {
        if place.rights & right::MAPPED != 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_in_mapped(place, from, len) };
        }
        if whole {
            // SAFETY: the caller's promise.
            unsafe { copy_shared_words(from, place.at, len) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { copy_shared(from, place.at, len) };
        }
    }

    /// # Safety
    /// As [`RegionTable::copy_in`].
    #[cold]
    unsafe fn copy_in_mapped(&self, place: CheckedPlace, from: *const u8, len: usize) {
        let Some(mapped) = self.find_mapping(place, len) else { return };
        let mut buffer = [0; PIECE];
        for at in (0..len).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(len - at)];
            // SAFETY: `at + piece.len() <= len`, so it is inside the caller's bytes. Another process may write them meanwhile, so they are copied
            // before they are used.
            unsafe { copy_shared(from.wrapping_add(at), piece.as_mut_ptr(), piece.len()) };
            // Cannot fail: the mapping was found for `len` bytes.
            let _ = mapped.copy_to(at as u64, piece);
        }
    }

    /// Copies bytes from a place. Call inside a guard.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and the place was checked for `len` bytes.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, place: CheckedPlace, to: *mut u8, len: usize) {
        if place.rights & right::MAPPED != 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_out_mapped(place, to, len) };
        }
        // SAFETY: the caller's promise.
        unsafe { copy_shared(place.at, to, len) };
    }

    /// # Safety
    /// As [`RegionTable::copy_out`].
    #[cold]
    unsafe fn copy_out_mapped(&self, place: CheckedPlace, to: *mut u8, len: usize) {
        let Some(mapped) = self.find_mapping(place, len) else { return };
        let mut buffer = [0; PIECE];
        for at in (0..len).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(len - at)];
            // Cannot fail: the mapping was found for `len` bytes.
            let _ = mapped.copy_from(at as u64, piece);
            // SAFETY: `at + piece.len() <= len`, so it is inside the caller's bytes.
            unsafe { copy_shared(piece.as_ptr(), to.wrapping_add(at), piece.len()) };
        }
    }

    /// Replaces the aligned word at a place by the result of `f`, if that returns one; returns the old word. Call inside a guard.
    ///
    /// # Safety
    /// The place was checked for 8 bytes, and is aligned.
    pub(crate) unsafe fn update_word(&self, place: CheckedPlace, f: impl Fn(u64) -> Option<u64>) -> u64 {
        if place.rights & right::MAPPED != 0 {
            let old = self.find_mapping(place, 8).and_then(|mapped| mapped.fetch_update(0, f).ok());
            return old.unwrap_or(0).to_le();
        }
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(place.at.cast()) };
        let change = |old| f(u64::from_le(old)).map(u64::to_le);
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).unwrap_or_else(|same| same)
    }

    /// Returns the number of regions.
    pub(crate) fn len(&self) -> usize {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).regions.len()
    }

    /// Whether writes through a remote key are dropped: its region was retired.
    #[cold]
    pub(crate) fn goes_nowhere(&self, key: u64) -> bool {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).keys.contains(&key)
    }

    /// Withdraws the keys of a region; returns whether it exists.
    fn withdraw_keys(&self, key: u64, retire: bool) -> bool {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&(index, _)) = live.regions.get(&key) else { return false };
        let slot = &self.slots[index];
        let remote = slot.remote.load(Ordering::Relaxed);
        // Listed as retired before the key becomes invalid, so that no write in between is refused. A repeated call finds it withdrawn.
        if retire && remote != 0 && slot.rights.load(Ordering::Relaxed) & right::WRITE != 0 {
            let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
            retired.add_key(remote);
        }
        // Sequentially consistent and before the guards are read, so that a rail that still finds the key is seen inside its guard.
        slot.remote.store(0, Ordering::SeqCst);
        slot.local.store(0, Ordering::SeqCst);
        true
    }

    /// Removes a region that is no longer in use.
    fn forget_region(&self, key: u64) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((index, _)) = live.regions.remove(&key) {
            live.taken[index] = false;
        }
    }
}

#[inline]
fn place_in_slot(slot: &RegionSlot, offset: u64, len: u64, rights: u32) -> Option<CheckedPlace> {
    let size = slot.len.load(Ordering::Relaxed);
    // Both numbers may be a peer's, so the sum may overflow.
    if offset.checked_add(len)? > size {
        return None;
    }
    let at = slot.start.load(Ordering::Relaxed).wrapping_add(offset as usize);
    Some(CheckedPlace { at: std::ptr::with_exposed_provenance_mut(at), rights })
}

/// Two unpredictable words.
fn random_words() -> io::Result<[u64; 2]> {
    let all = u128::from_le_bytes(random_bytes()?);
    Ok([all as u64, (all >> 64) as u64])
}

/// Sixteen bytes from the operating system.
pub(crate) fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut have = 0;
    while have < bytes.len() {
        have += rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// Registers memory for one rail.
pub(crate) struct SoftRegistrar {
    shared: Arc<SharedFabric>,
    nic: usize,
    peer_time: Duration,
}

impl SoftRegistrar {
    /// A registrar for NIC number `nic`.
    pub(crate) fn new(shared: Arc<SharedFabric>, nic: usize, peer_time: Duration) -> Self {
        Self { shared, nic, peer_time }
    }
}

impl SoftRegistrar {
    /// Whether direct copies can use the memory.
    fn is_reachable(&self, memory: &MemoryRange) -> bool {
        self.shared.itself.can_reach(memory.addr(), memory.len())
    }

    /// Registers bytes that the CPU touches, or has mapped.
    fn insert(
        &self,
        memory: &MemoryRange,
        named: usize,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        let is_mapped = memory.kind() == MemoryKind::Mapped;
        // Each registration retries a few abandoned ones, so that they do not fill the table.
        self.shared.end_abandoned(self.nic);
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        let rights = bit(access.write, right::WRITE)
            | bit(access.read, right::READ)
            | bit(access.atomic, right::ATOMIC)
            | bit(purpose == RegionPurpose::Data, right::RELAXED)
            | bit(!is_mapped && self.is_reachable(memory), right::DIRECT)
            | bit(is_mapped, right::MAPPED);
        self.shared.nics[self.nic].table.insert(memory, named, rights)
    }
}

impl MemoryRegistrar for SoftRegistrar {
    fn register(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        if !matches!(memory.kind(), MemoryKind::Host | MemoryKind::Mapped) {
            return Err(RegisterError::Kind(memory.kind()));
        }
        self.insert(memory, memory.addr(), access, purpose)
    }

    fn register_exported(
        &self,
        memory: &MemoryRange,
        exported: ExportedDmaBuf<'_>,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        if !self.shared.config.takes_dmabufs {
            return Err(RegisterError::Kind(memory.kind()));
        }
        let mapped = trunkline_mem::map_exported(memory, &exported.fd, exported.offset);
        let mapped = mapped.map_err(|cause| RegisterError::Device {
            how: "as a dma-buf",
            why: cause.to_string(),
            remedy: "a NIC that is software reaches only dma-bufs that the CPU can map; unset TRUNKLINE_SOFT_DMABUF",
        })?;
        // Bytes written to a device may be invisible until a flush, for any purpose. So it is registered as data, which needs flushes.
        let _ = purpose;
        self.insert(&mapped, memory.addr(), access, RegionPurpose::Data)
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.shared.end_abandoned(self.nic);
        self.shared.end_region(self.nic, key, false, self.peer_time)
    }

    fn retire(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.shared.end_abandoned(self.nic);
        self.shared.end_region(self.nic, key, true, self.peer_time)
    }

    fn abandon(&self, key: LocalKey) {
        if let Err(DeregisterError::InUse { .. }) = self.deregister(key) {
            // If the list is full, the region stays in the table until the NIC is closed.
            self.shared.nics[self.nic].abandoned.keep_key(key);
        }
    }
}

impl SharedFabric {
    /// Withdraws the keys of a region, and removes it once no rail and no peer is inside a copy of it.
    fn end_region(
        &self,
        nic: usize,
        key: LocalKey,
        retire: bool,
        limit: Duration,
    ) -> Result<(), DeregisterError> {
        let SoftNic { table, book, .. } = &self.nics[nic];
        if !table.withdraw_keys(key.0, retire) {
            return Err(DeregisterError::Unknown);
        }
        if !self.guards.wait_until_left(limit) {
            return Err(DeregisterError::InUse { peer: std::process::id() });
        }
        book.end_region(key.0, limit).map_err(|peer| DeregisterError::InUse { peer })?;
        table.forget_region(key.0);
        Ok(())
    }

    /// Tries again to end regions that their owners abandoned, without waiting.
    fn end_abandoned(&self, nic: usize) {
        self.nics[nic].abandoned.try_some(|key| self.end_region(nic, key, false, Duration::ZERO));
    }

    /// Tries again to end all abandoned regions, when a rail is closed.
    pub(crate) fn end_all_abandoned(&self, nic: usize) {
        self.nics[nic].abandoned.try_all(|key| self.end_region(nic, key, false, Duration::ZERO));
    }
}
