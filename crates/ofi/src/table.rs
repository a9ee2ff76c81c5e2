//! The regions of a NIC by local key: read by each operation, without a lock; inserted and removed by the registrars of its rails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use trunkline_fabric::{DeregisterError, LocalKey, RegionExtent, RegisterError};
use trunkline_proto::registrations::EntryId;
use trunkline_proto::reserve::{OutOfMemory, try_filled_with, try_grow};

use crate::cache::SharedRegistration;
use crate::region::{LocalSlice, MrEnabled, MrExtent};
use crate::role::{ControlTraffic, PayloadTraffic};

/// Number of slots allocated at a time.
const CHUNK: usize = 1024;
/// The maximum number of regions of a NIC.
pub(crate) const REGIONS_MAX: usize = 64 * CHUNK;

/// A registration of either role, or a share of one.
pub(crate) enum OfiRegion {
    /// For payload.
    Data(MrEnabled<PayloadTraffic>),
    /// For payload, by a registration that others may share.
    Shared(SharedRegistration),
    /// For records.
    Ctrl(MrEnabled<ControlTraffic>),
}

/// A region as read by posting threads. `key` is stored last and cleared first, so that a thread never uses a partial entry.
#[derive(Default)]
struct OfiRegionSlot {
    /// The local key, 0 if the slot is free.
    key: AtomicU64,
    addr: AtomicUsize,
    len: AtomicU64,
    desc: AtomicPtr<std::ffi::c_void>,
    records: AtomicBool,
}

/// State that only registering and deregistering access.
#[derive(Default)]
struct OfiLiveRegions {
    regions: HashMap<u64, OfiRegion>,
    /// Regions that operations of ended links still use.
    held: HashMap<u64, RegionHold>,
    free: Vec<u32>,
    made: u32,
    lives: u32,
}

impl OfiLiveRegions {
    /// Makes room for one more region, and for its slot and its holders when it leaves.
    fn reserve_one(&mut self) -> Result<(), OutOfMemory> {
        let entries = self.regions.len() + 1;
        let bytes = entries * size_of::<(u64, OfiRegion)>();
        self.regions.try_reserve(1).map_err(|_| OutOfMemory { bytes })?;
        let more = (self.made as usize + 1).saturating_sub(self.free.len());
        try_grow(&mut self.free, more)
    }
}

/// The holders of a region.
#[derive(Default)]
struct RegionHold {
    /// Number of operations that use it.
    uses: u32,
    /// Whether its owner has abandoned it: it is closed with the last operation.
    abandoned: bool,
}

/// The table. A local key contains the slot's index in its low half and the slot's generation in its high half.
pub(crate) struct OfiRegionTable {
    chunks: Box<[OnceLock<Box<[OfiRegionSlot]>>]>,
    live: Mutex<OfiLiveRegions>,
}

