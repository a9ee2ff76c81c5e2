//! The imports that a process has mapped by a driver, and the copies that use them. Shared by the thread that owns the kind, which copies, and
//! the mapping thread.
//!
//! The mapping thread never waits for a kernel while it holds a lock that copies need: those of the table of imports and of the batches.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use super::batches::CopyBatches;
use super::copy_slots::COPY_SLOTS;
use super::imports::DriverImports;
use super::prepared::PreparedDevices;
use super::{ForkGuard, IpcDriver, SealedHandle, pins};
use crate::MemoryRange;
use crate::ipc::error::{CallFailure, CloseError, ExportError, HandleOpenError, NotClosed};
use crate::ipc::mapping_queue::{MappingAnswer, MappingQueue, MappingRequest};
use crate::ipc::{ExportedHandle, IpcHandle, IpcHandleError, MappingUser, OpenedHandle, StagePin};

/// Interval at which the mapping thread polls for the end of copies.
const POLL: Duration = Duration::from_micros(100);

/// A driver, and its imports.
#[derive(Debug)]
pub(super) struct DriverMappings<D: IpcDriver> {
    /// A forked child leaks it, because dropping it would call the driver.
    pub(super) driver: Arc<D>,
    pub(super) here: Arc<ForkGuard>,
    /// A random number that identifies this process to peers.
    pub(super) process: u64,
    /// Held while a mapping is opened or closed.
    turn: Mutex<()>,
    imports: RwLock<DriverImports<D::Opened>>,
    /// Lock order: after `imports`, if both are held.
    batches: Mutex<CopyBatches>,
    pub(super) prepared: PreparedDevices,
    /// The requests of the mapping thread.
    pub(super) queue: Arc<MappingQueue>,
}

/// A handle that the driver created and that no caller received. Dropping it releases the handle.
struct UnusedHandle<D: IpcDriver> {
    driver: Arc<D>,
    here: Arc<ForkGuard>,
    sealed: SealedHandle,
}

impl<D: IpcDriver> Drop for UnusedHandle<D> {
    fn drop(&mut self) {
        if self.here.is_child() {
            return std::mem::forget(Arc::clone(&self.driver));
        }
        let _ = self.driver.unexport_handle(&self.sealed);
    }
}

impl<D: IpcDriver + 'static> DriverMappings<D> {
    /// Executes a request, in the mapping thread.
    pub(super) fn carry_out(&self, request: MappingRequest) -> MappingAnswer {
        match request {
            MappingRequest::Open { handle, descriptor, user } => {
                MappingAnswer::Opened(self.open_handle(&handle, descriptor, user))
            }
            MappingRequest::Close(mapped) => MappingAnswer::Closed(self.close_beside(mapped)),
            MappingRequest::Prepare(device) => {
                let made = self.prepare_device(device);
                self.prepared.note_answer(device, made);
                MappingAnswer::Prepared
            }
            MappingRequest::Pin(memory) => MappingAnswer::Pinned(self.pin_memory(&memory)),
            MappingRequest::Unexport(export) => MappingAnswer::Unexported(self.end_export(*export)),
        }
    }

    /// Pins memory of the host for copies.
    pub(super) fn pin_memory(&self, memory: &MemoryRange) -> Option<StagePin> {
        let is_ours =
            self.check_process().is_ok() && memory.kind() == crate::MemoryKind::Host && !memory.is_empty();
        if is_ours { pins::pin_host_memory(&self.driver, &self.here, &self.queue, memory) } else { None }
    }

    /// Creates a handle and keeps it if `check` succeeds afterwards. Otherwise it releases the handle, in the mapping thread if the driver may wait
    /// for a kernel there.
    ///
    /// # Errors
    /// [`ExportError`].
    pub(super) fn export_sealed<T>(
        &self,
        sealed: &mut SealedHandle,
        export: impl FnOnce(&mut SealedHandle) -> Result<T, ExportError>,
        check: impl FnOnce() -> Result<(), ExportError>,
    ) -> Result<T, ExportError> {
        if D::UNEXPORT_MAY_WAIT {
            let no_place = |_| CallFailure::System { call: "malloc", code: libc::ENOMEM };
            self.queue.reserve_release().map_err(no_place)?;
        }
        let made = export(sealed).and_then(|made| check().map(|()| made));
        match &made {
            Err(_) if sealed.has_driver_words() && D::UNEXPORT_MAY_WAIT => {
                let unused = UnusedHandle {
                    driver: Arc::clone(&self.driver),
                    here: Arc::clone(&self.here),
                    sealed: *sealed,
                };
                drop(self.queue.post_release(Box::new(unused)));
            }
            Err(_) if sealed.has_driver_words() => _ = self.driver.unexport_handle(sealed),
            _ if D::UNEXPORT_MAY_WAIT => self.queue.cancel_release(),
            _ => {}
        }
        made
    }
}

impl<D: IpcDriver> DriverMappings<D> {
    pub(super) fn new(driver: Arc<D>, here: Arc<ForkGuard>, process: u64, queue: Arc<MappingQueue>) -> Self {
        let imports = RwLock::new(DriverImports::new());
        let batches = Mutex::new(CopyBatches::with_slots(COPY_SLOTS));
        let prepared = PreparedDevices::with_device(driver.device_for(None));
        Self { driver, here, process, turn: Mutex::default(), imports, batches, prepared, queue }
    }

