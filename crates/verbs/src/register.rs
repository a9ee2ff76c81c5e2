//! Registered memory: the device's table of regions, against which every operation is checked before it is posted, and the
//! registrar of a rail. Resolving a key takes no lock; registering does.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use trunkline_fabric::{
    AccessRights, DeregisterError, ExportedDmaBuf, LocalKey, MemoryRegistrar, RegionExtent, RegionKeys,
    RegionPurpose, RegisterError, RemoteKey,
};
use trunkline_mem::{MemoryKind, MemoryRange, OutOfMemory};
use trunkline_proto::reserve::{try_filled_with, try_grow};
use trunkline_sys::verbs::{
    ACCESS_LOCAL_WRITE, ACCESS_RELAXED_ORDERING, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE, Calls, Mr, Sge,
};

use crate::config;
use crate::device::{VerbsDevice, check_code, last_error};
use crate::gpudirect;

/// Slots that are allocated at a time.
const CHUNK: usize = 1024;
/// Most chunks.
const CHUNKS: usize = 1024;
/// A page: the address for peers must have the same offset in its page as the virtual address (ibv_reg_mr(3)).
const PAGE: u64 = 4096;
/// The same for memory of GPUs, whose pages are large: a device maps with the largest pages in which both offsets agree.
const LARGE: u64 = 1 << 30;

/// A region as the posting threads see it. `key` is stored last and withdrawn first, so that a valid key implies valid fields.
#[derive(Default)]
struct MrSlot {
    /// The local key, 0 if there is none.
    key: AtomicU64,
    /// First byte, as it was registered.
    base: AtomicU64,
    len: AtomicU64,
}

/// The regions of a device. A local key holds the device's key in its low half, and the slot and its generation in the other.
pub(crate) struct MrTable {
    chunks: Box<[OnceLock<Box<[MrSlot]>>]>,
    max: u32,
    live: Mutex<LiveMrs>,
}

/// The part that only registering and deregistering use.
#[derive(Default)]
struct LiveMrs {
    /// By local key; the memory stays mapped while it is listed here.
    regions: HashMap<u64, (RawMr, MemoryRange)>,
    free: Vec<u32>,
    made: u32,
    lives: u32,
}

impl LiveMrs {
    /// Reserves room for one more region, and for its slot in the free list, so that removing it never allocates.
    fn reserve_one(&mut self) -> Result<(), OutOfMemory> {
        let entries = self.regions.len() + 1;
        let bytes = entries * size_of::<(u64, (RawMr, MemoryRange))>();
        self.regions.try_reserve(1).map_err(|_| OutOfMemory { bytes })?;
        let more = (self.made as usize + 1).saturating_sub(self.free.len());
        try_grow(&mut self.free, more)
    }
}

/// The library's object.
struct RawMr(*mut Mr);

// SAFETY: libibverbs may be called from any thread; the pointer is used under a lock.
unsafe impl Send for RawMr {}

