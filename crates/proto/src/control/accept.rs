//! The answering side of a connection.
//!
//! ```text
//! Answered --READY--> Ready
//! ```
//! RESULT is repeated while Answered, and sent again for each OPEN that comes again.

use crate::control::RepeatTimer;
use crate::time::Instant;

/// What to do now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AcceptStep {
    /// Nothing.
    Wait,
    /// Send RESULT again.
    SendResult,
    /// Both ends are up; the comm is usable.
    Ready,
}

/// One accepted connection, from its first RESULT on.
#[derive(Debug)]
pub struct AcceptHandshake {
    repeat: RepeatTimer,
    ready: bool,
}

impl AcceptHandshake {
    /// A connection whose first RESULT is sent now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { repeat: RepeatTimer::start_at(now), ready: false }
    }

    /// Call whenever the front end asks.
    pub fn on_time(&mut self, now: Instant) -> AcceptStep {
        match self.ready {
            true => AcceptStep::Ready,
            false if self.repeat.poll_due(now) => AcceptStep::SendResult,
            false => AcceptStep::Wait,
        }
    }

    /// Call when the same OPEN comes again.
    pub fn on_open(&mut self) -> AcceptStep {
        AcceptStep::SendResult
    }

    /// Call when READY comes.
    pub fn on_ready(&mut self) {
        self.ready = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn answers_again_until_ready() {
        let mut accepting = AcceptHandshake::new(Instant(0));
        assert_eq!(accepting.on_time(Instant(0)), AcceptStep::Wait);
        assert_eq!(accepting.on_time(Instant(0) + Duration::from_millis(100)), AcceptStep::SendResult);
        assert_eq!(accepting.on_open(), AcceptStep::SendResult);
        accepting.on_ready();
        accepting.on_ready();
        assert_eq!(accepting.on_time(Instant(0)), AcceptStep::Ready);
    }
}
