//! Memory of GPUs by their vendor's driver: what is common to all vendors. [`Driven`] holds the rules and what is open; a [`Driver`] beside this
//! folder makes the calls. Where it maps for one device and not for others, the same memory is open once for each that copies it.
//!
//! The driver finds allocations and exports them, so their ids are its own. It is called by one opener or closer at a time; copies
//! borrow what is open, and go on beside calls that do not end it. In a child of a fork nothing is of use that a driver has given, and
//! to none is the driver: it is refused all, and the driver not called.

mod driver;
mod imports;
mod sealed;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub(super) use driver::{Driver, Way};
pub(super) use sealed::Sealed;

use self::imports::Imports;
use super::error::{Cause, CloseError, CopyError, ExportError, FindError, NotClosed, OpenError};
use super::here::Here;
use super::host::random;
use super::{
    Allocation, At, Caps, Export, Handle, HandleError, IpcMemory, Mapped, Passing, To, User, planted,
};
use crate::Memory;

/// Memory of a vendor's devices, one of which memory of others is mapped for.
#[derive(Debug)]
pub struct Driven<D: Driver> {
    /// A child of a fork keeps it for ever, as to end it would be to call it.
    driver: Arc<D>,
    here: Here,
    /// A random number: what peers tell processes by.
    process: u64,
    /// Who opens or closes has it.
    turn: Mutex<()>,
    imports: RwLock<Imports<D::Opened>>,
}

/// What is allocated in several pieces has at most so many.
const PIECES_MAX: usize = 4096;

impl<D: Driver> Driven<D> {
    /// With a driver that has begun.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn with(driver: D) -> Result<Self, Cause> {
        let imports = RwLock::new(Imports::new());
        let (driver, here) = (Arc::new(driver), Here::new()?);
        Ok(Self { driver, here, process: random()?, turn: Mutex::default(), imports })
    }

    /// Memory of the device, for whoever has no other; not zeroed. Its address, which the CPU does not touch.
    ///
    /// # Errors
    /// What the driver says.
    pub fn alloc(&self, len: usize) -> Result<usize, Cause> {
        self.check_process()?;
        self.driver.alloc(len)
    }

    /// Frees it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free(&self, addr: usize) -> Result<(), Cause> {
        self.check_process()?;
        self.driver.free(addr)
    }

    /// A child of a fork has nothing of its parent's. Asked before any lock, which another thread of its parent's may have had.
    fn check_process(&self) -> Result<(), Cause> {
        if planted("mem-gpu-goes-on-in-children") { Ok(()) } else { self.here.check() }
    }

    fn imports(&self) -> std::sync::RwLockReadGuard<'_, Imports<D::Opened>> {
        self.imports.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn imports_mut(&self) -> std::sync::RwLockWriteGuard<'_, Imports<D::Opened>> {
        self.imports.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The own allocation around an address.
    fn find(&self, imports: &Imports<D::Opened>, addr: usize) -> Result<Allocation, FindError> {
        if imports.has(addr) {
            return Err(FindError::Imported { addr });
        }
        let found = self.driver.find(addr).map_err(FindError::Other)?;
        found.filter(|found| found.offset_of(addr).is_some()).ok_or(FindError::Unknown { addr })
    }

    /// The device that own bytes are of, if they are all there, one piece behind the other.
    fn own_device(
        &self,
        imports: &Imports<D::Opened>,
        addr: usize,
        len: usize,
    ) -> Result<Option<u32>, CopyError> {
        let Some(end) = addr.checked_add(len) else { return Ok(None) };
        let (mut at, mut device) = (addr, None);
        for _ in 0..PIECES_MAX {
            let found = match self.find(imports, at) {
                Ok(found) => found,
                Err(FindError::Other(cause)) => return Err(CopyError::Other(cause)),
                Err(_) => return Ok(None),
            };
            device = device.or(Some(found.device));
            at = found.base.saturating_add(found.len);
            if at >= end || !self.driver.goes_on() {
                return Ok(device.filter(|_| at >= end));
            }
        }
        Ok(None)
    }

    /// Where bytes are, and which device is to copy them.
    fn address(
        &self,
        imports: &Imports<D::Opened>,
        at: At<'_>,
        len: usize,
    ) -> Result<(usize, Option<u32>), CopyError> {
        match at {
            At::Own(addr) => match self.own_device(imports, addr, len)? {
                Some(device) => Ok((addr, self.driver.device_for(Some(device)))),
                None => Err(CopyError::Outside { at: addr as u64, len }),
            },
            At::Open(mapped, offset) => imports.address(mapped, offset, len),
        }
    }
}

impl<D: Driver> IpcMemory for Driven<D> {
    fn caps(&self) -> Caps {
        self.driver.caps()
    }

    fn allocation_of(&self, addr: usize) -> Result<Allocation, FindError> {
        self.check_process().map_err(|_| FindError::Unknown { addr })?;
        self.find(&self.imports(), addr)
    }

    fn holds(&self, addr: usize, len: usize) -> bool {
        self.check_process().is_ok() && matches!(self.own_device(&self.imports(), addr, len), Ok(Some(_)))
    }

    fn export(&self, of: &Allocation, how: Passing) -> Result<Export, ExportError> {
        self.check_process()?;
        let is_there = || match self.driver.find(of.base) {
            Ok(found) if found == Some(*of) => Ok(()),
            Ok(_) => Err(ExportError::Gone(of.id)),
            Err(cause) => Err(ExportError::Other(cause)),
        };
        is_there()?;
        let kind = D::KINDS.first().copied().unwrap_or(0);
        let mut sealed = Sealed::of(of, self.process, kind);
        let descriptor = self.driver.export(of, how, &mut sealed)?;
        // What was freed and allocated again meanwhile is not what was asked for.
        if let Err(gone) = is_there() {
            let _ = self.driver.unexport(&sealed);
            return Err(gone);
        }
        Ok(Export { handle: sealed.handle(), descriptor })
    }

