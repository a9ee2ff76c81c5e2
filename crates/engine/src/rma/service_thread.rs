//! A thread that serves for a process that computes: accesses of other members complete in time although the process's own
//! threads make no call, and its own operations make progress. Front ends start it on request; it does nothing while the process
//! polls by itself.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trunkline_fabric::{Fabric, Host};

use crate::HelperThread;
use crate::rma::{EventWait, RmaJob};
use crate::wait::{BackoffStep, WaitBackoff, WaitPolicy};

/// The longest rest while members have requested something lately. It is short because each step of a request may wait
/// this long. Then the policy's longest rest holds.
const REST_MAX: Duration = Duration::from_millis(1);
/// Fruitless rounds after which members count as idle.
const IDLE_AFTER: u32 = 64;
/// When idle, rounds per poll of the control streams, because that poll costs a system call per stream.
const STREAMS_EVERY: u32 = 4;

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// Starts a thread that serves a job until the returned value is dropped.
    ///
    /// # Errors
    /// The system cannot create another thread.
    pub fn serve_beside<J>(job: J) -> io::Result<HelperThread>
    where
        J: Deref<Target = Self> + Send + 'static,
    {
        HelperThread::spawn_with(move |stop| {
            serve_until_stopped(&job, stop);
            Box::new(job)
        })
    }
}

fn serve_until_stopped<F: Fabric, H: Host>(job: &RmaJob<F, H>, stop: &AtomicBool) {
    let mut polls = job.poll_count();
    let mut stirs = None;
    let mut waiting = WaitBackoff::new(WaitPolicy::SERVICE);
    let mut events = EventWait::default();
    let mut fruitless = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let now = job.poll_count();
        let polled = std::mem::replace(&mut polls, now) != now;
        // While the process polls, its own threads serve, and a second poller would only contend for the locks.
        let moved = !polled && {
            let hears = fruitless < IDLE_AFTER || fruitless.is_multiple_of(STREAMS_EVERY);
            let moved = if hears { job.serve_members() } else { job.serve_links() };
            let own = job.progress_begun();
            let now = job.sample_progress(None);
            moved | own | (std::mem::replace(&mut stirs, now) != now)
        };
        if moved {
            waiting.reset_backoff();
            events.note_progress();
            fruitless = 0;
        } else {
            fruitless = fruitless.saturating_add(1);
            let most = if fruitless < IDLE_AFTER { REST_MAX } else { WaitPolicy::SERVICE.most };
            match waiting.next_step_within(WaitPolicy::SERVICE.first, most) {
                // With threads that serve themselves, each of their messages would wake this one for nothing.
                BackoffStep::Rest { length, .. } if !polled => _ = events.wait(job, length),
                pause => pause.wait_once(),
            }
        }
    }
}
