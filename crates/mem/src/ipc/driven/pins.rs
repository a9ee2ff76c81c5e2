//! Memory of the host that a driver has pinned, and gives back with its last user. A child of a fork gives back nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Driver, Here};
use crate::Memory;
use crate::ipc::{StagePin, planted};

/// Whether this process has warned of memory that is not pinned.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Ends with the memory, which it holds.
struct Pinned<D: Driver> {
    driver: Arc<D>,
    here: Arc<Here>,
    memory: Memory,
}

/// Pins all of a range of the host.
pub(super) fn pin<D: Driver + 'static>(
    driver: &Arc<D>,
    here: &Arc<Here>,
    memory: &Memory,
) -> Option<StagePin> {
    match driver.pin(memory.addr(), memory.len()) {
        Ok(true) => {
            let (driver, here, memory) = (Arc::clone(driver), Arc::clone(here), memory.clone());
            Some(StagePin::of(Pinned { driver, here, memory }))
        }
        Ok(false) => None,
        Err(cause) => {
            if !WARNED.swap(true, Ordering::Relaxed) {
                eprintln!(
                    "trunkline: warning: {} bytes of memory for staging are not pinned ({cause}): messages of memory of GPUs that has no handle are slower. \
                     Raise the limit of locked memory (ulimit -l), or use memory of cudaMalloc",
                    memory.len()
                );
            }
            None
        }
    }
}

impl<D: Driver> Drop for Pinned<D> {
    fn drop(&mut self) {
        if self.here.is_child() {
            return std::mem::forget(Arc::clone(&self.driver));
        }
        if !planted("mem-gpu-keeps-pins") {
            self.driver.unpin(self.memory.addr());
        }
    }
}
