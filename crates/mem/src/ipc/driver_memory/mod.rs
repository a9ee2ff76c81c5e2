//! Memory of GPUs shared by their vendor's driver: the part common to all vendors. [`DriverMemory`] implements the rules and the table of
//! imports; an [`IpcDriver`] in a sibling folder makes the calls. A driver that maps memory for one device only opens the same memory once for
//! each device that copies it.
//!
//! The driver finds and exports allocations, so allocation ids are the driver's. Only one thread at a time opens or closes imports
//! ([`DriverMappings`]): for the progress thread the [`MappingThread`] does so, because a driver may wait there for a running kernel. Copies
//! borrow imports, and run beside calls that do not unmap them. Copies of a batch ([`CopyBatches`]) are asynchronous, and the imports that they
//! use are closed after them.
//!
//! In a forked child, the driver and all its objects are unusable: every call fails without calling the driver.

mod batches;
mod copy_slots;
mod driver;
mod imports;
mod mapping_thread;
mod mappings;
mod per_device;
mod pins;
mod prepared;
mod sealed;

use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, RwLockReadGuard};

pub(super) use copy_slots::{CopySlots, CopyStreams};
pub(super) use driver::{CopyDirection, IpcDriver, RawCopy};
pub(super) use per_device::{PerDevice, choose_device};
pub(super) use sealed::SealedHandle;

use self::batches::CopyBatches;
use self::imports::DriverImports;
use self::mapping_thread::MappingThread;
use self::mappings::DriverMappings;
use super::error::{
    CallFailure, CloseError, CopyError, ExportError, FindAllocationError, HandleOpenError, NoMemory,
    NotClosed,
};
use super::fork_guard::ForkGuard;
use super::host::random_number;
use super::{
    CopyBatch, CopyPlace, CopyTarget, ExportedHandle, HandlePassing, IpcAllocation, IpcCaps, IpcHandle,
    IpcMemory, MappingQueue, MappingUser, OpenedHandle, StagePin,
};
use crate::MemoryRange;

/// Memory of a vendor's devices; imported memory is mapped for one of them.
#[derive(Debug)]
pub struct DriverMemory<D: IpcDriver> {
    /// Dropped, and so joined, before the mappings that it uses.
    thread: MappingThread,
    mappings: Arc<DriverMappings<D>>,
}

/// Maximum length of a batch, in bytes: large enough that the gap between one copy's end and the next one's start is a small part of its time.
const BATCH_BYTES: u64 = 16 << 20;

/// The maximum number of allocations that one buffer may span.
const PIECES_MAX: usize = 4096;

impl<D: IpcDriver + 'static> DriverMemory<D> {
    /// Opens the installed driver. Imported memory is mapped for `device`, by its number in this process, unless another device copies it.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn open_device(device: u32) -> Result<Self, NoMemory> {
        let driver = Arc::new(D::open_for_device(device)?);
        let here = Arc::new(ForkGuard::new()?);
        let no_memory = |_| CallFailure::System { call: "malloc", code: libc::ENOMEM };
        let queue = Arc::new(MappingQueue::new().map_err(no_memory)?);
        let mappings = DriverMappings::new(driver, Arc::clone(&here), random_number()?, Arc::clone(&queue));
        let mappings = Arc::new(mappings);
        let used = Arc::clone(&mappings);
        let thread = MappingThread::start_thread(queue, &here, move |request| used.carry_out(request))?;
        Ok(Self { thread, mappings })
    }
}

impl<D: IpcDriver> DriverMemory<D> {
    /// Allocates memory of the device, not zeroed; returns its address. For callers without another allocator. The CPU must not access the memory.
    ///
    /// # Errors
    /// The driver's error.
    pub fn alloc(&self, len: usize) -> Result<usize, CallFailure> {
        self.check_process()?;
        self.gpu_driver().alloc(len)
    }

    /// Frees memory of [`DriverMemory::alloc`].
    ///
    /// # Errors
    /// The driver's error.
    pub fn free(&self, addr: usize) -> Result<(), CallFailure> {
        self.check_process()?;
        self.gpu_driver().free(addr)
    }

    fn gpu_driver(&self) -> &D {
        &self.mappings.driver
    }

    fn check_process(&self) -> Result<(), CallFailure> {
        self.mappings.check_process()
    }

