//! A byte range. Created at the edge (user buffers) or by the engine (bounce buffers, mailboxes); used by fabrics. It never frees borrowed
//! memory, and never synchronizes with other threads that access the same bytes: like a NIC, it moves bytes, and copies larger than one aligned
//! word may be torn. Such copies are not data races (`shared_copy`). The CPU never accesses memory of a device: for it, such a range has no
//! bytes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
#[cfg(any(test, feature = "test-utils"))]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use trunkline_proto::reserve::OutOfMemory;

use crate::shared_copy::copy_shared;
use crate::{MappedMemory, MemoryKind};

/// Alignment of owned ranges, in bytes: one page, so that a range never shares one with anything else.
const ALIGN: usize = 4096;

/// An access reached past the end of its range, or a word access was not 8-byte aligned.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not fit in a range of {size} bytes")]
pub struct OutOfBounds {
    /// First byte requested, from the start of the range.
    pub offset: u64,
    /// Bytes requested.
    pub len: u64,
    /// Bytes in the range; for accesses by the CPU those that it may access, which is 0 for memory of a device.
    pub size: u64,
}

/// A byte range of one [`MemoryKind`]. Cheap to clone; an owned range is freed with its last clone.
#[derive(Clone)]
pub struct MemoryRange {
    addr: usize,
    len: usize,
    /// Number of bytes that the CPU may access, from the first on: all or none. Every access is checked against this length only, so that support
    /// for memory of devices costs other accesses nothing.
    touchable: usize,
    kind: MemoryKind,
    /// Held so that the bytes stay mapped.
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl MemoryRange {
    /// Makes a zeroed, page-aligned range of host memory of `len` bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the system has none, or `len` rounded up to a page does not fit in an address space.
    pub fn try_heap(len: usize) -> Result<Self, OutOfMemory> {
        let owner = HeapPages::new(len).ok_or(OutOfMemory { bytes: len })?;
        Ok(Self {
            addr: owner.addr,
            len,
            touchable: len,
            kind: MemoryKind::Host,
            keep: Some(Arc::new(owner)),
        })
    }

    /// [`MemoryRange::try_heap`] for tests, which panic without memory. Product code has no such call.
    ///
    /// # Panics
    /// If the system is out of memory.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn heap(len: usize) -> Self {
        Self::try_heap(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Wraps bytes that other code owns: a user buffer or a mapping.
    ///
    /// # Safety
    /// Until the last clone is dropped, `addr..addr + len` stays mapped readable and writable in this process (for [`MemoryKind::Host`]), and no
    /// Rust reference to the bytes exists while this crate's methods run.
    #[must_use]
    pub unsafe fn from_raw(addr: usize, len: usize, kind: MemoryKind) -> Self {
        Self { addr, len, touchable: touchable_len(len, kind), kind, keep: None }
    }

    /// Like [`MemoryRange::from_raw`], with an owner that keeps the mapping alive.
    ///
    /// # Safety
    /// As [`MemoryRange::from_raw`], but only while `owner` lives.
    #[must_use]
    pub unsafe fn with_owner<T: Send + Sync + 'static>(
        addr: usize,
        len: usize,
        kind: MemoryKind,
        owner: Arc<T>,
    ) -> Self {
        Self { addr, len, touchable: touchable_len(len, kind), kind, keep: Some(owner) }
    }

    /// Wraps memory that the CPU has mapped write-combined. It is copied by [`MappedMemory`]'s own copies, and has no words here.
    pub(crate) fn from_mapped(mapped: MappedMemory) -> Self {
        let addr = mapped.addr();
        let len = mapped.len();
        Self { addr, len, touchable: 0, kind: MemoryKind::Mapped, keep: Some(Arc::new(mapped)) }
    }

    /// Returns the mapping, if the range is write-combined memory.
    #[must_use]
    pub fn as_mapped(&self) -> Option<MappedMemory> {
        let whole = self.keep.as_ref().filter(|_| self.kind == MemoryKind::Mapped)?;
        let whole = whole.downcast_ref::<MappedMemory>()?;
        whole.sub_range((self.addr - whole.addr()) as u64, self.len as u64).ok()
    }

    /// Returns `len` bytes of the range from `offset` on, as a range of its own.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the range.
    pub fn sub_range(&self, offset: u64, len: u64) -> Result<Self, OutOfBounds> {
        let addr = self.checked_address(offset, len)?;
        let len = len as usize;
        let is_touched = self.touchable > 0;
        Ok(Self {
            addr,
            len,
            touchable: if is_touched { len } else { 0 },
            kind: self.kind,
            keep: self.keep.clone(),
        })
    }

    /// Returns the address of the first byte in this process.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns the number of bytes in the range.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the kind of memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns the checked address of `len` bytes at `offset`, for NICs: the CPU must not access memory of a device by it.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the range.
    #[inline]
    pub fn checked_address(&self, offset: u64, len: u64) -> Result<usize, OutOfBounds> {
        self.address_within(offset, len, self.len as u64)
    }

    /// Returns the checked address of bytes that the CPU may access.
    #[inline]
    fn touchable_address(&self, offset: u64, len: u64) -> Result<usize, OutOfBounds> {
        self.address_within(offset, len, self.touchable as u64)
    }

    #[inline]
    fn address_within(&self, offset: u64, len: u64, size: u64) -> Result<usize, OutOfBounds> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(self.addr + offset as usize),
            _ => Err(OutOfBounds { offset, len, size }),
        }
    }

    /// Discards the content of an owned range and returns its pages to the system: the range reads as zeros, and allocates pages again on use. A
    /// range of less than two pages, a part of a range, or one that other code owns stays unchanged.
    pub fn discard_pages(&self) {
        let Some(heap) = self.keep.as_ref().and_then(|keep| keep.downcast_ref::<HeapPages>()) else { return };
        // A part of a range must not discard the other parts.
        let is_whole =
            self.addr == heap.addr && self.len.max(1).next_multiple_of(ALIGN) == heap.layout.size();
        if heap.layout.size() >= MAPPED && is_whole {
            let at = to_pointer(heap.addr).cast();
            // SAFETY: the range is a whole anonymous mapping of this crate; the call has the effect of writing zeros, which are valid bytes.
            let _ = unsafe { rustix::mm::madvise(at, heap.layout.size(), Advice::LinuxDontNeed) };
        }
    }

    /// Copies bytes at `offset` into `out`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the range, or it is memory of a device; `out` is then untouched.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = match self.touchable_address(offset, out.len() as u64) {
            Ok(from) => from,
            Err(outside) => return self.read_mapped(offset, out, outside),
        };
        // SAFETY: `from..from + out.len()` lies inside the range, which stays mapped (constructors' contract), and
        // `out` is an exclusive borrow.
        unsafe { copy_shared(to_pointer(from), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not all fit, or it is memory of a device; nothing is then written.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = match self.touchable_address(offset, bytes.len() as u64) {
            Ok(to) => to,
            Err(outside) => return self.write_mapped(offset, bytes, outside),
        };
        // SAFETY: `to..to + bytes.len()` lies inside the range, which stays mapped and to which no reference exists (constructors' contract).
        unsafe { copy_shared(bytes.as_ptr(), to_pointer(to), bytes.len()) };
        Ok(())
    }

    /// Copies `len` bytes from `source` at `from` to this range at `offset`; the two may overlap.
    ///
    /// # Errors
    /// [`OutOfBounds`] when either side does not hold all the bytes, or is memory of a device; nothing is then written.
    #[inline]
    pub fn copy_from(&self, offset: u64, source: &Self, from: u64, len: u64) -> Result<(), OutOfBounds> {
        let (Ok(to), Ok(start)) = (self.touchable_address(offset, len), source.touchable_address(from, len))
        else {
            return self.copy_by_pieces(offset, source, from, len);
        };
        // SAFETY: both ranges were checked, stay mapped and have no references to them (constructors' contract).
        unsafe { copy_shared(to_pointer(start), to_pointer(to), len as usize) };
        Ok(())
    }

    /// Reads a range that `touchable_address` rejected: mapped write-combined, or `outside`. A function of its own, so that other reads stay fast.
    #[cold]
    #[inline(never)]
    fn read_mapped(&self, offset: u64, out: &mut [u8], outside: OutOfBounds) -> Result<(), OutOfBounds> {
        self.as_mapped().ok_or(outside)?.copy_from(offset, out)
    }

    /// Writes a range that `touchable_address` rejected, as [`MemoryRange::read_mapped`] reads it.
    #[cold]
    #[inline(never)]
    fn write_mapped(&self, offset: u64, bytes: &[u8], outside: OutOfBounds) -> Result<(), OutOfBounds> {
        self.as_mapped().ok_or(outside)?.copy_to(offset, bytes)
    }

    /// Copies between ranges of which one is mapped write-combined, through a buffer.
    #[cold]
    #[inline(never)]
    fn copy_by_pieces(&self, offset: u64, source: &Self, from: u64, len: u64) -> Result<(), OutOfBounds> {
        if self.kind != MemoryKind::Mapped && source.kind != MemoryKind::Mapped {
            self.touchable_address(offset, len)?;
            return source.touchable_address(from, len).map(drop);
        }
        self.checked_address(offset, len)?;
        source.checked_address(from, len)?;
        let mut buffer = [0; PIECE];
        // Copies backward if the target is higher, so that overlapping bytes are read before they are written.
        let is_backward = self.addr.wrapping_add(offset as usize) > source.addr.wrapping_add(from as usize);
        let pieces = len.div_ceil(PIECE as u64);
        for index in 0..pieces {
            let at = PIECE as u64 * if is_backward { pieces - 1 - index } else { index };
            let piece = &mut buffer[..PIECE.min((len - at) as usize)];
            source.read(from + at, piece)?;
            self.write(offset + at, piece)?;
        }
        Ok(())
    }

    /// Loads the aligned 8-byte word at `offset` with acquire ordering, little-endian.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the word is not inside the range or not aligned.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, OutOfBounds> {
        Ok(u64::from_le(self.atomic_word(offset)?.load(Ordering::Acquire)))
    }

    /// Stores the aligned 8-byte word at `offset` with release ordering, little-endian.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the word is not inside the range or not aligned.
    #[inline]
    pub fn store(&self, offset: u64, value: u64) -> Result<(), OutOfBounds> {
        self.atomic_word(offset)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Loads `N` aligned 8-byte words in a row, each as [`MemoryRange::load`] does.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the range or not aligned.
    #[inline]
    pub fn load_row<const N: usize>(&self, offset: u64) -> Result<[u64; N], OutOfBounds> {
        Ok(self.atomic_words::<N>(offset)?.each_ref().map(|word| u64::from_le(word.load(Ordering::Acquire))))
    }

    /// Returns the aligned 8-byte word at `offset`, in memory byte order, for remote atomics.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the word is not inside the range or not aligned.
    #[inline]
    pub fn atomic_word(&self, offset: u64) -> Result<&AtomicU64, OutOfBounds> {
        self.atomic_words::<1>(offset).map(|[word]| word)
    }

    /// Changes the aligned 8-byte word at `offset` atomically to the result of `f`, if it returns one; returns the old value. `f` may be called
    /// several times.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the word is not inside the range or not aligned.
    #[inline]
    pub fn fetch_update(&self, offset: u64, f: impl Fn(u64) -> Option<u64>) -> Result<u64, OutOfBounds> {
        let change = |old: u64| f(u64::from_le(old)).map(u64::to_le);
        let old = self.atomic_word(offset)?.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        Ok(u64::from_le(old.unwrap_or_else(|old| old)))
    }

    /// Adds to such a word, wrapping; returns the old value. One atomic instruction, whereas a compare-and-swap moves the word's cache line from
    /// another core twice: once for the load and once for the exchange.
    ///
    /// # Errors
    /// As [`MemoryRange::fetch_update`].
    #[inline]
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, OutOfBounds> {
        if cfg!(target_endian = "big") {
            return self.fetch_update(offset, |old| Some(old.wrapping_add(value)));
        }
        Ok(self.atomic_word(offset)?.fetch_add(value, Ordering::AcqRel))
    }

    /// Changes an aligned 4-byte word as [`MemoryRange::fetch_update`] does.
    ///
    /// # Errors
    /// As [`MemoryRange::fetch_update`].
    #[inline]
    pub fn update_half(&self, offset: u64, f: impl Fn(u32) -> Option<u32>) -> Result<u32, OutOfBounds> {
        let word = self.atomic_half_word(offset)?;
        let change = |old: u32| f(u32::from_le(old)).map(u32::to_le);
        let old = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        Ok(u32::from_le(old.unwrap_or_else(|old| old)))
    }

    /// Returns the aligned 4-byte word at `offset`, in memory byte order.
    ///
    /// # Errors
    /// As [`MemoryRange::atomic_word`].
    #[inline]
    pub fn atomic_half_word(&self, offset: u64) -> Result<&AtomicU32, OutOfBounds> {
        let at = self.touchable_address(offset, 4)?;
        if !at.is_multiple_of(4) {
            return Err(OutOfBounds { offset, len: 4, size: self.touchable as u64 });
        }
        // SAFETY: as in `atomic_words`, for a word of 4 bytes.
        Ok(unsafe { &*to_pointer(at).cast() })
    }

    /// Returns `N` consecutive words, as [`MemoryRange::atomic_word`].
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the range or not aligned.
    #[inline]
    pub fn atomic_words<const N: usize>(&self, offset: u64) -> Result<&[AtomicU64; N], OutOfBounds> {
        let len = 8 * N as u64;
        let at = self.touchable_address(offset, len)?;
        if !at.is_multiple_of(8) {
            return Err(OutOfBounds { offset, len, size: self.touchable as u64 });
        }
        // SAFETY: the words are inside the range, aligned, and stay mapped while `self` is borrowed. All users of this crate access them as atomics or
        // through raw copies, as a NIC would.
        Ok(unsafe { &*to_pointer(at).cast() })
    }
}

