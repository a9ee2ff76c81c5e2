//! State machines for connect, accept, and a control stream that outlives its connections: which frame to send when, and the effect
//! of each reply. The engine drives them from the calls of a front end. They never open a stream or a link.

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

/// The times at which an unanswered frame is repeated. Silence is not an error: the timer never stops.
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
