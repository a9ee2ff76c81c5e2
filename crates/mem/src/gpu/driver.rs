//! A vendor's GPU driver as one value. Opened once by its owner, and queried when memory is registered; never called while a message is sent or
//! received.

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

/// A GPU vendor.
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

/// A vendor's open driver, with at least one device. Any thread may use it.
pub struct VendorDriver {
    driver: DriverLibrary,
    /// Page size of the host, in bytes.
    page: usize,
}

#[derive(Clone)]
pub(super) enum DriverLibrary {
    Cuda(CudaLibrary),
    Hip(HipLibrary),
}

impl VendorDriver {
    /// Opens and initialises the installed driver.
    ///
    /// # Errors
    /// [`GpuUnavailable`]: no usable driver or device.
    pub fn open(vendor: GpuVendor) -> Result<Self, GpuUnavailable> {
        Ok(Self::from_vendor(match vendor {
            GpuVendor::Nvidia => DriverLibrary::Cuda(CudaLibrary::new(super::cuda::load_calls()?)?),
            GpuVendor::Amd => DriverLibrary::Hip(HipLibrary::new(super::hip::load_calls()?)?),
        }))
    }

    /// Wraps NVIDIA's driver, given as a table of functions.
    ///
    /// # Errors
    /// [`GpuUnavailable`], as [`VendorDriver::open`].
    ///
    /// # Safety
    /// The functions behave as the CUDA driver API specifies, from any thread, for the lifetime of the process.
    pub unsafe fn of_cuda(calls: cuda::Calls) -> Result<Self, GpuUnavailable> {
        Ok(Self::from_vendor(DriverLibrary::Cuda(CudaLibrary::new(calls)?)))
    }

    /// Wraps AMD's runtime, given as a table of functions.
    ///
    /// # Errors
    /// [`GpuUnavailable`], as [`VendorDriver::open`].
    ///
    /// # Safety
    /// The functions behave as HIP and HSA specify, from any thread, for the lifetime of the process.
    pub unsafe fn of_hip(calls: hip::Calls) -> Result<Self, GpuUnavailable> {
        Ok(Self::from_vendor(DriverLibrary::Hip(HipLibrary::new(calls)?)))
    }

    fn from_vendor(driver: DriverLibrary) -> Self {
        Self { driver, page: rustix::param::page_size() }
    }

    /// Returns the vendor.
    #[must_use]
    pub fn vendor(&self) -> GpuVendor {
        match self.driver {
            DriverLibrary::Cuda(_) => GpuVendor::Nvidia,
            DriverLibrary::Hip(_) => GpuVendor::Amd,
        }
    }

    /// Returns the driver's version: `CUDA 12.4`.
    #[must_use]
    pub fn driver_version(&self) -> String {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.version_text(),
            DriverLibrary::Hip(hip) => hip.version_text(),
        }
    }

    /// Returns the number of devices, at least one.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.device_count(),
            DriverLibrary::Hip(hip) => hip.device_count(),
        }
    }

    /// Returns whether every device can export memory, as far as the driver reports it without an allocation.
    ///
    /// # Errors
    /// [`DriverCallError`]: a driver call failed.
    pub fn exports_memory(&self) -> Result<bool, DriverCallError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.exports_memory(),
            DriverLibrary::Hip(hip) => Ok(hip.exports_memory()),
        }
    }

    /// Classifies an address. Memory unknown to the driver is reported as memory of the host, even if another vendor's driver knows it.
    ///
    /// # Errors
    /// [`LookError`]: the address cannot be classified, and must not be treated as any kind of memory.
    pub fn query_pointer(&self, addr: usize) -> Result<AddressAttributes, LookError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.query_pointer(addr),
            DriverLibrary::Hip(hip) => hip.query_pointer(addr),
        }
    }

    /// Exports `len` bytes at `addr` as a dma-buf. The range need not be page-aligned; the pages around it are exported.
    ///
    /// # Errors
    /// [`DmaBufError`]. A driver that does not support exports returns [`DmaBufExport::Refused`], which is not an error.
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

    /// Makes the driver's synchronous copies and memsets of the allocation at `addr` complete before they return, which a NIC that reads the memory
    /// relies on. Returns whether they now do.
    ///
    /// The attribute is set for the allocation alone or, where NVIDIA's driver rejects that (memory of `cuMemCreate`), for its whole context. The
    /// latter, and a failure of both, print a warning on standard error, once per process; after a failure the user must synchronize copies
    /// explicitly. Memory of the host and of AMD devices needs no setting.
    ///
    /// # Errors
    /// [`LookError`]: the address cannot be classified.
    pub fn sync_copies(&self, addr: usize) -> Result<bool, LookError> {
        let pointer = self.query_pointer(addr)?;
        let (DriverLibrary::Cuda(cuda), PointerKind::Device { device, .. }) = (&self.driver, pointer.kind)
        else {
            return Ok(true);
        };
        Ok(pointer.sync_copies || cuda.request_sync_memops(device, addr).is_set())
    }

    /// Creates a stream for copies of a few bytes from and to memory of a device.
    ///
    /// # Errors
    /// [`GpuCopyError`].
    pub fn copy_stream(&self, device: u32) -> Result<GpuCopyStream, GpuCopyError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => GpuCopyStream::new(cuda.clone(), device),
            DriverLibrary::Hip(_) => Err(GpuCopyError::Vendor),
        }
    }

    /// Opens a device by its number, for kernels of this process.
    ///
    /// # Errors
    /// [`GpuDeviceError`].
    pub fn open_device(&self, ordinal: u32) -> Result<GpuDevice, GpuDeviceError> {
        match &self.driver {
            DriverLibrary::Cuda(cuda) => GpuDevice::new(cuda.clone(), ordinal),
            DriverLibrary::Hip(_) => Err(GpuDeviceError::Vendor),
        }
    }

    /// Allocates `len` bytes of a device for tests of NIC access: of the calling thread's current device, or of device 0. The memory is freed with
    /// the last clone.
    ///
    /// # Errors
    /// [`LookError`]: the allocation failed, or the driver cannot classify the new address.
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
