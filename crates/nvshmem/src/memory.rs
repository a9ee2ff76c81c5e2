//! Memory of this PE that NVSHMEM registers, of the host or of a GPU, and the ways to access it. NICs access it for
//! puts and gets; the CPU executes atomics and signals on it, and stores fetched values. Called by `abi`; registers
//! memory with the engine.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use trunkline_engine::rma::{HeapMemory, HeapRange, RmaError, WordAccess};
use trunkline_fabric::LogLevel;
use trunkline_mem::gpu::{
    DmaBufExport, DmaBufMapping, GdrCopy, GpuCopyStream, PointerKind, VendorDriver, VendorDrivers,
};
use trunkline_mem::{MappedMemory, MemoryKind, MemoryRange, fence_mapped_stores};
use trunkline_proto::limits::RMA_HEAPS_MAX;
use trunkline_proto::reserve::try_filled_with;
use trunkline_proto::wire::memory_handle::{MemoryHandle, RegisteredMemory};
use trunkline_proto::wire::rma::word::WordWidth;
use trunkline_runtime::{OneSided, StageLayout};

use crate::error::{CallError, Result};
use crate::plugin::StderrLog;

/// Bytes of a lane's stage.
const STAGE: u64 = 64 << 10;
/// The number of the heap that contains the stages.
const STAGES: u8 = 0;

/// The ways in which memory of a GPU can be accessed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GpuReach {
    /// Whether all NICs in use reach it.
    pub(crate) nic: bool,
    /// Whether one of these NICs accepts dma-bufs.
    pub(crate) dmabuf: bool,
    /// Whether mappings by GDRCopy are permitted.
    pub(crate) gdrcopy: bool,
}

/// The CPU's access to words of registered memory.
#[derive(Clone, Debug)]
enum WordView {
    /// Loads and stores: memory of the host.
    Touched(MemoryRange),
    /// A write-combined mapping.
    Mapped(MappedMemory),
    /// Copies by the driver.
    Copied(Arc<dyn WordAccess>),
}

/// A place in registered memory, for words that this PE writes itself.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredPlace {
    view: WordView,
    offset: u64,
}

impl RegisteredPlace {
    /// Writes a word at an offset from the place. Other threads may see it before words that were written since the
    /// last [`RegisteredPlace::publish_words`]. Returns whether the memory has such a word.
    pub(crate) fn store_word(&self, at: u64, width: WordWidth, value: u64) -> bool {
        let offset = self.offset + at;
        match (&self.view, width) {
            (WordView::Touched(memory), WordWidth::Eight) => memory.store(offset, value).is_ok(),
            (WordView::Touched(memory), WordWidth::Four) => memory
                .atomic_half_word(offset)
                .map(|half| half.store((value as u32).to_le(), Ordering::Release))
                .is_ok(),
            (WordView::Mapped(mapped), WordWidth::Eight) => mapped.store(offset, value).is_ok(),
            (WordView::Mapped(mapped), WordWidth::Four) => mapped.store_half(offset, value as u32).is_ok(),
            (WordView::Copied(cells), width) => cells.store(offset, width, value),
        }
    }

    /// Writes words at offsets from the place by copies, each visible before the next, and waits once for all of
    /// them. Returns `None`, without writing, if this memory is not accessed by copies.
    pub(crate) fn store_copied(&self, words: &[(u64, u64)]) -> Option<bool> {
        let WordView::Copied(cells) = &self.view else { return None };
        let words: Vec<(u64, u64)> = words.iter().map(|(at, value)| (self.offset + at, *value)).collect();
        Some(cells.store_all(&words))
    }

    /// Makes all written words visible before later ones.
    pub(crate) fn publish_words(&self) {
        match &self.view {
            WordView::Mapped(mapped) => mapped.fence(),
            // Stores to host memory keep their order, and copies were waited for.
            WordView::Touched(_) | WordView::Copied(_) => {}
        }
    }

