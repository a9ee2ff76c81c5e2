//! Runs many seeds on several threads, each run by itself. Called by the tests and by `trunkline sim`.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::seed_run::{SeedOptions, SeedOutcome, run_seed};

/// Failures of a sweep that are kept.
const KEPT: usize = 10;

/// The summary of a sweep.
#[derive(Clone, Debug, Default)]
pub struct SweepSummary {
    /// Number of seeds that were run.
    pub runs: u64,
    /// Number of requests that have ended in them.
    pub requests: u64,
    /// Number of seeds that failed.
    pub failed: u64,
    /// The first failures, by seed.
    pub failures: Vec<SeedOutcome>,
}

/// Runs every seed of the range on that many threads.
#[must_use]
pub fn run_sweep(seeds: Range<u64>, threads: usize, options: &SeedOptions) -> SweepSummary {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut part = SweepSummary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return part;
            }
            part.add_outcome(run_seed(seed, options));
            if options.stop_at_failure && part.failed > 0 {
                next.store(seeds.end, Ordering::Relaxed);
            }
        }
    };
    let mut whole = SweepSummary::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(part) => whole.merge_summary(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    whole
}

impl SweepSummary {
    fn add_outcome(&mut self, outcome: SeedOutcome) {
        self.runs += 1;
        self.requests += outcome.requests;
        if outcome.violation.is_some() {
            self.failed += 1;
            self.keep_failure(outcome);
        }
    }

    fn keep_failure(&mut self, outcome: SeedOutcome) {
        self.failures.push(outcome);
        self.failures.sort_by_key(|outcome| outcome.seed);
        self.failures.truncate(KEPT);
    }

    /// Adds another sweep to this one.
    pub fn merge_summary(&mut self, part: Self) {
        self.runs += part.runs;
        self.requests += part.requests;
        self.failed += part.failed;
        for outcome in part.failures {
            self.keep_failure(outcome);
        }
    }
}
