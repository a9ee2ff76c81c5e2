//! What a hook that sees memory freed may touch: one flag. Set in any thread, found by whoever makes progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that says that memory was freed. To be kept by a hook of whatever frees: setting it takes no lock, allocates nothing and
/// calls nothing, so that it may be done inside of a driver's or an allocator's call. Messages go on asking the driver what is at their addresses: until this is
/// said, another thread may have been given the memory, and send it.
#[derive(Clone, Debug, Default)]
pub struct FreeHook(Arc<AtomicBool>);

impl FreeHook {
    /// Something was freed; nobody needs to know what. To be said when it is free, not before: what is still there when the driver is asked
    /// stays exported.
    pub fn report_free(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether that was said since it was asked last.
    pub(crate) fn take_flag(&self) -> bool {
        // Seldom: the word is written to only when it has news.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Acquire)
    }
}
