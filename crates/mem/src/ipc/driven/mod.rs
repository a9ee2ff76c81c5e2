//! Memory of GPUs by their vendor's driver: what is common to all vendors. [`Driven`] holds the rules and what is open; a [`Driver`] beside this
//! folder makes the calls. Where it maps for one device and not for others, the same memory is open once for each that copies it.
//!
//! The driver finds allocations and exports them, so their ids are its own. It is called by one opener or closer at a time ([`DriverMappings`]): for the thread that
//! makes progress by a thread of its own ([`MappingThread`]), as a driver may wait there for a kernel that runs. Copies
//! borrow what is open, and go on beside calls that do not end it; those of a batch ([`Batches`]) go on after they were begun, and what they use is
//! closed behind them. In a child of a fork nothing is of use that a driver has given, and
//! to none is the driver: it is refused all, and the driver not called.

mod batches;
mod copy_slots;
mod driver;
mod each;
mod imports;
mod mapping_thread;
mod mappings;
mod pins;
mod prepared;
mod sealed;

use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, RwLockReadGuard};

pub(super) use copy_slots::{CopySlots, CopyStreams};
pub(super) use driver::{Driver, Way};
pub(super) use each::{Each, among};
pub(super) use sealed::Sealed;

use self::batches::Batches;
use self::imports::Imports;
use self::mapping_thread::MappingThread;
use self::mappings::DriverMappings;
use super::error::{Cause, CloseError, CopyError, ExportError, FindError, NoMemory, NotClosed, OpenError};
use super::here::Here;
use super::host::random;
use super::{
    Allocation, At, Caps, CopyBatch, Export, Handle, IpcMemory, Mapped, MappingQueue, Passing, StagePin, To,
    User, planted,
};
use crate::Memory;

/// Memory of a vendor's devices, one of which memory of others is mapped for.
#[derive(Debug)]
pub struct Driven<D: Driver> {
    /// Dropped, and so joined, before the mappings that it works on.
    thread: MappingThread,
    mappings: Arc<DriverMappings<D>>,
}

/// Bytes of a batch, at most: so many that the time between a copy's end and the next one's begin is a small part of it.
const BATCH_BYTES: u64 = 16 << 20;

/// What is allocated in several pieces has at most so many.
const PIECES_MAX: usize = 4096;

impl<D: Driver + 'static> Driven<D> {
    /// Opens the driver that is installed. Memory of others is mapped for that device, by its number in this process, unless it is another one
    /// that copies.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn open_device(device: u32) -> Result<Self, NoMemory> {
        let driver = Arc::new(D::begin(device)?);
        let here = Arc::new(Here::new()?);
        let no_memory = |_| Cause::System { call: "malloc", code: libc::ENOMEM };
        let queue = Arc::new(MappingQueue::new().map_err(no_memory)?);
        let mappings = DriverMappings::new(driver, Arc::clone(&here), random()?, Arc::clone(&queue));
        let mappings = Arc::new(mappings);
        let used = Arc::clone(&mappings);
        let thread = MappingThread::start_thread(queue, &here, move |request| used.carry_out(request))?;
        Ok(Self { thread, mappings })
    }
}

impl<D: Driver> Driven<D> {
    /// Memory of the device, for whoever has no other; not zeroed. Its address, which the CPU does not touch.
    ///
    /// # Errors
    /// What the driver says.
    pub fn alloc(&self, len: usize) -> Result<usize, Cause> {
        self.check_process()?;
        self.gpu_driver().alloc(len)
    }

