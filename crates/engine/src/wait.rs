//! The waiting policy: a thread spins, then yields its processor, then rests for growing times. The values of every kind of wait are here.
//! Used by threads that Trunkline starts and by calls of front ends that block; the engine's own calls never wait.
//!
//! These waits follow no [`WaitPolicy`]:
//!
//! | place | reason |
//! | --- | --- |
//! | `nccl-host/src/wait.rs` | uses no crate of Trunkline, and never sleeps, as NCCL's proxy does not |
//! | `device/src/driver.rs`, `run_thread` | its yields end by a clock and by operations under way; its rests are those of a [`WaitBackoff`] |
//! | `device/src/{host_deadline,words}.rs`, `device-queue/src/slot.rs` | GPUs run the same protocol, which has `WaitBudget` and no threads |
//! | `mem`, `softnic` (`guard.rs`, `pin_registry.rs`) | below the engine; the holder of a pin, a lock or a table releases it soon |
//! | `engine/src/lane.rs` | loom replaces its `yield_now` |
//! | `ofi/src/{connect,fid,flusher,lingering_ops,trial}.rs` | below the engine; drains and attempts with a bound |
//! | `engine/src/control/lifecycle.rs`, `trunkline/src/messages/start.rs`, `shmem/src/{pe,process_pe}.rs` | start and end of a job: bounded by a deadline, and each round makes progress for peers |
//! | `nccl/src/plugin.rs` | closes and deregistrations, bounded by the peer time limit; each round drives other comms |
//! | `trunkline/src/device/window.rs`, `attend` | drives the executor for kernels that ring no doorbell |
//! | `node/src/page.rs`, `engine/src/status/read.rs` | a bounded number of reads of a sequence lock |
//! | `bootstrap/src/store/member.rs` | a pause between two attempts to dial, bounded by a deadline |
//! | `cli`, `{nccl-host,trunkline}/src/launch.rs`, `watch_exit` in `shmem/src/process_pe.rs` | periods of polls of child processes and counters, not waits of a transfer |

use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

/// The most rounds in which a thread spins where threads share processors, because the thread that it waits for may
/// need this one.
const SHARED_SPINS: u32 = 16;

/// How long a thread spins, yields and rests while its polls are fruitless.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WaitPolicy {
    /// Fruitless rounds in which the thread keeps its processor.
    pub spins: u32,
    /// Further fruitless rounds in which it yields its processor to other threads.
    pub yields: u32,
    /// Length of the first rest; each further rest is twice as long.
    pub first: Duration,
    /// Length of the longest rest.
    pub most: Duration,
    /// How the thread rests.
    pub rest: RestMethod,
}

/// How a thread rests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RestMethod {
    /// Parks, so that an `unpark` ends the rest. Only for threads that Trunkline starts.
    Park,
    /// Sleeps. For a thread of the program, because the program may have unparked it for a `park` of its own, and a
    /// rest that parked would consume that token.
    Sleep,
}

/// Where a thread is in its wait.
#[derive(Debug)]
pub struct WaitBackoff {
    fruitless: u32,
    policy: WaitPolicy,
}

/// The action until the next round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BackoffStep {
    /// Keep the processor.
    Spin,
    /// Yield the processor to other threads.
    Yield,
    /// Rest.
    Rest {
        /// How.
        method: RestMethod,
        /// For how long, at most.
        length: Duration,
    },
}

impl WaitPolicy {
    /// The helper thread, which drives comms that no caller polls. `first` is for a fabric that names no time for its next poll; `most` is
    /// for a thread that drives no comm.
    pub const HELPER: Self = Self {
        spins: 16,
        yields: 16,
        first: Duration::from_millis(1),
        most: Duration::from_millis(10),
        rest: RestMethod::Park,
    };

    /// The service thread of a one-sided job, which takes a processor from a process that computes. It yields in no
    /// round, because a thread that has slept gets a processor sooner than one that yields again and again.
    ///
    /// `most` is for a job whose members request nothing: each rest costs ten to thirty microseconds of a processor. A request gets
    /// its reply within five milliseconds where rails have to be polled, and at once where they have events.
    pub const SERVICE: Self = Self {
        spins: 16,
        yields: 0,
        first: Duration::from_micros(20),
        most: Duration::from_millis(4),
        rest: RestMethod::Park,
    };

