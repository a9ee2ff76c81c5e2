//! A page that other processes may read: a memory file that only its creator can write, and the readers' view of it. Created by the engine's
//! host for the status page, read by `trunkline top`. This module does not interpret the words; a reader must treat them as untrusted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{OutOfBounds, create_memory_file};

/// The seals that a reader requires: without them the creator could truncate the file while the reader accesses it.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A page that this process publishes. It ends with its last owner, or with the process.
#[derive(Debug)]
pub struct PublishedPage {
    addr: usize,
    len: usize,
    /// The file by which readers find the page.
    file: Mutex<Option<OwnedFd>>,
}

impl PublishedPage {
    /// Creates a page of `len` zero bytes, whose memory file has that name.
    ///
    /// # Errors
    /// The system's error.
    pub fn create_page(name: &str, len: usize) -> io::Result<Self> {
        let file = create_memory_file(name)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let addr = map_file(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let page = Self { addr, len, file: Mutex::new(None) };
        // A process that opens the file by its link in /proc gets read access only.
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        let seals = FIXED | SealFlags::SEAL;
        match rustix::fs::fcntl_add_seals(&file, seals | SealFlags::FUTURE_WRITE) {
            // Kernels before Linux 5.1 do not know `F_SEAL_FUTURE_WRITE`.
            Err(Errno::INVAL) => rustix::fs::fcntl_add_seals(&file, seals)?,
            other => other?,
        }
        *page.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(page)
    }

    /// Returns the length of the page, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the page has no bytes, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside the page and aligned for words.
    pub(crate) fn word_address(&self, offset: usize, len: usize) -> Option<usize> {
        let fits = offset.checked_add(len)? <= self.len && offset.is_multiple_of(8);
        fits.then_some(self.addr + offset)
    }

    /// Withdraws the page, so that readers no longer find it. Private zeroed memory replaces it, for counters that are still in use.
    pub fn retire(&self) {
        let Some(file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        drop(file);
        let at = ptr::with_exposed_provenance_mut(self.addr);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the call replaces exactly the range that this page mapped, by memory that is also readable and writable. Its words are only accessed
        // as atomics, which may load old or new contents.
        let _ =
            unsafe { rustix::mm::mmap_anonymous(at, self.len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    }
}

impl Drop for PublishedPage {
    fn drop(&mut self) {
        unmap_file(self.addr, self.len);
    }
}

/// Another process's page, mapped for reading.
#[derive(Debug)]
pub struct PageView {
    addr: usize,
    len: usize,
}

/// Why a file cannot be viewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The file is not a memory file of fixed size.
    #[error("the file is not a sealed memory file")]
    NotSealed,
    /// A system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl PageView {
    /// Maps a page for reading.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn open(file: &impl AsFd) -> Result<Self, ViewError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| ViewError::NotSealed)?;
        let size = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size;
        let len = usize::try_from(size).unwrap_or(0);
        if !seals.contains(FIXED) || len == 0 {
            return Err(ViewError::NotSealed);
        }
        Ok(Self { addr: map_file(file, len, ProtFlags::READ)?, len })
    }

    /// Returns the length of the page, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the page has no bytes, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies words from `offset` on, with one acquire load each, in order: a later word is at least as new as an earlier one.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they are not all inside the page or not aligned.
    pub fn read(&self, offset: usize, out: &mut [u64]) -> Result<(), OutOfBounds> {
        let bytes = out.len().saturating_mul(8);
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len);
        if !inside || !offset.is_multiple_of(8) {
            let [offset, len, size] = [offset, bytes, self.len].map(|n| n as u64);
            return Err(OutOfBounds { offset, len, size });
        }
        for (at, to) in out.iter_mut().enumerate() {
            let word = ptr::with_exposed_provenance_mut(self.addr + offset + at * 8);
            // SAFETY: the word is aligned and inside the mapping, which `self` keeps; the file cannot shrink. The word
            // is only loaded from.
            let word = unsafe { AtomicU64::from_ptr(word) };
            *to = u64::from_le(word.load(Ordering::Acquire));
        }
        Ok(())
    }
}

impl Drop for PageView {
    fn drop(&mut self) {
        unmap_file(self.addr, self.len);
    }
}

fn map_file(file: &impl AsFd, len: usize, protection: ProtFlags) -> io::Result<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
    Ok(base.expose_provenance())
}

