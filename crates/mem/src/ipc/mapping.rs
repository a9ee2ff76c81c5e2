//! A mapped range of addresses, and files of memory to map. The range is unmapped with its owner.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::error::CallFailure;
use super::fork_guard::ForkGuard;
use crate::{MemoryKind, MemoryRange};

/// The seals that prevent a file from changing its size under a mapping.
pub(crate) const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A range of addresses owned by this value.
#[derive(Debug)]
pub(super) struct FileMapping {
    addr: usize,
    len: usize,
    here: Arc<ForkGuard>,
}

impl FileMapping {
    /// Maps bytes of a file at an address of the kernel's choice. A forked child does not inherit the mapping.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn map_file(
        here: &Arc<ForkGuard>,
        file: &impl AsFd,
        offset: u64,
        len: usize,
    ) -> Result<Self, CallFailure> {
        let at = ptr::null_mut();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { rustix::mm::mmap(at, len, protection, MapFlags::SHARED, file, offset) };
        let addr = base.map_err(cause_of("mmap"))?.expose_provenance();
        let mapping = Self { addr, len, here: Arc::clone(here) };
        keep_from_children(mapping.addr, len);
        Ok(mapping)
    }

    /// Reserves addresses without memory.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn reserve_addresses(here: Arc<ForkGuard>, len: usize) -> Result<Self, CallFailure> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) };
        Ok(Self { addr: base.map_err(cause_of("mmap"))?.expose_provenance(), len, here })
    }

    /// Maps bytes of a file at an offset of the reserved range.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn map_at(
        &self,
        at: usize,
        len: usize,
        file: &impl AsFd,
        offset: u64,
    ) -> Result<(), CallFailure> {
        let place = self.pointer_at(at, len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the call replaces only addresses of this mapping, to which no reference exists.
        let done = unsafe { rustix::mm::mmap(place, len, protection, flags, file, offset) };
        done.map_err(cause_of("mmap"))?;
        keep_from_children(place.expose_provenance(), len);
        Ok(())
    }

    /// Unmaps a part of the range; its addresses stay reserved.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn clear(&self, at: usize, len: usize) -> Result<(), CallFailure> {
        let place = self.pointer_at(at, len)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the call replaces only addresses of this mapping, to which no reference exists.
        let done = unsafe { rustix::mm::mmap_anonymous(place, len, ProtFlags::empty(), flags) };
        done.map(|_| ()).map_err(cause_of("mmap"))
    }

    fn pointer_at(&self, at: usize, len: usize) -> Result<*mut core::ffi::c_void, CallFailure> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len) && !self.here.is_child();
        let refused = CallFailure::System { call: "mmap", code: libc::EINVAL };
        if inside { Ok(ptr::with_exposed_provenance_mut(self.addr + at)) } else { Err(refused) }
    }

    /// Returns the fork guard of the process that owns the mapping.
    pub(super) fn fork_guard(&self) -> &Arc<ForkGuard> {
        &self.here
    }

    pub(super) fn addr(&self) -> usize {
        self.addr
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of a mapping that is mapped in full.
    pub(super) fn memory(self: &Arc<Self>) -> MemoryRange {
        // SAFETY: the bytes are mapped readable and writable until `self` is dropped, which the range keeps; no
        // reference to them exists.
        unsafe { MemoryRange::with_owner(self.addr, self.len, MemoryKind::Host, Arc::clone(self)) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // A forked child does not have the mapping, and may have mapped other memory there.
        if self.here.is_child() {
            return;
        }
        // SAFETY: called once by the owner of the mapping, from which no borrow is left.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.addr), self.len) };
    }
}

/// Excludes a mapping from forked children, which would otherwise keep its memory allocated.
fn keep_from_children(addr: usize, len: usize) {
    let at = ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the caller owns the mapping; the call changes only the mappings of children.
    let _ = unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontFork) };
}

/// Creates a file of memory of a fixed size.
///
/// # Errors
/// The system's error.
pub(crate) fn create_sized_file(name: &str, len: u64) -> Result<OwnedFd, CallFailure> {
    let file = crate::create_memory_file(name).map_err(cause_of("memfd_create"))?;
    rustix::fs::ftruncate(&file, len).map_err(cause_of("ftruncate"))?;
    rustix::fs::fcntl_add_seals(&file, FIXED | SealFlags::SEAL).map_err(cause_of("fcntl"))?;
    Ok(file)
}

/// Opens the same file again, as a new open file description with locks of its own.
///
/// # Errors
/// The system's error.
pub(super) fn reopen_file(file: &impl AsFd) -> Result<OwnedFd, CallFailure> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(cause_of("open"))
}

/// Converts the error of a system call.
pub(crate) fn cause_of<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> CallFailure {
    move |error| CallFailure::from_system(call, &error.into())
}
