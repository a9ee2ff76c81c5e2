//! Memory of GPUs by their vendor's driver: what is common to all vendors. [`Driven`] holds the rules and what is open; a [`Driver`] beside this
//! folder makes the calls.
//!
//! The driver finds allocations and exports them, so their ids are its own. It is called by one opener or closer at a time; copies
//! borrow what is open, and go on beside calls that do not end it.

mod driver;
mod imports;
mod sealed;

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError, RwLock};

pub(super) use driver::{Driver, Way};
pub(super) use sealed::Sealed;

use self::imports::Imports;
use super::error::{Cause, CloseError, CopyError, ExportError, FindError, NotClosed, OpenError};
use super::host::random;
use super::{Allocation, At, Caps, Export, Handle, HandleError, IpcMemory, Mapped, Passing, To, planted};
use crate::Memory;

/// Memory of a vendor's devices, one of which memory of others is mapped for.
#[derive(Debug)]
pub struct Driven<D: Driver> {
    driver: D,
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
        Ok(Self { driver, process: random()?, turn: Mutex::default(), imports: RwLock::new(Imports::new()) })
    }

    /// Memory of the device, for whoever has no other; not zeroed. Its address, which the CPU does not touch.
    ///
    /// # Errors
    /// What the driver says.
    pub fn alloc(&self, len: usize) -> Result<usize, Cause> {
        self.driver.alloc(len)
    }

    /// Frees it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free(&self, addr: usize) -> Result<(), Cause> {
        self.driver.free(addr)
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

    /// Whether own bytes are all there, one piece behind the other.
    fn is_own(&self, imports: &Imports<D::Opened>, addr: usize, len: usize) -> Result<bool, CopyError> {
        let Some(end) = addr.checked_add(len) else { return Ok(false) };
        let mut at = addr;
        for _ in 0..PIECES_MAX {
            let found = match self.find(imports, at) {
                Ok(found) => found,
                Err(FindError::Other(cause)) => return Err(CopyError::Other(cause)),
                Err(_) => return Ok(false),
            };
            at = found.base.saturating_add(found.len);
            if at >= end || !self.driver.goes_on() {
                return Ok(at >= end);
            }
        }
        Ok(false)
    }

    /// Where bytes are.
    fn address(&self, imports: &Imports<D::Opened>, at: At<'_>, len: usize) -> Result<usize, CopyError> {
        match at {
            At::Own(addr) if self.is_own(imports, addr, len)? => Ok(addr),
            At::Own(addr) => Err(CopyError::Outside { at: addr as u64, len }),
            At::Open(mapped, offset) => imports.address(mapped, offset, len),
        }
    }
}

impl<D: Driver> IpcMemory for Driven<D> {
    fn caps(&self) -> Caps {
        self.driver.caps()
    }

    fn allocation_of(&self, addr: usize) -> Result<Allocation, FindError> {
        self.find(&self.imports(), addr)
    }

    fn holds(&self, addr: usize, len: usize) -> bool {
        self.is_own(&self.imports(), addr, len) == Ok(true)
    }

    fn export(&self, of: &Allocation, how: Passing) -> Result<Export, ExportError> {
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
            Ok(sealed) if sealed.process == self.process => self.driver.unexport(&sealed),
            _ => Err(CloseError::Unknown),
        }
    }

    fn open(&self, handle: &Handle, descriptor: Option<OwnedFd>) -> Result<Mapped, OpenError> {
        let sealed = Sealed::parse(handle, D::KINDS)?;
        if sealed.process == self.process {
            return Err(OpenError::Own);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let conflicts = self.driver.conflicts(sealed.kind);
        let stale = self.imports().in_the_way(&sealed).filter(|_| conflicts);
        match stale {
            Some(stale) if stale == sealed.id => return Err(OpenError::AlreadyMapped),
            Some(stale) => return Err(OpenError::Overlap { stale, wanted: sealed.id }),
            None => {}
        }
        let (addr, opened) = self.driver.open(&sealed, descriptor)?;
        // A peer's word for the length would have copies go beyond what is mapped.
        let wrong = match self.driver.maps(addr, sealed.len) {
            Ok(true) => return Ok(self.imports_mut().add(&sealed, addr, opened)),
            Ok(false) if planted("mem-gpu-believes-lengths") => {
                return Ok(self.imports_mut().add(&sealed, addr, opened));
            }
            Ok(false) => HandleError::Value("length").into(),
            Err(cause) => OpenError::Other(cause),
        };
        let _ = self.driver.close(addr, &opened);
        Err(wrong)
    }

    fn close(&self, mapped: Mapped) -> Result<(), NotClosed> {
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
        let imports = self.imports();
        let from = self.address(&imports, from, out.len())?;
        let to = out.as_mut_ptr().expose_provenance();
        // SAFETY: an exclusive borrow, as long as the call.
        let done = unsafe { self.driver.transfer(to, from, out.len(), Way::Out) };
        done.map_err(CopyError::Other)
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        let imports = self.imports();
        let to = self.address(&imports, to, bytes.len())?;
        let from = bytes.as_ptr().expose_provenance();
        // SAFETY: borrowed as long as the call, and only read.
        let done = unsafe { self.driver.transfer(to, from, bytes.len(), Way::In) };
        done.map_err(CopyError::Other)
    }

    fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        let imports = self.imports();
        let from = self.address(&imports, from, len)?;
        let (to, way) = match to {
            To::Own(addr) => (self.address(&imports, At::Own(addr), len)?, Way::Across),
            To::Open(mapped, offset) => (self.address(&imports, At::Open(mapped, offset), len)?, Way::Across),
            To::Memory(memory, at) => (of_host(memory, at, len)?, Way::Out),
        };
        // SAFETY: memory of the host that says how long it is, of which nobody has a reference.
        let done = unsafe { self.driver.transfer(to, from, len, way) };
        done.map_err(CopyError::Other)
    }

    fn fill(&self, to: At<'_>, from: &Memory, offset: u64, len: usize) -> Result<(), CopyError> {
        let imports = self.imports();
        let to = self.address(&imports, to, len)?;
        let from = of_host(from, offset, len)?;
        // SAFETY: as above.
        let done = unsafe { self.driver.transfer(to, from, len, Way::In) };
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
        let imports = self.imports.get_mut().unwrap_or_else(PoisonError::into_inner);
        for import in imports.drain() {
            // What the driver keeps now is its own until the process ends.
            let _ = self.driver.close(import.addr, &import.opened);
        }
    }
}
