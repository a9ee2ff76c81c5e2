//! Mapped write-combined memory: memory behind PCIe that the CPU has in its address space, such as a GPU's by GDRCopy. Made by
//! [`GdrCopy`](crate::gpu::GdrCopy), used by the executors of atomics and signals there and by software NICs. It is never reached by a locked
//! instruction, because no method here issues one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{MemoryRange, OutOfBounds};

/// The target of a mapping's loads, stores and copies: the mapping itself, or a test's model of one.
///
/// Stores may be held back, combined, and become visible in any order until the next [`fence`](MappedBytes::fence). Every offset is inside
/// the range, and a word's is aligned: [`MappedMemory`] has checked it.
pub trait MappedBytes: fmt::Debug + Send + Sync {
    /// Loads 8 aligned bytes by one instruction, in memory byte order.
    fn load_word(&self, at: u64) -> u64;

    /// Loads 4 aligned bytes by one instruction, in memory byte order.
    fn load_half(&self, at: u64) -> u32;

    /// Stores 8 aligned bytes by one plain instruction, in memory byte order.
    fn store_word(&self, at: u64, value: u64);

    /// Stores 4 aligned bytes by one plain instruction, in memory byte order.
    fn store_half(&self, at: u64, value: u32);

    /// Makes all earlier stores of this thread visible to the device before any later one.
    fn fence(&self);

    /// Copies bytes to the mapping, in pieces of any size and order.
    fn copy_to(&self, at: u64, bytes: &[u8]);

    /// Copies bytes from the mapping, in pieces of any size and order.
    fn copy_from(&self, at: u64, out: &mut [u8]);
}

/// A range of mapped write-combined memory. Cheap to clone; the mapping ends with the last clone.
///
/// It has three operations: a store, a fence and a copy. A load is a copy of one word, which does not tear. Callers that change a word
/// depending on its old value use [`MappedMemory::fetch_update`], which holds a lock of this process: PCIe does not carry locked instructions
/// to the device as atomics.
#[derive(Clone)]
pub struct MappedMemory {
    bytes: Arc<dyn MappedBytes>,
    /// Held while a word is changed. One for all parts.
    updates: Arc<Mutex<()>>,
    addr: usize,
    /// Where this range begins in `bytes`.
    first: u64,
    len: usize,
}

impl MappedMemory {
    /// Wraps a mapping of `len` bytes, whose first is at `addr` in this process and at offset 0 in `bytes`.
    ///
    /// # Safety
    /// Until the last clone is dropped, `addr..addr + len` stays mapped readable and writable in this process, if the range is ever passed to a NIC
    /// that accesses memory by its address ([`MemoryRange::checked_address`]). No other code here uses the address.
    #[must_use]
    pub unsafe fn new(addr: usize, len: usize, bytes: Arc<dyn MappedBytes>) -> Self {
        Self { bytes, updates: Arc::default(), addr, first: 0, len }
    }

    /// Returns the address of the first byte in this process. Only NICs use it.
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

    /// Returns `len` bytes of the range from `offset` on, as a range of its own.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the range.
    pub fn sub_range(&self, offset: u64, len: u64) -> Result<Self, OutOfBounds> {
        let first = self.mapping_offset(offset, len, 1)?;
        let addr = self.addr + offset as usize;
        Ok(Self { addr, first, len: len as usize, ..self.clone() })
    }

    /// Returns the range as memory that NICs can register: of [`MemoryKind::Mapped`](crate::MemoryKind::Mapped), which has no words.
    #[must_use]
    pub fn to_memory(&self) -> MemoryRange {
        MemoryRange::from_mapped(self.clone())
    }

    /// Loads the aligned 8-byte word at `offset`, little-endian.
    ///
    /// # Errors
    /// [`OutOfBounds`] when the word is not inside the range or not aligned.
    pub fn load(&self, offset: u64) -> Result<u64, OutOfBounds> {
        Ok(u64::from_le(self.bytes.load_word(self.mapping_offset(offset, 8, 8)?)))
    }

    /// Loads the aligned 4-byte word at `offset`, little-endian.
    ///
    /// # Errors
    /// As [`MappedMemory::load`].
    pub fn load_half(&self, offset: u64) -> Result<u32, OutOfBounds> {
        Ok(u32::from_le(self.bytes.load_half(self.mapping_offset(offset, 4, 4)?)))
    }

    /// Stores the aligned 8-byte word at `offset`, little-endian. It becomes visible by the next [`MappedMemory::fence`] at the latest, and
    /// may be visible before stores that precede it.
    ///
    /// # Errors
    /// As [`MappedMemory::load`].
    pub fn store(&self, offset: u64, value: u64) -> Result<(), OutOfBounds> {
        self.bytes.store_word(self.mapping_offset(offset, 8, 8)?, value.to_le());
        Ok(())
    }

