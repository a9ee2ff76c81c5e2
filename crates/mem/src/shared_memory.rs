//! Memory of a process that other processes of its host map: a memory file of fixed size, found by process and descriptor number. Created by
//! front ends with symmetric memory, so that processes of one host access each other's memory by loads and stores. It never passes a descriptor
//! itself: a process that may access the owner's `/proc` entry opens the file there.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::ipc::CallFailure;
use crate::ipc::mapping::{FIXED, cause_of, create_sized_file};
use crate::{MemoryKind, MemoryRange};

/// Page size, in bytes.
const PAGE: usize = 4096;

/// The identification by which another process finds a memory file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryFileId {
    /// The process number in its own namespace.
    pub pid: u32,
    /// The descriptor number in that process.
    pub fd: u32,
    /// The file's inode, by which a wrong file is detected.
    pub inode: u64,
    /// Length of the file, in bytes.
    pub len: u64,
}

/// A memory file of this process, mapped.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    memory: MemoryRange,
    inode: u64,
}

/// Why another process's memory cannot be mapped.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A system call failed: the process has ended, belongs to another user, or is in another namespace.
    #[error(transparent)]
    System(#[from] CallFailure),
    /// The descriptor refers to another file.
    #[error("descriptor {0} of the process does not refer to the expected file")]
    Other(u32),
}

/// A mapping that is unmapped when its last user is dropped. Forked children keep it.
#[derive(Debug)]
struct MappingGuard {
    addr: usize,
    len: usize,
    /// Memory that the mapping keeps alive.
    _kept: Option<MemoryRange>,
}

impl Drop for MappingGuard {
    fn drop(&mut self) {
        // SAFETY: called once by the owner of the mapping, from which no borrow is left.
        let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(self.addr), self.len) };
    }
}

/// Maps bytes that a device's driver has exported as a dma-buf, if the CPU can access them: those of `memory`, whose first byte is at `offset`
/// in the file. The mapping is memory of the host, and keeps `memory` alive. Called by software NICs, which have no DMA engine to access a
/// device.
///
/// # Errors
/// The system's error; EINVAL if the file is shorter.
pub fn map_exported(memory: &MemoryRange, file: &impl AsFd, offset: u64) -> Result<MemoryRange, CallFailure> {
    let short = || CallFailure::System { call: "lseek", code: libc::EINVAL };
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(cause_of("lseek"))?;
    let inset = offset % PAGE as u64;
    let end = offset.checked_add(memory.len() as u64).filter(|end| *end <= size && !memory.is_empty());
    let len = end.and_then(|end| usize::try_from(end - (offset - inset)).ok()).ok_or_else(short)?;
    let whole = map_part(file, offset - inset, len, PAGE, Some(memory.clone()))?;
    whole.sub_range(inset, memory.len() as u64).map_err(|_| short())
}

/// Maps a whole file, at an address that is a multiple of `align`, a power of two.
fn map_aligned(file: &impl AsFd, len: usize, align: usize) -> Result<MemoryRange, CallFailure> {
    map_part(file, 0, len, align, None)
}

/// Maps bytes of a file from the page-aligned offset `start` on, at an address that is a multiple of `align`, a power of two.
fn map_part(
    file: &impl AsFd,
    start: u64,
    len: usize,
    align: usize,
    kept: Option<MemoryRange>,
) -> Result<MemoryRange, CallFailure> {
    let room = len.checked_add(align).ok_or(CallFailure::System { call: "mmap", code: libc::ENOMEM })?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), flags) };
    let owner = Arc::new(MappingGuard {
        addr: base.map_err(cause_of("mmap"))?.expose_provenance(),
        len: room,
        _kept: kept,
    });
    let addr = owner.addr.next_multiple_of(align);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the call replaces only addresses that were just reserved and that no other code knows yet.
    let base = unsafe {
        rustix::mm::mmap(ptr::with_exposed_provenance_mut(addr), len, protection, flags, file, start)
    };
    base.map_err(cause_of("mmap"))?;
    // SAFETY: the bytes are mapped readable and writable until `owner` is dropped, which the range keeps; no reference
    // to them exists.
    Ok(unsafe { MemoryRange::with_owner(addr, len, MemoryKind::Host, owner) })
}

impl SharedMemory {
    /// Allocates zeroed memory, whose pages the system allocates on use. `name` is shown in `/proc`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(name: &str, len: usize) -> Result<Self, CallFailure> {
        Self::new_aligned(name, len, PAGE)
    }

    /// Allocates memory as [`SharedMemory::new`], at a local address that is a multiple of `align`, rounded up to a power of two.
    ///
    /// # Errors
    /// As [`SharedMemory::new`].
    pub fn new_aligned(name: &str, len: usize, align: usize) -> Result<Self, CallFailure> {
        let file = create_sized_file(name, len as u64)?;
        let memory = map_aligned(&file, len, align.max(PAGE).next_power_of_two())?;
        Self::from_file(file, memory)
    }

    /// Wraps a file that is mapped as `memory`.
    pub(crate) fn from_file(file: OwnedFd, memory: MemoryRange) -> Result<Self, CallFailure> {
        let inode = rustix::fs::fstat(&file).map_err(cause_of("fstat"))?.st_ino;
        Ok(Self { file, memory, inode })
    }

    /// Returns the mapped bytes.
    #[must_use]
    pub fn memory(&self) -> &MemoryRange {
        &self.memory
    }

    /// Returns a descriptor by which another process can map the memory.
    ///
    /// # Errors
    /// The system's error.
    pub fn descriptor(&self) -> Result<OwnedFd, CallFailure> {
        self.file.try_clone().map_err(cause_of("fcntl"))
    }

    /// Maps the memory of another process, given its descriptor and its length in bytes. The mapping stays valid when that process ends.
    ///
    /// # Errors
    /// [`PeerError`], if the file is not a memory file of exactly that size, sealed against resizing.
    pub fn map_peer(file: &impl AsFd, len: u64) -> Result<MemoryRange, PeerError> {
        map_checked(file, len, None)
    }

    /// Returns the identification by which other processes find the memory until this value is dropped.
    #[must_use]
    pub fn file_id(&self) -> MemoryFileId {
        let fd = self.file.as_raw_fd().cast_unsigned();
        MemoryFileId { pid: std::process::id(), fd, inode: self.inode, len: self.memory.len() as u64 }
    }
}

