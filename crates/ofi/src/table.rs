//! The regions of a NIC as operations name them: looked up for each operation, without a lock; taken in and let go by the
//! registrars of its rails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use trunkline_fabric::{DeregisterError, Extent, LocalKey, RegisterError};
use trunkline_proto::registrations::EntryId;
use trunkline_proto::reserve::{OutOfMemory, try_filled_with, try_grow};

use crate::cache::Shared;
use crate::mutant::Planted;
use crate::region::{Local, Mr, Place};
use crate::role::{Ctrl, Data};

/// Slots that are made at once.
const CHUNK: usize = 1024;
/// Most regions of a NIC.
pub(crate) const REGIONS_MAX: usize = 64 * CHUNK;

/// A registration of either role, or a part in one.
pub(crate) enum Region {
    /// For payload.
    Data(Mr<Data>),
    /// For payload, by a registration that others may use, too.
    Shared(Shared),
    /// For records.
    Ctrl(Mr<Ctrl>),
}

/// A region as those who post see it. `key` is stored last and withdrawn first.
#[derive(Default)]
struct Slot {
    /// The local key, 0 if there is none.
    key: AtomicU64,
    addr: AtomicUsize,
    len: AtomicU64,
    desc: AtomicPtr<std::ffi::c_void>,
    records: AtomicBool,
}

/// What only registering and deregistering look at.
#[derive(Default)]
struct Live {
    regions: HashMap<u64, Region>,
    /// Of those, what operations of links that have ended still use.
    held: HashMap<u64, Held>,
    free: Vec<u32>,
    made: u32,
    lives: u32,
}

impl Live {
    /// Makes room for one more region, and for its slot and its holders when it leaves.
    fn reserve_one(&mut self) -> Result<(), OutOfMemory> {
        let entries = self.regions.len() + 1;
        let bytes = entries * size_of::<(u64, Region)>();
        self.regions.try_reserve(1).map_err(|_| OutOfMemory { bytes })?;
        let more = (self.made as usize + 1).saturating_sub(self.free.len());
        try_grow(&mut self.free, more)
    }
}

/// How a region is held.
#[derive(Default)]
struct Held {
    /// Operations that use it.
    uses: u32,
    /// Nobody else asks for it any more: it is closed after them.
    abandoned: bool,
}

/// The table. A local key holds the slot's number in its low half and the slot's life in the other.
pub(crate) struct Table {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    live: Mutex<Live>,
    names_the_closed: Planted,
    holds_nothing: Planted,
}

impl Table {
    /// An empty one.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let chunks = try_filled_with(REGIONS_MAX / CHUNK, OnceLock::new)?;
        let names_the_closed = Planted::named("ofi-names-what-was-closed");
        let holds_nothing = Planted::named("ofi-holds-nothing");
        Ok(Self { chunks, live: Mutex::default(), names_the_closed, holds_nothing })
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Regions in it that have registrations of their own.
    pub(crate) fn len(&self) -> usize {
        let is_own = |region: &&Region| !matches!(region, Region::Shared(_));
        self.live().regions.values().filter(is_own).count()
    }

    #[inline]
    fn find(&self, key: LocalKey) -> Option<&Slot> {
        let index = key.0 as u32 as usize;
        let slot = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        (key.0 != 0 && slot.key.load(Ordering::Acquire) == key.0).then_some(slot)
    }