    /// Returns a place in memory that is accessed by copies.
    #[cfg(test)]
    pub(crate) fn in_cells(cells: Arc<dyn WordAccess>, offset: u64) -> Self {
        Self { view: WordView::Copied(cells), offset }
    }

    /// Returns a place in memory with a write-combined mapping.
    #[cfg(test)]
    pub(crate) fn in_mapping(mapped: MappedMemory, offset: u64) -> Self {
        Self { view: WordView::Mapped(mapped), offset }
    }
}

/// The registered memory of this PE.
pub(crate) struct MemoryTable {
    gpus: VendorDrivers,
    ways: GpuReach,
    /// GDRCopy, or the reason why it is not used.
    gdr: std::result::Result<Arc<GdrCopy>, String>,
    /// The registrations, by heap number.
    known: Box<[MemoryEntry]>,
    /// The number of registrations so far.
    uses: AtomicU32,
    stages: MemoryRange,
    /// Whether a software NIC accesses a mapping.
    works_on_mappings: AtomicBool,
    log: StderrLog,
    /// Whether the user was warned that the driver copies words, and that the user's copies may be late.
    warned_of_copies: AtomicBool,
    warned_of_late_copies: AtomicBool,
}

/// A heap number and its registration.
#[derive(Default)]
pub(crate) struct MemoryEntry {
    /// The use count of the number; 0 if it has no registration.
    generation: AtomicU32,
    view: RwLock<Option<WordView>>,
}

impl MemoryEntry {
    fn is_generation(&self, generation: u32) -> bool {
        self.generation.load(Ordering::Acquire) == generation
    }

    fn set_view(&self, generation: u32, view: Option<WordView>) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = view;
        self.generation.store(generation, Ordering::Release);
    }
}

impl MemoryTable {
    /// Registers the stages of two roles.
    ///
    /// # Errors
    /// The engine cannot register them.
    pub(crate) fn new(
        network: &OneSided,
        gpus: VendorDrivers,
        ways: GpuReach,
        log: StderrLog,
    ) -> Result<Self> {
        let stages = MemoryRange::try_heap(2 * STAGE as usize)?;
        let number = network.add_heap(stages.clone())?;
        debug_assert_eq!(number, STAGES, "the stage is the first registration");
        let gdr = match (gpus.open_drivers().is_empty(), ways.gdrcopy) {
            (true, _) => Err("this process uses no GPU".to_owned()),
            (_, false) => Err("NVSHMEM_DISABLE_GDRCOPY is set".to_owned()),
            (false, true) => GdrCopy::open().map(Arc::new).map_err(|missing| missing.to_string()),
        };
        let known = try_filled_with(RMA_HEAPS_MAX, MemoryEntry::default)?;
        let (uses, [warned_of_copies, warned_of_late_copies]) = (AtomicU32::new(0), Default::default());
        let works_on_mappings = AtomicBool::new(false);
        Ok(Self {
            gpus,
            ways,
            gdr,
            known,
            uses,
            stages,
            works_on_mappings,
            log,
            warned_of_copies,
            warned_of_late_copies,
        })
    }

    /// Returns the stage of a role.
    pub(crate) fn context_stage(&self, lane: u64) -> StageLayout {
        let range = HeapRange { heap: STAGES, offset: lane * STAGE, len: STAGE };
        StageLayout { memory: self.stages.clone(), range, put_piece: STAGE / 2, get_piece: STAGE }
    }

    /// Returns whether an address belongs to a GPU's own memory.
    ///
    /// # Errors
    /// The driver cannot identify the address.
    pub(crate) fn is_of_gpu(&self, addr: usize) -> Result<bool> {
        if self.gpus.open_drivers().is_empty() {
            return Ok(false);
        }
        Ok(matches!(self.gpus.query_pointer(addr)?.1.kind, PointerKind::Device { .. }))
    }

