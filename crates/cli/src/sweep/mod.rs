//! Many configurations of queue pairs side by side: every collective with each, what it brings and what it costs.
//!
//! Called by `cmd::sweep`. The runs are the plugin host's, as in `bench`: rank processes that load the plugin as NCCL does.
//! What NICs have in use is read from the status pages of these processes. It decides nothing about the plugin.

pub(crate) mod configuration;
mod date;
mod formula;
pub(crate) mod machine;
pub(crate) mod page;
mod results;
mod row;
mod watch;

use std::io::{self, Write};

use indicatif::ProgressBar;
use thiserror::Error;
use trunkline_nccl_host::{Cluster, Collective, Job, LaunchError};

use self::configuration::Configuration;
use self::results::{Cell, Results};
use self::watch::{Watch, WatchError};
use crate::bench::{self, Settings, progress};

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The collectives, in the order of the report.
    pub(crate) collectives: Vec<Collective>,
    /// The configurations; the first is what the others are compared with.
    pub(crate) configurations: Vec<Configuration>,
    /// How often each collective meets each configuration.
    pub(crate) rounds: usize,
    /// Everything else that is the same for all runs.
    pub(crate) common: Common,
}

/// What is the same for all runs.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    /// What to start; collective and environment are each run's own.
    pub(crate) job: Job,
    /// Sizes of the rows.
    pub(crate) sizes: Vec<usize>,
    /// Runs before the timed ones.
    pub(crate) warmup: u32,
    /// Timed runs of a row in a round.
    pub(crate) iterations: Iterations,
    /// JSON instead of a table.
    pub(crate) json: bool,
}

/// How often a row is run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Iterations {
    /// So often.
    Number(u32),
    /// Until so many bytes were worked on, but so often at least and at most.
    Fitting {
        /// The bytes.
        bytes: usize,
        /// At least.
        few: u32,
        /// At most.
        many: u32,
    },
}

impl Iterations {
    /// For a size, at least once.
    fn of(self, size: usize) -> u32 {
        match self {
            Self::Number(number) => number.max(1),
            Self::Fitting { bytes, few, many } => {
                u32::try_from(bytes / size.max(1)).unwrap_or(many).clamp(few, many)
            }
        }
    }
}

/// What all of it came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verdict {
    /// Wrong elements.
    pub(crate) wrong: u64,
    /// Collectives with a configuration whose queues are not as many as the formula says.
    pub(crate) misfits: usize,
}

/// A sweep ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum SweepError {
    /// A run failed.
    #[error("{collective} with {configuration}: {source}")]
    Launch {
        /// What ran.
        collective: Collective,
        /// With what.
        configuration: Configuration,
        /// Why it failed.
        source: LaunchError,
    },
    /// What the NICs have in use cannot be seen.
    #[error("{collective} with {configuration}: {source}")]
    Watch {
        /// What ran.
        collective: Collective,
        /// With what.
        configuration: Configuration,
        /// Why it is not seen.
        source: WatchError,
    },
    /// Nothing can be printed any more.
    #[error("cannot write the results: {0}")]
    Print(#[from] io::Error),
}

impl Plan {
    /// What `bench` would be told for one of the runs, but for the number of iterations.
    pub(crate) fn settings(&self, collective: Collective, configuration: Configuration) -> Settings {
        let Common { job, sizes, warmup, iterations: _, json } = self.common.clone();
        let environment = configuration.environment();
        Settings {
            job: Job { collective: Some(collective), environment, ..job },
            sizes,
            dtype: trunkline_nccl_host::DataType::Float,
            op: trunkline_nccl_host::RedOp::Sum,
            check: 1,
            warmup,
            iters: 1,
            json,
            plot: None,
            trace: None,
        }
    }

    /// Connections of one direction between two ranks that are each other's peers.
    pub(crate) fn connections(&self) -> usize {
        self.common.job.comms * self.common.job.channels
    }
}