fn unmap_file(addr: usize, len: usize) {
    // SAFETY: called once by the owner of the mapping, from which no borrow is left.
    let _ = unsafe { rustix::mm::munmap(ptr::with_exposed_provenance_mut(addr), len) };
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::CounterWords;

    fn link(page: &PublishedPage) -> PathBuf {
        let file = page.file.lock().unwrap();
        format!("/proc/self/fd/{}", file.as_ref().unwrap().as_raw_fd()).into()
    }

    #[test]
    fn page_readers_see_writes_but_cannot_write() {
        let page = Arc::new(PublishedPage::create_page("trunkline.test", 8192).unwrap());
        let words = CounterWords::<2>::of_page(&page, 4096).unwrap();
        words[1].store(0x0102_u64.to_le(), Ordering::Relaxed);
        let name = std::fs::read_link(link(&page)).unwrap();
        assert_eq!(name.to_str(), Some("/memfd:trunkline.test (deleted)"));
        let view = PageView::open(&File::open(link(&page)).unwrap()).unwrap();
        let mut copy = [0; 2];
        view.read(4096, &mut copy).unwrap();
        assert_eq!((view.len(), copy), (8192, [0, 0x0102]));
        // An owner with all rights opens the page for writing, but must not be able to write.
        if let Ok(mut file) = OpenOptions::new().write(true).open(link(&page)) {
            assert!(file.write_all(&[1]).is_err(), "another descriptor must not write the page");
            assert!(file.set_len(1).is_err(), "another descriptor must not truncate the page");
            assert!(
                map_file(&file, 4096, ProtFlags::READ | ProtFlags::WRITE).is_err(),
                "another descriptor must not map the page for writing"
            );
        }
    }

    #[test]
    fn page_bounds_are_checked_on_both_sides() {
        let page = Arc::new(PublishedPage::create_page("trunkline.test", 4096).unwrap());
        assert!(CounterWords::<512>::of_page(&page, 0).is_some());
        assert!(CounterWords::<512>::of_page(&page, 8).is_none());
        assert!(CounterWords::<1>::of_page(&page, 4).is_none());
        assert!(CounterWords::<1>::of_page(&page, usize::MAX - 6).is_none());
        let view = PageView::open(&File::open(link(&page)).unwrap()).unwrap();
        assert!(view.read(4088, &mut [0]).is_ok());
        assert!(view.read(4088, &mut [0; 2]).is_err());
        assert!(view.read(4, &mut [0]).is_err());
        assert!(view.read(usize::MAX - 7, &mut [0]).is_err());
    }

    #[test]
    fn page_file_that_may_shrink_is_refused() {
        let unsealed =
            rustix::fs::memfd_create("trunkline.test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(matches!(PageView::open(&unsealed), Err(ViewError::NotSealed)));
        rustix::fs::fcntl_add_seals(&unsealed, SealFlags::GROW).unwrap();
        assert!(matches!(PageView::open(&unsealed), Err(ViewError::NotSealed)));
        let plain = File::open("/proc/self/exe").unwrap();
        assert!(matches!(PageView::open(&plain), Err(ViewError::NotSealed)));
    }

    #[test]
    fn retired_page_is_hidden_but_still_writable() {
        let page = Arc::new(PublishedPage::create_page("trunkline.retired", 4096).unwrap());
        let words = CounterWords::<2>::of_page(&page, 0).unwrap();
        let view = PageView::open(&File::open(link(&page)).unwrap()).unwrap();
        let link = link(&page);
        words[0].store(1, Ordering::Relaxed);
        page.retire();
        page.retire();
        words[0].fetch_add(5, Ordering::Relaxed);
        let now = std::fs::read_link(link).ok();
        assert!(now.is_none_or(|name| !name.to_string_lossy().contains("trunkline.retired")));
        let mut copy = [0];
        view.read(0, &mut copy).unwrap();
        assert_eq!((copy[0], words[0].load(Ordering::Relaxed)), (1, 5));
    }
}