    fn read_imports(&self) -> RwLockReadGuard<'_, DriverImports<D::Opened>> {
        self.mappings.read_imports()
    }

    fn lock_batches(&self) -> MutexGuard<'_, CopyBatches> {
        self.mappings.lock_batches()
    }

    /// Returns this process's allocation around an address.
    fn find_allocation(
        &self,
        imports: &DriverImports<D::Opened>,
        addr: usize,
    ) -> Result<IpcAllocation, FindAllocationError> {
        if imports.contains_address(addr) {
            return Err(FindAllocationError::Imported { addr });
        }
        let found = self.gpu_driver().find_allocation(addr).map_err(FindAllocationError::Other)?;
        found.filter(|found| found.offset_of(addr).is_some()).ok_or(FindAllocationError::Unknown { addr })
    }

    /// Returns the device of a range of this process, and the number of its bytes in the first allocation; `None` unless contiguous allocations
    /// cover the range.
    fn own_piece(
        &self,
        imports: &DriverImports<D::Opened>,
        addr: usize,
        len: usize,
    ) -> Result<Option<(u32, usize)>, CopyError> {
        let Some(end) = addr.checked_add(len) else { return Ok(None) };
        let mut at = addr;
        let mut first = None;
        for _ in 0..PIECES_MAX {
            let found = match self.find_allocation(imports, at) {
                Ok(found) => found,
                Err(FindAllocationError::Other(cause)) => return Err(CopyError::Other(cause)),
                Err(_) => return Ok(None),
            };
            self.ask_for_slots(found.device);
            at = found.base.saturating_add(found.len);
            first = first.or(Some((found.device, at.min(end) - addr)));
            if at >= end {
                return Ok(first);
            }
        }
        Ok(None)
    }

    /// Requests the streams and events of a device with memory of this process, once. Called for a whole buffer when a message of it begins, so
    /// that no copy of the buffer has to create a stream.
    fn ask_for_slots(&self, own: u32) {
        if let Some(device) = self.gpu_driver().device_for(Some(own)) {
            self.mappings.prepared.request_device(device, self.thread.mapping_queue());
        }
    }

    /// Returns whether a device has its streams and events. For a batch's first copy, also requires that no other device waits for its own, because
    /// the buffer may span both.
    fn is_prepared(&self, device: Option<u32>, is_first: bool) -> Result<bool, CopyError> {
        let Some(device) = device else { return Ok(true) };
        let prepared = &self.mappings.prepared;
        if !is_first && prepared.is_prepared(device) {
            return Ok(true);
        }
        prepared.poll_device(device, self.thread.mapping_queue()).map_err(CopyError::Other)
    }

    /// Returns the address of an end of a copy, and its device.
    fn resolve_end(
        &self,
        imports: &DriverImports<D::Opened>,
        place: CopyEnd<'_>,
        len: usize,
    ) -> Result<ResolvedEnd, CopyError> {
        match place {
            CopyEnd::Host(addr) => Ok(ResolvedEnd { addr, device: None, is_open: false, piece: len }),
            CopyEnd::Device(CopyPlace::Own(addr)) => match self.own_piece(imports, addr, len)? {
                Some((device, piece)) => {
                    let device = self.gpu_driver().device_for(Some(device));
                    Ok(ResolvedEnd { addr, device, is_open: false, piece })
                }
                None => Err(CopyError::Outside { at: addr as u64, len }),
            },
            CopyEnd::Device(CopyPlace::Open(mapped, offset)) => {
                let (addr, device) = imports.import_address(mapped, offset, len)?;
                Ok(ResolvedEnd { addr, device, is_open: true, piece: len })
            }
        }
    }

    /// Copies bytes in parts that lie in one allocation at both ends, because drivers reject or truncate other copies. A range of own memory is
    /// checked in full before the first part.
    ///
    /// # Safety
    /// As [`IpcDriver::transfer`].
    unsafe fn transfer_pieces(
        &self,
        to: CopyEnd<'_>,
        from: CopyEnd<'_>,
        len: usize,
    ) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.read_imports();
        let way = match (to, from) {
            (_, CopyEnd::Host(_)) => CopyDirection::In,
            (CopyEnd::Host(_), _) => CopyDirection::Out,
            _ => CopyDirection::Across,
        };
        let mut done = 0;
        loop {
            let left = len - done;
            let to = to.offset_by(done);
            let from = from.offset_by(done);
            let to = self.resolve_end(&imports, to, left)?;
            let from = self.resolve_end(&imports, from, left)?;
            // Only the device for which an import is mapped can access it.
            let device = if to.is_open && !from.is_open { to.device } else { from.device.or(to.device) };
            let part = to.piece.min(from.piece);
            let copy = RawCopy { to: to.addr, from: from.addr, len: part };
            // SAFETY: the caller guarantees the conditions of `transfer`.
            let copied = unsafe { self.gpu_driver().transfer(copy, way, device) };
            copied.map_err(CopyError::Other)?;
            done += part;
            if done >= len {
                return Ok(());
            }
        }
    }
}

