//! The life of one link of a comm that has several, seen from one end. Both ends run it; the sending end asks for new
//! connections.
//!
//! ```text
//!           fault, or the peer's LINK_DOWN            the peer's LINK_DOWN
//!      Up -------------------------------> Fenced ---------------------------> Down
//!      ^                                     ^ fault, or too late               |
//!      |  carries, or LINK_READY             |                                  | LINK_OPEN sent or received
//!      +------------------------------- Joining <-- LINK_RESULT -- Asking <-----+
//! ```
//! *Fenced*: this end is in error, so that nothing the peer posted lands here any more, and the peer was told; LINK_DOWN
//! is repeated until the peer says the same. *Down*: both ends are fenced; what may not have arrived is posted elsewhere.
//! Every connection of a link has an epoch; words about another one change nothing.

use crate::control::RepeatTimer;
use crate::time::{Duration, Instant};

/// First wait before a link that is down is asked for again; it doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_millis(200);

/// Longest wait before a link that is down is asked for again.
pub const RETRY_MAX: Duration = Duration::from_secs(5);

/// A link that has been made for so long waits for packets that were lost, which the network repeats ever less often.
pub const STALE: Duration = Duration::from_millis(250);

/// What time demands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkStep {
    /// Nothing.
    Wait,
    /// Say LINK_DOWN again, and ask for an answer.
    SayDown,
    /// Make a new connection of this epoch, and send LINK_OPEN.
    Ask(u32),
    /// It takes too long to come up: fence it.
    Fence,
}

/// What the peer's LINK_DOWN means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DownStep {
    /// It is about a connection that has ended for both ends.
    Stale,
    /// The peer has not heard that this end has left the connection it means: say so again.
    Past,
    /// Fence this end too, then it is down.
    Fence,
    /// This end is fenced already: it is down now.
    Down,
    /// It is down already; answer if the peer waits.
    Known,
}

/// What the peer's LINK_OPEN means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkOpenStep {
    /// Not for now.
    Ignore,
    /// Make this end, and answer.
    Make,
    /// This end is made; answer again.
    Repeat,
}

/// One link.
#[derive(Clone, Copy, Debug)]
pub struct LinkLife {
    state: LinkStage,
    epoch: u32,
    /// This end asks for connections.
    asks: bool,
    since: Instant,
    repeat: RepeatTimer,
    retry: Duration,
    /// A request for the link is given up, to be made again.
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
    /// The link that came with the comm: it is up.
    #[must_use]
    pub fn new_first(asks: bool, now: Instant) -> Self {
        let repeat = RepeatTimer::start_at(now);
        Self { state: LinkStage::Up, epoch: 0, asks, since: now, repeat, retry: RETRY_FIRST, renews: false }
    }

    /// Another link: it is yet to be made, at once.
    #[must_use]
    pub fn new_further(asks: bool, now: Instant) -> Self {
        Self { state: LinkStage::Down, retry: Duration(0), ..Self::new_first(asks, now) }
    }

    /// Whether work may be posted on it.
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

