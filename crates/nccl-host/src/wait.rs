//! What a progress thread does when nothing moves: spin a little, then give the processor away.
//!
//! Used by every loop that waits for the plugin. It never sleeps on a clock, as NCCL's proxy does not either.

/// Idle rounds before the first yield when every rank has a processor.
const SPINS: u32 = 1000;

/// The waiting state of one loop.
#[derive(Debug)]
pub(crate) struct SpinWait {
    spins: u32,
    idle: u32,
}

impl SpinWait {
    /// `threads` busy threads share this machine.
    pub(crate) fn new(threads: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { spins: if threads <= processors { SPINS } else { 0 }, idle: 0 }
    }

    /// Something moved.
    #[inline(always)]
    pub(crate) fn note_progress(&mut self) {
        self.idle = 0;
    }

    /// Nothing moved in this round.
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
