//! Memory that ranks send from and receive into, with guard bytes on both sides.
//!
//! Made by a rank at set-up; its main thread accesses it between runs, and plugins access it during runs. It never
//! returns a reference that outlives a call, because a plugin may write at any time during a run.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::types::named;

/// Guard bytes on each side.
const GUARD: usize = 4096;
/// The content of the guards.
const GUARD_BYTE: u8 = 0xc3;

named! {
    /// The kind of memory.
    MemoryKind, "kind of memory", {
        /// Private anonymous pages.
        Private = "private",
        /// Pages of a memory file, mapped shared.
        Shared = "shared",
        /// Private anonymous pages with a request for transparent huge pages.
        Huge = "huge",
    }
}

/// Memory could not be allocated.
#[derive(Debug, Error)]
#[error("cannot map {bytes} bytes of {kind} memory: {source}")]
pub struct MapError {
    kind: MemoryKind,
    bytes: usize,
    source: rustix::io::Errno,
}

/// One mapped extent between two guards.
#[derive(Debug)]
pub struct HostBuffer {
    map: NonNull<u8>,
    map_bytes: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to the object, and the threads alternate: the main thread fills and verifies only while
// no run is in progress.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; the accessors that write are unsafe, and their contracts exclude concurrent access.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Maps memory.
    pub fn new(kind: MemoryKind, bytes: usize) -> Result<Self, MapError> {
        let map_bytes = (bytes + 2 * GUARD).next_multiple_of(4096);
        let map = map_pages(kind, map_bytes).map_err(|source| MapError { kind, bytes, source })?;
        let Some(map) = NonNull::new(map.cast::<u8>()) else {
            return Err(MapError { kind, bytes, source: rustix::io::Errno::NOMEM });
        };
        let buffer = Self { map, map_bytes, bytes };
        for guard in buffer.guard_pages() {
            // SAFETY: the guard is inside the mapping, and no other code has its address yet.
            unsafe { ptr::write_bytes(guard, GUARD_BYTE, GUARD) };
        }
        Ok(buffer)
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr().wrapping_add(GUARD)
    }

    /// Returns the number of bytes between the guards.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes between the guards.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns an extent for reading.
    ///
    /// # Safety
    /// Nothing writes the extent while the slice exists.
    pub unsafe fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "extent outside the buffer");
        let start = self.as_ptr().wrapping_add(offset);
        // SAFETY: the extent is inside the mapping; the rest holds by the contract of this function.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// Returns an extent for writing.
    ///
    /// # Safety
    /// Nothing else reads or writes the extent while the slice exists.
    #[expect(clippy::mut_from_ref, reason = "the memory is shared with plugins; the caller keeps turns")]
    pub unsafe fn slice_mut(&self, offset: usize, bytes: usize) -> &mut [u8] {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "extent outside the buffer");
        let start = self.as_ptr().wrapping_add(offset);
        // SAFETY: the extent is inside the mapping; the rest holds by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Returns the number of guard bytes that were overwritten.
    pub fn damaged_guard_bytes(&self) -> u64 {
        let mut damaged = 0;
        for guard in self.guard_pages() {
            // SAFETY: the guard is inside the mapping; a plugin that writes it now violates the contract anyway.
            let bytes = unsafe { std::slice::from_raw_parts(guard, GUARD) };
            damaged += bytes.iter().filter(|byte| **byte != GUARD_BYTE).count() as u64;
        }
        damaged
    }

    fn guard_pages(&self) -> [*mut u8; 2] {
        [self.map.as_ptr(), self.as_ptr().wrapping_add(self.bytes)]
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, which ends here.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

fn map_pages(kind: MemoryKind, bytes: usize) -> Result<*mut c_void, rustix::io::Errno> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    if kind == MemoryKind::Shared {
        let file = rustix::fs::memfd_create("nethost", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        return unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, rights, MapFlags::SHARED, &file, 0) };
    }
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, rights, MapFlags::PRIVATE) }?;
    if kind == MemoryKind::Huge {
        // SAFETY: the advice is about this new mapping, and changes no content.
        let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) };
    }
    Ok(start)
}
