//! Memory of a device that is allocated only for a test of NIC access. Created by
//! [`VendorDriver::allocate_probe`](super::VendorDriver::allocate_probe); freed on drop.

use std::sync::Arc;

use super::driver::DriverLibrary;
use super::{AddressAttributes, LookError, PointerKind};
use crate::{MemoryKind, MemoryRange};

/// Frees the memory when dropped.
struct ProbeMemory {
    driver: DriverLibrary,
    device: u32,
    addr: usize,
    /// Whether the device's context is retained for it.
    keeps: bool,
}

impl Drop for ProbeMemory {
    fn drop(&mut self) {
        // Memory that cannot be freed stays with the driver until the process ends.
        let _ = match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.free(self.device, self.addr, self.keeps),
            DriverLibrary::Hip(hip) => hip.free(self.addr),
        };
    }
}

/// Wraps `len` bytes that a driver has just allocated at `addr`; `keeps` states whether the context of their device is retained for them.
/// `said` contains the attributes that the driver then reported for the address.
pub(super) fn wrap_allocation(
    driver: &DriverLibrary,
    addr: usize,
    len: usize,
    keeps: bool,
    said: Result<AddressAttributes, LookError>,
) -> Result<MemoryRange, LookError> {
    let mut owner = ProbeMemory { driver: driver.clone(), device: 0, addr, keeps };
    let PointerKind::Device { device, .. } = said?.kind else {
        return Err(LookError::Unfamiliar { call: "allocating", addr, value: 0 });
    };
    owner.device = device;
    // SAFETY: the CPU accesses no byte of a range of kind `Device`, and `owner` keeps the memory allocated.
    Ok(unsafe { MemoryRange::with_owner(addr, len, MemoryKind::Device(device), Arc::new(owner)) })
}