    /// Registers `len` bytes at `addr`, which NVSHMEM addresses as `base`. `name` converts them to a range of memory.
    ///
    /// # Errors
    /// Neither a NIC nor the CPU can access them, or all heap numbers are in use.
    pub(crate) fn register(
        &self,
        network: &OneSided,
        base: usize,
        addr: usize,
        len: usize,
        name: impl Fn(MemoryKind) -> MemoryRange,
    ) -> Result<MemoryHandle> {
        if addr == 0 || len == 0 || addr.checked_add(len).is_none() || base.checked_add(len).is_none() {
            return Err(CallError::Argument("the memory to register is empty, or exceeds the address space"));
        }
        let (gpu, pointer) = self.gpus.query_pointer(addr)?;
        let (heap, view) = match (pointer.kind, gpu) {
            (PointerKind::Device { device, .. }, Some(gpu)) => {
                self.of_device(addr, len, gpu, device, name(MemoryKind::Device(device)))?
            }
            (PointerKind::Managed { .. }, _) => {
                return Err(CallError::Unsupported(
                    "managed memory moves between host and GPU, where no NIC finds it; allocate it on the GPU",
                ));
            }
            _ => {
                let memory = name(MemoryKind::Host);
                (memory.clone().into(), WordView::Touched(memory))
            }
        };
        let number = network.add_heap(heap).map_err(|error| match error {
            RmaError::Exhausted { limit, .. } => CallError::Full(limit - 1),
            other => other.into(),
        })?;
        // Wraps after 2^32 registrations of one process.
        let generation = self.uses.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let told = network.heap_descriptors(number)?;
        self.known[usize::from(number)].set_view(generation, Some(view));
        let memory = RegisteredMemory { heap: number, generation, base: base as u64, len: len as u64 };
        Ok(MemoryHandle { memory, rails: told.into_iter().map(|heap| heap.region).collect() })
    }

