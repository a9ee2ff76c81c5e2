//! The waits of front ends with symmetric memory: for room and replies, and for changes of this process's memory by
//! other members.

use std::time::{Duration, Instant};

use trunkline_engine::rma::RmaError;
use trunkline_engine::{BackoffStep, WaitBackoff, WaitPolicy};

use super::context::{ContextCalls, FetchSink};

/// The time between two checks that the expected change can still happen.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Fruitless polls between two readings of the clock. Few, because with more threads than processors a poll may take a
/// whole time slice of another thread.
const POLLS_PER_CLOCK: u32 = 64;

/// The time of the next check that an expected change can still happen.
#[derive(Debug, Default)]
pub struct CheckTimer {
    last: Option<Instant>,
}

impl CheckTimer {
    /// Returns whether a check is due at `now`; then the next one is due 50 ms later. The first one is due 50 ms after
    /// the first call.
    pub fn take_due(&mut self, now: Instant) -> bool {
        let is_due = now - *self.last.get_or_insert(now) >= CHECK_EVERY;
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

/// A wait that rests only while other members need nothing from it.
struct ServingWait {
    backoff: WaitBackoff,
    /// The last sample of the engine's progress.
    progress: Option<u64>,
}

impl ServingWait {
    fn new(policy: WaitPolicy) -> Self {
        Self { backoff: WaitBackoff::new(policy), progress: None }
    }

    /// Performs `step` of the schedule, unless it is a rest during which other members would wait. If operations of
    /// other members have progressed, their next piece follows soon, so the schedule starts again. If only calls of
    /// this process drive their operations, the thread yields.
    fn take_step<S: FetchSink>(&mut self, step: BackoffStep, calls: Option<&ContextCalls<'_, S>>) {
        if matches!(step, BackoffStep::Rest { .. })
            && let Some(calls) = calls
        {
            let now = calls.fabric_job().sample_progress(calls.context_id());
            if std::mem::replace(&mut self.progress, now) != now {
                return self.backoff.reset_backoff();
            }
            if calls.network.is_unseen {
                return std::thread::yield_now();
            }
        }
        step.wait_once();
    }
}

impl<S: FetchSink> ContextCalls<'_, S> {
    /// Repeats the attempt until it returns a result, and delivers values to the sink after each fruitless one.
    ///
    /// # Errors
    /// As the attempt, and as [`FetchSink::deliver_fetches`].
    pub fn wait_until<T, E: From<RmaError>>(
        &self,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let mut waiting = ServingWait::new(WaitPolicy::CALL);
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            self.sink.deliver_fetches(self)?;
            let step = waiting.backoff.next_step();
            waiting.take_step(step, Some(self));
        }
    }
}

/// Polls memory of this process by `look`, until it returns the expected change. Other members make the change by
/// stores, or over the fabric of `calls`, whose requests are driven meanwhile. Every 50 ms, `check_peers` fails if
/// those members have ended. A change that they made before still counts.
///
/// # Errors
/// As `look` and as `check_peers`.
pub fn watch_memory<T, E: From<RmaError>, S: FetchSink>(
    calls: Option<&ContextCalls<'_, S>>,
    policy: WaitPolicy,
    mut look: impl FnMut() -> Result<Option<T>, E>,
    mut check_peers: impl FnMut() -> Result<(), E>,
) -> Result<T, E> {
    let mut waiting = ServingWait::new(policy);
    let mut timer = CheckTimer::default();
    let mut vain = 0_u32;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if let Some(calls) = calls
            && calls.make_progress()?
        {
            waiting.backoff.reset_backoff();
        }
        let step = waiting.backoff.next_step();
        let rests = matches!(step, BackoffStep::Rest { .. });
        vain = vain.wrapping_add(1);
        if (rests || vain.is_multiple_of(POLLS_PER_CLOCK))
            && timer.take_due(Instant::now())
            && let Err(gone) = check_peers()
        {
            return look()?.ok_or(gone);
        }
        waiting.take_step(step, calls);
    }
}
