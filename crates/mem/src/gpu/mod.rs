//! Memory of GPUs: which device's memory an address names, and its export as a dma-buf, for a NIC to reach it.
//!
//! Used by whoever registers buffers with a NIC. A [`VendorDriver`] is a vendor's driver, opened at run time and held by its owner,
//! [`VendorDrivers`] are those of all vendors; where there is none, [`GpuUnavailable`] says why. Nothing here waits for a device or keeps
//! what it learned: an answer is true until the memory is freed. It allocates only what [`VendorDriver::allocate_probe`] is asked for.

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