impl<D: IpcDriver> DriverMemory<D> {
    /// Enqueues copies as [`DriverMemory::transfer_pieces`] makes them, behind all others of a batch. The batch holds `held`, the memory of a host
    /// end.
    ///
    /// # Safety
    /// As [`IpcDriver::begin_transfer`]; the batch guarantees it for memory that it holds.
    unsafe fn begin_transfer(
        &self,
        batch: &mut Option<CopyBatch>,
        to: CopyEnd<'_>,
        from: CopyEnd<'_>,
        len: usize,
        held: Option<&MemoryRange>,
    ) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.read_imports();
        let uses = [to.import_number(), from.import_number()];
        let way = if matches!(from, CopyEnd::Host(_)) {
            CopyDirection::In
        } else if matches!(to, CopyEnd::Host(_)) {
            CopyDirection::Out
        } else {
            CopyDirection::Across
        };
        let mut done = 0;
        while done < len {
            let left = len - done;
            let to = to.offset_by(done);
            let from = from.offset_by(done);
            let to = self.resolve_end(&imports, to, left)?;
            let from = self.resolve_end(&imports, from, left)?;
            let device = if to.is_open && !from.is_open { to.device } else { from.device.or(to.device) };
            let part = to.piece.min(from.piece);
            // Creating a stream here would wait for a kernel. The copies enqueued so far continue, and the caller starts all of them again after they have
            // completed.
            if !self.is_prepared(device, batch.is_none())? {
                return Err(CopyError::Busy);
            }
            let mut batches = self.lock_batches();
            let slot = batches.acquire_slot(batch)?;
            batches.record_copy(slot, device, uses, held);
            let copy = RawCopy { to: to.addr, from: from.addr, len: part };
            // SAFETY: the caller guarantees the ends of the host, which the batch holds; imports stay mapped until the slot's copies have completed.
            let begun = unsafe { self.gpu_driver().begin_transfer(slot, copy, way, device) };
            begun.map_err(CopyError::Other)?;
            done += part;
        }
        Ok(())
    }
}

/// An end of a copy.
#[derive(Clone, Copy)]
enum CopyEnd<'a> {
    Device(CopyPlace<'a>),
    /// An address of the host.
    Host(usize),
}

impl CopyEnd<'_> {
    /// Returns the number of the import that contains this end, if any.
    fn import_number(self) -> Option<u64> {
        match self {
            Self::Device(CopyPlace::Open(mapped, _)) => Some(mapped.number),
            Self::Device(CopyPlace::Own(_)) | Self::Host(_) => None,
        }
    }

    fn offset_by(self, bytes: usize) -> Self {
        match self {
            Self::Device(at) => Self::Device(at.offset_by(bytes)),
            Self::Host(addr) => Self::Host(addr.saturating_add(bytes)),
        }
    }
}

/// The address of an end of a copy.
struct ResolvedEnd {
    addr: usize,
    /// The device that copies it, if it is memory of a device and the driver distinguishes devices.
    device: Option<u32>,
    is_open: bool,
    /// Number of its bytes that lie in one allocation.
    piece: usize,
}