    /// Frees it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free(&self, addr: usize) -> Result<(), Cause> {
        self.check_process()?;
        self.gpu_driver().free(addr)
    }

    fn gpu_driver(&self) -> &D {
        &self.mappings.driver
    }

    fn check_process(&self) -> Result<(), Cause> {
        self.mappings.check_process()
    }

    fn imports(&self) -> RwLockReadGuard<'_, Imports<D::Opened>> {
        self.mappings.read_imports()
    }

    fn batches(&self) -> MutexGuard<'_, Batches> {
        self.mappings.lock_batches()
    }

    /// The own allocation around an address.
    fn find(&self, imports: &Imports<D::Opened>, addr: usize) -> Result<Allocation, FindError> {
        if imports.has(addr) {
            return Err(FindError::Imported { addr });
        }
        let found = self.gpu_driver().find(addr).map_err(FindError::Other)?;
        found.filter(|found| found.offset_of(addr).is_some()).ok_or(FindError::Unknown { addr })
    }

    /// The device that own bytes are of and how many of them are in the first of their pieces, if they are all there, one piece behind the other.
    fn own(
        &self,
        imports: &Imports<D::Opened>,
        addr: usize,
        len: usize,
    ) -> Result<Option<(u32, usize)>, CopyError> {
        let Some(end) = addr.checked_add(len) else { return Ok(None) };
        let mut at = addr;
        let mut first = None;
        for _ in 0..PIECES_MAX {
            let found = match self.find(imports, at) {
                Ok(found) => found,
                Err(FindError::Other(cause)) => return Err(CopyError::Other(cause)),
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

    /// Requests the streams and events of a device that has own memory, unless that was done. Called for all bytes of a buffer when a message of it begins, so that
    /// no copy of them makes a stream itself.
    fn ask_for_slots(&self, own: u32) {
        if let Some(device) = self.gpu_driver().device_for(Some(own)) {
            self.mappings.prepared.request_device(device, self.thread.mapping_queue());
        }
    }

    /// Whether a device has its streams and events; for a first copy also whether no other device waits for them, as the same bytes may lie on both.
    fn is_prepared(&self, device: Option<u32>, is_first: bool) -> Result<bool, CopyError> {
        let Some(device) = device else { return Ok(true) };
        if planted("mem-gpu-makes-streams-inline")
            || !is_first && planted("mem-gpu-makes-later-streams-inline")
        {
            return Ok(true);
        }
        let prepared = &self.mappings.prepared;
        if !is_first && prepared.is_prepared(device) {
            return Ok(true);
        }
        prepared.poll_device(device, self.thread.mapping_queue()).map_err(CopyError::Other)
    }

    /// Where bytes are.
    fn spot(&self, imports: &Imports<D::Opened>, place: Place<'_>, len: usize) -> Result<Spot, CopyError> {
        match place {
            Place::Host(addr) => Ok(Spot { addr, device: None, is_open: false, piece: len }),
            Place::Device(At::Own(addr)) => match self.own(imports, addr, len)? {
                Some((device, piece)) => {
                    let device = self.gpu_driver().device_for(Some(device));
                    Ok(Spot { addr, device, is_open: false, piece })
                }
                None => Err(CopyError::Outside { at: addr as u64, len }),
            },
            Place::Device(At::Open(mapped, offset)) => {
                let (addr, device) = imports.address(mapped, offset, len)?;
                Ok(Spot { addr, device, is_open: true, piece: len })
            }
        }
    }

    /// Has devices copy bytes, in parts that are in one piece at both ends: drivers refuse, or cut off, what is not. Nothing is copied unless all
    /// of it is there.
    ///
    /// # Safety
    /// As [`Driver::transfer`].
    unsafe fn transfer(&self, to: Place<'_>, from: Place<'_>, len: usize) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.imports();
        let way = match (to, from) {
            (_, Place::Host(_)) => Way::In,
            (Place::Host(_), _) => Way::Out,
            _ => Way::Across,
        };
        let mut done = 0;
        loop {
            let left = len - done;
            let to = to.plus(done);
            let from = from.plus(done);
            let to = self.spot(&imports, to, left)?;
            let from = self.spot(&imports, from, left)?;
            // What is open is of use to the device alone that it is mapped for.
            let device = if to.is_open && !from.is_open { to.device } else { from.device.or(to.device) };
            let part = if planted("mem-gpu-copies-over-seams") { left } else { to.piece.min(from.piece) };
            // SAFETY: the caller's promise.
            let copied = unsafe { self.gpu_driver().transfer(to.addr, from.addr, part, (way, device)) };
            copied.map_err(CopyError::Other)?;
            done += part;
            if done >= len {
                return Ok(());
            }
        }
    }
}

impl<D: Driver> Driven<D> {
    /// Begins to copy bytes as [`Driven::transfer`] copies them, behind all others of a batch. Memory of the host that is an end of it is held.
    ///
    /// # Safety
    /// As [`Driver::begin_transfer`]; of memory that is held it is promised by that.
    unsafe fn begin(
        &self,
        batch: &mut Option<CopyBatch>,
        (to, from): (Place<'_>, Place<'_>),
        len: usize,
        held: Option<&Memory>,
    ) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.imports();
        let uses = [to.import(), from.import()];
        let way = if matches!(from, Place::Host(_)) {
            Way::In
        } else if matches!(to, Place::Host(_)) {
            Way::Out
        } else {
            Way::Across
        };
        let mut done = 0;
        while done < len {
            let left = len - done;
            let to = to.plus(done);
            let from = from.plus(done);
            let to = self.spot(&imports, to, left)?;
            let from = self.spot(&imports, from, left)?;
            let device = if to.is_open && !from.is_open { to.device } else { from.device.or(to.device) };
            let part = to.piece.min(from.piece);
            // A stream that is made here would wait for a kernel: the copies begun so far go on, and the caller begins all of them again behind their end.
            if !self.is_prepared(device, batch.is_none())? {
                return Err(CopyError::Busy);
            }
            let mut batches = self.batches();
            let slot = batches.slot(batch)?;
            batches.note(slot, device, uses, held);
            // SAFETY: the caller's promise; what is open stays so until the slot has ended, and memory of the host is held.
            let begun =
                unsafe { self.gpu_driver().begin_transfer(slot, to.addr, from.addr, part, (way, device)) };
            begun.map_err(CopyError::Other)?;
            done += part;
        }
        Ok(())
    }
}

