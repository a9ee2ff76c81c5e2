//! The sweep: many seeds, and planted bugs that each checker sees. `TRUNKLINE_SEEDS` sets how many,
//! `TRUNKLINE_MUTANT` plants a bug, `TRUNKLINE_SEED` is the first one; a single seed prints its trace. With `TRUNKLINE_FULL` ten
//! million messages begin and end in them.

use std::env;

use crate::{NetworkMutant, SeedOptions, run_seed, run_sweep};

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap())
}

/// What `TRUNKLINE_MUTANT` asks for.
fn options() -> SeedOptions {
    let mut options = SeedOptions::default();
    if let Ok(name) = env::var("TRUNKLINE_MUTANT") {
        match NetworkMutant::from_name(&name) {
            Some(mutant) => options.mutant = mutant,
            #[cfg(feature = "mutants")]
            None => options.engine_mutant = trunkline_engine::Mutant::with_name(name.leak()),
            #[cfg(not(feature = "mutants"))]
            None => {}
        }
        // One seed that notices the bug is enough.
        options.stop_at_failure = true;
    }
    options
}

#[test]
fn every_seed_holds() {
    let full = env::var_os("TRUNKLINE_FULL").is_some();
    let seeds = number("TRUNKLINE_SEEDS").unwrap_or(if full { 150_000 } else { 1_500 });
    let first = number("TRUNKLINE_SEED").unwrap_or(0);
    if seeds == 1 {
        run_seed(first, &SeedOptions { trace: true, ..options() })
            .trace
            .iter()
            .for_each(|line| println!("{line}"));
    }
    let began = std::time::Instant::now();
    let result = run_sweep(first..first + seeds, 2, &options());
    println!("{} seeds, {} requests, {:?}", result.runs, result.requests, began.elapsed());
    for outcome in &result.failures {
        println!("{outcome}");
    }
    assert_eq!(result.failed, 0, "of {} seeds", result.runs);
    assert!(result.requests > 5 * result.runs, "the seeds do something");
    assert!(!full || seeds < 150_000 || result.requests > 20_000_000, "a message is two requests");
}

/// Memory that a copy was stuck in was given up, and its comm settled: that had ended its registration. 2 of 150,000 seeds.
#[test]
fn memory_that_is_given_up_ends_with_its_comm() {
    for seed in [107_325, 121_010] {
        assert_eq!(run_seed(seed, &options()).violation, None, "seed {seed}");
    }
}

/// A flush was not posted over a link whose NIC had no room, and ended once the others had flushed. 1 of 4,000 seeds.
#[test]
fn a_flush_waits_for_links_without_room() {
    assert_eq!(run_seed(14_214, &options()).violation, None);
}

#[test]
fn a_seed_runs_the_same_way_twice() {
    for seed in 0..20 {
        let options = SeedOptions { trace: true, ..options() };
        let (one, two) = (run_seed(seed, &options), run_seed(seed, &options));
        let first = one.trace.iter().zip(&two.trace).position(|(a, b)| a != b);
        assert_eq!(first, None, "seed {seed}: {:?}", first.map(|at| (&one.trace[at], &two.trace[at])));
        assert_eq!((one.trace.len(), one.steps, one.time), (two.trace.len(), two.steps, two.time));
    }
}

#[cfg(feature = "mutants")]
#[test]
fn each_planted_bug_is_seen_by_its_checker() {
    let pairs = [
        (NetworkMutant::LoseByte, "bytes"),
        (NetworkMutant::SwapMessages, "order"),
        (NetworkMutant::DuplicateCompletion, "once"),
        (NetworkMutant::LeakRegion, "leaks"),
        (NetworkMutant::HidePeerDeath, "bounded"),
        (NetworkMutant::LateWrite, "bytes"),
        (NetworkMutant::EmptyFlush, "bytes"),
        (NetworkMutant::ForgetAbandoned, "leaks"),
    ];
    for (mutant, checker) in pairs {
        let options = SeedOptions { mutant, ..SeedOptions::default() };
        let seen = (0..1000).any(|seed| {
            let violation = run_seed(seed, &options).violation;
            violation.is_some_and(|violation| violation.checker == checker)
        });
        assert!(seen, "{mutant:?} is not seen by {checker}");
    }
}
