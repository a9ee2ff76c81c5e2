//! The life of one link of a comm that has several, seen from one end. The engine keeps one `LinkLife` per link at each end;
//! the sending end requests new connections. Nothing here posts, sends or reads a clock.
//!
//! ```text
//!              fault                    the peer's LINK_DOWN
//!      Up ---------------> Fenced --------------------------------> Down
//!      ^                      ^                                       |
//!      | carries, or          | fault, or timeout                     |
//!      | LINK_READY           |                                       |
//!      +------------------ Joining <-- LINK_RESULT -- Asking <--------+ requesting end: LINK_OPEN sent
//!                             ^                                       |
//!                             +---------------------------------------+ other end: LINK_OPEN received
//! ```
//! *Fenced*: this end's queue pair is in error, so that no operation of the peer lands here any more. LINK_DOWN was sent, and is
//! repeated until the peer's LINK_DOWN arrives. *Down*: both ends are fenced; operations that may not have arrived are posted
//! again on other links.
//!
//! A fault or timeout in Asking leads to Fenced too. The peer's LINK_DOWN in Up, Asking or Joining leads to Down at once; the
//! caller fences this end first. Each connection of a link has an epoch, and frames about an older epoch change no state.

use crate::control::RepeatTimer;
use crate::time::{Duration, Instant};

/// First wait before a link that is down is requested again; it doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_millis(200);

/// Longest wait before a link that is down is requested again.
pub const RETRY_MAX: Duration = Duration::from_secs(5);

/// Age from which a joining link is renewed once a path is whole again. Its packets were probably lost, and the network
/// retransmits them at growing intervals.
pub const STALE: Duration = Duration::from_millis(250);

/// The action that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkStep {
    /// No action.
    Wait,
    /// Send LINK_DOWN again, and request a reply.
    SayDown,
    /// Make a new connection with this epoch, and send LINK_OPEN.
    Ask(u32),
    /// The link is not up in time: fence it.
    Fence,
}

/// The effect of the peer's LINK_DOWN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DownStep {
    /// The frame is about a connection that has ended at both ends.
    Stale,
    /// The peer does not know yet that this end has fenced the connection: send LINK_DOWN for it again.
    Past,
    /// Fence this end before any other action; the link is down then.
    Fence,
    /// This end was fenced already: the link is down now.
    Down,
    /// The link was down already; reply if the peer requests it.
    Known,
}

/// The effect of the peer's LINK_OPEN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkOpenStep {
    /// No action now.
    Ignore,
    /// Make this end, and send LINK_RESULT.
    Make,
    /// This end exists; send LINK_RESULT again.
    Repeat,
}

/// The life of one link at one end.
#[derive(Clone, Copy, Debug)]
pub struct LinkLife {
    state: LinkStage,
    epoch: u32,
    /// This end requests connections.
    asks: bool,
    since: Instant,
    repeat: RepeatTimer,
    retry: Duration,
    /// The pending request is to be abandoned and made again.
    renews: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LinkStage {
    Up,
    Fenced,
    Down,
    Asking,
    Joining,
}

impl LinkLife {
    /// Returns the link that was made together with the comm: it is up.
    #[must_use]
    pub fn new_first(asks: bool, now: Instant) -> Self {
        let repeat = RepeatTimer::start_at(now);
        Self { state: LinkStage::Up, epoch: 0, asks, since: now, repeat, retry: RETRY_FIRST, renews: false }
    }

    /// Returns a further link: it is down, and its first request is due at once.
    #[must_use]
    pub fn new_further(asks: bool, now: Instant) -> Self {
        Self { state: LinkStage::Down, retry: Duration(0), ..Self::new_first(asks, now) }
    }

    /// Whether operations may be posted on the link.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == LinkStage::Up
    }

