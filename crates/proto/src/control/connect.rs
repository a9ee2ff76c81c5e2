//! The asking side of a connection.
//!
//! ```text
//! Asking --RESULT accepted--> Connected        Asking --RESULT otherwise--> Refused
//! ```
//! OPEN is repeated while Asking; READY is sent again for each RESULT that comes again.

use crate::control::Repeat;
use crate::time::Instant;
use crate::wire::frame::Answer;

/// What to do now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectStep {
    /// Nothing.
    Wait,
    /// Send OPEN (again).
    SendOpen,
    /// Connect the link with what RESULT says, then send READY; the comm is usable.
    Connect,
    /// Send READY again.
    SendReady,
    /// Give up: this is why.
    Refused(Answer),
}

/// One connection attempt.
#[derive(Debug)]
pub struct Connecting {
    repeat: Repeat,
    state: State,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Asking,
    Connected,
    Refused,
}

impl Connecting {
    /// An attempt whose first OPEN is sent now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { repeat: Repeat::start(now), state: State::Asking }
    }

    /// Call whenever the front end asks.
    pub fn on_time(&mut self, now: Instant) -> ConnectStep {
        if self.state == State::Asking && self.repeat.due(now) {
            ConnectStep::SendOpen
        } else {
            ConnectStep::Wait
        }
    }

    /// Call for each RESULT of this attempt.
    pub fn on_result(&mut self, answer: Answer) -> ConnectStep {
        match (self.state, answer) {
            (State::Asking, Answer::Accepted) => {
                self.state = State::Connected;
                ConnectStep::Connect
            }
            (State::Asking, other) => {
                self.state = State::Refused;
                ConnectStep::Refused(other)
            }
            (State::Connected, Answer::Accepted) => ConnectStep::SendReady,
            (State::Connected | State::Refused, _) => ConnectStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn asks_again_until_answered() {
        let mut attempt = Connecting::new(Instant(0));
        assert_eq!(attempt.on_time(Instant(0) + Duration::millis(99)), ConnectStep::Wait);
        assert_eq!(attempt.on_time(Instant(0) + Duration::millis(100)), ConnectStep::SendOpen);
        assert_eq!(attempt.on_time(Instant(0) + Duration::millis(101)), ConnectStep::Wait);
        assert_eq!(attempt.on_result(Answer::Accepted), ConnectStep::Connect);
        assert_eq!(attempt.on_result(Answer::Accepted), ConnectStep::SendReady);
        assert_eq!(attempt.on_result(Answer::Refused), ConnectStep::Wait, "a late refusal changes nothing");
        assert_eq!(attempt.on_time(Instant(u64::MAX)), ConnectStep::Wait);
    }

    #[test]
    fn a_refusal_is_final() {
        let mut attempt = Connecting::new(Instant(0));
        assert_eq!(attempt.on_result(Answer::Refused), ConnectStep::Refused(Answer::Refused));
        assert_eq!(attempt.on_result(Answer::Accepted), ConnectStep::Wait);
    }
}
