//! The memory of a job that others reach: heaps, named by number. Words of it are read and written as atomics by whoever serves.

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

/// How the CPU comes by words of memory that it cannot touch: by a mapping of a GPU's memory, or by copies. One thread at a time asks,
/// the one that serves; who changes such a word by another way may do so in between.
pub trait WordAccess: fmt::Debug + Send + Sync {
    /// The word at `offset` bytes, which is inside and aligned; one of 4 bytes has none beyond. `None` if it cannot be had.
    fn load(&self, offset: u64, width: WordWidth) -> Option<u64>;

    /// Changes it, and makes that visible to the device. Whether it was.
    fn store(&self, offset: u64, width: WordWidth, value: u64) -> bool;

    /// Changes words of eight bytes, each visible to the device before the next. Whether all were.
    fn store_all(&self, words: &[(u64, u64)]) -> bool {
        words.iter().all(|(offset, value)| self.store(*offset, WordWidth::Eight, *value))
    }

    /// Changes it as `f` says, if it returns a value; returns the old word. No other thread of this process changes it meanwhile.
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

/// Memory that becomes a heap.
#[derive(Clone, Debug)]
pub struct HeapMemory {
    /// The bytes.
    pub memory: MemoryRange,
    /// The dma-buf that its driver exported it as, and where its first byte is in that: NICs that know such take it by this.
    pub exported: Option<(Arc<OwnedFd>, u64)>,
    /// How the CPU comes by its words, if the CPU does not touch it.
    pub cells: Option<Arc<dyn WordAccess>>,
}

impl From<MemoryRange> for HeapMemory {
    fn from(memory: MemoryRange) -> Self {
        Self { memory, exported: None, cells: None }
    }
}

/// A heap, registered on the rails of one lane.
#[derive(Debug)]
pub(super) struct RegisteredHeap {
    /// By rail.
    mrs: Vec<RegisteredRegion<Shared>>,
    cells: Option<Arc<dyn WordAccess>>,
}

/// The registrars of one lane's rails: registration needs no lane, and may take long.
pub(super) struct RailRegistrars {
    /// By rail, with whether it takes dma-bufs.
    all: Vec<(Arc<dyn MemoryRegistrar>, bool)>,
}

impl RailRegistrars {
    /// Those of these rails.
    pub(super) fn from_rails<R: Rail>(rails: &[R]) -> Self {
        let of = |rail: &R| (Rail::registrar(rail), rail.caps().devices.dmabuf);
        Self { all: rails.iter().map(of).collect() }
    }
}

impl RegisteredHeap {
    /// Registers memory on each rail, with these rights for peers. It is called without a lane, as NICs that reach GPUs ask the driver,
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

    /// Its registration on a rail.
    #[inline]
    pub(super) fn registration_on(&self, rail: usize) -> Option<&RegisteredRegion<Shared>> {
        self.mrs.get(rail)
    }

    /// As peers are told of it that come over a rail.
    pub(super) fn descriptor_on(&self, rail: usize) -> Option<Told> {
        let mr = self.registration_on(rail)?;
        let keys = mr.region_keys();
        let region = RemoteRegion { key: keys.remote.0, addr: keys.remote_base };
        Some(Told { len: mr.memory().len() as u64, region })
    }

    /// As peers are told of a number that no heap has.
    pub(super) const NONE: Told = Told { len: 0, region: RemoteRegion { key: 0, addr: 0 } };

    /// Its memory.
    pub(super) fn memory(&self) -> Option<&MemoryRange> {
        self.mrs.first().map(RegisteredRegion::memory)
    }
}

/// Changes a word as `f` says, if it says anything, with nobody in between. What it was; `None` if there is no such word.
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
