//! The requesting end of a connection. The engine keeps one `ConnectHandshake` per connection attempt and sends the frames that it
//! orders; nothing here sends a frame.
//!
//! ```text
//! Asking --RESULT accepted--> Connected        Asking --RESULT otherwise--> Refused
//! ```
//! OPEN is repeated while Asking; READY is sent again for each repeated RESULT.

use crate::control::RepeatTimer;
use crate::time::Instant;
use crate::wire::frame::OpenAnswer;

/// The action that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectStep {
    /// No action.
    Wait,
    /// Send OPEN, possibly again.
    SendOpen,
    /// Connect the link to the address in RESULT, then send READY; the comm is usable.
    Connect,
    /// Send READY again.
    SendReady,
    /// Abandon the attempt, for this reason.
    Refused(OpenAnswer),
}

/// One connection attempt.
#[derive(Debug)]
pub struct ConnectHandshake {
    repeat: RepeatTimer,
    state: ConnectPhase,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ConnectPhase {
    Asking,
    Connected,
    Refused,
}

impl ConnectHandshake {
    /// Begins an attempt whose first OPEN is sent now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { repeat: RepeatTimer::start_at(now), state: ConnectPhase::Asking }
    }

    /// Returns the action that is due at `now`. The engine calls it in each connect call of the front end.
    pub fn on_time(&mut self, now: Instant) -> ConnectStep {
        if self.state == ConnectPhase::Asking && self.repeat.poll_due(now) {
            ConnectStep::SendOpen
        } else {
            ConnectStep::Wait
        }
    }

    /// Handles a RESULT of this attempt.
    pub fn on_result(&mut self, answer: OpenAnswer) -> ConnectStep {
        match (self.state, answer) {
            (ConnectPhase::Asking, OpenAnswer::Accepted) => {
                self.state = ConnectPhase::Connected;
                ConnectStep::Connect
            }
            (ConnectPhase::Asking, other) => {
                self.state = ConnectPhase::Refused;
                ConnectStep::Refused(other)
            }
            (ConnectPhase::Connected, OpenAnswer::Accepted) => ConnectStep::SendReady,
            (ConnectPhase::Connected | ConnectPhase::Refused, _) => ConnectStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn connect_repeats_open_until_result() {
        let mut attempt = ConnectHandshake::new(Instant(0));
        assert_eq!(attempt.on_time(Instant(0) + Duration::from_millis(99)), ConnectStep::Wait);
        assert_eq!(attempt.on_time(Instant(0) + Duration::from_millis(100)), ConnectStep::SendOpen);
        assert_eq!(attempt.on_time(Instant(0) + Duration::from_millis(101)), ConnectStep::Wait);
        assert_eq!(attempt.on_result(OpenAnswer::Accepted), ConnectStep::Connect);
        assert_eq!(attempt.on_result(OpenAnswer::Accepted), ConnectStep::SendReady);
        assert_eq!(
            attempt.on_result(OpenAnswer::Refused),
            ConnectStep::Wait,
            "a late refusal changed the state"
        );
        assert_eq!(attempt.on_time(Instant(u64::MAX)), ConnectStep::Wait);
    }

    #[test]
    fn a_refusal_is_final() {
        let mut attempt = ConnectHandshake::new(Instant(0));
        assert_eq!(attempt.on_result(OpenAnswer::Refused), ConnectStep::Refused(OpenAnswer::Refused));
        assert_eq!(attempt.on_result(OpenAnswer::Accepted), ConnectStep::Wait);
    }
}
