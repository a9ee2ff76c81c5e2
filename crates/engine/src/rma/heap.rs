//! The memory of a job that other members access: heaps, named by number. The serving thread reads and writes their words for
//! atomics and signals.

use std::fmt;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use trunkline_fabric::{
    AccessRights, ExportedDmaBuf, HeapRole as Shared, MemoryRegistrar, Rail, RegisterError, RegisteredRegion,
};
use trunkline_mem::{MappedMemory, MemoryRange};
use trunkline_proto::wire::dial::RemoteHeap as Told;
use trunkline_proto::wire::frame::RemoteRegion;
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

/// CPU access to words of memory that the CPU does not touch directly: by a mapping of a GPU's memory, or by copies. Only the
/// serving thread calls this, one thread at a time. Writes by any other means may happen in between.
pub trait WordAccess: fmt::Debug + Send + Sync {
    /// Loads the word at `offset` bytes, which is in range and aligned; a load of 4 bytes returns no others. `None` if the access
    /// fails.
    fn load(&self, offset: u64, width: WordWidth) -> Option<u64>;

    /// Stores a word, and makes it visible to the device. Returns whether that succeeded.
    fn store(&self, offset: u64, width: WordWidth, value: u64) -> bool;

    /// Stores words of eight bytes, each visible to the device before the next. Returns whether all succeeded.
    fn store_all(&self, words: &[(u64, u64)]) -> bool {
        words.iter().all(|(offset, value)| self.store(*offset, WordWidth::Eight, *value))
    }

    /// Replaces a word by the value that `f` returns, if any; returns the old word. No other thread of this process changes it
    /// meanwhile.
    fn update(&self, offset: u64, width: WordWidth, f: &dyn Fn(u64) -> Option<u64>) -> Option<u64> {
        let old = self.load(offset, width)?;
        let is_stored = f(old).is_none_or(|new| self.store(offset, width, new));
        is_stored.then_some(old)
    }
}

/// Words that the CPU has mapped write-combined: loaded and stored by plain instructions, with a fence on either side of a store.
impl WordAccess for MappedMemory {
    fn load(&self, offset: u64, width: WordWidth) -> Option<u64> {
        match width {
            WordWidth::Eight => Self::load(self, offset).ok(),
            WordWidth::Four => self.load_half(offset).ok().map(u64::from),
        }
    }

    fn store(&self, offset: u64, width: WordWidth, value: u64) -> bool {
        self.fence();
        let stored = match width {
            WordWidth::Eight => Self::store(self, offset, value),
            WordWidth::Four => self.store_half(offset, value as u32),
        };
        self.fence();
        stored.is_ok()
    }

    fn update(&self, offset: u64, width: WordWidth, f: &dyn Fn(u64) -> Option<u64>) -> Option<u64> {
        match width {
            WordWidth::Eight => Self::fetch_update(self, offset, f).ok(),
            WordWidth::Four => {
                let f = |old: u32| f(old.into()).map(|new| new as u32);
                self.update_half(offset, f).ok().map(u64::from)
            }
        }
    }
}

/// Memory that is to become a heap.
#[derive(Clone, Debug)]
pub struct HeapMemory {
    /// The bytes.
    pub memory: MemoryRange,
    /// The dma-buf that its driver exported, and the offset of the first byte in it: NICs that support dma-bufs register it by
    /// this.
    pub exported: Option<(Arc<OwnedFd>, u64)>,
    /// Access to its words, if the CPU does not touch the memory directly.
    pub cells: Option<Arc<dyn WordAccess>>,
}

impl From<MemoryRange> for HeapMemory {
    fn from(memory: MemoryRange) -> Self {
        Self { memory, exported: None, cells: None }
    }
}

/// A heap, registered on the rails of the service or of one context.
#[derive(Debug)]
pub(super) struct RegisteredHeap {
    /// By rail.
    mrs: Vec<RegisteredRegion<Shared>>,
    cells: Option<Arc<dyn WordAccess>>,
}

/// The registrars of the rails of the service or of one context. They are copied out because registration needs no
/// lock, and may take long.
pub(super) struct RailRegistrars {
    /// By rail, with whether it supports dma-bufs.
    all: Vec<(Arc<dyn MemoryRegistrar>, bool)>,
}

impl RailRegistrars {
    /// Returns the registrars of these rails.
    pub(super) fn from_rails<R: Rail>(rails: &[R]) -> Self {
        let of = |rail: &R| (Rail::registrar(rail), rail.caps().devices.dmabuf);
        Self { all: rails.iter().map(of).collect() }
    }
}

impl RegisteredHeap {
    /// Registers memory on each rail, with these rights for peers. Called without a lock: NICs that reach GPUs call the driver,
    /// which may wait for a kernel.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(super) fn new(
        rails: &RailRegistrars,
        of: &HeapMemory,
        access: AccessRights,
    ) -> Result<Self, RegisterError> {
        let register = |(registrar, takes_dmabufs): &(Arc<dyn MemoryRegistrar>, bool)| {
            let memory = of.memory.clone();
            match &of.exported {
                Some((fd, offset)) if *takes_dmabufs => {
                    let exported = ExportedDmaBuf { fd: fd.as_fd(), offset: *offset };
                    RegisteredRegion::register_exported(registrar, memory, exported, access)
                }
                _ => RegisteredRegion::register(registrar, memory, access),
            }
        };
        let mrs = rails.all.iter().map(register).collect::<Result<_, _>>()?;
        let mapped = || of.memory.as_mapped().map(|mapped| Arc::new(mapped) as Arc<dyn WordAccess>);
        Ok(Self { mrs, cells: of.cells.clone().or_else(mapped) })
    }

    /// Returns its registration on a rail.
    #[inline]
    pub(super) fn registration_on(&self, rail: usize) -> Option<&RegisteredRegion<Shared>> {
        self.mrs.get(rail)
    }

    /// Returns the description that peers on a rail receive.
    pub(super) fn descriptor_on(&self, rail: usize) -> Option<Told> {
        let mr = self.registration_on(rail)?;
        let keys = mr.region_keys();
        let region = RemoteRegion { key: keys.remote.0, addr: keys.remote_base };
        Some(Told { len: mr.memory().len() as u64, region })
    }

    /// The description that peers receive of a number without a heap.
    pub(super) const NONE: Told = Told { len: 0, region: RemoteRegion { key: 0, addr: 0 } };

    /// Returns its memory.
    pub(super) fn memory(&self) -> Option<&MemoryRange> {
        self.mrs.first().map(RegisteredRegion::memory)
    }
}

/// Replaces a word atomically by the value that `f` returns, if any. Returns the old value; `None` if the word does not exist.
pub(super) fn update_word(
    heaps: &[Option<RegisteredHeap>],
    word: SymmetricWord,
    f: impl Fn(u64) -> Option<u64>,
) -> Option<u64> {
    let heap = heaps.get(usize::from(word.heap()))?.as_ref()?;
    let memory = heap.memory()?;
    if let Some(cells) = &heap.cells {
        memory.checked_address(word.offset(), word.width().byte_len()).ok()?;
        return cells.update(word.offset(), word.width(), &f);
    }
    match word.width() {
        WordWidth::Eight => memory.fetch_update(word.offset(), f).ok(),
        WordWidth::Four => {
            let f = |old: u32| f(old.into()).map(|new| new as u32);
            memory.update_half(word.offset(), f).ok().map(u64::from)
        }
    }
}
