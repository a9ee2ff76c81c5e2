//! A vendor's GPU driver as one value. Opened once by whoever owns it, and asked when memory is registered; never on the
//! way of a message.

use std::fmt;

use trunkline_sys::{cuda, hip};

use crate::Memory;

use super::copies::{Copies, CopyError};
use super::cuda::Cuda;
use super::device::{Device, DeviceError};
use super::hip::Hip;
use super::lent;
use super::{CallError, Export, ExportError, LookError, Mapping, Missing, Pointer, PointerKind};

/// Whose GPUs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Vendor {
    /// NVIDIA, by the CUDA driver API.
    Nvidia,
    /// AMD, by HIP.
    Amd,
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
        })
    }
}

/// The open driver of a vendor, with at least one device. Any thread may ask it.
pub struct Gpu {
    driver: Driver,
    /// Bytes of a page of the host.
    page: usize,
}

#[derive(Clone)]
pub(super) enum Driver {
    Cuda(Cuda),
    Hip(Hip),
}

impl Gpu {
    /// Opens the driver that is installed, and has it begin.
    ///
    /// # Errors
    /// [`Missing`]: there is none that could be used.
    pub fn open(vendor: Vendor) -> Result<Self, Missing> {
        Ok(Self::with(match vendor {
            Vendor::Nvidia => Driver::Cuda(Cuda::new(super::cuda::load()?)?),
            Vendor::Amd => Driver::Hip(Hip::new(super::hip::load()?)?),
        }))
    }

    /// NVIDIA's driver as a table of functions.
    ///
    /// # Errors
    /// [`Missing`], as [`Gpu::open`].
    ///
    /// # Safety
    /// The functions do what CUDA says of them, from any thread, for as long as the process lives.
    pub unsafe fn of_cuda(calls: cuda::Calls) -> Result<Self, Missing> {
        Ok(Self::with(Driver::Cuda(Cuda::new(calls)?)))
    }

    /// AMD's runtime as a table of functions.
    ///
    /// # Errors
    /// [`Missing`], as [`Gpu::open`].
    ///
    /// # Safety
    /// The functions do what HIP and HSA say of them, from any thread, for as long as the process lives.
    pub unsafe fn of_hip(calls: hip::Calls) -> Result<Self, Missing> {
        Ok(Self::with(Driver::Hip(Hip::new(calls)?)))
    }

    fn with(driver: Driver) -> Self {
        Self { driver, page: rustix::param::page_size() }
    }

    /// Whose GPUs.
    #[must_use]
    pub fn vendor(&self) -> Vendor {
        match self.driver {
            Driver::Cuda(_) => Vendor::Nvidia,
            Driver::Hip(_) => Vendor::Amd,
        }
    }

    /// What the driver calls its version: `CUDA 12.4`.
    #[must_use]
    pub fn version(&self) -> String {
        match &self.driver {
            Driver::Cuda(cuda) => cuda.version(),
            Driver::Hip(hip) => hip.version(),
        }
    }

    /// How many devices there are, at least one.
    #[must_use]
    pub fn devices(&self) -> u32 {
        match &self.driver {
            Driver::Cuda(cuda) => cuda.devices(),
            Driver::Hip(hip) => hip.devices(),
        }
    }

    /// Whether every device can export memory, as far as the driver says without being given any.
    ///
    /// # Errors
    /// [`CallError`]: the driver fails.
    pub fn exports(&self) -> Result<bool, CallError> {
        match &self.driver {
            Driver::Cuda(cuda) => cuda.exports(),
            Driver::Hip(hip) => Ok(hip.exports()),
        }
    }

    /// What an address is. Memory that the driver does not know is memory of the host to it, also if another vendor's
    /// driver does know it.
    ///
    /// # Errors
    /// [`LookError`]: it cannot be told, and is not to be taken for anything.
    pub fn look(&self, addr: usize) -> Result<Pointer, LookError> {
        match &self.driver {
            Driver::Cuda(cuda) => cuda.look(addr),
            Driver::Hip(hip) => hip.look(addr),
        }
    }

    /// Exports `len` bytes at `addr`, which need not begin or end with a page, as a dma-buf. The pages around them are
    /// exported with them.
    ///
    /// # Errors
    /// [`ExportError`]. That a driver does not export is none: [`Export::Refused`].
    pub fn export(&self, addr: usize, len: usize, mapping: Mapping) -> Result<Export, ExportError> {
        if len == 0 {
            return Err(ExportError::Empty { addr });
        }
        let pointer = self.look(addr)?;
        let (PointerKind::Device { device, .. }, Some(allocation)) = (pointer.kind, pointer.allocation)
        else {
            return Err(ExportError::Kind { addr, kind: pointer.kind });
        };
        if !allocation.holds(addr, len) && !super::error::planted("mem-exports-beyond") {
            let base = allocation.base;
            let size = allocation.len;
            return Err(ExportError::Beyond { addr, len, base, size });
        }
        match &self.driver {
            Driver::Cuda(cuda) => cuda.export(device, (addr, len), self.page, mapping),
            Driver::Hip(hip) => hip.export((addr, len), allocation, self.page),
        }
    }

    /// Has the driver's synchronous copies and memsets of the allocation at `addr` end before they return, which a NIC that reads the memory relies on.
    /// Whether they do now: for the allocation alone, or where NVIDIA's driver cannot do that (memory of `cuMemCreate`) for all of its context. Of both but the
    /// first the user is warned on standard error, once per process; if neither could be set he has to wait for his copies himself. Memory of the host and of
    /// AMD's devices needs nothing.
    ///
    /// # Errors
    /// [`LookError`]: the address cannot be told.
    pub fn sync_copies(&self, addr: usize) -> Result<bool, LookError> {
        let pointer = self.look(addr)?;
        let (Driver::Cuda(cuda), PointerKind::Device { device, .. }) = (&self.driver, pointer.kind) else {
            return Ok(true);
        };
        Ok(pointer.sync_copies || cuda.request_sync_memops(device, addr).is_set())
    }

    /// Copies of a few bytes from and to memory of a device.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn copies(&self, device: u32) -> Result<Copies, CopyError> {
        match &self.driver {
            Driver::Cuda(cuda) => Copies::new(cuda.clone(), device),
            Driver::Hip(_) => Err(CopyError::Vendor),
        }
    }

    /// A device by its number, for kernels of this process.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn device(&self, ordinal: u32) -> Result<Device, DeviceError> {
        match &self.driver {
            Driver::Cuda(cuda) => Device::new(cuda.clone(), ordinal),
            Driver::Hip(_) => Err(DeviceError::Vendor),
        }
    }

    /// `len` bytes of a device, for whoever tries out what reaches them: of the device that the calling thread uses, or
    /// else the first. They are freed with the last clone.
    ///
    /// # Errors
    /// [`LookError`]: the driver does not give any, or does not know afterwards what it gave.
    pub fn lend(&self, len: usize) -> Result<Memory, LookError> {
        let (addr, keeps) = match &self.driver {
            Driver::Cuda(cuda) => cuda.allocate(len)?,
            Driver::Hip(hip) => (hip.allocate(len)?, false),
        };
        lent::own(&self.driver, (addr, len, keeps), self.look(addr))
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({}, {}, {} devices)", self.vendor(), self.version(), self.devices())
    }
}
