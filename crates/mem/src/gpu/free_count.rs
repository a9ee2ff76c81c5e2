//! How often GPU memory was freed in this process, as the preloaded library `libtrunkline_freehook.so` counts it.
//!
//! Endpoints that export GPU memory poll whether the count has risen. This module only reads the count.

use std::sync::atomic::{AtomicU64, Ordering};

use libloading::os::unix;

/// The symbol of the preloaded library.
const SYMBOL: &[u8] = b"trunkline_free_count\0";

/// The count, and its value at the last poll.
#[derive(Debug)]
pub struct FreeCount {
    count: &'static AtomicU64,
    seen: u64,
}

impl FreeCount {
    /// Returns the count of this process; `None` unless the library was preloaded.
    #[must_use]
    pub fn find_preloaded() -> Option<Self> {
        let program = unix::Library::this();
        // SAFETY: the library that defines this symbol defines it as an `AtomicU64`. The symbol's address is only resolved here.
        let symbol = unsafe { program.get::<*const AtomicU64>(SYMBOL) }.ok()?;
        // SAFETY: the symbol points to that static, or is null; a preloaded library stays loaded until the process ends.
        let count = unsafe { symbol.as_ref() }?;
        Some(Self { count, seen: count.load(Ordering::Acquire) })
    }

    /// Returns whether memory was freed since the last call, or since the count was found.
    pub fn take_rise(&mut self) -> bool {
        let now = self.count.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, now) != now
    }
}