/// Runs everything, prints each collective when it is done, and returns what came out.
///
/// Each round has all configurations in turn, and begins with another one than the round before: a slow minute of the
/// machine falls on all of them.
pub(crate) fn run(plan: &Plan, out: &mut impl Write) -> Result<Results, SweepError> {
    let mut results = Results::default();
    let configurations = &plan.configurations;
    let bar = progress::bar(plan.collectives.len() * plan.rounds * configurations.len());
    for collective in plan.collectives.iter().copied() {
        let mut cells: Vec<Cell> = configurations.iter().map(|one| Cell::new(collective, *one)).collect();
        for turn in 0..plan.rounds * cells.len() {
            let round = turn / configurations.len();
            let at = turn % configurations.len();
            let cell = &mut cells[(round * NEXT + at) % configurations.len()];
            bar.set_message(format!("{collective}, {}", cell.configuration));
            once(plan, cell)?;
            bar.inc(1);
        }
        show(plan, &cells, &bar, &mut *out)?;
        results.cells.extend(cells);
    }
    bar.finish_and_clear();
    Ok(results)
}

/// Runs before all others, of the smallest size: what is made as it is used is made then.
const SETTLING: u32 = 20;

/// By how many configurations the beginnings of two rounds are apart; no divisor of their usual number.
const NEXT: usize = 5;

/// One round of a collective with one configuration: its ranks are started, connected, run and ended.
fn once(plan: &Plan, cell: &mut Cell) -> Result<(), SweepError> {
    let Cell { collective, configuration, .. } = *cell;
    let failed = |source| SweepError::Launch { collective, configuration, source };
    let unseen = |source| SweepError::Watch { collective, configuration, source };
    let mut settings = plan.settings(collective, configuration);
    let mut cluster = Cluster::start(&settings.job).map_err(failed)?;
    let mut watch = Watch::new(cluster.pids());
    watch.look().map_err(unseen)?;
    let blocks = bench::collective::rows(&settings, collective);
    if let Some(first) = blocks.first() {
        let settings =
            Settings { check: 0, warmup: SETTLING, iters: 1, ..plan.settings(collective, configuration) };
        bench::collective::run_half(&mut cluster, &settings, collective, *first, false).map_err(failed)?;
    }
    for (at, block) in blocks.into_iter().enumerate() {
        settings.iters = plan.common.iterations.of(bench::collective::bytes(&settings, collective, block));
        let half = bench::collective::run_half(&mut cluster, &settings, collective, block, false);
        cell.add(at, block, half.map_err(failed)?);
        watch.look().map_err(unseen)?;
    }
    cell.saw(cluster.info(), watch.seen());
    cluster.finish().map_err(failed)?;
    Ok(())
}

fn show(plan: &Plan, cells: &[Cell], bar: &ProgressBar, out: &mut impl Write) -> io::Result<()> {
    let text: String = cells.iter().map(|cell| row::text(plan, cell)).collect::<io::Result<_>>()?;
    let header = cells.first().filter(|_| !plan.common.json).map(|cell| row::header(plan, cell));
    bar.suspend(|| {
        out.write_all(header.unwrap_or_default().as_bytes())?;
        out.write_all(text.as_bytes())?;
        out.flush()
    })
}

/// What it all came to.
pub(crate) fn verdict(plan: &Plan, results: &Results) -> Verdict {
    let misfits = results.cells.iter().filter(|cell| !cell.counted(plan).fits()).count();
    #[cfg_attr(not(feature = "mutants"), expect(unused_mut, reason = "changed only to plant a bug"))]
    let mut verdict = Verdict { wrong: results.cells.iter().map(Cell::wrong).sum(), misfits };
    #[cfg(feature = "mutants")]
    match std::env::var("TRUNKLINE_MUTANT").as_deref() {
        Ok("sweep-forgives-wrong-data") => verdict.wrong = 0,
        Ok("sweep-forgives-queues") => verdict.misfits = 0,
        _ => {}
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::Iterations;

    #[test]
    fn small_sizes_are_run_more_often() {
        let fitting = Iterations::Fitting { bytes: 8 << 20, few: 8, many: 50 };
        assert_eq!(
            [0, 4 << 10, 256 << 10, 1 << 20, 1 << 30].map(|size| fitting.of(size)),
            [50, 50, 32, 8, 8]
        );
        assert_eq!([Iterations::Number(3), Iterations::Number(0)].map(|one| one.of(8)), [3, 1]);
    }
}