    /// Stores the aligned 4-byte word at `offset` as [`MappedMemory::store`] does.
    ///
    /// # Errors
    /// As [`MappedMemory::load`].
    pub fn store_half(&self, offset: u64, value: u32) -> Result<(), OutOfBounds> {
        self.bytes.store_half(self.mapping_offset(offset, 4, 4)?, value.to_le());
        Ok(())
    }

    /// Publishes all stores of this thread: the device sees them before any later one.
    pub fn fence(&self) {
        self.bytes.fence();
    }

    /// Copies `bytes` to `offset` and publishes them. Short copies of whole words never tear a word.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not all fit; nothing is then written.
    pub fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.mapping_offset(offset, bytes.len() as u64, 1)?;
        let (words, rest) = bytes.as_chunks::<8>();
        if bytes.len() <= WHOLE_MAX && rest.is_empty() && self.is_aligned(offset, 8) {
            for (index, word) in words.iter().enumerate() {
                self.bytes.store_word(at + 8 * index as u64, u64::from_ne_bytes(*word));
            }
        } else if let ([], Ok(half)) = (words, rest.try_into())
            && self.is_aligned(offset, 4)
        {
            self.bytes.store_half(at, u32::from_ne_bytes(half));
        } else {
            self.bytes.copy_to(at, bytes);
        }
        self.fence();
        Ok(())
    }

    /// Copies bytes at `offset` into `out`, behind all earlier stores of this thread.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the range; `out` is then untouched.
    pub fn copy_from(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.mapping_offset(offset, out.len() as u64, 1)?;
        // Streaming loads are not ordered behind stores.
        self.fence();
        match (<&mut [u8; 8]>::try_from(&mut *out), self.is_aligned(offset, 8)) {
            (Ok(word), true) => *word = self.bytes.load_word(at).to_ne_bytes(),
            _ => self.bytes.copy_from(at, out),
        }
        Ok(())
    }

    /// Changes the aligned 8-byte word at `offset` to the result of `f`, if it returns one, and publishes it behind all earlier stores of this
    /// thread. Returns the old word. No other caller of this process changes a word of the mapping at the same time; `f` is called once.
    ///
    /// # Errors
    /// As [`MappedMemory::load`].
    pub fn fetch_update(&self, offset: u64, f: impl FnOnce(u64) -> Option<u64>) -> Result<u64, OutOfBounds> {
        let _updates = self.hold_updates();
        let old = self.load(offset)?;
        if let Some(new) = f(old) {
            self.publish_store(|| self.store(offset, new))?;
        }
        Ok(old)
    }

    /// Changes the aligned 4-byte word at `offset` as [`MappedMemory::fetch_update`] does.
    ///
    /// # Errors
    /// As [`MappedMemory::load`].
    pub fn update_half(&self, offset: u64, f: impl FnOnce(u32) -> Option<u32>) -> Result<u32, OutOfBounds> {
        let _updates = self.hold_updates();
        let old = self.load_half(offset)?;
        if let Some(new) = f(old) {
            self.publish_store(|| self.store_half(offset, new))?;
        }
        Ok(old)
    }

    /// Makes a store behind all earlier ones, and publishes it.
    fn publish_store(&self, store: impl FnOnce() -> Result<(), OutOfBounds>) -> Result<(), OutOfBounds> {
        self.fence();
        store()?;
        self.fence();
        Ok(())
    }

    fn hold_updates(&self) -> MutexGuard<'_, ()> {
        // A poisoned lock is harmless: a panicking holder leaves no partial change.
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_aligned(&self, offset: u64, align: u64) -> bool {
        (self.addr as u64).wrapping_add(offset).is_multiple_of(align)
    }

    /// Returns the offset of bytes of the range in the mapping.
    fn mapping_offset(&self, offset: u64, len: u64, align: u64) -> Result<u64, OutOfBounds> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len as u64);
        if !is_inside || !self.is_aligned(offset, align) {
            return Err(OutOfBounds { offset, len, size: self.len as u64 });
        }
        Ok(self.first + offset)
    }
}

/// Maximum length, in bytes, of copies of whole words that are made by single stores.
const WHOLE_MAX: usize = 64;

impl fmt::Debug for MappedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedMemory({:#x}+{})", self.addr, self.len)
    }
}

/// Publishes the stores of this thread to any mapped write-combined memory, including stores made by functions that it called: devices see them
/// before any later one.
#[inline]
pub fn fence_mapped_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86_64 CPU has this instruction; it changes no memory.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no memory and no register.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
