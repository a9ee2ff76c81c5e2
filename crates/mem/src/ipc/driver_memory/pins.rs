//! Memory of the host pinned by a driver, and unpinned with its last user. Both calls may wait for a running kernel, so the mapping thread
//! makes them. The thread that drops a [`StagePin`] only posts a request. Once the mapping thread has ended, as when a kind is dropped before
//! its pins, the dropping thread makes the call.
//!
//! A forked child unpins nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ForkGuard, IpcDriver};
use crate::MemoryRange;
use crate::ipc::StagePin;
use crate::ipc::mapping_queue::{DeferredRelease, MappingQueue};

/// Whether this process has printed the warning about unpinned memory.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Pinned memory; dropping it unpins the memory.
struct PinnedRange<D: IpcDriver> {
    driver: Arc<D>,
    here: Arc<ForkGuard>,
    memory: MemoryRange,
}

/// The user of pinned memory, in any thread. Dropping it never waits while a thread serves the queue.
struct PinGuard {
    /// Taken on drop.
    range: Option<DeferredRelease>,
    here: Arc<ForkGuard>,
    queue: Arc<MappingQueue>,
}

/// Pins all of a range of the host.
pub(super) fn pin_host_memory<D: IpcDriver + 'static>(
    driver: &Arc<D>,
    here: &Arc<ForkGuard>,
    queue: &Arc<MappingQueue>,
    memory: &MemoryRange,
) -> Option<StagePin> {
    // Pins nothing if the place for the later release cannot be allocated.
    queue.reserve_release().ok()?;
    match driver.pin_host(memory.addr(), memory.len()) {
        Ok(true) => {
            let range =
                PinnedRange { driver: Arc::clone(driver), here: Arc::clone(here), memory: memory.clone() };
            let range: Option<DeferredRelease> = Some(Box::new(range));
            let guard = PinGuard { range, here: Arc::clone(here), queue: Arc::clone(queue) };
            return Some(StagePin::from_guard(guard));
        }
        Ok(false) => {}
        Err(cause) => warn_once(memory, &cause.to_string()),
    }
    queue.cancel_release();
    None
}

fn warn_once(memory: &MemoryRange, cause: &str) {
    if !WARNED.swap(true, Ordering::Relaxed) {
        eprintln!(
            "trunkline: warning: cannot pin {} bytes of memory for staging ({cause}): messages of GPU memory without a handle are slower. \
             Raise the limit of locked memory (ulimit -l), or use memory of cudaMalloc",
            memory.len()
        );
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        let Some(range) = self.range.take() else { return };
        // A forked child has no thread, and another thread of the parent may have held the lock during the fork.
        if self.here.is_child() {
            return drop(range);
        }
        drop(self.queue.post_release(range));
    }
}

impl<D: IpcDriver> Drop for PinnedRange<D> {
    fn drop(&mut self) {
        if self.here.is_child() {
            return std::mem::forget(Arc::clone(&self.driver));
        }
        self.driver.unpin_host(self.memory.addr());
    }
}
