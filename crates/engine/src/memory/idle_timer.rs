//! Idle memory of comms that were busy: after a while without messages, their links and bounce buffers release the pages that
//! only messages need. Called when a waiting lane has time; reads the clock, never for single messages.

use trunkline_fabric::{Fabric, Host, Rail};
use trunkline_proto::time::{Duration, Instant};

use crate::comm::recv::RecvLane;
use crate::engine::core::EngineCore;
use crate::link::rails::GroupRails;
use crate::pool::groups::LockedMember;
use crate::pool::member::CommSide;

/// Time without messages after which a comm releases idle memory. Not earlier, because using it again costs some page
/// faults.
const REST_AFTER: Duration = Duration::from_secs(1);

/// Fruitless polls of a lane per check whether it is idle, because each check reads the clock.
const LOOK_POLLS: u32 = 64;

/// How long a comm has carried no message.
#[derive(Debug, Default)]
pub(crate) struct IdleTimer {
    since: Option<Instant>,
    /// The number of its messages at that time.
    messages: u64,
    /// It has released its idle memory since.
    rests: bool,
}

impl IdleTimer {
    /// Returns whether to release idle memory: once each time that it becomes idle.
    fn begins_rest(&mut self, messages: u64, now: Instant) -> bool {
        let since = match self.since {
            Some(since) if self.messages == messages => since,
            _ => {
                *self = Self { since: Some(now), messages, rests: false };
                now
            }
        };
        let long = now - since >= REST_AFTER;
        let begins = long && !self.rests;
        self.rests |= begins;
        begins
    }
}

impl<F: Fabric, H: Host> EngineCore<F, H> {
    /// Checks a polled lane that no caller waits for.
    #[inline]
    pub(crate) fn may_rest(&self, turn: &mut LockedMember<'_, F::Rail>) {
        if turn.open.idle.is_multiple_of(LOOK_POLLS) && turn.open.idle > 0 {
            self.rest_if_idle(turn);
        }
    }

    /// Releases the memory that an idle comm does not need.
    #[cold]
    pub(crate) fn rest_if_idle(&self, turn: &mut LockedMember<'_, F::Rail>) {
        let LockedMember { open, rails, shared, .. } = turn;
        let messages = match &open.side {
            CommSide::Send(lane) => lane.sent,
            CommSide::Recv(lane) => lane.arrived,
        };
        if open.fault.is_some() || !open.idle_for.begins_rest(messages, self.host.now()) {
            return;
        }
        match &mut open.side {
            CommSide::Send(lane) => {
                lane.paths.trim_idle_memory(rails);
            }
            CommSide::Recv(lane) => {
                let mut others = shared.iter_mut().flat_map(|neighbours| neighbours.others.iter_mut());
                let held = others.any(|o| o.side.holds_eager());
                lane.trim_idle_memory(rails, held);
            }
        }
    }
}

impl CommSide {
    /// Returns whether a message in a bounce buffer is this comm's.
    fn holds_eager(&self) -> bool {
        matches!(self, Self::Recv(lane) if lane.receiver.holds_eager())
    }
}

impl RecvLane {
    /// Releases the pages of the bounce buffers, unless one holds a message of this comm or, with `held`, of another member of
    /// its group.
    fn trim_idle_memory(&mut self, rails: &mut GroupRails<impl Rail>, held: bool) {
        let holds = held || self.receiver.holds_eager();
        if self.paths.trim_idle_memory(rails) && !holds {
            self.empty_bounces();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comm_rests_once_after_a_while_without_messages() {
        let at = |millis: u64| Instant(millis * 1_000_000);
        let mut idle = IdleTimer::default();
        let mut look = |messages, millis| idle.begins_rest(messages, at(millis));
        assert!(!look(0, 5_000) && !look(0, 5_999));
        assert!(look(0, 6_000) && !look(0, 6_001) && !look(0, 60_000), "once");
        assert!(!look(1, 60_001) && !look(2, 61_500) && !look(2, 62_499), "each message restarts the timer");
        assert!(look(2, 62_500) && !look(2, 64_000));
    }
}