    /// Fails in a forked child, which has no mappings. Called before any lock is taken, because another thread of the parent may have held it
    /// during the fork.
    pub(super) fn check_process(&self) -> Result<(), CallFailure> {
        self.here.check_process()
    }

    pub(super) fn read_imports(&self) -> RwLockReadGuard<'_, DriverImports<D::Opened>> {
        self.imports.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_imports(&self) -> RwLockWriteGuard<'_, DriverImports<D::Opened>> {
        self.imports.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_batches(&self) -> MutexGuard<'_, CopyBatches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases a handle of this process.
    ///
    /// # Errors
    /// [`CloseError`].
    pub(super) fn end_export(&self, export: ExportedHandle) -> Result<(), CloseError> {
        match SealedHandle::parse(&export.handle, D::KINDS) {
            Ok(sealed) if sealed.process == self.process && self.check_process().is_ok() => {
                self.driver.unexport_handle(&sealed)
            }
            _ => Err(CloseError::Unknown),
        }
    }

    /// Creates the streams and events of a device's copies.
    fn prepare_device(&self, device: u32) -> Result<(), CallFailure> {
        self.check_process()?;
        Ok(self.driver.copy_slots().prepare_for(&*self.driver, device)?)
    }

    /// Opens a handle for a user.
    ///
    /// # Errors
    /// [`HandleOpenError`].
    pub(super) fn open_handle(
        &self,
        handle: &IpcHandle,
        descriptor: Option<OwnedFd>,
        user: MappingUser,
    ) -> Result<OpenedHandle, HandleOpenError> {
        self.check_process().map_err(HandleOpenError::Other)?;
        let sealed = SealedHandle::parse(handle, D::KINDS)?;
        if sealed.process == self.process {
            return Err(HandleOpenError::Own);
        }
        let device = self.driver.device_for(match user {
            MappingUser::Device(device) => Some(device),
            MappingUser::Host => None,
        });
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let conflicts = self.driver.refuses_overlap(sealed.kind);
        let stale = self.read_imports().in_the_way(&sealed, device).filter(|_| conflicts);
        match stale {
            Some(stale) if stale == sealed.id => return Err(HandleOpenError::AlreadyMapped),
            Some(stale) => return Err(HandleOpenError::Overlap { stale, wanted: sealed.id }),
            None => {}
        }
        if let Some(device) = device.filter(|device| !self.prepared.is_prepared(*device)) {
            self.prepare_device(device).map_err(HandleOpenError::Other)?;
            self.prepared.note_answer(device, Ok(()));
        }
        let (addr, opened) = self.driver.open_handle(&sealed, descriptor, device)?;
        // A peer's length is not trusted: copies could exceed the mapping.
        let wrong = match self.driver.maps_contiguously(addr, sealed.len) {
            Ok(true) => return Ok(self.write_imports().add_import(&sealed, device, addr, opened)),
            Ok(false) => IpcHandleError::Value("length").into(),
            Err(cause) => HandleOpenError::Other(cause),
        };
        let _ = self.driver.unmap_import(addr, &opened);
        Err(wrong)
    }

    /// Closes a mapping after the copies that use it have completed.
    ///
    /// # Errors
    /// [`NotClosed`].
    pub(super) fn close_mapping(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        if self.check_process().is_err() {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // No new copy can use the mapping, because the caller has passed it by value. If the caller has polled until its copies completed, this does
        // not wait.
        if let Err(cause) = self.lock_batches().wait_for_users(&*self.driver, Some(mapped.number)) {
            return Err(NotClosed { mapped, error: CloseError::Other(cause) });
        }
        self.unmap_import(mapped)
    }

    /// Closes a mapping while another thread copies, without delaying that thread.
    fn close_beside(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        loop {
            let is_used = self.lock_batches().poll_users(&*self.driver, mapped.number);
            match is_used {
                Ok(false) => break,
                Ok(true) => std::thread::sleep(POLL),
                Err(cause) => return Err(NotClosed { mapped, error: CloseError::Other(cause) }),
            }
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.unmap_import(mapped)
    }

    /// Unmaps memory that no copy uses. The caller holds `turn`.
    fn unmap_import(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        // Waits for synchronous copies, which hold the read lock until they complete.
        let (mapped, import) = self.write_imports().take_import(mapped)?;
        match self.driver.unmap_import(import.addr, &import.opened) {
            Ok(()) => Ok(()),
            Err(cause) => {
                self.write_imports().put_back(&mapped, import);
                Err(NotClosed { mapped, error: CloseError::Other(cause) })
            }
        }
    }
}

impl<D: IpcDriver> Drop for DriverMappings<D> {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return std::mem::forget(Arc::clone(&self.driver));
        }
        let batches = self.batches.get_mut().unwrap_or_else(PoisonError::into_inner);
        if batches.wait_for_users(&*self.driver, None).is_err() {
            // Copies may still be running: the memory that they use stays mapped.
            std::mem::forget(std::mem::replace(batches, CopyBatches::with_slots(0)));
            return std::mem::forget(Arc::clone(&self.driver));
        }
        let imports = self.imports.get_mut().unwrap_or_else(PoisonError::into_inner);
        for import in imports.drain() {
            // A mapping that the driver fails to unmap stays until the process ends.
            let _ = self.driver.unmap_import(import.addr, &import.opened);
        }
    }
}