impl OfiRegionTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let chunks = try_filled_with(REGIONS_MAX / CHUNK, OnceLock::new)?;
        Ok(Self { chunks, live: Mutex::default() })
    }

    fn lock_live(&self) -> MutexGuard<'_, OfiLiveRegions> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of regions with registrations of their own.
    pub(crate) fn len(&self) -> usize {
        let is_own = |region: &&OfiRegion| !matches!(region, OfiRegion::Shared(_));
        self.lock_live().regions.values().filter(is_own).count()
    }

    #[inline]
    fn find_slot(&self, key: LocalKey) -> Option<&OfiRegionSlot> {
        let index = key.0 as u32 as usize;
        let slot = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        // Acquire pairs with the release in `insert`, so that the other fields belong to this key.
        (key.0 != 0 && slot.key.load(Ordering::Acquire) == key.0).then_some(slot)
    }

    /// Returns bytes for a payload operation; `None` if they are not all in a region for payload.
    #[inline]
    pub(crate) fn data_slice(&self, extent: RegionExtent) -> Option<LocalSlice<'static, PayloadTraffic>> {
        let slot = self.find_slot(extent.key)?;
        if slot.records.load(Ordering::Relaxed) {
            return None;
        }
        slot.load_extent().local_slice(extent.offset, extent.len)
    }

    /// Returns bytes for an operation with a record.
    #[inline]
    pub(crate) fn record_slice(&self, extent: RegionExtent) -> Option<LocalSlice<'static, ControlTraffic>> {
        let slot = self.find_slot(extent.key)?;
        if !slot.records.load(Ordering::Relaxed) {
            return None;
        }
        slot.load_extent().local_slice(extent.offset, extent.len)
    }

    /// Takes a slot for one more region, and reserves the memory that the region needs in this table until it is removed.
    fn take_slot(&self, live: &mut OfiLiveRegions) -> Result<u32, RegisterError> {
        // All memory is reserved now, so that removing a region never allocates.
        live.reserve_one()?;
        if let Some(index) = live.free.pop() {
            return Ok(index);
        }
        if live.made as usize >= REGIONS_MAX {
            return Err(RegisterError::Exhausted(REGIONS_MAX as u32));
        }
        // Chunks are allocated on demand, because most NICs have few regions.
        let chunk = &self.chunks[live.made as usize / CHUNK];
        if chunk.get().is_none() {
            // Cannot fail: the lock excludes other threads that could set it.
            let _ = chunk.set(try_filled_with(CHUNK, OfiRegionSlot::default)?);
        }
        live.made += 1;
        Ok(live.made - 1)
    }

    /// Inserts a region; returns it with the reason if there is no slot.
    pub(crate) fn insert(&self, region: OfiRegion) -> Result<LocalKey, (Box<OfiRegion>, RegisterError)> {
        let mut live = self.lock_live();
        let index = match self.take_slot(&mut live) {
            Ok(index) => index,
            Err(why) => return Err((Box::new(region), why)),
        };
        let slots = self.chunks[index as usize / CHUNK].get();
        let Some(slot) = slots.and_then(|slots| slots.get(index as usize % CHUNK)) else {
            return Err((Box::new(region), RegisterError::Exhausted(REGIONS_MAX as u32)));
        };
        // Never 0, because key 0 marks a free slot.
        live.lives = live.lives.wrapping_add(1).max(1);
        let key = u64::from(live.lives) << 32 | u64::from(index);
        // The key is stored last, because readers check it before they use the other fields.
        slot.store_region(&region);
        slot.key.store(key, Ordering::Release);
        live.regions.insert(key, region);
        Ok(LocalKey(key))
    }

    /// Hides all regions of a registration that is closed while it has users; they still have to release it. Scans all regions.
    pub(crate) fn withdraw_entry(&self, entry: EntryId) {
        for (&key, region) in &self.lock_live().regions {
            if let (OfiRegion::Shared(shared), Some(slot)) = (region, self.find_slot(LocalKey(key)))
                && shared.entry_id() == entry
            {
                slot.key.store(0, Ordering::Release);
            }
        }
    }

    /// Removes a region, which the caller then closes. With `others`, operations of all users of the same registration count.
    ///
    /// # Errors
    /// [`DeregisterError::Draining`] while operations use it. The region is then hidden from new operations, and the call may be repeated.
    pub(crate) fn remove(&self, key: LocalKey, others: bool) -> Result<OfiRegion, DeregisterError> {
        let mut live = self.lock_live();
        if !live.regions.contains_key(&key.0) {
            return Err(DeregisterError::Unknown);
        }
        // Hidden first, so that no new operation starts while older ones drain.
        self.hide_slot(key);
        if live.is_held(key.0) || others && live.is_entry_held(key.0) {
            return Err(DeregisterError::Draining);
        }
        self.take_region(&mut live, key).ok_or(DeregisterError::Unknown)
    }

    /// Removes a region that its owner has abandoned. While operations use it, the last of them returns it
    /// ([`OfiRegionTable::let_go`]).
    pub(crate) fn abandon_region(&self, key: LocalKey) -> Option<OfiRegion> {
        let mut live = self.lock_live();
        self.hide_slot(key);
        if let Some(held) = live.held.get_mut(&key.0) {
            held.abandoned = true;
            return None;
        }
        self.take_region(&mut live, key)
    }

    /// Records that an operation outlives its link and still uses a region.
    pub(crate) fn hold_region(&self, key: LocalKey) {
        let mut live = self.lock_live();
        if live.regions.contains_key(&key.0) {
            live.held.entry(key.0).or_default().uses += 1;
        }
    }

    /// Records the end of such an operation; returns the region if it is to be closed now.
    pub(crate) fn let_go(&self, key: LocalKey) -> Option<OfiRegion> {
        let mut live = self.lock_live();
        let held = live.held.get_mut(&key.0)?;
        held.uses -= 1;
        if held.uses > 0 {
            return None;
        }
        let abandoned = held.abandoned;
        live.held.remove(&key.0);
        if abandoned { self.take_region(&mut live, key) } else { None }
    }

    /// Leaks all regions in use; returns whether there were any.
    pub(crate) fn forget_held(&self) -> bool {
        let mut live = self.lock_live();
        let held: Vec<u64> = live.held.drain().map(|(key, _)| key).collect();
        let any = !held.is_empty();
        // Leaked, because closing a registration in use would free memory that the NIC still accesses.
        held.into_iter().filter_map(|key| live.regions.remove(&key)).for_each(std::mem::forget);
        any
    }

    /// Hides a slot from new operations.
    fn hide_slot(&self, key: LocalKey) {
        if let Some(slot) = self.find_slot(key) {
            slot.key.store(0, Ordering::Release);
        }
    }

    fn take_region(&self, live: &mut OfiLiveRegions, key: LocalKey) -> Option<OfiRegion> {
        let region = live.regions.remove(&key.0)?;
        self.hide_slot(key);
        live.free.push(key.0 as u32);
        Some(region)
    }
}

impl OfiLiveRegions {
    fn is_held(&self, key: u64) -> bool {
        self.held.contains_key(&key)
    }

    fn entry_id(&self, key: u64) -> Option<EntryId> {
        match self.regions.get(&key)? {
            OfiRegion::Shared(shared) => Some(shared.entry_id()),
            OfiRegion::Data(_) | OfiRegion::Ctrl(_) => None,
        }
    }

    /// Returns whether operations of any user hold the registration of a region.
    fn is_entry_held(&self, key: u64) -> bool {
        let entry = self.entry_id(key);
        entry.is_some() && self.held.keys().any(|&other| self.entry_id(other) == entry)
    }
}

impl OfiRegionSlot {
    fn store_region(&self, region: &OfiRegion) {
        let (addr, len, desc, records) = match region {
            OfiRegion::Data(mr) => {
                let MrExtent { addr, len, desc, .. } = mr.whole_extent();
                (addr, len, desc, false)
            }
            OfiRegion::Shared(shared) => {
                let (bytes, desc) = shared.local.iovec_parts();
                (bytes.iov_base.addr(), bytes.iov_len as u64, desc, false)
            }
            OfiRegion::Ctrl(mr) => {
                let MrExtent { addr, len, desc, .. } = mr.whole_extent();
                (addr, len, desc, true)
            }
        };
        self.addr.store(addr, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.desc.store(desc, Ordering::Relaxed);
        self.records.store(records, Ordering::Relaxed);
    }

    #[inline]
    fn load_extent<R: crate::role::EndpointRole>(&self) -> MrExtent<R> {
        let load = Ordering::Relaxed;
        MrExtent::from_parts(self.addr.load(load), self.len.load(load), self.desc.load(load))
    }
}