/// An end of a copy.
#[derive(Clone, Copy)]
enum Place<'a> {
    Device(At<'a>),
    /// An address of the host.
    Host(usize),
}

impl Place<'_> {
    /// The number of an import, if the address is of one.
    fn import(self) -> Option<u64> {
        match self {
            Self::Device(At::Open(mapped, _)) => Some(mapped.number),
            Self::Device(At::Own(_)) | Self::Host(_) => None,
        }
    }

    fn plus(self, bytes: usize) -> Self {
        match self {
            Self::Device(at) => Self::Device(at.plus(bytes)),
            Self::Host(addr) => Self::Host(addr.saturating_add(bytes)),
        }
    }
}

/// Where it is.
struct Spot {
    addr: usize,
    /// Who copies it, where devices are told apart and it is of one.
    device: Option<u32>,
    is_open: bool,
    /// So many of its bytes are in one piece.
    piece: usize,
}

impl<D: Driver + 'static> IpcMemory for Driven<D> {
    fn caps(&self) -> Caps {
        self.gpu_driver().caps()
    }

    fn allocation_of(&self, addr: usize) -> Result<Allocation, FindError> {
        self.check_process().map_err(|_| FindError::Unknown { addr })?;
        self.find(&self.imports(), addr)
    }

    fn holds(&self, addr: usize, len: usize) -> bool {
        self.check_process().is_ok() && matches!(self.own(&self.imports(), addr, len), Ok(Some(_)))
    }

    fn export(&self, of: &Allocation, how: Passing) -> Result<Export, ExportError> {
        self.check_process()?;
        let is_there = || match self.gpu_driver().find(of.base) {
            Ok(found) if found == Some(*of) => Ok(()),
            Ok(_) => Err(ExportError::Gone(of.id)),
            Err(cause) => Err(ExportError::Other(cause)),
        };
        is_there()?;
        let kind = D::KINDS.first().copied().unwrap_or(0);
        let mut sealed = Sealed::of(of, self.mappings.process, kind);
        let export = |sealed: &mut Sealed| self.gpu_driver().export(of, how, sealed);
        // What was freed and allocated again meanwhile is not what was asked for.
        let descriptor = self.mappings.export_sealed(&mut sealed, export, is_there)?;
        Ok(Export { handle: sealed.handle(), descriptor })
    }

    fn unexport(&self, export: Export) -> Result<(), CloseError> {
        self.mappings.end_export(export)
    }

    fn unexport_queue(&self) -> Option<&MappingQueue> {
        let is_asked = D::UNEXPORT_MAY_WAIT && !planted("mem-gpu-unexports-inline");
        self.mapping_queue().filter(|_| is_asked)
    }

    fn open(&self, handle: &Handle, descriptor: Option<OwnedFd>) -> Result<Mapped, OpenError> {
        self.open_for(handle, descriptor, User::Host)
    }

    /// Memory of the host is copied by the device that this was opened with.
    fn user(&self, own: Option<usize>) -> Option<User> {
        self.check_process().ok()?;
        // Nobody is asked where there is one mapping for all.
        let by_default = self.gpu_driver().device_for(None)?;
        let found = own.and_then(|addr| self.find(&self.imports(), addr).ok());
        let device = found.and_then(|found| self.gpu_driver().device_for(Some(found.device)));
        Some(User::Device(device.unwrap_or(by_default)))
    }

    fn open_for(
        &self,
        handle: &Handle,
        descriptor: Option<OwnedFd>,
        user: User,
    ) -> Result<Mapped, OpenError> {
        self.mappings.open_handle(handle, descriptor, user)
    }

    fn close(&self, mapped: Mapped) -> Result<(), NotClosed> {
        self.mappings.close_mapping(mapped)
    }

    fn mapping_queue(&self) -> Option<&MappingQueue> {
        // A child of a fork has no thread, and is refused at once.
        let is_there = self.check_process().is_ok() && !planted("mem-gpu-opens-inline");
        is_there.then(|| self.thread.mapping_queue())
    }

    fn read(&self, from: At<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        let to = out.as_mut_ptr().expose_provenance();
        // SAFETY: an exclusive borrow, as long as the call.
        unsafe { self.transfer(Place::Host(to), Place::Device(from), out.len()) }
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let from = bytes.as_ptr().expose_provenance();
        // SAFETY: borrowed as long as the call, and only read.
        unsafe { self.transfer(Place::Device(to), Place::Host(from), bytes.len()) }
    }

    fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        let to = match to {
            To::Own(addr) => Place::Device(At::Own(addr)),
            To::Open(mapped, offset) => Place::Device(At::Open(mapped, offset)),
            To::Memory(memory, at) => Place::Host(of_host(memory, at, len)?),
        };
        // SAFETY: memory of the host that says how long it is, of which nobody has a reference.
        unsafe { self.transfer(to, Place::Device(from), len) }
    }

    fn fill(&self, to: At<'_>, from: &Memory, offset: u64, len: usize) -> Result<(), CopyError> {
        let from = of_host(from, offset, len)?;
        // SAFETY: as above.
        unsafe { self.transfer(Place::Device(to), Place::Host(from), len) }
    }

    fn pin(&self, memory: &Memory) -> Option<StagePin> {
        self.mappings.pin_memory(memory)
    }

    fn pin_queue(&self) -> Option<&MappingQueue> {
        self.mapping_queue().filter(|_| !planted("mem-gpu-pins-inline"))
    }

    fn batch_bytes(&self) -> Option<u64> {
        (!planted("mem-gpu-waits-for-each-copy")).then_some(BATCH_BYTES)
    }

    fn begin_copy(
        &self,
        batch: &mut Option<CopyBatch>,
        from: At<'_>,
        to: To<'_>,
        len: usize,
    ) -> Result<(), CopyError> {
        if self.batch_bytes().is_none() {
            return self.copy(from, to, len);
        }
        let (to, held) = match to {
            To::Own(addr) => (Place::Device(At::Own(addr)), None),
            To::Open(mapped, offset) => (Place::Device(At::Open(mapped, offset)), None),
            To::Memory(memory, at) => (Place::Host(of_host(memory, at, len)?), Some(memory)),
        };
        // SAFETY: memory of the host that says how long it is, to which no reference exists; the batch holds it.
        unsafe { self.begin(batch, (to, Place::Device(from)), len, held) }
    }

    fn begin_fill(
        &self,
        batch: &mut Option<CopyBatch>,
        to: At<'_>,
        from: &Memory,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        if self.batch_bytes().is_none() {
            return self.fill(to, from, offset, len);
        }
        let at = of_host(from, offset, len)?;
        // SAFETY: as above.
        unsafe { self.begin(batch, (Place::Device(to), Place::Host(at)), len, Some(from)) }
    }

    fn has_ended(&self, batch: &CopyBatch) -> Result<bool, CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        self.batches().has_ended(self.gpu_driver(), batch)
    }
}

/// Where bytes of the host are.
fn of_host(memory: &Memory, at: u64, len: usize) -> Result<usize, CopyError> {
    let outside = CopyError::Outside { at, len };
    if memory.kind() != crate::Kind::Host {
        return Err(outside);
    }
    memory.checked(at, len as u64).map_err(|_| outside)
}