    fn unexport(&self, export: Export) -> Result<(), CloseError> {
        match Sealed::parse(&export.handle, D::KINDS) {
            Ok(sealed) if sealed.process == self.process && self.check_process().is_ok() => {
                self.driver.unexport(&sealed)
            }
            _ => Err(CloseError::Unknown),
        }
    }

    fn open(&self, handle: &Handle, descriptor: Option<OwnedFd>) -> Result<Mapped, OpenError> {
        self.open_for(handle, descriptor, User::Host)
    }

    /// Memory of the host is copied by the device that this was opened with.
    fn user(&self, own: Option<usize>) -> Option<User> {
        self.check_process().ok()?;
        // Nobody is asked where there is one mapping for all.
        let by_default = self.driver.device_for(None)?;
        let found = own.and_then(|addr| self.find(&self.imports(), addr).ok());
        let device = found.and_then(|found| self.driver.device_for(Some(found.device)));
        Some(User::Device(device.unwrap_or(by_default)))
    }

    fn open_for(
        &self,
        handle: &Handle,
        descriptor: Option<OwnedFd>,
        user: User,
    ) -> Result<Mapped, OpenError> {
        self.check_process().map_err(OpenError::Other)?;
        let sealed = Sealed::parse(handle, D::KINDS)?;
        if sealed.process == self.process {
            return Err(OpenError::Own);
        }
        let device = self.driver.device_for(match user {
            User::Device(device) => Some(device),
            User::Host => None,
        });
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let conflicts = self.driver.conflicts(sealed.kind);
        let stale = self.imports().in_the_way(&sealed, device).filter(|_| conflicts);
        match stale {
            Some(stale) if stale == sealed.id => return Err(OpenError::AlreadyMapped),
            Some(stale) => return Err(OpenError::Overlap { stale, wanted: sealed.id }),
            None => {}
        }
        let (addr, opened) = self.driver.open(&sealed, descriptor, device)?;
        // A peer's word for the length would have copies go beyond what is mapped.
        let wrong = match self.driver.maps(addr, sealed.len) {
            Ok(true) => return Ok(self.imports_mut().add(&sealed, device, addr, opened)),
            Ok(false) if planted("mem-gpu-believes-lengths") => {
                return Ok(self.imports_mut().add(&sealed, device, addr, opened));
            }
            Ok(false) => HandleError::Value("length").into(),
            Err(cause) => OpenError::Other(cause),
        };
        let _ = self.driver.close(addr, &opened);
        Err(wrong)
    }

    fn close(&self, mapped: Mapped) -> Result<(), NotClosed> {
        if self.check_process().is_err() {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Waits for copies, which borrow it.
        let (mapped, import) = self.imports_mut().take(mapped)?;
        match self.driver.close(import.addr, &import.opened) {
            Ok(()) => Ok(()),
            Err(cause) => {
                self.imports_mut().put_back(&mapped, import);
                Err(NotClosed { mapped, error: CloseError::Other(cause) })
            }
        }
    }

    fn read(&self, from: At<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.imports();
        let (from, device) = self.address(&imports, from, out.len())?;
        let to = out.as_mut_ptr().expose_provenance();
        // SAFETY: an exclusive borrow, as long as the call.
        let done = unsafe { self.driver.transfer(to, from, out.len(), (Way::Out, device)) };
        done.map_err(CopyError::Other)
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.imports();
        let (to, device) = self.address(&imports, to, bytes.len())?;
        let from = bytes.as_ptr().expose_provenance();
        // SAFETY: borrowed as long as the call, and only read.
        let done = unsafe { self.driver.transfer(to, from, bytes.len(), (Way::In, device)) };
        done.map_err(CopyError::Other)
    }

    fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.imports();
        let is_open = matches!(from, At::Open(..));
        let (from, own) = self.address(&imports, from, len)?;
        // What is open is of use to the device alone that it is mapped for.
        let (to, device, way) = match to {
            To::Own(addr) => (self.address(&imports, At::Own(addr), len)?.0, own, Way::Across),
            To::Open(mapped, offset) => {
                let (to, other) = self.address(&imports, At::Open(mapped, offset), len)?;
                (to, if is_open { own } else { other }, Way::Across)
            }
            To::Memory(memory, at) => (of_host(memory, at, len)?, own, Way::Out),
        };
        // SAFETY: memory of the host that says how long it is, of which nobody has a reference.
        let done = unsafe { self.driver.transfer(to, from, len, (way, device)) };
        done.map_err(CopyError::Other)
    }

    fn fill(&self, to: At<'_>, from: &Memory, offset: u64, len: usize) -> Result<(), CopyError> {
        self.check_process().map_err(CopyError::Refused)?;
        let imports = self.imports();
        let (to, device) = self.address(&imports, to, len)?;
        let from = of_host(from, offset, len)?;
        // SAFETY: as above.
        let done = unsafe { self.driver.transfer(to, from, len, (Way::In, device)) };
        done.map_err(CopyError::Other)
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

impl<D: Driver> Drop for Driven<D> {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return std::mem::forget(Arc::clone(&self.driver));
        }
        let imports = self.imports.get_mut().unwrap_or_else(PoisonError::into_inner);
        for import in imports.drain() {
            // What the driver keeps now is its own until the process ends.
            let _ = self.driver.close(import.addr, &import.opened);
        }
    }
}
