//! Memory of the host that a driver has pinned, and unpins with its last user. Both calls may wait for a kernel that runs. The thread that maps makes them. The thread
//! that drops a [`StagePin`] posts its end there. Once the thread that maps has ended, as when a kind is dropped before its pins, the dropping thread makes the call.
//!
//! A child of a fork gives back nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ForkGuard, IpcDriver};
use crate::MemoryRange;
use crate::ipc::StagePin;
use crate::ipc::mapping_queue::{DeferredRelease, MappingQueue};

/// Whether this process has warned of memory that is not pinned.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Pinned memory, which it holds. Its end unpins it.
struct PinnedRange<D: IpcDriver> {
    driver: Arc<D>,
    here: Arc<ForkGuard>,
    memory: MemoryRange,
}

/// The user of pinned memory, in any thread. Its end never waits while a thread serves the queue.
struct PinGuard {
    /// Taken when it ends.
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
    // Without a place for its end it is not pinned, as without memory for anything else.
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
            "trunkline: warning: {} bytes of memory for staging are not pinned ({cause}): messages of memory of GPUs that has no handle are slower. \
             Raise the limit of locked memory (ulimit -l), or use memory of cudaMalloc",
            memory.len()
        );
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        let Some(range) = self.range.take() else { return };
        // A child has no thread, and another thread of its parent's may have had the lock.
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