    /// Bytes for an operation with payload; nothing if they are not all in a region for that.
    #[inline]
    pub(crate) fn data(&self, extent: Extent) -> Option<Local<'static, Data>> {
        let slot = self.find(extent.key)?;
        if slot.records.load(Ordering::Relaxed) {
            return None;
        }
        slot.place().local(extent.offset, extent.len)
    }

    /// The same for an operation with a record.
    #[inline]
    pub(crate) fn records(&self, extent: Extent) -> Option<Local<'static, Ctrl>> {
        let slot = self.find(extent.key)?;
        if !slot.records.load(Ordering::Relaxed) {
            return None;
        }
        slot.place().local(extent.offset, extent.len)
    }

    /// A slot for one more region, with all the memory that the region takes in this table until it has left.
    fn take_slot(&self, live: &mut Live) -> Result<u32, RegisterError> {
        live.reserve_one()?;
        if let Some(index) = live.free.pop() {
            return Ok(index);
        }
        if live.made as usize >= REGIONS_MAX {
            return Err(RegisterError::Exhausted(REGIONS_MAX as u32));
        }
        let chunk = &self.chunks[live.made as usize / CHUNK];
        if chunk.get().is_none() {
            // Under the lock, so no other thread has set it.
            let _ = chunk.set(try_filled_with(CHUNK, Slot::default)?);
        }
        live.made += 1;
        Ok(live.made - 1)
    }

    /// Takes a region in; gives it back, with the reason, where there is no place for it.
    pub(crate) fn insert(&self, region: Region) -> Result<LocalKey, (Box<Region>, RegisterError)> {
        let mut live = self.live();
        let index = match self.take_slot(&mut live) {
            Ok(index) => index,
            Err(why) => return Err((Box::new(region), why)),
        };
        let slots = self.chunks[index as usize / CHUNK].get();
        let Some(slot) = slots.and_then(|slots| slots.get(index as usize % CHUNK)) else {
            return Err((Box::new(region), RegisterError::Exhausted(REGIONS_MAX as u32)));
        };
        // Never 0, so that no key is.
        live.lives = live.lives.wrapping_add(1).max(1);
        let key = u64::from(live.lives) << 32 | u64::from(index);
        slot.fill(&region);
        slot.key.store(key, Ordering::Release);
        live.regions.insert(key, region);
        Ok(LocalKey(key))
    }

    /// Nobody names a registration any more that is closed under its users, who still give it back. Looks at all regions.
    pub(crate) fn withdraw(&self, entry: EntryId) {
        if self.names_the_closed.is_on() {
            return;
        }
        for (&key, region) in &self.live().regions {
            if let (Region::Shared(shared), Some(slot)) = (region, self.find(LocalKey(key)))
                && shared.entry() == entry
            {
                slot.key.store(0, Ordering::Release);
            }
        }
    }

    /// Withdraws a region, which the caller then closes. With `others`, those who use the same registration count, too.
    ///
    /// # Errors
    /// [`DeregisterError::Draining`] while operations use it; then nobody can name it any more, and the call may be repeated.
    pub(crate) fn remove(&self, key: LocalKey, others: bool) -> Result<Region, DeregisterError> {
        let mut live = self.live();
        if !live.regions.contains_key(&key.0) {
            return Err(DeregisterError::Unknown);
        }
        self.hide(key);
        if live.is_held(key.0) || others && live.is_entry_held(key.0) {
            return Err(DeregisterError::Draining);
        }
        self.take(&mut live, key).ok_or(DeregisterError::Unknown)
    }

    /// The same for a region whose owner does not ask again: nothing comes back while operations use it, but with the last of
    /// them ([`Table::let_go`]).
    pub(crate) fn abandon(&self, key: LocalKey) -> Option<Region> {
        let mut live = self.live();
        self.hide(key);
        if let Some(held) = live.held.get_mut(&key.0) {
            held.abandoned = true;
            return None;
        }
        self.take(&mut live, key)
    }

    /// An operation goes on with a region although its link has ended.
    pub(crate) fn hold(&self, key: LocalKey) {
        let mut live = self.live();
        if live.regions.contains_key(&key.0) && !self.holds_nothing.is_on() {
            live.held.entry(key.0).or_default().uses += 1;
        }
    }

    /// It has ended: gives back what is to be closed with it.
    pub(crate) fn let_go(&self, key: LocalKey) -> Option<Region> {
        let mut live = self.live();
        let held = live.held.get_mut(&key.0)?;
        held.uses -= 1;
        if held.uses > 0 {
            return None;
        }
        let abandoned = held.abandoned;
        live.held.remove(&key.0);
        if abandoned { self.take(&mut live, key) } else { None }
    }

    /// What is still held is never closed. Whether there is any.
    pub(crate) fn forget_held(&self) -> bool {
        let mut live = self.live();
        let held: Vec<u64> = live.held.drain().map(|(key, _)| key).collect();
        let any = !held.is_empty();
        held.into_iter().filter_map(|key| live.regions.remove(&key)).for_each(std::mem::forget);
        any
    }

    /// Nobody can name it any more.
    fn hide(&self, key: LocalKey) {
        if let Some(slot) = self.find(key) {
            slot.key.store(0, Ordering::Release);
        }
    }

    fn take(&self, live: &mut Live, key: LocalKey) -> Option<Region> {
        let region = live.regions.remove(&key.0)?;
        self.hide(key);
        live.free.push(key.0 as u32);
        Some(region)
    }
}

impl Live {
    fn is_held(&self, key: u64) -> bool {
        self.held.contains_key(&key)
    }

    fn entry(&self, key: u64) -> Option<EntryId> {
        match self.regions.get(&key)? {
            Region::Shared(shared) => Some(shared.entry()),
            Region::Data(_) | Region::Ctrl(_) => None,
        }
    }

    /// Whether anybody's operations use the registration of a region.
    fn is_entry_held(&self, key: u64) -> bool {
        let entry = self.entry(key);
        entry.is_some() && self.held.keys().any(|&other| self.entry(other) == entry)
    }
}

impl Slot {
    fn fill(&self, region: &Region) {
        let (addr, len, desc, records) = match region {
            Region::Data(mr) => {
                let Place { addr, len, desc, .. } = mr.place();
                (addr, len, desc, false)
            }
            Region::Shared(shared) => {
                let (bytes, desc) = shared.local.parts();
                (bytes.iov_base.addr(), bytes.iov_len as u64, desc, false)
            }
            Region::Ctrl(mr) => {
                let Place { addr, len, desc, .. } = mr.place();
                (addr, len, desc, true)
            }
        };
        self.addr.store(addr, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.desc.store(desc, Ordering::Relaxed);
        self.records.store(records, Ordering::Relaxed);
    }

    #[inline]
    fn place<R: crate::role::Role>(&self) -> Place<R> {
        let load = Ordering::Relaxed;
        Place::from_parts(self.addr.load(load), self.len.load(load), self.desc.load(load))
    }
}