impl fmt::Debug for MemoryRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:?} {:#x}+{})", self.kind, self.addr, self.len)
    }
}

/// Returns how many bytes of a range the CPU may access.
fn touchable_len(len: usize, kind: MemoryKind) -> usize {
    match kind {
        MemoryKind::Host => len,
        MemoryKind::Device(_) | MemoryKind::Mapped => 0,
    }
}

#[inline]
fn to_pointer(addr: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(addr)
}

/// Length of the buffer for copies of write-combined memory, in bytes.
const PIECE: usize = 4096;

/// Length, in bytes, from which a range is a mapping of its own: its pages use memory only once they are accessed.
const MAPPED: usize = 2 * ALIGN;

/// Length, in bytes, from which huge pages are allowed: in a smaller range, the first access to a byte should not allocate the whole range.
const HUGE: usize = 2 << 20;

/// The live heaps: their lengths in bytes, by address of the first byte. No reference of safe code to a byte of them exists.
static HEAPS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

/// Keeps heaps from being freed while it lives.
pub(crate) type HeldHeaps = RwLockReadGuard<'static, BTreeMap<usize, usize>>;

/// Keeps all heaps from being freed, if the given bytes are all in one of them. The caller must not drop a [`MemoryRange`] while it holds the
/// result.
pub(crate) fn hold_heap(addr: usize, len: usize) -> Option<HeldHeaps> {
    let heaps = HEAPS.read().unwrap_or_else(PoisonError::into_inner);
    let (base, size) = heaps.range(..=addr).next_back()?;
    let is_inside = (addr - base).checked_add(len).is_some_and(|end| end <= *size);
    is_inside.then_some(heaps)
}

