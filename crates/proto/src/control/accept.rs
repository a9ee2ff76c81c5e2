//! The replying end of a connection. The engine keeps one `AcceptHandshake` per accepted connection and sends the frames that it
//! orders; nothing here sends a frame.
//!
//! ```text
//! Answered --READY--> Ready
//! ```
//! RESULT is repeated while Answered, and is sent again for each repeated OPEN.

use crate::control::RepeatTimer;
use crate::time::Instant;

/// The action that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AcceptStep {
    /// No action.
    Wait,
    /// Send RESULT again.
    SendResult,
    /// Both ends are up; the comm is usable.
    Ready,
}

/// The handshake of one accepted connection, from its first RESULT on.
#[derive(Debug)]
pub struct AcceptHandshake {
    repeat: RepeatTimer,
    ready: bool,
}

impl AcceptHandshake {
    /// Begins a handshake whose first RESULT is sent now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { repeat: RepeatTimer::start_at(now), ready: false }
    }

    /// Returns the action that is due at `now`. The engine calls it in each accept call of the front end.
    pub fn on_time(&mut self, now: Instant) -> AcceptStep {
        match self.ready {
            true => AcceptStep::Ready,
            false if self.repeat.poll_due(now) => AcceptStep::SendResult,
            false => AcceptStep::Wait,
        }
    }

    /// Handles a repetition of the connection's OPEN.
    pub fn on_open(&mut self) -> AcceptStep {
        AcceptStep::SendResult
    }

    /// Handles READY.
    pub fn on_ready(&mut self) {
        self.ready = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn accept_repeats_result_until_ready() {
        let mut accepting = AcceptHandshake::new(Instant(0));
        assert_eq!(accepting.on_time(Instant(0)), AcceptStep::Wait);
        assert_eq!(accepting.on_time(Instant(0) + Duration::from_millis(100)), AcceptStep::SendResult);
        assert_eq!(accepting.on_open(), AcceptStep::SendResult);
        accepting.on_ready();
        accepting.on_ready();
        assert_eq!(accepting.on_time(Instant(0)), AcceptStep::Ready);
    }
}