impl MrTable {
    /// Creates an empty table, which accepts no region until its limit is set.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        Ok(Self { chunks: try_filled_with(CHUNKS, OnceLock::new)?, max: 0, live: Mutex::default() })
    }

    /// Sets the device's limit of `max` regions.
    pub(crate) fn with_limit(self, max: u32) -> Self {
        Self { max: max.min((CHUNK * CHUNKS) as u32), ..self }
    }

    /// Returns the most regions.
    pub(crate) fn regions_max(&self) -> u32 {
        self.max
    }

    /// Returns the number of regions.
    pub(crate) fn len(&self) -> u32 {
        // At most the number of slots, which has 32 bits.
        self.lock_live().regions.len() as u32
    }

    fn lock_live(&self) -> std::sync::MutexGuard<'_, LiveMrs> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot_at(&self, index: u32) -> Option<&MrSlot> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// Returns the bytes of an extent for the device; `None` if they are not all in one registered region.
    #[inline]
    pub(crate) fn resolve_extent(&self, extent: RegionExtent) -> Option<Sge> {
        let key = extent.key.0;
        let slot = self.slot_at((key >> 32) as u32 & SLOTS)?;
        // Acquire pairs with the release in `insert`, so that a slot whose key matches has valid bounds.
        if key == 0 || slot.key.load(Ordering::Acquire) != key {
            return None;
        }
        let end = extent.offset.checked_add(extent.len)?;
        if end > slot.len.load(Ordering::Relaxed) {
            return None;
        }
        // A scatter/gather entry has a length of 32 bits.
        let length = u32::try_from(extent.len).ok()?;
        let addr = slot.base.load(Ordering::Relaxed).wrapping_add(extent.offset);
        Some(Sge { addr, length, lkey: key as u32 })
    }

    /// Reserves a slot for one more region, with all the memory that the region needs in this table until it is removed.
    fn take_slot(&self, live: &mut LiveMrs) -> Result<u32, RegisterError> {
        live.reserve_one()?;
        if let Some(index) = live.free.pop() {
            return Ok(index);
        }
        if live.made >= self.max {
            return Err(RegisterError::Exhausted(self.max));
        }
        let chunk = &self.chunks[live.made as usize / CHUNK];
        if chunk.get().is_none() {
            // Under the lock, so no other thread has set it.
            let _ = chunk.set(try_filled_with(CHUNK, MrSlot::default)?);
        }
        live.made += 1;
        Ok(live.made - 1)
    }

    /// Adds a region; the error is the reason why there is no room for it.
    fn insert(
        &self,
        mr: *mut Mr,
        lkey: u32,
        base: u64,
        memory: &MemoryRange,
    ) -> Result<LocalKey, RegisterError> {
        let mut live = self.lock_live();
        let index = self.take_slot(&mut live)?;
        let full = RegisterError::Exhausted(self.max);
        let Some(slot) = self.slot_at(index) else { return Err(full) };
        // Each region has another generation, so that the key of an ended region does not match its successor in the slot.
        live.lives = live.lives.wrapping_add(1) % LIVES + 1;
        let key = u64::from(live.lives) << LIFE_AT | u64::from(index) << 32 | u64::from(lkey);
        // The key is stored last, so that a thread that finds it also sees the other fields.
        slot.base.store(base, Ordering::Relaxed);
        slot.len.store(memory.len() as u64, Ordering::Relaxed);
        slot.key.store(key, Ordering::Release);
        live.regions.insert(key, (RawMr(mr), memory.clone()));
        Ok(LocalKey(key))
    }

    /// Withdraws a region and deregisters it from the device.
    fn remove_region(&self, calls: &Calls, key: LocalKey) -> Result<(), DeregisterError> {
        let mut live = self.lock_live();
        let Some((object, _)) = live.regions.get(&key.0) else { return Err(DeregisterError::Unknown) };
        let index = (key.0 >> 32) as u32 & SLOTS;
        // Withdrawn first, so that no operation is posted with the key while the device ends the registration.
        if let Some(slot) = self.slot_at(index) {
            slot.key.store(0, Ordering::Release);
        }
        let ended = forget_region(calls, object);
        if ended.is_err() {
            // A memory window is still bound to it (EBUSY, ibv_dereg_mr(3)); the caller may try again.
            return Err(DeregisterError::InUse { peer: 0 });
        }
        live.regions.remove(&key.0);
        live.free.push(index);
        Ok(())
    }

    /// Deregisters the remaining regions when the device is closed. The memory stays mapped until the table is
    /// dropped, because a region that the device refuses to end may still be in use.
    pub(crate) fn end_all(&self, calls: &Calls) {
        for (object, _) in self.lock_live().regions.values() {
            let _ = forget_region(calls, object);
        }
    }
}

/// Deregisters a region of the table from the device; the region then leaves the table, or is dropped with it.
fn forget_region(calls: &Calls, object: &RawMr) -> io::Result<()> {
    // SAFETY: the region is registered: regions leave the table when they are deregistered, so none is deregistered twice.
    check_code(unsafe { (calls.dereg_mr)(object.0) })
}

/// Bits of a slot's number.
const SLOTS: u32 = (CHUNK * CHUNKS - 1) as u32;
/// First bit of a slot's generation in a key.
const LIFE_AT: u32 = 52;
/// Number of generations of a slot; 0 is none of them.
const LIVES: u32 = (1 << 12) - 1;

/// Registers memory for one rail.
pub(crate) struct VerbsRegistrar {
    device: Arc<VerbsDevice>,
    ordering: config::BusOrdering,
}

impl VerbsRegistrar {
    /// Creates a registrar on a device.
    pub(crate) fn new(device: &Arc<VerbsDevice>, ordering: config::BusOrdering) -> Self {
        Self { device: Arc::clone(device), ordering }
    }

