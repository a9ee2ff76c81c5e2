//! After a peer's death, or the end of its comm, every request of that comm ends within the peer time limit; and no
//! request fails without such a cause.

use crate::checkers::{PropertyResult, PropertyViolation};

/// Time a process may need beyond the limit to look.
const SLACK: u64 = 1_000_000_000;

/// Fruitless looks at requests after the limit that are forgiven: a process may just have come back from a silence.
const LOOKS: u32 = 300;

/// What may end a comm before its work is done.
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
    /// Queue pairs were given up that others shared, because one could not leave them in time.
    Neighbour,
}

/// The fate of one end of a comm.
#[derive(Debug, Default)]
pub(crate) struct CommFate {
    cause: Option<(u64, FailureCause)>,
    late_looks: u32,
    /// When its process wakes up, or woke up last.
    awake: u64,
    /// The same of the other end's, where that ends in words alone.
    peer_awake: u64,
}

fn bounded_violation(text: String) -> PropertyViolation {
    PropertyViolation { checker: "bounded", text }
}

impl CommFate {
    /// The comm is doomed from now on.
    pub(crate) fn expect_failure(&mut self, now: u64, cause: FailureCause) {
        self.cause.get_or_insert((now, cause));
    }

    /// Its process makes no calls until then.
    pub(crate) fn extend_sleep(&mut self, until: u64) {
        self.awake = self.awake.max(until);
    }

    /// The process of its other end makes no calls until then, and says nothing: links that others share do not end with a comm.
    pub(crate) fn peer_sleeps(&mut self, until: u64) {
        self.peer_awake = self.peer_awake.max(until);
    }

    /// Why the comm may fail.
    pub(crate) fn cause(&self) -> Option<FailureCause> {
        self.cause.map(|(_, cause)| cause)
    }

    /// A call failed: it must have had a cause.
    pub(crate) fn check_failure(&self, what: &str, error: &str) -> PropertyResult {
        match self.cause {
            Some(_) => Ok(()),
            None => Err(bounded_violation(format!("{what}: failed without a cause: {error}"))),
        }
    }

    /// An end waits to take memory back, or to close, since then.
    pub(crate) fn check_draining(&mut self, what: &str, since: u64, now: u64, limit: u64) -> PropertyResult {
        if now <= since.saturating_add(limit).saturating_add(SLACK) {
            return Ok(());
        }
        self.late_looks += 1;
        if self.late_looks <= LOOKS {
            return Ok(());
        }
        Err(bounded_violation(format!("{what}: cannot leave for {} s", (now - since) / 1_000_000_000)))
    }

    /// A request is still under way.
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
        Err(bounded_violation(format!("{what}: still under way {seconds} s after {cause:?}")))
    }
}
