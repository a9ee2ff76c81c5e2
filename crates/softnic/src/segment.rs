//! One direction of a link in shared memory: a sealed memory file (memfd_create(2)) that its reader created and its writer maps. Used by the
//! two ends of a ring; knows the layout (docs/wire.md, "Software NIC") but not the meaning of its contents.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy_claim::CopyClaim;

/// Bytes of one descriptor.
pub(crate) const SLOT: usize = 128;
/// Offset of the words that the reader publishes; see [`reader`]. A cache line of its own, as is that of the writer.
const READER_LINE: usize = 128;
/// Offset of the words that the writer publishes; see [`writer`].
const WRITER_LINE: usize = 256;
/// Offset of the first descriptor.
const SLOTS_AT: usize = 4096;
/// Alignment of the payload ring.
const PAGE: usize = 4096;

/// Words the reader of a segment publishes to its writer.
pub(crate) mod reader {
    use super::READER_LINE;
    /// Records executed.
    pub(crate) const CONSUMED: usize = READER_LINE;
    /// Receives posted so far.
    pub(crate) const POSTED: usize = READER_LINE + 8;
    /// Why a record was refused, 0 while none was.
    pub(crate) const NAK: usize = READER_LINE + 16;
    /// Position of the refused record.
    pub(crate) const NAK_AT: usize = READER_LINE + 24;
    /// 0 open, 1 closed in order, 2 in error.
    pub(crate) const STATE: usize = READER_LINE + 32;
    /// 1 if the reader can read the writer's memory.
    pub(crate) const REACHES: usize = READER_LINE + 40;
}

/// Words the writer of a segment publishes to its reader.
pub(crate) mod writer {
    use super::WRITER_LINE;
    /// 0 open, 1 closed in order, 2 in error.
    pub(crate) const STATE: usize = WRITER_LINE;
    /// 1 once the writer has mapped the segment.
    pub(crate) const MAPPED: usize = WRITER_LINE + 8;
}

/// Sizes of a segment that are known to be usable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SegmentGeometry {
    slots: u32,
    payload: u32,
}

impl SegmentGeometry {
    /// The smallest valid sizes.
    pub(crate) const SMALLEST: Self = Self { slots: 16, payload: 4096 };

    /// Validates sizes, including those that a peer names.
    pub(crate) fn new(slots: u32, payload: u32) -> Option<Self> {
        let slots_fit = slots.is_power_of_two() && (16..=1 << 16).contains(&slots);
        let payload_fits = payload.is_power_of_two() && (4096..=1 << 26).contains(&payload);
        (slots_fit && payload_fits).then_some(Self { slots, payload })
    }

    /// Returns the number of descriptors.
    pub(crate) fn slot_count(self) -> u32 {
        self.slots
    }

    /// Returns the bytes of payload.
    pub(crate) fn payload_bytes(self) -> u32 {
        self.payload
    }

    fn payload_at(self) -> usize {
        (SLOTS_AT + self.slots as usize * SLOT).next_multiple_of(PAGE)
    }

    fn total_bytes(self) -> usize {
        self.payload_at() + self.payload as usize
    }
}

/// A mapped segment.
pub(crate) struct RingSegment {
    base: NonNull<u8>,
    geometry: SegmentGeometry,
}

// SAFETY: the mapping belongs to this value alone within Rust; other processes' accesses are the same from any thread.
unsafe impl Send for RingSegment {}
// SAFETY: shared use is through atomic words and `copy_shared`, as between processes.
unsafe impl Sync for RingSegment {}

