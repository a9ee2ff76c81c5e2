//! Memory of the host in memory files: a descriptor goes to the peer, which maps it. Nothing is accounted and nothing can be stale:
//! a mapping is of the file, not of an address, and the kernel keeps a file as long as anybody has it: also a child of a fork, until it ends or becomes
//! another program, but it does nothing with it.

use std::os::fd::OwnedFd;
use std::sync::{PoisonError, RwLock};

use super::error::{Cause, CopyError, ExportError, FindError, NotClosed, OpenError};
use super::mapping::{FIXED, Mapping, cause, file, reopen};
use super::table::Table;
use super::window::{Window, granules};
use super::{
    Allocation, AllocationId, At, Caps, Export, Handle, HandleError, IpcMemory, Mapped, Passing, To, planted,
};
use crate::{Memory, OutOfMemory};

/// What a peer is told who opens without the descriptor, or with another one.
const MISSING: &str = "memory of the host is opened by its descriptor, which did not come along";
const WRONG: &str = "the descriptor is not of the memory that the handle names";

/// The memory of a process that it shares.
#[derive(Debug)]
pub struct Host {
    /// A random number: what peers tell processes by.
    process: u64,
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    table: Table<File>,
    next: u64,
}

#[derive(Debug)]
struct File {
    fd: OwnedFd,
    inode: u64,
}

/// Memory was not allocated or freed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No allocation has that size.
    #[error("{0} bytes cannot be allocated")]
    Size(usize),
    /// The system has no memory for it.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// No allocation begins there.
    #[error("no allocation begins at {addr:#x}")]
    Unknown {
        /// The address.
        addr: usize,
    },
    /// What the system says.
    #[error(transparent)]
    System(#[from] Cause),
}

impl Host {
    /// One for this process.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> Result<Self, Cause> {
        let inner = Inner { table: Table::new(Window::new()?), next: 1 };
        Ok(Self { process: random()?, inner: RwLock::new(inner) })
    }

    /// New zeroed memory of at least that many bytes; its address.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn alloc(&self, len: usize) -> Result<usize, HostError> {
        let size = granules(len).ok_or(HostError::Size(len))?;
        self.check_process()?;
        let fd = file("trunkline.ipc", size as u64)?;
        let inode = rustix::fs::fstat(&fd).map_err(cause("fstat"))?.st_ino;
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let base = inner.table.window.put(size, &fd, 0)?;
        let id = AllocationId(inner.next);
        inner.next += 1;
        inner.table.add(Allocation { base, len, id, device: 0 }, File { fd, inode });
        Ok(base)
    }

    /// A child of a fork has nothing of its parent's.
    fn check_process(&self) -> Result<(), Cause> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.window.here().check()
    }

    /// It is used no more. Peers that have it open keep it.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn free(&self, base: usize) -> Result<(), HostError> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.table.own(base).ok_or(HostError::Unknown { addr: base })?;
        inner.table.window.clear(base)?;
        inner.table.remove(base);
        Ok(())
    }
}

/// A number that nobody guesses.
pub(super) fn random() -> Result<u64, Cause> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(cause("getrandom"))?;
    Ok(u64::from_le_bytes(bytes))
}

impl IpcMemory for Host {
    fn caps(&self) -> Caps {
        Caps {
            maps: true,
            by_bytes: false,
            by_descriptor: true,
            opens_once: false,
            refuses_overlap: false,
            outlives_free: true,
            tells_descriptors: true,
        }
    }

    fn allocation_of(&self, addr: usize) -> Result<Allocation, FindError> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.table.find(addr).map(|own| own.allocation)
    }

    fn export(&self, of: &Allocation, how: Passing) -> Result<Export, ExportError> {
        if how == Passing::Bytes {
            return Err(ExportError::Passing("memory of the host goes by its descriptor"));
        }
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let own = inner.table.own(of.base).filter(|own| own.allocation == *of);
        let own = own.ok_or(ExportError::Gone(of.id))?;
        let words = [self.process, of.id.0, of.base as u64, of.len as u64, own.more.inode];
        let descriptor = Some(reopen(&own.more.fd)?);
        Ok(Export { handle: Handle::of_words(Handle::HOST, words), descriptor })
    }

    fn open(&self, handle: &Handle, descriptor: Option<OwnedFd>) -> Result<Mapped, OpenError> {
        let [process, id, base, len, inode] = handle.words(Handle::HOST)?;
        let fd = descriptor.ok_or(OpenError::Descriptor(MISSING))?;
        let len = usize::try_from(len).ok().filter(|len| granules(*len).is_some());
        let len = len.ok_or(HandleError::Value("length"))?;
        if process == self.process {
            return Err(OpenError::Own);
        }
        let is_fixed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(FIXED));
        let stat = rustix::fs::fstat(&fd).map_err(|error| other(cause("fstat")(error)))?;
        let is_it = stat.st_ino == inode && u64::try_from(stat.st_size).is_ok_and(|size| size >= len as u64);
        let is_right = is_fixed && is_it;
        if !is_right && !planted("mem-ipc-takes-any-descriptor") {
            return Err(OpenError::Descriptor(WRONG));
        }
        self.check_process().map_err(other)?;
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let mapping = Mapping::of(inner.table.window.here(), &fd, 0, len).map_err(other)?;
        Ok(inner.table.import(process, AllocationId(id), base, len, mapping))
    }

    fn close(&self, mapped: Mapped) -> Result<(), NotClosed> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).table.close(mapped)
    }

    fn read(&self, from: At<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.read(from, out)
    }

    fn copy(&self, from: At<'_>, to: To<'_>, len: usize) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.copy(from, to, len)
    }

    fn write(&self, to: At<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.write(to, bytes)
    }

    fn fill(&self, to: At<'_>, from: &Memory, offset: u64, len: usize) -> Result<(), CopyError> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).table.fill(to, from, offset, len)
    }
}

fn other(cause: Cause) -> OpenError {
    OpenError::of(cause, "the descriptor must be one that its owner made to be mapped")
}
