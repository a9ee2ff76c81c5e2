//! The waiting policy of a progress thread: it spins briefly, then yields the processor.
//!
//! Used by every loop that polls the plugin. Like NCCL's proxy, it never sleeps on a clock.

/// Idle rounds before the first yield when every rank has a processor.
const SPINS: u32 = 1000;

/// The waiting state of one loop.
#[derive(Debug)]
pub(crate) struct SpinWait {
    spins: u32,
    idle: u32,
}

impl SpinWait {
    /// Creates the state for a machine on which `threads` threads are busy.
    pub(crate) fn new(threads: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { spins: if threads <= processors { SPINS } else { 0 }, idle: 0 }
    }

    /// Resets the state after progress.
    #[inline(always)]
    pub(crate) fn note_progress(&mut self) {
        self.idle = 0;
    }

    /// Spins or yields after a round without progress.
    #[inline(always)]
    pub(crate) fn wait_once(&mut self) {
        if self.idle < self.spins {
            self.idle += 1;
            std::hint::spin_loop();
        } else {
            rustix::thread::sched_yield();
        }
    }
}