impl RingSegment {
    /// Creates a segment to read from, all zero, and its memory file, to pass to the writer.
    pub(crate) fn create_shared(geometry: SegmentGeometry) -> io::Result<(Self, OwnedFd)> {
        let fd = trunkline_mem::create_memory_file("trunkline")?;
        rustix::fs::ftruncate(&fd, geometry.total_bytes() as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map_file(&fd, geometry)?, fd))
    }

    /// Creates a segment that has no writer.
    pub(crate) fn create_unshared(geometry: SegmentGeometry) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), geometry.total_bytes(), access, flags) }?;
        let Some(base) = NonNull::new(base.cast()) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        Ok(Self { base, geometry })
    }

    /// Maps a peer's segment to write to. The seals (fcntl(2), `F_SEAL_SHRINK`) make it impossible for the peer to shorten it afterwards, which
    /// would turn accesses into SIGBUS.
    pub(crate) fn map_peer(fd: OwnedFd, geometry: SegmentGeometry) -> io::Result<Option<Self>> {
        let Ok(seals) = rustix::fs::fcntl_get_seals(&fd) else { return Ok(None) };
        let size = rustix::fs::fstat(&fd)?.st_size;
        // Without both seals the peer could resize the file while it is mapped.
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW)
            || usize::try_from(size) != Ok(geometry.total_bytes())
        {
            return Ok(None);
        }
        Self::map_file(&fd, geometry).map(Some)
    }

    fn map_file(fd: &OwnedFd, geometry: SegmentGeometry) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                geometry.total_bytes(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let Some(base) = NonNull::new(base.cast()) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        Ok(Self { base, geometry })
    }

    /// Returns its sizes.
    pub(crate) fn geometry(&self) -> SegmentGeometry {
        self.geometry
    }

    /// Returns a published word, by one of the constants of [`reader`] and [`writer`].
    #[inline]
    pub(crate) fn shared_word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset < SLOTS_AT && offset.is_multiple_of(8));
        // SAFETY: the constants lie in the first page of the mapping.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: aligned, mapped while `self` lives, and accessed by both processes only as an atomic word.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    /// Returns the descriptor at a position; positions wrap around the ring.
    #[inline]
    pub(crate) fn slot_at(&self, position: u64) -> NonNull<u8> {
        let index = (position & u64::from(self.geometry.slots - 1)) as usize;
        // SAFETY: `index < slots`, so the whole slot is inside the mapping.
        unsafe { self.base.add(SLOTS_AT + index * SLOT) }
    }

    /// Returns the stamp of the descriptor at a position.
    #[inline]
    pub(crate) fn stamp_at(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the slot's first word is aligned, mapped while `self` lives, and only accessed as an atomic word.
        unsafe { AtomicU64::from_ptr(self.slot_at(position).as_ptr().cast()) }
    }

    /// Returns the claim of the descriptor at a position: its last four words.
    #[inline]
    pub(crate) fn claim_at(&self, position: u64) -> CopyClaim<'_> {
        let word = |index: usize| {
            // SAFETY: `index < 16`, so inside the slot.
            let at = unsafe { self.slot_at(position).add(index * 8) };
            // SAFETY: aligned, mapped while `self` lives, and only accessed as an atomic word when it is a claim.
            unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
        };
        CopyClaim { grant: word(12), pulled: word(13), pushed: word(14), taken: word(15) }
    }

    /// Releases the pages of both rings to the system: they are zero from then on.
    pub(crate) fn empty_rings(&self) {
        // SAFETY: behind the published words, inside the mapping.
        let start = unsafe { self.base.add(SLOTS_AT) };
        let len = self.geometry.total_bytes() - SLOTS_AT;
        // SAFETY: a range of this mapping; both sides access it as a NIC would, and any byte may be zero. Where the
        // system refuses, nothing has changed.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, Advice::LinuxRemove) };
    }

    /// Returns `len` bytes of the payload ring at `offset`, if they lie inside it.
    #[inline]
    pub(crate) fn payload_range(&self, offset: u32, len: u32) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.geometry.payload {
            return None;
        }
        // SAFETY: just checked to be inside the mapping.
        Some(unsafe { self.base.add(self.geometry.payload_at() + offset as usize) })
    }
}

impl Drop for RingSegment {
    fn drop(&mut self) {
        // SAFETY: maps exactly this range since `mapped`, and nothing borrowed from it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.geometry.total_bytes()) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn segment_files_are_not_executable() {
        let known = rustix::fs::memfd_create("trunkline.test", MemfdFlags::NOEXEC_SEAL);
        if known.is_err_and(|errno| errno == Errno::INVAL) {
            println!("SKIPPED segment_files_are_not_executable: this kernel has no MFD_NOEXEC_SEAL");
            return;
        }
        let (_, fd) = RingSegment::create_shared(SegmentGeometry::SMALLEST).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o111, 0);
    }
}
