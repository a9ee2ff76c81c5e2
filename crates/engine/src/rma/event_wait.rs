//! A sleep that ends when something happens on a rail of a job. Used by threads that serve for a process; never by calls of users,
//! which poll. It serves nothing itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use trunkline_fabric::{Fabric, Host};

use crate::rma::RmaJob;
use crate::wait::RestMethod;

/// The maximum number of rails whose events end one sleep; with more rails, only the clock does.
const WAITED_MAX: usize = 16;
/// Consecutive sleeps that events may end without any progress. The next sleep is timed only, so that a descriptor that stays
/// readable does not keep a processor busy.
const VAIN_MAX: u32 = 8;

/// The event that ended a sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SleepEnd {
    /// Something happened on a rail, or is likely to have.
    Event,
    /// The time has elapsed without an event.
    Time,
    /// The time has elapsed. A rail has to be polled: it has no event descriptor, or has work that only a poll continues.
    Unwatched,
}

/// Sleeps on behalf of one thread.
#[derive(Debug, Default)]
pub struct EventWait {
    descriptors: Vec<Arc<OwnedFd>>,
    /// Sleeps in a row that an event has ended and that have moved nothing since.
    vain: u32,
}

impl EventWait {
    /// Notes that the work for which the last sleep ended was done.
    pub fn note_progress(&mut self) {
        self.vain = 0;
    }

    /// Sleeps until an event that [`RmaJob::serve_members`] would process, for at most `limit`. Control streams, and links that
    /// other threads make meanwhile, end no sleep.
    pub fn wait<F: Fabric, H: Host>(&mut self, job: &RmaJob<F, H>, limit: Duration) -> SleepEnd {
        self.descriptors.clear();
        let is_watched = self.vain < VAIN_MAX && job.arm_events(&mut self.descriptors);
        let count = self.descriptors.len();
        if !is_watched || count == 0 || count > WAITED_MAX {
            self.vain = 0;
            RestMethod::Park.rest_for(limit);
            return SleepEnd::Unwatched;
        }
        let descriptor = |at: usize| PollFd::new(&self.descriptors[at.min(count - 1)], PollFlags::IN);
        let mut polled: [PollFd<'_>; WAITED_MAX] = std::array::from_fn(descriptor);
        let limit = Timespec::try_from(limit).ok();
        // A signal ends the sleep early, which costs one fruitless poll.
        let ready = rustix::event::poll(&mut polled[..count], limit.as_ref()).unwrap_or(0);
        self.vain = if ready > 0 { self.vain + 1 } else { 0 };
        if ready > 0 { SleepEnd::Event } else { SleepEnd::Time }
    }
}
