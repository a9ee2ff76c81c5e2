//! Connect and accept, and the life of a control stream over several connections, as machines: what to send when, and what
//! each answer means. Driven by the engine from the calls of a front end; never opens a stream or a link.

mod accept;
mod budget;
mod connect;
mod resume;
mod stream;
mod unproven;

pub use accept::{AcceptHandshake, AcceptStep};
pub use budget::WorkBudget;
pub use connect::{ConnectHandshake, ConnectStep};
pub use resume::{FrameArrival, KEPT_MAX, ResumeError, ResumeFull, ResumeWindow, TAKEN_DUE};
pub use stream::{DialStep, StrandEnd, StrandPhase, StreamLife};
pub use unproven::UnprovenStreams;

use crate::time::Duration;

/// First wait before a frame is repeated; it doubles up to [`REPEAT_MAX`].
pub const REPEAT_FIRST: Duration = Duration::from_millis(100);

/// Longest wait before a frame is repeated.
pub const REPEAT_MAX: Duration = Duration::from_secs(2);

/// When to repeat a frame that has not been answered. Silence is no error: it repeats for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepeatTimer {
    next: crate::time::Instant,
    wait: Duration,
}

impl RepeatTimer {
    pub(crate) fn start_at(now: crate::time::Instant) -> Self {
        Self { next: now + REPEAT_FIRST, wait: REPEAT_FIRST }
    }

    pub(crate) fn poll_due(&mut self, now: crate::time::Instant) -> bool {
        if now < self.next {
            return false;
        }
        self.wait = Duration(self.wait.0.saturating_mul(2).min(REPEAT_MAX.0));
        self.next = now + self.wait;
        true
    }
}