    /// Whether both ends are fenced, or there never was a connection.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.state == LinkStage::Down
    }

    /// Whether the link was requested and the peer has not replied.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.state == LinkStage::Asking
    }

    /// Whether the link has a connection that does not carry yet.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.state == LinkStage::Joining
    }

    /// The epoch of the link's connection.
    #[must_use]
    pub fn connection_epoch(&self) -> u32 {
        self.epoch
    }

    fn enter_phase(&mut self, state: LinkStage, now: Instant) {
        (self.state, self.since, self.repeat, self.renews) = (state, now, RepeatTimer::start_at(now), false);
    }

    /// Records that a path to the peer is whole again, perhaps this link's. The next request for a link that is down becomes due
    /// at once. A link that has been joining for [`STALE`] or longer is fenced, to be requested again.
    pub fn expedite_retry(&mut self, now: Instant) {
        if !self.asks || self.is_up() {
            return;
        }
        self.retry = Duration(0);
        self.renews = self.state == LinkStage::Joining && now - self.since >= STALE;
    }

    /// Handles a failure of the link at this end. Returns true for the first one of a connection: then the caller fences this end,
    /// sends LINK_DOWN and requests a reply.
    pub fn on_fault(&mut self, now: Instant) -> bool {
        if !matches!(self.state, LinkStage::Up | LinkStage::Asking | LinkStage::Joining) {
            return false;
        }
        self.enter_phase(LinkStage::Fenced, now);
        true
    }

    /// Handles the peer's LINK_DOWN. After [`DownStep::Fence`] the caller fences this end before any other action.
    pub fn on_down(&mut self, epoch: u32, now: Instant) -> DownStep {
        // An epoch that this end does not know: its LINK_OPEN was lost.
        let unheard = !self.asks && self.state == LinkStage::Down && is_after(epoch, self.epoch);
        if unheard {
            self.epoch = epoch;
            return DownStep::Known;
        }
        if epoch != self.epoch {
            // Only the requesting end can be ahead, and it requests a new epoch only after it has fenced the old one.
            let past = self.asks && is_after(self.epoch, epoch);
            return if past { DownStep::Past } else { DownStep::Stale };
        }
        match self.state {
            LinkStage::Down => DownStep::Known,
            LinkStage::Fenced => {
                self.enter_phase(LinkStage::Down, now);
                DownStep::Down
            }
            LinkStage::Up | LinkStage::Asking | LinkStage::Joining => {
                self.enter_phase(LinkStage::Down, now);
                DownStep::Fence
            }
        }
    }

    /// Returns the action that is due at `now`. The caller calls it periodically. A link that is not up after `limit` is fenced,
    /// to be requested again later.
    pub fn on_time(&mut self, now: Instant, limit: Duration) -> LinkStep {
        match self.state {
            LinkStage::Up => LinkStep::Wait,
            LinkStage::Fenced if self.repeat.poll_due(now) => LinkStep::SayDown,
            LinkStage::Joining if self.renews => LinkStep::Fence,
            LinkStage::Asking | LinkStage::Joining if self.asks && now - self.since > limit => {
                LinkStep::Fence
            }
            // The requesting end times out first. This end, with twice the limit, acts only if that end exists no more.
            LinkStage::Joining if now - self.since > Duration(limit.0.saturating_mul(2)) => LinkStep::Fence,
            LinkStage::Down if self.asks && now - self.since >= self.retry => {
                self.retry = Duration(self.retry.0.saturating_mul(2).clamp(RETRY_FIRST.0, RETRY_MAX.0));
                self.epoch = self.epoch.wrapping_add(1);
                self.enter_phase(LinkStage::Asking, now);
                LinkStep::Ask(self.epoch)
            }
            LinkStage::Fenced | LinkStage::Asking | LinkStage::Joining | LinkStage::Down => LinkStep::Wait,
        }
    }

    /// Handles the peer's LINK_OPEN.
    pub fn on_open(&mut self, epoch: u32, now: Instant) -> LinkOpenStep {
        match self.state {
            LinkStage::Joining | LinkStage::Up if epoch == self.epoch && !self.asks => LinkOpenStep::Repeat,
            LinkStage::Down if !self.asks && is_after(epoch, self.epoch) => {
                self.epoch = epoch;
                self.enter_phase(LinkStage::Joining, now);
                LinkOpenStep::Make
            }
            _ => LinkOpenStep::Ignore,
        }
    }

    /// Handles the peer's LINK_RESULT. Returns whether to connect to the address in it.
    pub fn on_result(&mut self, epoch: u32) -> bool {
        let asked = self.state == LinkStage::Asking && epoch == self.epoch;
        if asked {
            // `since` stays: one limit covers the request and the connection.
            self.state = LinkStage::Joining;
        }
        asked
    }

    /// Records that the link carries. The requesting end detects that by itself, the other one by LINK_READY. Returns whether the
    /// link is up by that.
    pub fn on_carries(&mut self, epoch: u32, now: Instant) -> bool {
        let joined = self.state == LinkStage::Joining && epoch == self.epoch;
        if joined {
            self.retry = RETRY_FIRST;
            self.enter_phase(LinkStage::Up, now);
        }
        joined
    }
}

