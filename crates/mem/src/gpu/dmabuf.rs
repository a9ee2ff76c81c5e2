//! Memory of a device as a dma-buf, a descriptor that other kernel drivers understand. Created by the GPU drivers; the code that registers it
//! with a NIC passes descriptor and offset, and may close the descriptor afterwards.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

use rustix::io::FdFlags;

use super::{DriverCallError, LookError, PointerKind};

/// An exported range of bytes.
#[derive(Debug)]
pub struct DmaBuf {
    /// Holds the memory even after it is freed; closed on exec.
    pub fd: OwnedFd,
    /// Offset of the first byte in the dma-buf, in bytes. Congruent to the address modulo the page size.
    pub offset: u64,
    /// Length, in bytes.
    pub len: usize,
}

/// The path by which a NIC is to access the memory.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum DmaBufMapping {
    /// The driver chooses.
    #[default]
    Any,
    /// PCIe, even if the device has a coherent link to the host. Passed to NVIDIA's driver only.
    Pcie,
}

/// The result of an export.
#[derive(Debug)]
pub enum DmaBufExport {
    /// The memory was exported.
    Given(DmaBuf),
    /// The driver cannot export this memory; it may be registered by address instead.
    Refused(ExportRefusal),
}

/// Why a driver does not export memory.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportRefusal {
    /// The driver has no export function.
    #[error("the driver has no {symbol}; {WITHOUT}")]
    Function {
        /// Its name.
        symbol: &'static str,
    },
    /// The device does not support exports.
    #[error("GPU {device} does not support exports of its memory; {WITHOUT}")]
    Device {
        /// Number of the device.
        device: u32,
    },
    /// The driver rejects this memory.
    #[error("{0}; {WITHOUT}")]
    Memory(DriverCallError),
}

/// The alternative named in messages.
const WITHOUT: &str =
    "it is registered by its address instead, which needs the kernel module for peer memory (nvidia-peermem)";

/// Why an export failed that should have succeeded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmaBufError {
    /// The address is not memory of a device.
    #[error("{addr:#x} is {kind:?} memory, which cannot be exported")]
    Kind {
        /// The address.
        addr: usize,
        /// Its kind.
        kind: PointerKind,
    },
    /// The range is empty.
    #[error("cannot export 0 bytes at {addr:#x}")]
    Empty {
        /// The address.
        addr: usize,
    },
    /// The range exceeds its allocation.
    #[error("{len} bytes at {addr:#x} do not fit in their allocation of {size} bytes at {base:#x}")]
    Beyond {
        /// First byte requested.
        addr: usize,
        /// Bytes requested.
        len: usize,
        /// First byte of the allocation.
        base: usize,
        /// Bytes of the allocation.
        size: usize,
    },
    /// The address cannot be classified.
    #[error(transparent)]
    Look(#[from] LookError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
    /// The descriptor is invalid, or the system rejects it.
    #[error("{call} returned the invalid descriptor {fd}: {error}")]
    Descriptor {
        /// The function.
        call: &'static str,
        /// The descriptor.
        fd: RawFd,
        /// The system's error.
        error: io::Error,
    },
    /// The driver exported fewer bytes than requested.
    #[error("{call} exported {size} bytes, but {len} at offset {offset} were requested")]
    Short {
        /// The function.
        call: &'static str,
        /// Offset of the requested bytes in the dma-buf.
        offset: u64,
        /// Bytes requested.
        len: usize,
        /// Bytes of the dma-buf.
        size: u64,
    },
}

/// Whole pages around a range of bytes, as passed to a driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PageWindow {
    /// Address of the first page.
    pub(super) start: usize,
    /// Bytes of all pages.
    pub(super) len: usize,
    /// Offset of the range in the first page, in bytes.
    pub(super) inset: usize,
}

impl PageWindow {
    /// Returns the pages of `page` bytes around `len` bytes at `addr`; `None` if they exceed the address space.
    pub(super) fn around(addr: usize, len: usize, page: usize) -> Option<Self> {
        let start = addr - addr % page;
        let end = addr.checked_add(len)?.checked_next_multiple_of(page)?;
        Some(Self { start, len: end - start, inset: addr - start })
    }
}

impl DmaBuf {
    /// Takes ownership of a driver's descriptor; `start` is the offset of the window's first byte in it.
    ///
    /// # Errors
    /// [`DmaBufError::Descriptor`], [`DmaBufError::Short`]. The descriptor is closed in both cases.
    ///
    /// # Safety
    /// No other code owns the descriptor, unless it is negative.
    pub(super) unsafe fn from_driver(
        call: &'static str,
        fd: RawFd,
        start: u64,
        window: PageWindow,
        len: usize,
    ) -> Result<Self, DmaBufError> {
        let fault = |error| DmaBufError::Descriptor { call, fd, error };
        if fd < 0 {
            return Err(fault(io::Error::from_raw_os_error(rustix::io::Errno::BADF.raw_os_error())));
        }
        // SAFETY: the caller guarantees that the descriptor is open and owned by no other code.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let checked = Self::check_descriptor(call, &owned, start, window, len);
        let offset = match checked {
            Ok(offset) => offset,
            Err(DescriptorFault::System(error)) => return Err(fault(error.into())),
            Err(DescriptorFault::Other(error)) => return Err(error),
        };
        Ok(Self { fd: owned, offset, len })
    }

    /// Sets close-on-exec and returns the offset of the bytes, if the dma-buf contains them.
    fn check_descriptor(
        call: &'static str,
        fd: &OwnedFd,
        start: u64,
        window: PageWindow,
        len: usize,
    ) -> Result<u64, DescriptorFault> {
        rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        let size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))?;
        let inset = window.inset as u64;
        match start.checked_add(inset) {
            Some(offset) if offset.checked_add(len as u64).is_some_and(|end| end <= size) => Ok(offset),
            offset => {
                let offset = offset.unwrap_or(u64::MAX);
                Err(DescriptorFault::Other(DmaBufError::Short { call, offset, len, size }))
            }
        }
    }
}

/// Why a descriptor is rejected.
enum DescriptorFault {
    System(rustix::io::Errno),
    Other(DmaBufError),
}

impl From<rustix::io::Errno> for DescriptorFault {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_has_whole_pages() {
        let of = |start, len, inset| Some(PageWindow { start, len, inset });
        assert_eq!(PageWindow::around(8192, 4096, 4096), of(8192, 4096, 0));
        assert_eq!(PageWindow::around(8200, 4096, 4096), of(8192, 8192, 8));
        assert_eq!(PageWindow::around(12287, 1, 4096), of(8192, 4096, 4095));
        assert_eq!(PageWindow::around(65536 + 4096, 1, 65536), of(65536, 65536, 4096));
        assert_eq!(PageWindow::around(usize::MAX - 10, 20, 4096), None);
        assert_eq!(PageWindow::around(usize::MAX - 10, 10, 4096), None);
    }
}
