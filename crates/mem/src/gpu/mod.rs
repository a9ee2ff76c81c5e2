//! Memory of GPUs: which device's memory an address names, and its export as a dma-buf, for a NIC to reach it.
//!
//! Used by code that registers buffers with a NIC. A [`VendorDriver`] is a vendor's driver, opened at run time and held by its owner;
//! [`VendorDrivers`] holds those of all vendors; [`GpuUnavailable`] states why one is missing. No function here waits for a device or caches
//! results: a result is valid until the memory is freed. Only [`VendorDriver::allocate_probe`] and [`GpuDevice`] allocate memory.

mod copies;
pub(crate) mod cuda;
mod device;
mod dmabuf;
mod driver;
mod error;
mod free_count;
mod gdrcopy;
pub(crate) mod hip;
pub(crate) mod library;
mod pointer;
mod probe_memory;
mod sync_memops;
mod vendor_drivers;

pub use copies::{GpuCopyError, GpuCopyStream};
pub use device::{
    DeviceCopyQueue, GpuDevice, GpuDeviceError, KernelArg, KernelLaunchError, KernelModule, MOVES_MAX,
    MemoryLocation, PinnedMemory, RangeError, RunningKernel,
};
pub use dmabuf::{DmaBuf, DmaBufError, DmaBufExport, DmaBufMapping, ExportRefusal};
pub use driver::{GpuVendor, VendorDriver};
pub use error::{DriverCallError, GpuUnavailable, LookError};
pub use free_count::FreeCount;
pub use gdrcopy::{GdrCopy, GdrError};
pub use pointer::{AddressAttributes, DeviceAllocation, PointerKind};
pub use vendor_drivers::VendorDrivers;
