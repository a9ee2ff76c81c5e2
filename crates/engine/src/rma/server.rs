//! A thread that serves for a process that computes: what others put, get, ask and signal there is complete in time although its
//! own threads make no call. Started by front ends for whoever wants it; leaves the process alone while that polls by itself.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trunkline_fabric::{Fabric, Host};

use crate::Helper;
use crate::rma::Job;
use crate::wait::Waiting;

/// Fruitless rounds before it sleeps.
const SPINS: u32 = 16;
/// The first sleep when nothing comes.
const SLEEP_FIRST: Duration = Duration::from_micros(20);
/// The longest: who asks for something waits so long for each step of it. Sleeps of one millisecond take more than one hundredth of
/// a processor, as each ends with a look at the control streams.
const SLEEP_MAX: Duration = Duration::from_millis(2);

impl<F: Fabric, H: Host> Job<F, H> {
    /// Starts a thread that serves for a job, until the value that comes back is dropped.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn serve_beside<J>(job: J) -> io::Result<Helper>
    where
        J: Deref<Target = Self> + Send + 'static,
    {
        Helper::beside(move |stop| run(&job, stop))
    }
}

fn run<F: Fabric, H: Host>(job: &Job<F, H>, stop: &AtomicBool) {
    let (mut polls, mut stirs) = (job.polls(), None);
    // It takes a processor from whoever computes: one that has slept is given one sooner than one that asks again and again.
    let mut waiting = Waiting::patient(SPINS, 0);
    let mutant = job.params.mutant;
    while !stop.load(Ordering::Relaxed) {
        let now = job.polls();
        let polled = std::mem::replace(&mut polls, now) != now;
        // Else its own threads serve.
        let moved = !polled && !mutant.is("job-serves-nobody") && {
            let moved = job.serve();
            let now = job.stirs(None);
            moved | (std::mem::replace(&mut stirs, now) != now)
        };
        if moved || mutant.is("job-server-never-rests") {
            waiting.moved();
        } else {
            waiting.pause(SLEEP_FIRST, SLEEP_MAX).take();
        }
    }
}