    /// Whether it was asked for and the peer has not answered.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.state == LinkStage::Asking
    }

    /// Whether its connection waits to carry.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.state == LinkStage::Joining
    }

    /// Which connection it is.
    #[must_use]
    pub fn connection_epoch(&self) -> u32 {
        self.epoch
    }

    fn enter_phase(&mut self, state: LinkStage, now: Instant) {
        (self.state, self.since, self.repeat, self.renews) = (state, now, RepeatTimer::start_at(now), false);
    }

    /// A path to the peer is whole again, perhaps this link's: a link that is down is asked for at once, and one that has been
    /// made for longer than [`STALE`] is made anew.
    pub fn expedite_retry(&mut self, now: Instant) {
        if !self.asks || self.is_up() {
            return;
        }
        self.retry = Duration(0);
        self.renews = self.state == LinkStage::Joining && now - self.since >= STALE;
    }

    /// The link failed here. True if that is news: fence this end, then say LINK_DOWN and ask for an answer.
    pub fn on_fault(&mut self, now: Instant) -> bool {
        if !matches!(self.state, LinkStage::Up | LinkStage::Asking | LinkStage::Joining) {
            return false;
        }
        self.enter_phase(LinkStage::Fenced, now);
        true
    }

    /// The peer says LINK_DOWN. After [`DownStep::Fence`] this end has to be fenced before anything else.
    pub fn on_down(&mut self, epoch: u32, now: Instant) -> DownStep {
        // An epoch this end never heard of: its LINK_OPEN was lost.
        let unheard = !self.asks && self.state == LinkStage::Down && is_after(epoch, self.epoch);
        if unheard {
            self.epoch = epoch;
            return DownStep::Known;
        }
        if epoch != self.epoch {
            // Only the end that asks can be ahead, and it goes on only after it has left.
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

    /// Call now and then. A link that has not come up after `limit` is given up for the time being.
    pub fn on_time(&mut self, now: Instant, limit: Duration) -> LinkStep {
        match self.state {
            LinkStage::Up => LinkStep::Wait,
            LinkStage::Fenced if self.repeat.poll_due(now) => LinkStep::SayDown,
            LinkStage::Joining if self.renews => LinkStep::Fence,
            LinkStage::Asking | LinkStage::Joining if self.asks && now - self.since > limit => {
                LinkStep::Fence
            }
            // Who asks gives up first, unless it is not there any more.
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

    /// The peer says LINK_OPEN.
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

    /// The peer says LINK_RESULT: true if its address is to be connected to.
    pub fn on_result(&mut self, epoch: u32) -> bool {
        let asked = self.state == LinkStage::Asking && epoch == self.epoch;
        if asked {
            // Since it was asked for: it has one limit in all.
            self.state = LinkStage::Joining;
        }
        asked
    }

    /// The link carries: known here by itself at the asking end, by LINK_READY at the other.
    pub fn on_carries(&mut self, epoch: u32, now: Instant) -> bool {
        let joined = self.state == LinkStage::Joining && epoch == self.epoch;
        if joined {
            self.retry = RETRY_FIRST;
            self.enter_phase(LinkStage::Up, now);
        }
        joined
    }
}

/// Whether an epoch comes after another; they wrap.
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
    fn a_fault_is_told_until_it_is_answered() {
        let (mut one, mut other) = ends();
        assert!(one.on_fault(at(1)));
        assert!(!one.on_fault(at(1)), "one fault is one fault");
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
    fn both_ends_may_find_it_at_once() {
        let (mut one, mut other) = ends();
        assert!(one.on_fault(at(1)) && other.on_fault(at(1)));
        assert_eq!(one.on_down(0, at(2)), DownStep::Down);
        assert_eq!(other.on_down(0, at(2)), DownStep::Down);
    }

    #[test]
    fn a_link_is_taken_back() {
        let (mut one, mut other) = ends();
        one.on_down(0, at(0));
        other.on_down(0, at(0));
        assert_eq!(other.on_time(at(9_000), LIMIT), LinkStep::Wait, "the other end asks");
        assert_eq!(one.on_time(at(199), LIMIT), LinkStep::Wait);
        assert_eq!(one.on_time(at(200), LIMIT), LinkStep::Ask(1));
        assert_eq!(other.on_open(1, at(201)), LinkOpenStep::Make);
        assert_eq!(other.on_open(1, at(202)), LinkOpenStep::Repeat);
        assert!(one.on_result(1) && !one.on_result(1));
        assert!(!one.on_carries(0, at(203)) && one.on_carries(1, at(203)) && one.is_up());
        assert!(other.on_carries(1, at(204)) && other.is_up());
        assert_eq!(other.on_down(0, at(205)), DownStep::Stale, "of the connection before");
        assert_eq!(one.on_down(0, at(206)), DownStep::Past, "it did not hear the answer");
    }

    #[test]
    fn an_attempt_that_takes_too_long_is_given_up_and_made_again_later() {
        let (mut one, mut other) = ends();
        one.on_down(0, at(0));
        other.on_down(0, at(0));
        assert_eq!(one.on_time(at(200), LIMIT), LinkStep::Ask(1));
        assert_eq!(one.on_time(at(1_200), LIMIT), LinkStep::Wait);
        assert_eq!(one.on_time(at(1_201), LIMIT), LinkStep::Fence);
        assert!(one.on_fault(at(1_201)));
        assert_eq!(other.on_down(1, at(1_202)), DownStep::Known, "its LINK_OPEN was lost");
        assert_eq!(other.on_open(1, at(1_202)), LinkOpenStep::Ignore, "or late");
        assert_eq!(one.on_down(1, at(1_203)), DownStep::Down);
        assert_eq!(one.on_time(at(1_602), LIMIT), LinkStep::Wait, "it waits longer each time");
        assert_eq!(one.on_time(at(1_603), LIMIT), LinkStep::Ask(2));
    }

    #[test]
    fn a_path_that_is_whole_again_has_its_link_asked_for_at_once() {
        let (mut one, mut other) = ends();
        let mut now = 0;
        // Up to the longest pause.
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
        // The last request may be under way; of older ones the packets are lost.
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
        // The other end never asks.
        other.on_down(0, at(0));
        other.expedite_retry(at(9_000));
        assert_eq!(other.on_time(at(9_000), LIMIT), LinkStep::Wait);
    }

    /// A flush posted over it would wait for ever.
    #[test]
    fn who_joins_does_not_wait_for_ever_for_an_end_that_is_gone() {
        let (_, mut other) = ends();
        other.on_down(0, at(0));
        assert_eq!(other.on_open(1, at(200)), LinkOpenStep::Make);
        assert_eq!(other.on_time(at(2_200), LIMIT), LinkStep::Wait, "the end that asks is first");
        assert_eq!(other.on_time(at(2_201), LIMIT), LinkStep::Fence);
    }

    #[test]
    fn a_further_link_is_asked_for_at_once() {
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