    /// Returns memory of a GPU as a heap of the engine, with the CPU's access to its words.
    fn of_device(
        &self,
        addr: usize,
        len: usize,
        gpu: &VendorDriver,
        device: u32,
        memory: MemoryRange,
    ) -> Result<(HeapMemory, WordView)> {
        // Without synchronous copies, a NIC may send bytes that a copy of the user has not written yet.
        if !gpu.sync_copies(addr)? {
            self.warn_once(&self.warned_of_late_copies, || LATE_COPIES.to_owned());
        }
        let mapped = match &self.gdr {
            Ok(gdr) => gdr.map_memory(addr, len).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        if !self.ways.nic {
            // The NIC is software, and copies from and to the mapping.
            let nic = "no NIC in use reaches it";
            let mapped = mapped.map_err(|mapping| CallError::NoWay { nic, mapping })?;
            self.works_on_mappings.store(true, Ordering::Relaxed);
            return Ok((mapped.to_memory().into(), WordView::Mapped(mapped)));
        }
        let exported = if self.ways.dmabuf { export_dmabuf(gpu, addr, len)? } else { None };
        let (cells, view): (Arc<dyn WordAccess>, _) = match mapped {
            Ok(mapped) => {
                let view = WordView::Mapped(mapped.clone());
                (Arc::new(mapped), view)
            }
            Err(cause) => {
                self.warn_once(&self.warned_of_copies, || slow_words(&cause));
                let copies: Arc<dyn WordAccess> =
                    Arc::new(DriverCopiedWords { copies: gpu.copy_stream(device)?, addr });
                (Arc::clone(&copies), WordView::Copied(copies))
            }
        };
        Ok((HeapMemory { memory, exported, cells: Some(cells) }, view))
    }

    /// Makes words visible to the GPU that a software NIC wrote to mappings in calls of this thread. Providers of
    /// libfabric issue no fences for write-combined memory.
    #[inline]
    pub(crate) fn publish_gets(&self) {
        if self.works_on_mappings.load(Ordering::Relaxed) {
            fence_mapped_stores();
        }
    }

    /// Logs a warning, each kind once per process.
    fn warn_once(&self, was_warned: &AtomicBool, text: impl FnOnce() -> String) {
        if !was_warned.swap(true, Ordering::Relaxed) {
            self.log.log_line(LogLevel::Warn, &text());
        }
    }

    /// Returns the registration that a handle of this PE names.
    ///
    /// # Errors
    /// The memory is not registered any more.
    #[inline]
    pub(crate) fn own_entry(&self, memory: &RegisteredMemory) -> Result<&MemoryEntry> {
        let entry = &self.known[usize::from(memory.heap)];
        if entry.is_generation(memory.generation) { Ok(entry) } else { Err(GONE) }
    }

    /// Returns a place in registered memory.
    ///
    /// # Errors
    /// As [`MemoryTable::own_entry`].
    pub(crate) fn find_place(&self, memory: &RegisteredMemory, offset: u64) -> Result<RegisteredPlace> {
        let view = self.own_entry(memory)?.view.read().unwrap_or_else(PoisonError::into_inner);
        Ok(RegisteredPlace { view: view.clone().ok_or(GONE)?, offset })
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// The registration has ended already.
    pub(crate) fn release(&self, network: &OneSided, memory: &RegisteredMemory) -> Result<()> {
        let entry = self.own_entry(memory)?;
        network.remove_heap(memory.heap)?;
        entry.set_view(0, None);
        Ok(())
    }

    /// Returns the number of registrations, without the stages.
    pub(crate) fn registration_count(&self) -> usize {
        self.known.iter().filter(|entry| entry.generation.load(Ordering::Relaxed) != 0).count()
    }
}

const GONE: CallError = CallError::Argument("memory of this PE is not registered any more");

/// The warning that the user's copies may be late.
const LATE_COPIES: &str = "the driver refuses synchronous memory operations (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) for \
     memory of the heap, as for all memory of cuMemCreate: a NIC may send bytes before a cudaMemcpy or cudaMemset has \
     written them. Wait for the stream before you send, or set the flag CU_CTX_SYNC_MEMOPS of the context by \
     cuCtxSetFlags (CUDA 12.1)";

/// Returns the warning that words of a GPU's memory are copied.
fn slow_words(cause: &str) -> String {
    format!(
        "GDRCopy does not map the heap ({cause}), so atomics, signals and fetched values use copies by CUDA's driver, \
         ten microseconds or more each. Install GDRCopy's library and load its module gdrdrv. If BAR1 is smaller than \
         the heap (nvidia-smi -q -d MEMORY), enable Resizable BAR in the firmware, or make the heap smaller \
         (NVSHMEM_SYMMETRIC_SIZE)"
    )
}

/// Exports memory as a dma-buf; `None` if its driver does not support it.
fn export_dmabuf(gpu: &VendorDriver, addr: usize, len: usize) -> Result<Option<(Arc<OwnedFd>, u64)>> {
    Ok(match gpu.export_dmabuf(addr, len, DmaBufMapping::Any)? {
        DmaBufExport::Given(given) => Some((Arc::new(given.fd), given.offset)),
        DmaBufExport::Refused(_) => None,
    })
}

/// Words that the driver copies, for memory without a mapping.
#[derive(Debug)]
struct DriverCopiedWords {
    copies: GpuCopyStream,
    addr: usize,
}

impl WordAccess for DriverCopiedWords {
    fn load(&self, offset: u64, width: WordWidth) -> Option<u64> {
        let mut bytes = [0; 8];
        let len = width.byte_len() as usize;
        self.copies.copy_from_device(self.addr + offset as usize, &mut bytes[..len]).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, width: WordWidth, value: u64) -> bool {
        let len = width.byte_len() as usize;
        self.copies.copy_to_device(self.addr + offset as usize, &value.to_le_bytes()[..len]).is_ok()
    }

    fn store_all(&self, words: &[(u64, u64)]) -> bool {
        let bytes: Vec<[u8; 8]> = words.iter().map(|(_, value)| value.to_le_bytes()).collect();
        let at = |(offset, _): &(u64, u64)| self.addr + *offset as usize;
        let all: Vec<(usize, &[u8])> =
            words.iter().zip(&bytes).map(|(word, bytes)| (at(word), bytes.as_slice())).collect();
        self.copies.write_all(&all).is_ok()
    }
}