/// Removes a heap whose pages are about to be freed. An empty map would keep a node, which leaks if a library that contains this crate is
/// unloaded: so the map is replaced.
fn forget_heap(addr: usize) {
    let mut heaps = HEAPS.write().unwrap_or_else(PoisonError::into_inner);
    heaps.remove(&addr);
    if heaps.is_empty() {
        *heaps = BTreeMap::new();
    }
}

/// Zeroed pages, from the allocator or from the system.
struct HeapPages {
    addr: usize,
    layout: Layout,
}

/// Decides whether a mapping of that many bytes fails, for tests that cannot exhaust the system's memory.
#[cfg(any(test, feature = "test-utils"))]
static REFUSES: OnceLock<fn(usize) -> bool> = OnceLock::new();

/// Sets the function that decides which mappings of [`MemoryRange::try_heap`] fail, by their length in bytes; only the first call has an
/// effect. A test's own failing allocator does not see these mappings.
#[cfg(any(test, feature = "test-utils"))]
pub fn refuse_mappings(refuses: fn(usize) -> bool) {
    let _ = REFUSES.set(refuses);
}

/// Returns the number of live heaps of [`MemoryRange::try_heap`], for tests that check for leaks.
#[cfg(any(test, feature = "test-utils"))]
#[must_use]
pub fn live_heaps() -> usize {
    HEAPS.read().unwrap_or_else(PoisonError::into_inner).len()
}

