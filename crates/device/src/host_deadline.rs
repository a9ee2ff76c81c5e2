//! How long a thread of the host waits. It spins at first, and then yields its processor. Used as the budget of waits; never sleeps.

use std::time::{Duration, Instant};

use trunkline_device_queue::WaitBudget;

/// Polls before the thread yields: a short wait should not pay for a system call.
const SPINS: u32 = 50;
/// Polls between two reads of the clock.
const CLOCK_EVERY: u32 = 16;

/// A budget until a deadline.
#[derive(Clone, Copy, Debug)]
pub struct HostDeadline {
    until: Option<Instant>,
    looks: u32,
}

impl HostDeadline {
    /// Returns a budget of `time` from now, without a deadline if the clock cannot represent its end.
    #[must_use]
    pub fn from_duration(time: Duration) -> Self {
        Self { until: Instant::now().checked_add(time), looks: 0 }
    }

    /// Returns a budget without a deadline: only the awaited event, a failure or an abort ends the wait.
    #[must_use]
    pub const fn without_deadline() -> Self {
        Self { until: None, looks: 0 }
    }
}

/// Ends the process, for kernels that chose this instead of an error when a wait exceeds its limit.
pub fn abort_process() -> ! {
    use std::io::Write as _;
    let said =
        "trunkline: a kernel has waited longer than its limit, and was configured to end the process then\n";
    // A closed standard error must not prevent the abort.
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
        // The counter would saturate at its maximum, a value at which the clock is never read.
        if self.looks == u32::MAX {
            self.looks = SPINS;
        }
        !self.looks.is_multiple_of(CLOCK_EVERY) || self.until.is_none_or(|until| Instant::now() < until)
    }
}