    /// Returns the access flags for peers and device. Local write is always set, because remote write and atomic require it (ibv_reg_mr(3)).
    /// Mailboxes and signals are never relaxed.
    fn access_flags(&self, access: AccessRights, purpose: RegionPurpose) -> c_int {
        let bit = |on: bool, bit: c_int| if on { bit } else { 0 };
        let relaxed = purpose == RegionPurpose::Data;
        ACCESS_LOCAL_WRITE
            | bit(access.write, ACCESS_REMOTE_WRITE)
            | bit(access.read, ACCESS_REMOTE_READ)
            | bit(access.atomic, ACCESS_REMOTE_ATOMIC)
            | bit(relaxed && self.ordering == config::BusOrdering::Relaxed, ACCESS_RELAXED_ORDERING)
    }

    /// Registers memory. Returns the library's object, and the base address for peers: the offset in its page if the library
    /// supports that.
    fn register_mr(&self, memory: &MemoryRange, rights: c_int) -> (*mut Mr, u64) {
        let calls = self.device.calls();
        let pd = self.device.protection_domain();
        let addr: *mut c_void = std::ptr::with_exposed_provenance_mut(memory.addr());
        match calls.reg_mr_iova2 {
            Some(register) => {
                let page = if memory.kind() == MemoryKind::Host { PAGE } else { LARGE };
                let base = memory.addr() as u64 % page;
                // SAFETY: the domain is open. The table keeps the memory, so it stays mapped until it is deregistered.
                let mr = unsafe { register(pd, addr, memory.len(), base, rights as c_uint) };
                (mr, base)
            }
            None => {
                let rights = rights & !ACCESS_RELAXED_ORDERING;
                // SAFETY: the domain is open. The table keeps the memory, so it stays mapped until it is deregistered.
                let mr = unsafe { (calls.reg_mr)(pd, addr, memory.len(), rights) };
                (mr, memory.addr() as u64)
            }
        }
    }

    /// Registers exported memory. The base address for peers has the same offset in its page as the bytes have in the
    /// dma-buf, which the kernel requires.
    fn make_exported(
        &self,
        memory: &MemoryRange,
        exported: ExportedDmaBuf<'_>,
        rights: c_int,
    ) -> Option<(*mut Mr, u64)> {
        let register = self.device.calls().reg_dmabuf_mr?;
        let fd = exported.fd.as_raw_fd();
        let offset = exported.offset;
        let addr = memory.addr() as u64;
        let page = rustix::param::page_size() as u64;
        let base = match offset % page {
            inset if addr % page == inset => addr % LARGE,
            inset => inset,
        };
        // SAFETY: the domain is open. The descriptor is open during the call, and the registration holds its own reference to the dma-buf.
        let mr = unsafe { register(self.device.protection_domain(), offset, memory.len(), base, fd, rights) };
        Some((mr, base))
    }

    /// Adds a registered region to the table; deregisters it if there is no room.
    fn insert_region(
        &self,
        mr: *mut Mr,
        base: u64,
        memory: &MemoryRange,
    ) -> Result<RegionKeys, RegisterError> {
        let table = &self.device.regions;
        let (lkey, rkey) = {
            // SAFETY: the caller has just registered it successfully, so the pointer is valid.
            let made = unsafe { &*mr };
            (made.lkey, made.rkey)
        };
        let entered = table.insert(mr, lkey, base, memory);
        if entered.is_err() {
            // SAFETY: registered just now, and its keys were not given to any caller.
            unsafe { (self.device.calls().dereg_mr)(mr) };
        }
        Ok(RegionKeys { local: entered?, remote: RemoteKey(rkey.into()), remote_base: base })
    }

    fn end_registration(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.device.regions.remove_region(self.device.calls(), key)
    }

    /// Checks that there is room for one more region, after ending abandoned ones as far as possible.
    fn check_room(&self) -> Result<(), RegisterError> {
        self.device.abandoned.try_some(|key| self.end_registration(key));
        let table = &self.device.regions;
        if table.len() >= table.regions_max() {
            Err(RegisterError::Exhausted(table.regions_max()))
        } else {
            Ok(())
        }
    }
}