impl MemoryFileId {
    /// Maps the memory of another process of this host. The mapping stays valid when that process ends.
    ///
    /// # Errors
    /// [`PeerError`].
    pub fn map_file(&self) -> Result<MemoryRange, PeerError> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(cause_of("open"))?;
        match map_checked(&file, self.len, Some(self.inode)) {
            Err(PeerError::Other(_)) => Err(PeerError::Other(self.fd)),
            done => done,
        }
    }
}

/// Maps a memory file if it has exactly that size, sealed against resizing, and the given inode if there is one.
fn map_checked(file: &impl AsFd, len: u64, inode: Option<u64>) -> Result<MemoryRange, PeerError> {
    let other = PeerError::Other(file.as_fd().as_raw_fd().cast_unsigned());
    let Ok(seals) = rustix::fs::fcntl_get_seals(file) else { return Err(other) };
    let stat = rustix::fs::fstat(file).map_err(cause_of("fstat"))?;
    let is_it = seals.contains(FIXED)
        && inode.is_none_or(|inode| inode == stat.st_ino)
        && u64::try_from(stat.st_size).is_ok_and(|size| size == len);
    match usize::try_from(len) {
        Ok(len) if is_it && len > 0 => Ok(map_aligned(file, len, PAGE)?),
        _ => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_memory_has_the_same_bytes() {
        let shared = SharedMemory::new("trunkline.test", 8192).unwrap();
        let other = shared.file_id().map_file().unwrap();
        shared.memory().write(100, b"here").unwrap();
        let mut seen = [0; 4];
        other.read(100, &mut seen).unwrap();
        assert_eq!(&seen, b"here");
        other.store(8000, 7).unwrap();
        assert_eq!((shared.memory().load(8000), other.len()), (Ok(7), 8192));
        drop(shared);
        assert_eq!(other.load(8000), Ok(7), "the mapping must outlive the owner");
    }

    #[test]
    fn only_sealed_files_of_that_size_are_mapped() {
        let shared = SharedMemory::new("trunkline.test", 8192).unwrap();
        let file = shared.descriptor().unwrap();
        let other = SharedMemory::map_peer(&file, 8192).unwrap();
        shared.memory().store(8, 5).unwrap();
        assert_eq!(other.load(8), Ok(5));
        assert!(matches!(SharedMemory::map_peer(&file, 4096), Err(PeerError::Other(_))));
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let loose = rustix::fs::memfd_create("trunkline.test", flags).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        assert!(matches!(SharedMemory::map_peer(&loose, 8192), Err(PeerError::Other(_))));
        rustix::fs::fcntl_add_seals(&loose, FIXED).unwrap();
        assert!(SharedMemory::map_peer(&loose, 8192).is_ok());
    }

    #[test]
    fn shared_memory_begins_at_its_alignment() {
        for align in [1, 4096, 1 << 21, 1 << 30] {
            let shared = SharedMemory::new_aligned("trunkline.test", 8192, align).unwrap();
            assert!(shared.memory().addr().is_multiple_of(align));
            shared.memory().store(8184, 1).unwrap();
        }
    }

    #[test]
    fn exported_bytes_are_mapped_from_their_offset_on() {
        let shared = SharedMemory::new("trunkline.test", 16_384).unwrap();
        let other = MemoryRange::heap(5000);
        let file = shared.descriptor().unwrap();
        let mapped = map_exported(&other, &file, 4096 + 64).unwrap();
        assert_eq!((mapped.len(), mapped.kind(), mapped.addr() % 4096), (5000, MemoryKind::Host, 64));
        mapped.store(4992, 9).unwrap();
        assert_eq!((shared.memory().load(4096 + 64 + 4992), other.load(4992)), (Ok(9), Ok(0)));
        assert!(
            map_exported(&other, &file, 16_384 - 4999).is_err(),
            "a range that ends after the file must be refused"
        );
        assert!(map_exported(&other, &file, u64::MAX - 10).is_err());
        assert!(map_exported(&MemoryRange::heap(0), &file, 0).is_err(), "an empty range must be refused");
        assert!(map_exported(&other, &rustix::pipe::pipe().unwrap().0, 0).is_err());
    }

    #[test]
    fn another_file_is_refused() {
        let shared = SharedMemory::new("trunkline.test", 8192).unwrap();
        let found = shared.file_id();
        let refused =
            |found: MemoryFileId| matches!(found.map_file(), Err(PeerError::Other(fd)) if fd == found.fd);
        assert!(refused(MemoryFileId { inode: found.inode + 1, ..found }));
        assert!(refused(MemoryFileId { len: 4096, ..found }));
        let pipe = rustix::pipe::pipe().unwrap();
        assert!(refused(MemoryFileId { fd: pipe.1.as_raw_fd().cast_unsigned(), ..found }));
        assert!(matches!(MemoryFileId { fd: 9999, ..found }.map_file(), Err(PeerError::System(_))));
    }
}