/// Maps new zeroed pages; returns null on failure.
fn map_pages(len: usize) -> *mut u8 {
    #[cfg(any(test, feature = "test-utils"))]
    if REFUSES.get().is_some_and(|refuses| refuses(len)) {
        return ptr::null_mut();
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let Ok(at) = (unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, flags) }) else {
        return ptr::null_mut();
    };
    if len < HUGE {
        // SAFETY: the range was mapped above; the advice changes no byte. A kernel without huge pages rejects it.
        let _ = unsafe { rustix::mm::madvise(at, len, Advice::LinuxNoHugepage) };
    }
    at.cast()
}

impl HeapPages {
    fn new(len: usize) -> Option<Self> {
        let size = len.max(1).checked_next_multiple_of(ALIGN)?;
        let layout = Layout::from_size_align(size, ALIGN).ok()?;
        let start = if layout.size() >= MAPPED {
            map_pages(layout.size())
        } else {
            // SAFETY: the layout has a size above zero.
            unsafe { alloc_zeroed(layout) }
        };
        if start.is_null() {
            return None;
        }
        let addr = start.expose_provenance();
        HEAPS.write().unwrap_or_else(PoisonError::into_inner).insert(addr, size);
        Some(Self { addr, layout })
    }
}

impl Drop for HeapPages {
    fn drop(&mut self) {
        forget_heap(self.addr);
        if self.layout.size() >= MAPPED {
            // SAFETY: `addr` was returned by `map_pages` for this size and is unmapped once.
            let _ = unsafe { rustix::mm::munmap(to_pointer(self.addr).cast(), self.layout.size()) };
        } else {
            // SAFETY: `addr` was returned by `alloc_zeroed` for this layout and is freed once.
            unsafe { dealloc(to_pointer(self.addr), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_back() {
        let memory = MemoryRange::heap(100);
        memory.write(10, b"hello").unwrap();
        let mut out = [0; 7];
        memory.read(9, &mut out).unwrap();
        assert_eq!(&out, b"\0hello\0");
    }

    #[test]
    fn emptied_range_is_zero_and_writable() {
        let memory = MemoryRange::heap(3 * ALIGN);
        let mut out = [1; 2];
        memory.write(2 * ALIGN as u64, b"yes").unwrap();
        memory.clone().discard_pages();
        memory.read(2 * ALIGN as u64, &mut out).unwrap();
        assert_eq!(out, [0; 2]);
        memory.write(0, b"ok").unwrap();
        // SAFETY: `memory` outlives it.
        let borrowed = unsafe { MemoryRange::from_raw(memory.addr(), memory.len(), MemoryKind::Host) };
        borrowed.discard_pages();
        borrowed.read(0, &mut out).unwrap();
        assert_eq!(&out, b"ok", "only the owner may empty the range");
    }

    #[test]
    fn sub_range_has_exactly_its_bytes() {
        let memory = MemoryRange::heap(3 * ALIGN);
        let part = memory.sub_range(8, ALIGN as u64).unwrap();
        part.write(0, b"part").unwrap();
        assert_eq!((part.len(), part.addr()), (ALIGN, memory.addr() + 8));
        let mut out = [0; 4];
        memory.read(8, &mut out).unwrap();
        assert_eq!(&out, b"part");
        assert!(part.load(ALIGN as u64).is_err() && part.checked_address(1, ALIGN as u64).is_err());
        assert!(memory.sub_range(8, 3 * ALIGN as u64).is_err() && memory.sub_range(u64::MAX, 2).is_err());
        // A part discards no bytes of the whole range, and keeps it allocated.
        part.discard_pages();
        drop(memory);
        part.read(0, &mut out).unwrap();
        assert_eq!(&out, b"part");
        // SAFETY: no test accesses the memory.
        let device = unsafe { MemoryRange::from_raw(1 << 40, 64, MemoryKind::Device(0)) };
        assert!(device.sub_range(8, 8).unwrap().load(0).is_err());
    }

    #[test]
    fn accesses_out_of_bounds_are_refused() {
        let memory = MemoryRange::heap(16);
        assert!(memory.write(9, &[1; 8]).is_err());
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(memory.copy_from(0, &MemoryRange::heap(4), 0, 5).is_err());
        assert!(memory.load(4).is_err(), "unaligned words are refused");
        assert!(memory.load(16).is_err());
        assert!(memory.load_row::<2>(8).is_err() && memory.load_row::<1>(4).is_err());
        assert!(memory.checked_address(16, 0).is_ok());
    }

    #[test]
    fn device_memory_is_never_accessed() {
        let behind = MemoryRange::heap(64);
        let host = MemoryRange::heap(64);
        // SAFETY: `behind` outlives it, so that an access would be detected and harmless.
        let device = unsafe { MemoryRange::from_raw(behind.addr(), behind.len(), MemoryKind::Device(0)) };
        assert!(device.write(0, &[1]).is_err() && device.store(0, 1).is_err());
        assert!(
            device.read(0, &mut [0]).is_err() && device.load(0).is_err() && device.atomic_word(0).is_err()
        );
        assert!(device.load_row::<2>(0).is_err());
        assert!(device.copy_from(0, &host, 0, 1).is_err() && host.copy_from(0, &device, 0, 1).is_err());
        assert!(device.clone().write(0, &[1]).is_err());
        assert_eq!(behind.load_row(0), Ok([0; 8]));
        assert_eq!(device.checked_address(0, 64), Ok(behind.addr()), "NICs must get the address");
        assert!(device.checked_address(1, 64).is_err());
        assert!(device.write(0, &[]).is_ok());
    }

    #[test]
    fn failed_allocation_is_an_error() {
        let most = usize::MAX;
        for len in [most, most - ALIGN, 1 << 62, (1 << 47) + 5] {
            assert_eq!(MemoryRange::try_heap(len).unwrap_err(), OutOfMemory { bytes: len });
        }
        let told = MemoryRange::try_heap(1 << 62).unwrap_err().to_string();
        assert!(told.contains("4611686018427387904 bytes") && told.contains("ulimit -v"), "{told}");
    }

    #[test]
    fn words_are_little_endian_bytes() {
        let memory = MemoryRange::heap(16);
        memory.store(8, 0x0102).unwrap();
        let mut out = [0; 2];
        memory.read(8, &mut out).unwrap();
        assert_eq!(out, [2, 1]);
        assert_eq!(memory.load(8), Ok(0x0102));
        assert_eq!(memory.load_row(0), Ok([0, 0x0102]));
    }
}
