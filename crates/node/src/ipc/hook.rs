//! The flag that a memory hook sets when memory was freed. Any thread may set it; the owner of the node reads and
//! clears it in its progress calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that memory was freed, for a hook of a driver or an allocator. Setting it takes no lock, allocates nothing
/// and calls nothing, so it is safe inside a driver's or an allocator's call. Messages still query the driver for the
/// allocation at their addresses: before the flag is set, another thread may have allocated the memory again and sent
/// it.
#[derive(Clone, Debug, Default)]
pub struct FreeHook(Arc<AtomicBool>);

impl FreeHook {
    /// Reports that memory was freed; its address is not needed. Call this after the free, not before: memory that
    /// the driver still reports as allocated stays exported.
    pub fn report_free(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether memory was freed since the last call; clears the flag.
    pub(crate) fn take_flag(&self) -> bool {
        // The swap writes the cache line only after a free, which is rare.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Acquire)
    }
}
