//! Memory of a device that is only there to be tried out. Made by [`VendorDriver::allocate_probe`](super::VendorDriver::allocate_probe); it frees itself.

use std::sync::Arc;

use super::driver::DriverLibrary;
use super::{AddressAttributes, LookError, PointerKind};
use crate::{MemoryKind, MemoryRange};

/// Frees the memory when it goes.
struct ProbeMemory {
    driver: DriverLibrary,
    device: u32,
    addr: usize,
    /// Its device's context is kept for it.
    keeps: bool,
}

impl Drop for ProbeMemory {
    fn drop(&mut self) {
        // What cannot be freed is the driver's until the process ends.
        let _ = match &self.driver {
            DriverLibrary::Cuda(cuda) => cuda.free(self.device, self.addr, self.keeps),
            DriverLibrary::Hip(hip) => hip.free(self.addr),
        };
    }
}

/// Wraps `len` bytes that a driver has just allocated at `addr`; `keeps` says whether the context of their device is kept
/// for them. `said` is what the driver then reported for the address.
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
    // SAFETY: the CPU touches no byte of such memory, and it is there as long as its owner.
    Ok(unsafe { MemoryRange::with_owner(addr, len, MemoryKind::Device(device), Arc::new(owner)) })
}