    /// A call of a front end that waits for an operation. It spins for some ten microseconds, as long as a reply takes; the rank that is to
    /// reply may need this very processor. It yields for a millisecond or more, depending on other threads.
    pub const CALL: Self = Self {
        spins: 24,
        yields: 500,
        first: Duration::from_micros(20),
        most: Duration::from_micros(200),
        rest: RestMethod::Sleep,
    };

    /// A call that waits for a change of this process's symmetric memory. It yields for milliseconds.
    pub const CHANGE: Self = Self {
        spins: 2_000,
        yields: 4_000,
        first: Duration::from_micros(20),
        most: Duration::from_micros(500),
        rest: RestMethod::Sleep,
    };

    /// A call that waits for messages inside a host.
    pub const MESSAGES: Self = Self {
        spins: 20_000,
        yields: 256,
        first: Duration::from_micros(20),
        most: Duration::from_micros(500),
        rest: RestMethod::Sleep,
    };

    /// Adapts the policy to a number of threads of this host that may spin at the same time: if there are more of them than processors,
    /// each spins for 16 rounds at most.
    #[must_use]
    pub fn for_threads(self, threads: usize) -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        if threads <= processors { self } else { Self { spins: self.spins.min(SHARED_SPINS), ..self } }
    }
}

impl RestMethod {
    /// Rests the calling thread for `length`. A thread that parks returns earlier if it is unparked.
    pub fn rest_for(self, length: Duration) {
        match self {
            Self::Park => std::thread::park_timeout(length),
            Self::Sleep => std::thread::sleep(length),
        }
    }
}

impl WaitBackoff {
    /// Begins a wait.
    #[inline]
    #[must_use]
    pub const fn new(policy: WaitPolicy) -> Self {
        Self { fruitless: 0, policy }
    }

    /// Starts the schedule again after a round in which something moved, because more is likely to follow.
    #[inline]
    pub fn reset_backoff(&mut self) {
        self.fruitless = 0;
    }

    /// Returns the step after a fruitless round, by the policy.
    #[inline]
    pub fn next_step(&mut self) -> BackoffStep {
        self.next_step_within(self.policy.first, self.policy.most)
    }

    /// Returns the step after a fruitless round, with other lengths of the first and the longest rest than the policy's.
    #[inline]
    pub fn next_step_within(&mut self, first: Duration, most: Duration) -> BackoffStep {
        let WaitPolicy { spins, yields, rest: method, .. } = self.policy;
        let fruitless = self.fruitless;
        self.fruitless = fruitless.saturating_add(1);
        if fruitless < spins {
            return BackoffStep::Spin;
        }
        match fruitless.checked_sub(spins.saturating_add(yields)) {
            None => BackoffStep::Yield,
            Some(rests) => BackoffStep::Rest { method, length: rest_length(first, most, rests) },
        }
    }

    /// Does the step after a fruitless round. For loops that do nothing else before a rest.
    #[inline]
    pub fn wait_once(&mut self) {
        self.next_step().wait_once();
    }
}

/// The length of a rest, by the number of rests before it. A thread that rests is in no hurry; the rounds before are inlined.
#[cold]
fn rest_length(first: Duration, most: Duration, rests: u32) -> Duration {
    first.saturating_mul(1 << rests.min(16)).min(most)
}