/// Whether `epoch` is later than `other`; epochs wrap.
fn is_after(epoch: u32, other: u32) -> bool {
    epoch != other && epoch.wrapping_sub(other) <= u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Instant {
        Instant(0) + Duration::from_millis(ms)
    }

    fn ends() -> (LinkLife, LinkLife) {
        let first = |asks| LinkLife::new_first(asks, at(0));
        (first(true), first(false))
    }

    #[test]
    fn link_fault_is_reported_until_acknowledged() {
        let (mut one, mut other) = ends();
        assert!(one.on_fault(at(1)));
        assert!(!one.on_fault(at(1)), "a repeated fault was reported again");
        assert!(!one.is_up() && !one.is_down());
        assert_eq!(one.on_time(at(50), LIMIT), LinkStep::Wait);
        assert_eq!(one.on_time(at(101), LIMIT), LinkStep::SayDown);
        assert_eq!(other.on_down(0, at(102)), DownStep::Fence);
        assert!(other.is_down());
        assert_eq!(other.on_down(0, at(103)), DownStep::Known);
        assert_eq!(one.on_down(0, at(104)), DownStep::Down);
        assert!(one.is_down());
    }

    #[test]
    fn both_ends_may_report_a_fault_at_once() {
        let (mut one, mut other) = ends();
        assert!(one.on_fault(at(1)) && other.on_fault(at(1)));
        assert_eq!(one.on_down(0, at(2)), DownStep::Down);
        assert_eq!(other.on_down(0, at(2)), DownStep::Down);
    }

    #[test]
    fn failed_link_is_reconnected() {
        let (mut one, mut other) = ends();
        one.on_down(0, at(0));
        other.on_down(0, at(0));
        assert_eq!(other.on_time(at(9_000), LIMIT), LinkStep::Wait, "this end does not request links");
        assert_eq!(one.on_time(at(199), LIMIT), LinkStep::Wait);
        assert_eq!(one.on_time(at(200), LIMIT), LinkStep::Ask(1));
        assert_eq!(other.on_open(1, at(201)), LinkOpenStep::Make);
        assert_eq!(other.on_open(1, at(202)), LinkOpenStep::Repeat);
        assert!(one.on_result(1) && !one.on_result(1));
        assert!(!one.on_carries(0, at(203)) && one.on_carries(1, at(203)) && one.is_up());
        assert!(other.on_carries(1, at(204)) && other.is_up());
        assert_eq!(other.on_down(0, at(205)), DownStep::Stale, "LINK_DOWN of an earlier connection");
        assert_eq!(one.on_down(0, at(206)), DownStep::Past, "the other end did not receive the reply");
    }

    #[test]
    fn slow_reconnection_is_abandoned_and_retried_later() {
        let (mut one, mut other) = ends();
        one.on_down(0, at(0));
        other.on_down(0, at(0));
        assert_eq!(one.on_time(at(200), LIMIT), LinkStep::Ask(1));
        assert_eq!(one.on_time(at(1_200), LIMIT), LinkStep::Wait);
        assert_eq!(one.on_time(at(1_201), LIMIT), LinkStep::Fence);
        assert!(one.on_fault(at(1_201)));
        assert_eq!(other.on_down(1, at(1_202)), DownStep::Known, "its LINK_OPEN was lost");
        assert_eq!(other.on_open(1, at(1_202)), LinkOpenStep::Ignore, "a late LINK_OPEN opened a link");
        assert_eq!(one.on_down(1, at(1_203)), DownStep::Down);
        assert_eq!(one.on_time(at(1_602), LIMIT), LinkStep::Wait, "the wait did not grow");
        assert_eq!(one.on_time(at(1_603), LIMIT), LinkStep::Ask(2));
    }

    #[test]
    fn expedite_retry_requests_the_link_at_once() {
        let (mut one, mut other) = ends();
        let mut now = 0;
        // Repeated until the wait has its longest value.
        for epoch in 1..8 {
            one.on_fault(at(now));
            one.on_down(epoch - 1, at(now));
            now += 6000;
            assert_eq!(one.on_time(at(now), LIMIT), LinkStep::Ask(epoch));
        }
        one.on_fault(at(now));
        one.on_down(7, at(now));
        assert_eq!(one.on_time(at(now + 4999), LIMIT), LinkStep::Wait);
        one.expedite_retry(at(now + 4999));
        assert_eq!(one.on_time(at(now + 4999), LIMIT), LinkStep::Ask(8));
        // The latest request may still be pending; the packets of older ones are lost.
        now += 5000;
        assert!(one.on_result(8));
        one.expedite_retry(at(now));
        assert_eq!(one.on_time(at(now), LIMIT), LinkStep::Wait);
        now += 300;
        one.expedite_retry(at(now));
        assert_eq!(one.on_time(at(now), LIMIT), LinkStep::Fence);
        assert!(one.on_fault(at(now)));
        assert_eq!(one.on_down(8, at(now)), DownStep::Down);
        assert_eq!(one.on_time(at(now), LIMIT), LinkStep::Ask(9));
        // The end that does not request connections.
        other.on_down(0, at(0));
        other.expedite_retry(at(9_000));
        assert_eq!(other.on_time(at(9_000), LIMIT), LinkStep::Wait);
    }

    /// A flush that is posted over such a link would never complete.
    #[test]
    fn accepting_end_abandons_an_unfinished_link() {
        let (_, mut other) = ends();
        other.on_down(0, at(0));
        assert_eq!(other.on_open(1, at(200)), LinkOpenStep::Make);
        assert_eq!(other.on_time(at(2_200), LIMIT), LinkStep::Wait, "the requesting end gives up first");
        assert_eq!(other.on_time(at(2_201), LIMIT), LinkStep::Fence);
    }

    #[test]
    fn further_link_is_requested_at_once() {
        let mut one = LinkLife::new_further(true, at(5));
        assert!(one.is_down());
        assert_eq!(one.on_time(at(5), LIMIT), LinkStep::Ask(1));
        assert!(one.is_asking() && one.on_result(1) && !one.is_asking());
    }

    #[test]
    fn epochs_wrap() {
        assert!(is_after(0, u32::MAX) && !is_after(u32::MAX, 0) && !is_after(7, 7));
    }
}
