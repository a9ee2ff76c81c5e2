//! Memory of a device as a descriptor that other drivers of the kernel understand. Made by the drivers; whoever registers
//! it with a NIC hands over the descriptor with the offset and may close it then.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

use rustix::io::FdFlags;

use super::{DriverCallError, LookError, PointerKind};

/// Exported bytes.
#[derive(Debug)]
pub struct DmaBuf {
    /// Holds the memory, also after it is freed; closed on exec.
    pub fd: OwnedFd,
    /// Where the first of the bytes is in it. As far into a page as their address is.
    pub offset: u64,
    /// How many they are.
    pub len: usize,
}

/// How a NIC is to reach the memory.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum DmaBufMapping {
    /// As the driver sees fit.
    #[default]
    Any,
    /// Over PCIe, also where the device has a coherent link to the host. Only NVIDIA's driver is asked.
    Pcie,
}

/// What became of the wish to export.
#[derive(Debug)]
pub enum DmaBufExport {
    /// It was granted.
    Given(DmaBuf),
    /// It never will be for this memory; there is another way to register it.
    Refused(ExportRefusal),
}

/// Why a driver does not export.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportRefusal {
    /// It has no such function.
    #[error("the driver has no {symbol}; {WITHOUT}")]
    Function {
        /// Its name.
        symbol: &'static str,
    },
    /// The device cannot.
    #[error("GPU {device} exports no memory; {WITHOUT}")]
    Device {
        /// Number of the device.
        device: u32,
    },
    /// It does not for this memory.
    #[error("{0}; {WITHOUT}")]
    Memory(DriverCallError),
}

/// What is done instead.
const WITHOUT: &str =
    "it is registered by its address instead, which needs the kernel module for peer memory (nvidia-peermem)";

/// The memory is not exported, and should have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmaBufError {
    /// It is no memory of a device.
    #[error("{addr:#x} is {kind:?} memory, which cannot be exported")]
    Kind {
        /// The address.
        addr: usize,
        /// What it is.
        kind: PointerKind,
    },
    /// There is nothing to export.
    #[error("no bytes are to be exported at {addr:#x}")]
    Empty {
        /// The address.
        addr: usize,
    },
    /// Not all of it was allocated together.
    #[error("{len} bytes at {addr:#x} do not fit in their allocation of {size} bytes at {base:#x}")]
    Beyond {
        /// First byte asked for.
        addr: usize,
        /// Bytes asked for.
        len: usize,
        /// First byte of the allocation.
        base: usize,
        /// Bytes of the allocation.
        size: usize,
    },
    /// The address cannot be told.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The driver fails.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
    /// The descriptor is none, or the system does not take it.
    #[error("{call} gave the descriptor {fd}, which is no good: {error}")]
    Descriptor {
        /// The function.
        call: &'static str,
        /// The descriptor.
        fd: RawFd,
        /// What the system says.
        error: io::Error,
    },
    /// The driver exported less than was asked for.
    #[error("{call} gave {size} bytes, and {len} at offset {offset} were asked for")]
    Short {
        /// The function.
        call: &'static str,
        /// Where the bytes should be.
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// Bytes of the dma-buf.
        size: u64,
    },
}

/// Whole pages around bytes: what a driver is asked to export.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PageWindow {
    /// Address of the first page.
    pub(super) start: usize,
    /// Bytes of all pages.
    pub(super) len: usize,
    /// How far into the first page the bytes begin.
    pub(super) inset: usize,
}

impl PageWindow {
    /// The pages of `page` bytes each around `len` bytes at `addr`; `None` where they end behind the address space.
    pub(super) fn around(addr: usize, len: usize, page: usize) -> Option<Self> {
        let start = addr - addr % page;
        let end = addr.checked_add(len)?.checked_next_multiple_of(page)?;
        Some(Self { start, len: end - start, inset: addr - start })
    }
}

impl DmaBuf {
    /// Takes over what a driver gave: `start` is where the window's first byte is in it.
    ///
    /// # Errors
    /// [`DmaBufError::Descriptor`], [`DmaBufError::Short`]. The descriptor is closed then.
    ///
    /// # Safety
    /// Nobody else owns the descriptor, unless it is negative.
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
        // SAFETY: the caller vouches that it is open and nobody else's.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let checked = Self::check_descriptor(call, &owned, start, window, len);
        let offset = match checked {
            Ok(offset) => offset,
            Err(DescriptorFault::System(error)) => return Err(fault(error.into())),
            Err(DescriptorFault::Other(error)) => return Err(error),
        };
        Ok(Self { fd: owned, offset, len })
    }

    /// Makes it close on exec, and finds where the bytes are, if it holds them.
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

/// What is wrong with a descriptor.
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
    fn a_window_is_of_whole_pages() {
        let of = |start, len, inset| Some(PageWindow { start, len, inset });
        assert_eq!(PageWindow::around(8192, 4096, 4096), of(8192, 4096, 0));
        assert_eq!(PageWindow::around(8200, 4096, 4096), of(8192, 8192, 8));
        assert_eq!(PageWindow::around(12287, 1, 4096), of(8192, 4096, 4095));
        assert_eq!(PageWindow::around(65536 + 4096, 1, 65536), of(65536, 65536, 4096));
        assert_eq!(PageWindow::around(usize::MAX - 10, 20, 4096), None);
        assert_eq!(PageWindow::around(usize::MAX - 10, 10, 4096), None);
    }
}
