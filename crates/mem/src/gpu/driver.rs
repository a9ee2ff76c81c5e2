//! A vendor's GPU driver as one value. Opened once by whoever owns it, and asked when memory is registered; never on the
//! way of a message.

use std::fmt;

use trunkline_sys::{cuda, hip};

use crate::MemoryRange;

use super::copies::{GpuCopyError, GpuCopyStream};
use super::cuda::CudaLibrary;
use super::device::{GpuDevice, GpuDeviceError};
use super::hip::HipLibrary;
use super::probe_memory;
use super::{
    AddressAttributes, DmaBufError, DmaBufExport, DmaBufMapping, DriverCallError, GpuUnavailable, LookError,
    PointerKind,
};

/// Whose GPUs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum GpuVendor {
    /// NVIDIA, by the CUDA driver API.
    Nvidia,
    /// AMD, by HIP.
    Amd,
}

impl fmt::Display for GpuVendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
        })
    }
}

/// The open driver of a vendor, with at least one device. Any thread may ask it.
pub struct VendorDriver {
    driver: DriverLibrary,
    /// Bytes of a page of the host.
    page: usize,
}

#[derive(Clone)]
pub(super) enum DriverLibrary {
    Cuda(CudaLibrary),
    Hip(HipLibrary),
}

impl VendorDriver {
    /// Opens the driver that is installed, and has it begin.
    ///
    /// # Errors
    /// [`GpuUnavailable`]: there is none that could be used.
    pub fn open(vendor: GpuVendor) -> Result<Self, GpuUnavailable> {
        Ok(Self::from_vendor(match vendor {
            GpuVendor::Nvidia => DriverLibrary::Cuda(CudaLibrary::new(super::cuda::load_calls()?)?),
            GpuVendor::Amd => DriverLibrary::Hip(HipLibrary::new(super::hip::load_calls()?)?),
        }))
    }

    /// NVIDIA's driver as a table of functions.
    ///
    /// # Errors
    /// [`GpuUnavailable`], as [`VendorDriver::open`].
    ///
    /// # Safety
    /// The functions do what CUDA says of them, from any thread, for as long as the process lives.
    pub unsafe fn of_cuda(calls: cuda::Calls) -> Result<Self, GpuUnavailable> {
        Ok(Self::from_vendor(DriverLibrary::Cuda(CudaLibrary::new(calls)?)))
    }

    /// AMD's runtime as a table of functions.
    ///
    /// # Errors
    /// [`GpuUnavailable`], as [`VendorDriver::open`].
    ///
    /// # Safety
    /// The functions do what HIP and HSA say of them, from any thread, for as long as the process lives.
    pub unsafe fn of_hip(calls: hip::Calls) -> Result<Self, GpuUnavailable> {
        Ok(Self::from_vendor(DriverLibrary::Hip(HipLibrary::new(calls)?)))
    }

    fn from_vendor(driver: DriverLibrary) -> Self {
        Self { driver, page: rustix::param::page_size() }
    }

    /// Whose GPUs.
    #[must_use]
    pub fn vendor(&self) -> GpuVendor {
        match self.driver {
            DriverLibrary::Cuda(_) => GpuVendor::Nvidia,
            DriverLibrary::Hip(_) => GpuVendor::Amd,
        }
    }

    /// What the driver calls its version: `CUDA 12.4`.
    #[must_use]
    pub fn driver_version(&self) -> String {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.version_text(),
            DriverLibrary::Hip(hip) => hip.version_text(),
        }
    }

    /// How many devices there are, at least one.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.device_count(),
            DriverLibrary::Hip(hip) => hip.device_count(),
        }
    }

    /// Whether every device can export memory, as far as the driver says without being given any.
    ///
    /// # Errors
    /// [`DriverCallError`]: the driver fails.
    pub fn exports_memory(&self) -> Result<bool, DriverCallError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.exports_memory(),
            DriverLibrary::Hip(hip) => Ok(hip.exports_memory()),
        }
    }

    /// What an address is. Memory that the driver does not know is memory of the host to it, also if another vendor's
    /// driver does know it.
    ///
    /// # Errors
    /// [`LookError`]: it cannot be told, and is not to be taken for anything.
    pub fn query_pointer(&self, addr: usize) -> Result<AddressAttributes, LookError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.query_pointer(addr),
            DriverLibrary::Hip(hip) => hip.query_pointer(addr),
        }
    }

    /// Exports `len` bytes at `addr`, which need not begin or end with a page, as a dma-buf. The pages around them are
    /// exported with them.
    ///
    /// # Errors
    /// [`DmaBufError`]. That a driver does not export is none: [`DmaBufExport::Refused`].
    pub fn export_dmabuf(
        &self,
        addr: usize,
        len: usize,
        mapping: DmaBufMapping,
    ) -> Result<DmaBufExport, DmaBufError> {
        if len == 0 {
            return Err(DmaBufError::Empty { addr });
        }
        let pointer = self.query_pointer(addr)?;
        let (PointerKind::Device { device, .. }, Some(allocation)) = (pointer.kind, pointer.allocation)
        else {
            return Err(DmaBufError::Kind { addr, kind: pointer.kind });
        };
        if !allocation.contains_range(addr, len) {
            let base = allocation.base;
            let size = allocation.len;
            return Err(DmaBufError::Beyond { addr, len, base, size });
        }
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.export_dmabuf(device, addr, len, self.page, mapping),
            DriverLibrary::Hip(hip) => hip.export_dmabuf(addr, len, allocation, self.page),
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
        let pointer = self.query_pointer(addr)?;
        let (DriverLibrary::Cuda(cuda), PointerKind::Device { device, .. }) = (&self.driver, pointer.kind)
        else {
            return Ok(true);
        };
        Ok(pointer.sync_copies || cuda.request_sync_memops(device, addr).is_set())
    }

    /// Copies of a few bytes from and to memory of a device.
    ///
    /// # Errors
    /// [`GpuCopyError`].
    pub fn copy_stream(&self, device: u32) -> Result<GpuCopyStream, GpuCopyError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => GpuCopyStream::new(cuda.clone(), device),
            DriverLibrary::Hip(_) => Err(GpuCopyError::Vendor),
        }
    }

    /// A device by its number, for kernels of this process.
    ///
    /// # Errors
    /// [`GpuDeviceError`].
    pub fn open_device(&self, ordinal: u32) -> Result<GpuDevice, GpuDeviceError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => GpuDevice::new(cuda.clone(), ordinal),
            DriverLibrary::Hip(_) => Err(GpuDeviceError::Vendor),
        }
    }

    /// `len` bytes of a device, for whoever tries out what reaches them: of the device that the calling thread uses, or
    /// else the first. They are freed with the last clone.
    ///
    /// # Errors
    /// [`LookError`]: the driver does not give any, or does not know afterwards what it gave.
    pub fn allocate_probe(&self, len: usize) -> Result<MemoryRange, LookError> {
        let (addr, keeps) = match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.allocate(len)?,
            DriverLibrary::Hip(hip) => (hip.allocate(len)?, false),
        };
        probe_memory::wrap_allocation(&self.driver, addr, len, keeps, self.query_pointer(addr))
    }
}

impl fmt::Debug for VendorDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({}, {}, {} devices)", self.vendor(), self.driver_version(), self.device_count())
    }
}
