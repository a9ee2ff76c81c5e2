//! Whether the network still answers for a connection, from what this host's kernel has counted. A peer that is stopped
//! is not silent: its kernel acknowledges for it, or answers that there is no room. Called when the owner of a link asks,
//! never for a message.

use std::time::{Duration, Instant};

/// Questions to an idle peer that must stay unanswered: on a bad cable some do.
pub(super) const QUESTIONS: u8 = 4;
/// The same of questions for room, which come ever less often.
const ROOM_QUESTIONS: u8 = 3;
/// Times that data must have been sent again.
const RETRANSMITS: u8 = 2;
/// What is unanswered must stay so for this long: the last question may have just gone out.
const GRACE: Duration = Duration::from_millis(250);

/// What the kernel has counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TcpHealth {
    /// Where the connection is.
    pub(super) phase: TcpPhase,
    /// Times the oldest data was sent again, since it or any before it was acknowledged.
    pub(super) retransmits: u8,
    /// Unanswered questions for room, or whether anybody is there.
    pub(super) probes: u8,
    /// Times the pause between two attempts was doubled: 0 unless data waits.
    pub(super) backoff: u8,
    /// Since the last acknowledgement.
    pub(super) quiet: Duration,
}

impl TcpHealth {
    /// Whether data was sent again, or questions were asked, so often without an answer that the peer seems gone.
    fn is_unanswered(&self) -> bool {
        let questions = if self.backoff > 0 { ROOM_QUESTIONS } else { QUESTIONS };
        self.retransmits >= RETRANSMITS || self.probes >= questions
    }
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TcpPhase {
    /// Asked for.
    Dialled,
    /// There, in one direction at least.
    Open,
    /// The kernel has given it up.
    Gone,
}

/// Looks at one connection now and then.
#[derive(Debug)]
pub(super) struct TcpWatch {
    limit: Duration,
    /// Since when it seems dead.
    suspected: Option<Instant>,
}

impl TcpWatch {
    /// For a connection that may go unanswered for this long.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, suspected: None }
    }

    /// Between two questions to an idle peer, and before the first one: the kernel counts whole seconds.
    pub(super) fn probe_interval(&self) -> Duration {
        Duration::from_secs((self.limit.as_secs() / u64::from(QUESTIONS + 1)).clamp(1, 32767))
    }

    /// Whether the connection carries nothing more.
    pub(super) fn is_dead(&mut self, health: &TcpHealth, now: Instant) -> bool {
        let silent = match health.phase {
            // Whether it comes about is told elsewhere.
            TcpPhase::Dialled => false,
            TcpPhase::Gone => return true,
            TcpPhase::Open => health.quiet > self.limit && health.is_unanswered(),
        };
        if !silent {
            self.suspected = None;
            return false;
        }
        // An answer since then was one to something else.
        let since = self.suspected.filter(|since| now.duration_since(*since) < health.quiet).unwrap_or(now);
        self.suspected = Some(since);
        now.duration_since(since) >= GRACE.max(self.limit / 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    fn health(retransmits: u8, probes: u8, backoff: u8, quiet_ms: u64) -> TcpHealth {
        let quiet = Duration::from_millis(quiet_ms);
        TcpHealth { phase: TcpPhase::Open, retransmits, probes, backoff, quiet }
    }

    /// Whether two looks, half a second apart and with nothing heard between them, find it dead.
    fn is_dead(health: TcpHealth) -> bool {
        let mut watch = TcpWatch::new(LIMIT);
        let now = Instant::now();
        let later = TcpHealth { quiet: health.quiet + Duration::from_millis(500), ..health };
        let first = watch.is_dead(&health, now);
        assert!(!first || health.phase == TcpPhase::Gone, "at once");
        watch.is_dead(&later, now + Duration::from_millis(500))
    }

    #[test]
    fn what_goes_unanswered_for_too_long_is_dead() {
        assert!(is_dead(health(2, 0, 2, 3001)), "data");
        assert!(is_dead(health(0, QUESTIONS, 0, 4001)), "questions whether anybody is there");
        assert!(is_dead(health(0, ROOM_QUESTIONS, 5, 3001)), "questions for room");
        assert!(is_dead(TcpHealth { phase: TcpPhase::Gone, ..health(0, 0, 0, 0) }));
    }

    #[test]
    fn what_is_answered_or_not_asked_is_alive() {
        assert!(!is_dead(health(0, 0, 9, 120_000)), "the last question for room was answered");
        assert!(!is_dead(health(0, 1, 9, 120_000)), "the next one is under way, or one was lost");
        assert!(!is_dead(health(0, 0, 0, 60_000)), "nothing was asked");
        assert!(!is_dead(health(1, 0, 1, 3001)), "one packet was lost");
        assert!(!is_dead(health(5, 0, 5, 2000)), "not for long");
        assert!(!is_dead(TcpHealth { phase: TcpPhase::Dialled, ..health(3, 0, 3, u64::from(u32::MAX)) }));
    }

    #[test]
    fn an_answer_between_two_looks_clears_it() {
        let mut watch = TcpWatch::new(LIMIT);
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!watch.is_dead(&health(2, 0, 2, 3500), now));
        // Looked at so late that there was an answer, and silence again.
        assert!(!watch.is_dead(&health(3, 0, 3, 3500), now + 4 * second));
        assert!(!watch.is_dead(&health(3, 0, 3, 10), now + 5 * second));
        assert!(!watch.is_dead(&health(3, 0, 3, 3500), now + 9 * second));
        assert!(watch.is_dead(&health(3, 0, 3, 4500), now + 10 * second));
    }

    #[test]
    fn an_idle_peer_is_asked_often_enough() {
        for (limit, step) in [(1, 1), (3, 1), (10, 2), (3600, 720), (1 << 40, 32767)] {
            assert_eq!(TcpWatch::new(Duration::from_secs(limit)).probe_interval(), Duration::from_secs(step));
        }
    }
}
