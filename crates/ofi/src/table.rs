//! The regions of a NIC as operations name them: looked up for each operation, without a lock; taken in and let go by the
//! registrars of its rails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use trunkline_fabric::{Extent, LocalKey};
use trunkline_proto::registrations::EntryId;

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
    free: Vec<u32>,
    made: u32,
    lives: u32,
}

/// The table. A local key holds the slot's number in its low half and the slot's life in the other.
pub(crate) struct Table {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    live: Mutex<Live>,
    names_the_closed: Planted,
}

impl Table {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let chunks = std::iter::repeat_with(OnceLock::new).take(REGIONS_MAX / CHUNK).collect();
        let names_the_closed = Planted::named("ofi-names-what-was-closed");
        Self { chunks, live: Mutex::default(), names_the_closed }
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

    /// Takes a region in; gives it back if the table is full.
    pub(crate) fn insert(&self, region: Region) -> Result<LocalKey, Box<Region>> {
        let mut live = self.live();
        let index = match live.free.pop() {
            Some(index) => index,
            None if (live.made as usize) < REGIONS_MAX => {
                live.made += 1;
                live.made - 1
            }
            None => return Err(Box::new(region)),
        };
        let chunk = &self.chunks[index as usize / CHUNK];
        let slots = chunk.get_or_init(|| std::iter::repeat_with(Slot::default).take(CHUNK).collect());
        let slot = &slots[index as usize % CHUNK];
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

    /// Withdraws a region, which the caller then closes.
    pub(crate) fn remove(&self, key: LocalKey) -> Option<Region> {
        let mut live = self.live();
        let region = live.regions.remove(&key.0)?;
        if let Some(slot) = self.find(key) {
            slot.key.store(0, Ordering::Release);
        }
        live.free.push(key.0 as u32);
        Some(region)
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
