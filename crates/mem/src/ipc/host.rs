//! Memory of the host in memory files, shared by passing a descriptor that the peer maps. No accounting is needed and
//! no mapping can be stale: a mapping refers to a file, not to an address. The kernel keeps a file until no process has
//! it open or mapped. A forked child holds it until it ends or calls exec, but never uses it.

use std::os::fd::OwnedFd;
use std::sync::{PoisonError, RwLock};

use super::address_window::{AddressWindow, round_to_granules};
use super::error::{CallFailure, CopyError, ExportError, FindAllocationError, HandleOpenError, NotClosed};
use super::mapping::{FIXED, FileMapping, cause_of, create_sized_file, reopen_file};
use super::table::AllocationTable;
use super::{
    CopyPlace, CopyTarget, ExportedHandle, HandlePassing, IpcAllocation, IpcAllocationId, IpcCaps, IpcHandle,
    IpcHandleError, IpcMemory, OpenedHandle,
};
use crate::{MemoryRange, OutOfMemory};

/// Errors for a peer that opens a handle without its descriptor, or with another one.
const MISSING: &str = "memory of the host is opened by its descriptor, which did not arrive with the handle";
const WRONG: &str = "the descriptor does not refer to the memory that the handle names";

/// The shareable memory of a process.
#[derive(Debug)]
pub struct HostMemory {
    /// A random number that identifies this process to peers.
    process: u64,
    inner: RwLock<HostTable>,
}

#[derive(Debug)]
struct HostTable {
    table: AllocationTable<HostFile>,
    next: u64,
}

#[derive(Debug)]
struct HostFile {
    fd: OwnedFd,
    inode: u64,
}

/// Why memory was not allocated or freed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The size is 0 or too large.
    #[error("cannot allocate {0} bytes: the size is 0 or too large")]
    Size(usize),
    /// The system is out of memory.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// No allocation begins there.
    #[error("no allocation begins at {addr:#x}")]
    Unknown {
        /// The address.
        addr: usize,
    },
    /// A system call failed.
    #[error(transparent)]
    System(#[from] CallFailure),
}

impl HostMemory {
    /// Creates the kind for this process.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> Result<Self, CallFailure> {
        let inner = HostTable { table: AllocationTable::new(AddressWindow::new()?), next: 1 };
        Ok(Self { process: random_number()?, inner: RwLock::new(inner) })
    }

    /// Allocates at least `len` zeroed bytes; returns their address.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn alloc(&self, len: usize) -> Result<usize, HostError> {
        let size = round_to_granules(len).ok_or(HostError::Size(len))?;
        self.check_process()?;
        let fd = create_sized_file("trunkline.ipc", size as u64)?;
        let inode = rustix::fs::fstat(&fd).map_err(cause_of("fstat"))?.st_ino;
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let base = inner.table.window.map_lowest(size, &fd, 0)?;
        let id = IpcAllocationId(inner.next);
        inner.next += 1;
        inner.table.add_own(IpcAllocation { base, len, id, device: 0 }, HostFile { fd, inode });
        Ok(base)
    }

    /// Fails in a forked child, which has no mappings.
    fn check_process(&self) -> Result<(), CallFailure> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.window.fork_guard().check_process()
    }

    /// Frees an allocation. Peers that have mapped it keep it.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn free(&self, base: usize) -> Result<(), HostError> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.table.find_own(base).ok_or(HostError::Unknown { addr: base })?;
        inner.table.window.clear(base)?;
        inner.table.remove(base);
        Ok(())
    }
}

/// Returns an unpredictable random number.
pub(super) fn random_number() -> Result<u64, CallFailure> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(cause_of("getrandom"))?;
    Ok(u64::from_le_bytes(bytes))
}

impl IpcMemory for HostMemory {
    fn caps(&self) -> IpcCaps {
        IpcCaps {
            maps: true,
            by_bytes: false,
            by_descriptor: true,
            opens_once: false,
            refuses_overlap: false,
            outlives_free: true,
            tells_descriptors: true,
        }
    }

    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.table.find_around(addr).map(|own| own.allocation)
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        if how == HandlePassing::Bytes {
            return Err(ExportError::Passing("memory of the host is passed by its descriptor"));
        }
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let own = inner.table.find_own(of.base).filter(|own| own.allocation == *of);
        let own = own.ok_or(ExportError::Gone(of.id))?;
        let words = [self.process, of.id.0, of.base as u64, of.len as u64, own.more.inode];
        let descriptor = Some(reopen_file(&own.more.fd)?);
        Ok(ExportedHandle { handle: IpcHandle::of_words(IpcHandle::HOST, words), descriptor })
    }

    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError> {
        let [process, id, base, len, inode] = handle.parse_words(IpcHandle::HOST)?;
        let fd = descriptor.ok_or(HandleOpenError::Descriptor(MISSING))?;
        let len = usize::try_from(len).ok().filter(|len| round_to_granules(*len).is_some());
        let len = len.ok_or(IpcHandleError::Value("length"))?;
        if process == self.process {
            return Err(HandleOpenError::Own);
        }
        let is_fixed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(FIXED));
        let stat = rustix::fs::fstat(&fd).map_err(|error| open_error(cause_of("fstat")(error)))?;
        let is_it = stat.st_ino == inode && u64::try_from(stat.st_size).is_ok_and(|size| size >= len as u64);
        let is_right = is_fixed && is_it;
        if !is_right {
            return Err(HandleOpenError::Descriptor(WRONG));
        }
        self.check_process().map_err(open_error)?;
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let mapping =
            FileMapping::map_file(inner.table.window.fork_guard(), &fd, 0, len).map_err(open_error)?;
        Ok(inner.table.add_import(process, IpcAllocationId(id), base, len, mapping))
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).table.close_import(mapped)
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.read(from, out)
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.copy(from, to, len)
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.write(to, bytes)
    }

    fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.fill_from(to, from, offset, len)
    }
}

fn open_error(cause: CallFailure) -> HandleOpenError {
    HandleOpenError::from_cause(cause, "the descriptor must be a memory file that its owner made for mapping")
}