impl MemoryRegistrar for VerbsRegistrar {
    fn register(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        // Memory that the CPU has mapped has an address in this process, though the kernel may not be able to resolve it.
        let is_addressed = matches!(memory.kind(), MemoryKind::Host | MemoryKind::Mapped);
        let of_device = !is_addressed;
        let reach = self.device.reach;
        if of_device && !reach.nvidia && !reach.amd {
            return Err(gpudirect::no_peer_memory());
        }
        self.check_room()?;
        let (mr, base) = self.register_mr(memory, self.access_flags(access, purpose));
        if mr.is_null() && of_device {
            return Err(gpudirect::not_by_address(&last_error()));
        }
        if mr.is_null() {
            let source = add_hint(last_error());
            return Err(RegisterError::System { what: "registering memory with the NIC", source });
        }
        self.insert_region(mr, base, memory)
    }

    fn register_exported(
        &self,
        memory: &MemoryRange,
        exported: ExportedDmaBuf<'_>,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        if !self.device.reach.dmabuf {
            return Err(gpudirect::no_dmabufs());
        }
        self.check_room()?;
        let made = self.make_exported(memory, exported, self.access_flags(access, purpose));
        let (mr, base) = made.ok_or_else(gpudirect::no_dmabufs)?;
        if mr.is_null() {
            Err(gpudirect::not_as_dmabuf(&last_error()))
        } else {
            self.insert_region(mr, base, memory)
        }
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.device.abandoned.try_some(|key| self.end_registration(key));
        self.end_registration(key)
    }

    fn abandon(&self, key: LocalKey) {
        if let Err(DeregisterError::InUse { .. }) = self.end_registration(key) {
            // If the list is full, the region stays registered until the device is closed.
            self.device.abandoned.keep_key(key);
        }
    }
}

/// Replaces a system error that does not show its cause by one that names the remedy.
fn add_hint(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            io::Error::other("no more memory may be locked; raise the limit (ulimit -l unlimited)")
        }
        _ => error,
    }
}

/// Returns the key for a request. A key of more than 32 bits belongs to no device; it is mixed into 32 bits so that it does not match the
/// device key that it resembles.
#[inline]
pub(crate) fn device_rkey(key: RemoteKey) -> u32 {
    let above = (key.0 >> 32) as u32;
    (key.0 as u32) ^ above.wrapping_mul(0x9e37_79b1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_with(memory: &MemoryRange) -> (MrTable, LocalKey) {
        let table = MrTable::new().unwrap().with_limit(2);
        let key = table.insert(std::ptr::null_mut(), 0x77, 0x10, memory).unwrap();
        (table, key)
    }

    #[test]
    fn extents_must_lie_inside_their_region() {
        let memory = MemoryRange::heap(100);
        let (table, key) = table_with(&memory);
        let place = |offset, len| table.resolve_extent(RegionExtent { key, offset, len });
        assert_eq!(place(0, 100), Some(Sge { addr: 0x10, length: 100, lkey: 0x77 }));
        assert_eq!(place(99, 1), Some(Sge { addr: 0x10 + 99, length: 1, lkey: 0x77 }));
        assert_eq!(place(100, 0).map(|sge| sge.length), Some(0));
        assert_eq!(place(99, 2), None);
        assert_eq!(place(u64::MAX, 2), None);
        for bit in 0..64 {
            let key = LocalKey(key.0 ^ 1 << bit);
            assert_eq!(table.resolve_extent(RegionExtent { key, offset: 0, len: 1 }), None, "bit {bit}");
        }
    }

    #[test]
    fn table_accepts_regions_up_to_its_limit() {
        let memory = MemoryRange::heap(100);
        let (table, key) = table_with(&memory);
        assert!(table.insert(std::ptr::null_mut(), 1, 0, &memory).is_ok());
        let refused = table.insert(std::ptr::null_mut(), 2, 0, &memory);
        assert!(matches!(refused, Err(RegisterError::Exhausted(2))), "{refused:?}");
        assert_eq!((table.len(), table.regions_max()), (2, 2));
        assert!(table.resolve_extent(RegionExtent { key, offset: 0, len: 1 }).is_some());
    }

    #[test]
    fn long_keys_are_not_truncated() {
        assert_eq!(device_rkey(RemoteKey(0x1234_5678)), 0x1234_5678);
        for bit in 0..64 {
            assert_ne!(device_rkey(RemoteKey(0x1234_5678 ^ 1 << bit)), 0x1234_5678, "bit {bit}");
        }
        assert_ne!(device_rkey(RemoteKey(!0x1234_5678)), 0x1234_5678);
    }
}