impl<D: IpcDriver + 'static> IpcMemory for DriverMemory<D> {
    fn caps(&self) -> IpcCaps {
        self.gpu_driver().caps()
    }

    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        self.check_process().map_err(|_| FindAllocationError::Unknown { addr })?;
        self.find_allocation(&self.read_imports(), addr)
    }

    fn holds_range(&self, addr: usize, len: usize) -> bool {
        self.check_process().is_ok() && matches!(self.own_piece(&self.read_imports(), addr, len), Ok(Some(_)))
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        self.check_process()?;
        let is_there = || match self.gpu_driver().find_allocation(of.base) {
            Ok(found) if found == Some(*of) => Ok(()),
            Ok(_) => Err(ExportError::Gone(of.id)),
            Err(cause) => Err(ExportError::Other(cause)),
        };
        is_there()?;
        let kind = D::KINDS.first().copied().unwrap_or(0);
        let mut sealed = SealedHandle::for_allocation(of, self.mappings.process, kind);
        let export = |sealed: &mut SealedHandle| self.gpu_driver().export_handle(of, how, sealed);
        // Checks again: the allocation may have been freed, and its address reused, during the export.
        let descriptor = self.mappings.export_sealed(&mut sealed, export, is_there)?;
        Ok(ExportedHandle { handle: sealed.to_handle(), descriptor })
    }

    fn unexport(&self, export: ExportedHandle) -> Result<(), CloseError> {
        self.mappings.end_export(export)
    }

    fn unexport_queue(&self) -> Option<&MappingQueue> {
        self.mapping_queue().filter(|_| D::UNEXPORT_MAY_WAIT)
    }

    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError> {
        self.open_for(handle, descriptor, MappingUser::Host)
    }

    /// Memory of the host is copied by the device for which this value was opened.
    fn mapping_user(&self, own: Option<usize>) -> Option<MappingUser> {
        self.check_process().ok()?;
        // Skips the query if one mapping serves all devices.
        let by_default = self.gpu_driver().device_for(None)?;
        let found = own.and_then(|addr| self.find_allocation(&self.read_imports(), addr).ok());
        let device = found.and_then(|found| self.gpu_driver().device_for(Some(found.device)));
        Some(MappingUser::Device(device.unwrap_or(by_default)))
    }

    fn open_for(
        &self,
        handle: &IpcHandle,
        descriptor: Option<OwnedFd>,
        user: MappingUser,
    ) -> Result<OpenedHandle, HandleOpenError> {
        self.mappings.open_handle(handle, descriptor, user)
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        self.mappings.close_mapping(mapped)
    }

    fn mapping_queue(&self) -> Option<&MappingQueue> {
        // A forked child has no thread; its requests fail at once.
        let is_there = self.check_process().is_ok();
        is_there.then(|| self.thread.mapping_queue())
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let to = out.as_mut_ptr().expose_provenance();
        // SAFETY: `out` is borrowed exclusively during the call.
        unsafe { self.transfer_pieces(CopyEnd::Host(to), CopyEnd::Device(from), out.len()) }
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let from = bytes.as_ptr().expose_provenance();
        // SAFETY: `bytes` is borrowed during the call, and only read.
        unsafe { self.transfer_pieces(CopyEnd::Device(to), CopyEnd::Host(from), bytes.len()) }
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        let to = match to {
            CopyTarget::Own(addr) => CopyEnd::Device(CopyPlace::Own(addr)),
            CopyTarget::Open(mapped, offset) => CopyEnd::Device(CopyPlace::Open(mapped, offset)),
            CopyTarget::Memory(memory, at) => CopyEnd::Host(of_host(memory, at, len)?),
        };
        // SAFETY: `of_host` checked the range of an end of the host, and no reference to memory of a `MemoryRange` exists.
        unsafe { self.transfer_pieces(to, CopyEnd::Device(from), len) }
    }

    fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        let from = of_host(from, offset, len)?;
        // SAFETY: as above.
        unsafe { self.transfer_pieces(CopyEnd::Device(to), CopyEnd::Host(from), len) }
    }

    fn pin_stage(&self, memory: &MemoryRange) -> Option<StagePin> {
        self.mappings.pin_memory(memory)
    }

    fn pin_queue(&self) -> Option<&MappingQueue> {
        self.mapping_queue()
    }

    fn batch_bytes(&self) -> Option<u64> {
        Some(BATCH_BYTES)
    }

    fn begin_copy(
        &self,
        batch: &mut Option<CopyBatch>,
        from: CopyPlace<'_>,
        to: CopyTarget<'_>,
        len: usize,
    ) -> Result<(), CopyError> {
        if self.batch_bytes().is_none() {
            return self.copy(from, to, len);
        }
        let (to, held) = match to {
            CopyTarget::Own(addr) => (CopyEnd::Device(CopyPlace::Own(addr)), None),
            CopyTarget::Open(mapped, offset) => (CopyEnd::Device(CopyPlace::Open(mapped, offset)), None),
            CopyTarget::Memory(memory, at) => (CopyEnd::Host(of_host(memory, at, len)?), Some(memory)),
        };
        // SAFETY: `of_host` checked the range of an end of the host, to which no reference exists; the batch holds it.
        unsafe { self.begin_transfer(batch, to, CopyEnd::Device(from), len, held) }
    }

    fn begin_fill(
        &self,
        batch: &mut Option<CopyBatch>,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        if self.batch_bytes().is_none() {
            return self.fill_from(to, from, offset, len);
        }
        let at = of_host(from, offset, len)?;
        // SAFETY: as above.
        unsafe { self.begin_transfer(batch, CopyEnd::Device(to), CopyEnd::Host(at), len, Some(from)) }
    }

    fn has_ended(&self, batch: &CopyBatch) -> Result<bool, CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        self.lock_batches().has_ended(self.gpu_driver(), batch)
    }
}

/// Returns the address of bytes of the host.
fn of_host(memory: &MemoryRange, at: u64, len: usize) -> Result<usize, CopyError> {
    let outside = CopyError::Outside { at, len };
    if memory.kind() != crate::MemoryKind::Host {
        return Err(outside);
    }
    memory.checked_address(at, len as u64).map_err(|_| outside)
}
