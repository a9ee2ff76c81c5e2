//! How long a thread of the host waits. It stays on its processor at first; then whoever else wants one goes first.

use std::time::{Duration, Instant};

use trunkline_device_queue::WaitBudget;

/// Looks before others go first.
const SPINS: u32 = 50;
/// Looks at the queue between two looks at the clock.
const CLOCK_EVERY: u32 = 16;

/// Until a deadline.
#[derive(Clone, Copy, Debug)]
pub struct HostDeadline {
    until: Option<Instant>,
    looks: u32,
}

impl HostDeadline {
    /// So long from now; for good if that is longer than clocks go.
    #[must_use]
    pub fn from_duration(time: Duration) -> Self {
        Self { until: Instant::now().checked_add(time), looks: 0 }
    }

    /// For good: only the end of what is waited for ends it.
    #[must_use]
    pub const fn without_deadline() -> Self {
        Self { until: None, looks: 0 }
    }
}

/// Ends the process: a kernel asked for that, rather than for an error, where one of its waits takes too long.
pub fn abort_process() -> ! {
    use std::io::Write as _;
    let said = "trunkline: a kernel has waited longer than its limit, which it asked to be its end\n";
    // Where nobody hears it the end is the same.
    let _ = std::io::stderr().write_all(said.as_bytes());
    std::process::abort()
}

impl WaitBudget for HostDeadline {
    #[inline]
    fn spend_poll(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks < SPINS {
            return true;
        }
        std::thread::yield_now();
        if self.looks == u32::MAX {
            self.looks = SPINS;
        }
        !self.looks.is_multiple_of(CLOCK_EVERY) || self.until.is_none_or(|until| Instant::now() < until)
    }
}
