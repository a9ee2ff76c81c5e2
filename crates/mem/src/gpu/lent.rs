//! Memory of a device that is only there to be tried out. Made by [`Gpu::lend`](super::Gpu::lend); it frees itself.

use std::sync::Arc;

use super::driver::Driver;
use super::{LookError, Pointer, PointerKind, planted};
use crate::{Kind, Memory};

/// Frees the memory when it goes.
struct Lent {
    driver: Driver,
    device: u32,
    addr: usize,
    /// Its device's context is kept for it.
    keeps: bool,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if planted("mem-keeps-lent") {
            return;
        }
        // What cannot be freed is the driver's until the process ends.
        let _ = match &self.driver {
            Driver::Cuda(cuda) => cuda.free(self.device, self.addr, self.keeps),
            Driver::Hip(hip) => hip.free(self.addr),
        };
    }
}

/// Bytes that a driver has just allocated, of which it then said that.
pub(super) fn own(
    driver: &Driver,
    (addr, len, keeps): (usize, usize, bool),
    said: Result<Pointer, LookError>,
) -> Result<Memory, LookError> {
    let mut owner = Lent { driver: driver.clone(), device: 0, addr, keeps };
    let PointerKind::Device { device, .. } = said?.kind else {
        return Err(LookError::Unfamiliar { call: "allocating", addr, value: 0 });
    };
    owner.device = device;
    // SAFETY: the CPU touches no byte of such memory, and it is there as long as its owner.
    Ok(unsafe { Memory::with_owner(addr, len, Kind::Device(device), Arc::new(owner)) })
}
