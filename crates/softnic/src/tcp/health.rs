//! Whether the network still acknowledges for a connection, from the counters of this host's kernel (`TCP_INFO` in
//! tcp(7)). A stopped peer is not silent: its kernel acknowledges for it, or reports a closed window. The owner of a
//! link calls it through [`check_link`](trunkline_fabric::LinkControl::check_link), never per message.

use std::time::{Duration, Instant};

/// Keep-alive probes (RFC 9293, section 3.8.4) to an idle peer that must stay unanswered: a bad cable loses single ones.
pub(super) const QUESTIONS: u8 = 4;
/// Zero-window probes (RFC 9293, section 3.8.6.1) that must stay unanswered. Fewer, because their interval doubles each time.
const ROOM_QUESTIONS: u8 = 3;
/// Times that data must have been retransmitted.
const RETRANSMITS: u8 = 2;
/// Silence must last this much longer, because the last probe may have been sent just before.
const GRACE: Duration = Duration::from_millis(250);

/// The kernel's counters of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TcpHealth {
    /// State of the connection.
    pub(super) phase: TcpPhase,
    /// Times the oldest data was retransmitted since it, or any data before it, was acknowledged.
    pub(super) retransmits: u8,
    /// Unanswered zero-window or keep-alive probes.
    pub(super) probes: u8,
    /// Times the retransmission interval was doubled: 0 unless data waits.
    pub(super) backoff: u8,
    /// Time since the last acknowledgement.
    pub(super) quiet: Duration,
}

impl TcpHealth {
    /// Whether enough retransmissions or probes stayed unanswered for the peer to count as unreachable.
    fn is_unanswered(&self) -> bool {
        // While data waits, the kernel sends zero-window probes, otherwise keep-alive probes.
        let questions = if self.backoff > 0 { ROOM_QUESTIONS } else { QUESTIONS };
        self.retransmits >= RETRANSMITS || self.probes >= questions
    }
}

/// State of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TcpPhase {
    /// Connecting: the SYN was sent.
    Dialled,
    /// Established, in one direction at least.
    Open,
    /// The kernel has closed it.
    Gone,
}

/// Judges one connection from samples that its owner takes periodically.
#[derive(Debug)]
pub(super) struct TcpWatch {
    limit: Duration,
    /// Time since when it is suspected dead.
    suspected: Option<Instant>,
}

impl TcpWatch {
    /// Creates a watch for a connection that may stay unanswered for `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, suspected: None }
    }

    /// Returns the interval of keep-alive probes, and the idle time before the first one, in whole seconds as the kernel counts them. Its
    /// maximum is 32767 s (`MAX_TCP_KEEPIDLE`, tcp(7)).
    pub(super) fn probe_interval(&self) -> Duration {
        Duration::from_secs((self.limit.as_secs() / u64::from(QUESTIONS + 1)).clamp(1, 32767))
    }

    /// Whether the connection is dead. An open connection counts as dead only if a later call, after the grace time, confirms the suspicion.
    pub(super) fn is_dead(&mut self, health: &TcpHealth, now: Instant) -> bool {
        let silent = match health.phase {
            // Not judged here: the kernel gives up the dial after its own number of SYNs, and `has_greeted` reports that.
            TcpPhase::Dialled => false,
            TcpPhase::Gone => return true,
            TcpPhase::Open => health.quiet > self.limit && health.is_unanswered(),
        };
        if !silent {
            self.suspected = None;
            return false;
        }
        // An acknowledgement since the suspicion began voids it, so a new one begins now.
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

    /// Whether two samples, half a second apart and without an acknowledgement between them, find it dead.
    fn is_dead(health: TcpHealth) -> bool {
        let mut watch = TcpWatch::new(LIMIT);
        let now = Instant::now();
        let later = TcpHealth { quiet: health.quiet + Duration::from_millis(500), ..health };
        let first = watch.is_dead(&health, now);
        assert!(!first || health.phase == TcpPhase::Gone, "dead at the first sample");
        watch.is_dead(&later, now + Duration::from_millis(500))
    }

    #[test]
    fn unanswered_connection_is_dead() {
        assert!(is_dead(health(2, 0, 2, 3001)), "data");
        assert!(is_dead(health(0, QUESTIONS, 0, 4001)), "keep-alive probes");
        assert!(is_dead(health(0, ROOM_QUESTIONS, 5, 3001)), "zero-window probes");
        assert!(is_dead(TcpHealth { phase: TcpPhase::Gone, ..health(0, 0, 0, 0) }));
    }

    #[test]
    fn answered_or_unprobed_connection_is_alive() {
        assert!(!is_dead(health(0, 0, 9, 120_000)), "the last zero-window probe was answered");
        assert!(!is_dead(health(0, 1, 9, 120_000)), "the next probe is in transit, or one was lost");
        assert!(!is_dead(health(0, 0, 0, 60_000)), "no probe was sent");
        assert!(!is_dead(health(1, 0, 1, 3001)), "one packet was lost");
        assert!(!is_dead(health(5, 0, 5, 2000)), "not for long enough");
        assert!(!is_dead(TcpHealth { phase: TcpPhase::Dialled, ..health(3, 0, 3, u64::from(u32::MAX)) }));
    }

    #[test]
    fn acknowledgement_between_samples_clears_suspicion() {
        let mut watch = TcpWatch::new(LIMIT);
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert!(!watch.is_dead(&health(2, 0, 2, 3500), now));
        // The sample is so late that an acknowledgement arrived in between, followed by silence again.
        assert!(!watch.is_dead(&health(3, 0, 3, 3500), now + 4 * second));
        assert!(!watch.is_dead(&health(3, 0, 3, 10), now + 5 * second));
        assert!(!watch.is_dead(&health(3, 0, 3, 3500), now + 9 * second));
        assert!(watch.is_dead(&health(3, 0, 3, 4500), now + 10 * second));
    }

    #[test]
    fn idle_peer_is_probed_often_enough() {
        for (limit, step) in [(1, 1), (3, 1), (10, 2), (3600, 720), (1 << 40, 32767)] {
            assert_eq!(TcpWatch::new(Duration::from_secs(limit)).probe_interval(), Duration::from_secs(step));
        }
    }
}
