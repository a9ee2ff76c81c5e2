//! Checks that after a peer's death, or the end of its comm, every request of that comm ends within the peer time
//! limit, and that no request fails without such a cause.

use crate::checkers::{PropertyResult, PropertyViolation};

/// Time beyond the limit that a process may need to poll.
const SLACK: u64 = 1_000_000_000;

/// Unsuccessful tests of a request after the limit that are allowed: a process may just have woken from a silence.
const LOOKS: u32 = 300;

/// The causes that may end a comm before its work is done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FailureCause {
    /// A process at its ends died.
    Death,
    /// One end was closed with work in flight.
    Abort,
    /// One end was closed in order, although the other still had work for it.
    Quit,
    /// A message was longer than its receive.
    TooLong,
    /// A link failed.
    Flap,
    /// Shared queue pairs were given up, because a member could not leave them in time.
    Neighbour,
}

/// The expected fate of one end of a comm.
#[derive(Debug, Default)]
pub(crate) struct CommFate {
    cause: Option<(u64, FailureCause)>,
    late_looks: u32,
    /// When its process wakes up, or last woke up.
    awake: u64,
    /// When the process of the other end wakes up, if that end reports its close only in frames.
    peer_awake: u64,
}

fn bounded_violation(text: String) -> PropertyViolation {
    PropertyViolation { checker: "bounded", text }
}

impl CommFate {
    /// Expects the comm to fail from now on.
    pub(crate) fn expect_failure(&mut self, now: u64, cause: FailureCause) {
        self.cause.get_or_insert((now, cause));
    }

    /// Records that its process makes no calls until then.
    pub(crate) fn extend_sleep(&mut self, until: u64) {
        self.awake = self.awake.max(until);
    }

    /// Records that the process of its other end makes no calls until then, and sends no frames: shared links do not
    /// end with a comm.
    pub(crate) fn peer_sleeps(&mut self, until: u64) {
        self.peer_awake = self.peer_awake.max(until);
    }

    /// Returns why the comm may fail.
    pub(crate) fn cause(&self) -> Option<FailureCause> {
        self.cause.map(|(_, cause)| cause)
    }

    /// Checks that a failed call has a cause.
    pub(crate) fn check_failure(&self, what: &str, error: &str) -> PropertyResult {
        match self.cause {
            Some(_) => Ok(()),
            None => Err(bounded_violation(format!("{what}: failed without a cause: {error}"))),
        }
    }

    /// Checks an end that has waited since `since` to deregister or to close.
    pub(crate) fn check_draining(&mut self, what: &str, since: u64, now: u64, limit: u64) -> PropertyResult {
        if now <= since.saturating_add(limit).saturating_add(SLACK) {
            return Ok(());
        }
        self.late_looks += 1;
        if self.late_looks <= LOOKS {
            return Ok(());
        }
        Err(bounded_violation(format!(
            "{what}: cannot deregister or close for {} s",
            (now - since) / 1_000_000_000
        )))
    }

    /// Checks a request that is still pending.
    pub(crate) fn check_pending(&mut self, what: &str, now: u64, limit: u64) -> PropertyResult {
        let Some((since, cause)) = self.cause else { return Ok(()) };
        let told = if cause == FailureCause::Abort { self.peer_awake } else { 0 };
        let since = since.max(self.awake).max(told);
        if now <= since.saturating_add(limit).saturating_add(SLACK) {
            return Ok(());
        }
        self.late_looks += 1;
        if self.late_looks <= LOOKS {
            return Ok(());
        }
        let seconds = (now - since) / 1_000_000_000;
        Err(bounded_violation(format!("{what}: still pending {seconds} s after {cause:?}")))
    }
}
