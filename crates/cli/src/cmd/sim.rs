//! `trunkline sim`: runs seeds of the simulator, or replays one and prints its trace.
//!
//! Called by `cmd`. The `sim` crate runs the seeds.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use trunkline_sim::{SeedOptions, SeedOutcome, SweepSummary, run_seed, run_sweep};

const EXAMPLES: &str = "\
Examples:
  trunkline sim --seed 4711        replay one seed, and print its trace
  trunkline sim -n 100000          run 100000 seeds on all processors
  trunkline sim --from 5000 -n 50  run the seeds 5000 to 5049

A seed determines one run of several processes over a simulated network: the network model, the messages and
the faults. It gives the same run on every machine.

The exit status is 0 if all properties held, 1 if one did not.";

/// Arguments of `sim`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimArgs {
    /// Replay this seed and print its trace.
    #[arg(long, conflicts_with_all = ["count", "from"])]
    seed: Option<u64>,
    /// Run this many seeds.
    #[arg(short = 'n', long, default_value_t = 10_000, value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// Begin with this seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Use this many threads [default: one per processor].
    #[arg(short = 'j', long, value_parser = value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// Print only the outcome of --seed.
    #[arg(short, long, requires = "seed")]
    quiet: bool,
}

/// Seeds between two updates of the progress bar.
const BATCH: u64 = 500;

/// Runs the subcommand.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn run_sim(args: &SimArgs) -> io::Result<ExitCode> {
    let held = match args.seed {
        Some(seed) => replay_seed(seed, args.quiet)?,
        None => run_seeds(args)?,
    };
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay_seed(seed: u64, quiet: bool) -> io::Result<bool> {
    let outcome = run_seed(seed, &SeedOptions { trace: !quiet, ..SeedOptions::default() });
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in &outcome.trace {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{outcome}")?;
    out.flush()?;
    Ok(outcome.violation.is_none())
}

fn run_seeds(args: &SimArgs) -> io::Result<bool> {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or_else(processors, |n| n as usize);
    let end = args.from.saturating_add(args.count);
    let bar = if io::stderr().is_terminal() { ProgressBar::new(args.count) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {eta} left{msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let began = Instant::now();
    let mut from = args.from;
    let mut whole = SweepSummary::default();
    while from < end {
        let to = from.saturating_add(BATCH).min(end);
        let part = run_sweep(from..to, threads, &SeedOptions::default());
        whole.merge_summary(part);
        bar.inc(to - from);
        if whole.failed > 0 {
            bar.set_message(format!(", {} failed", whole.failed));
        }
        from = to;
    }
    bar.finish_and_clear();
    print_outcome(&whole, began.elapsed())
}

fn print_outcome(whole: &SweepSummary, took: Duration) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    whole.failures.iter().try_for_each(|outcome: &SeedOutcome| writeln!(out, "{outcome}"))?;
    let SweepSummary { runs, requests, failed, .. } = whole;
    writeln!(out, "{runs} seeds, {requests} requests, {failed} failed, {:.1} s", took.as_secs_f64())?;
    Ok(*failed == 0)
}