impl BackoffStep {
    /// Does it.
    #[inline]
    pub fn wait_once(self) {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
            Self::Rest { method, length } => method.rest_for(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{current, park_timeout};
    use std::time::Instant;

    use super::*;

    /// Steps of a whole wait, with all rests that differ.
    const STEPS: usize = 25_000;

    const CALLERS: [WaitPolicy; 3] = [WaitPolicy::CALL, WaitPolicy::CHANGE, WaitPolicy::MESSAGES];
    const THREADS: [WaitPolicy; 2] = [WaitPolicy::HELPER, WaitPolicy::SERVICE];

    fn collect_steps(waiting: &mut WaitBackoff) -> Vec<BackoffStep> {
        std::iter::repeat_with(|| waiting.next_step()).take(STEPS).collect()
    }

    fn count_steps(steps: &[BackoffStep], wanted: BackoffStep) -> usize {
        steps.iter().filter(|step| **step == wanted).count()
    }

    /// The rests in microseconds up to the longest, which all further ones repeat.
    fn growing_rests(policy: WaitPolicy, steps: &[BackoffStep]) -> Vec<u128> {
        let rests = &steps[(policy.spins + policy.yields) as usize..];
        let length = |step: &BackoffStep| match *step {
            BackoffStep::Rest { method, length } if method == policy.rest => length.as_micros(),
            step => panic!("unexpected {step:?} among the rests"),
        };
        let mut lengths: Vec<_> = rests.iter().map(length).collect();
        lengths.dedup();
        lengths
    }

    #[test]
    fn each_policy_keeps_its_schedule() {
        let expected: [(WaitPolicy, usize, usize, &[u128]); 5] = [
            (WaitPolicy::HELPER, 16, 16, &[1_000, 2_000, 4_000, 8_000, 10_000]),
            (WaitPolicy::SERVICE, 16, 0, &[20, 40, 80, 160, 320, 640, 1_280, 2_560, 4_000]),
            (WaitPolicy::CALL, 24, 500, &[20, 40, 80, 160, 200]),
            (WaitPolicy::CHANGE, 2_000, 4_000, &[20, 40, 80, 160, 320, 500]),
            (WaitPolicy::MESSAGES, 20_000, 256, &[20, 40, 80, 160, 320, 500]),
        ];
        for (policy, spins, yields, rests) in expected {
            let mut waiting = WaitBackoff::new(policy);
            let steps = collect_steps(&mut waiting);
            let awake = (count_steps(&steps, BackoffStep::Spin), count_steps(&steps, BackoffStep::Yield));
            assert_eq!(awake, (spins, yields), "{policy:?}");
            assert!(steps[..spins].iter().all(|step| *step == BackoffStep::Spin), "{policy:?}");
            assert_eq!(growing_rests(policy, &steps), rests, "{policy:?}");
            waiting.reset_backoff();
            assert_eq!(waiting.next_step(), BackoffStep::Spin, "{policy:?}");
        }
    }

    #[test]
    fn rests_stay_within_other_bounds() {
        let mut waiting = WaitBackoff::new(WaitPolicy { spins: 0, yields: 0, ..WaitPolicy::HELPER });
        let [first, most] = [50, 1000].map(Duration::from_micros);
        let seen: Vec<_> =
            std::iter::repeat_with(|| waiting.next_step_within(first, most)).take(100).collect();
        let rest =
            |micros| BackoffStep::Rest { method: RestMethod::Park, length: Duration::from_micros(micros) };
        assert_eq!(seen[..6], [50, 100, 200, 400, 800, 1000].map(rest));
        assert!(seen[6..].iter().all(|step| *step == rest(1000)));
        assert_eq!(waiting.next_step_within(most, first), rest(50), "the maximum bounds the first rest");
    }

    #[test]
    fn crowded_threads_spin_sixteen_rounds() {
        for policy in CALLERS.into_iter().chain(THREADS) {
            assert_eq!(policy.for_threads(1), policy);
            assert_eq!(policy.for_threads(usize::MAX), WaitPolicy { spins: 16, ..policy });
        }
        let eager = WaitPolicy { spins: 0, ..WaitPolicy::CALL };
        assert_eq!(eager.for_threads(usize::MAX), eager, "crowded threads never increase the spins");
    }

    #[test]
    fn wait_of_a_call_keeps_a_pending_unpark() {
        for policy in CALLERS {
            let mut waiting = WaitBackoff::new(WaitPolicy { spins: 0, yields: 0, ..policy });
            current().unpark();
            (0..4).for_each(|_| waiting.wait_once());
            let begun = Instant::now();
            park_timeout(Duration::from_secs(30));
            assert!(begun.elapsed() < Duration::from_secs(15), "{policy:?} consumed the program's unpark");
        }
    }

    #[test]
    fn unpark_ends_the_rest_of_a_thread() {
        for policy in THREADS {
            let long = Duration::from_secs(30);
            let mut waiting =
                WaitBackoff::new(WaitPolicy { spins: 0, yields: 0, first: long, most: long, ..policy });
            current().unpark();
            let begun = Instant::now();
            waiting.wait_once();
            assert!(begun.elapsed() < Duration::from_secs(15), "{policy:?} rested through an unpark");
        }
    }
}
