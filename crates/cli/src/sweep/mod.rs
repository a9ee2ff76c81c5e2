//! Compares configurations of queue pairs: each collective with each configuration, its bandwidth and its queues.
//!
//! Called by `cmd::sweep`. The plugin host runs the rank processes, as in `bench`; they load the plugin as NCCL does.
//! The queues in use are read from the status pages of these processes. It only measures, and selects no configuration
//! for the plugin.

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
use trunkline_nccl_host::{Collective, RankCluster, RankJob, RankLaunchError};

use self::configuration::SweepConfiguration;
use self::results::{SweepCell, SweepResults};
use self::watch::{QueueWatch, WatchError};
use crate::bench::{self, BenchSettings, progress};

/// The collectives, configurations and rounds to run.
#[derive(Debug)]
pub(crate) struct SweepPlan {
    /// The collectives, in the order of the report.
    pub(crate) collectives: Vec<Collective>,
    /// The configurations; the first is the baseline of the others.
    pub(crate) configurations: Vec<SweepConfiguration>,
    /// How often each collective runs with each configuration.
    pub(crate) rounds: usize,
    /// The settings that are the same for all runs.
    pub(crate) common: CommonSettings,
}

/// The settings that are the same for all runs.
#[derive(Clone, Debug)]
pub(crate) struct CommonSettings {
    /// The ranks to start; each run sets its own collective and environment.
    pub(crate) job: RankJob,
    /// Sizes of the rows.
    pub(crate) sizes: Vec<usize>,
    /// Warm-up runs before the timed ones.
    pub(crate) warmup: u32,
    /// Timed runs of a row in a round.
    pub(crate) iterations: IterationRule,
    /// Print JSON instead of a table.
    pub(crate) json: bool,
}

/// How often a row is run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IterationRule {
    /// This number of runs.
    Number(u32),
    /// The number of runs that move `bytes` together, within the limits.
    Fitting {
        /// Bytes of all runs together.
        bytes: usize,
        /// Fewest runs.
        few: u32,
        /// Most runs.
        many: u32,
    },
}

impl IterationRule {
    /// The number of runs for a size, at least one.
    fn for_size(self, size: usize) -> u32 {
        match self {
            Self::Number(number) => number.max(1),
            Self::Fitting { bytes, few, many } => {
                u32::try_from(bytes / size.max(1)).unwrap_or(many).clamp(few, many)
            }
        }
    }
}

/// The number of errors of a sweep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SweepVerdict {
    /// Wrong elements.
    pub(crate) wrong: u64,
    /// Cells (collective and configuration) whose queues do not match the formula.
    pub(crate) misfits: usize,
}

/// Why a sweep ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum SweepError {
    /// A run failed.
    #[error("{collective} with {configuration}: {source}")]
    Launch {
        /// The collective that ran.
        collective: Collective,
        /// Its configuration.
        configuration: SweepConfiguration,
        /// The cause.
        source: RankLaunchError,
    },
    /// The queues in use cannot be read.
    #[error("{collective} with {configuration}: {source}")]
    Watch {
        /// The collective that ran.
        collective: Collective,
        /// Its configuration.
        configuration: SweepConfiguration,
        /// The cause.
        source: WatchError,
    },
    /// Standard output cannot be written.
    #[error("cannot write the results: {0}")]
    Print(#[from] io::Error),
}

impl SweepPlan {
    /// The settings of `bench` for one of the runs, except the number of iterations.
    pub(crate) fn run_settings(
        &self,
        collective: Collective,
        configuration: SweepConfiguration,
    ) -> BenchSettings {
        let CommonSettings { job, sizes, warmup, iterations: _, json } = self.common.clone();
        let environment = configuration.environment_variables();
        BenchSettings {
            job: RankJob { collective: Some(collective), environment, ..job },
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

    /// Connections of one direction between two peers.
    pub(crate) fn connection_count(&self) -> usize {
        self.common.job.comms * self.common.job.channels
    }
}

/// Runs everything, prints each collective when it has finished, and returns the results.
///
/// Each round runs all configurations in turn, and starts with a different one than the round before. A slow minute of
/// the machine therefore affects all of them.
pub(crate) fn run_plan(plan: &SweepPlan, out: &mut impl Write) -> Result<SweepResults, SweepError> {
    let mut results = SweepResults::default();
    let configurations = &plan.configurations;
    let bar = progress::row_bar(plan.collectives.len() * plan.rounds * configurations.len());
    for collective in plan.collectives.iter().copied() {
        let mut cells: Vec<SweepCell> =
            configurations.iter().map(|one| SweepCell::new(collective, *one)).collect();
        for turn in 0..plan.rounds * cells.len() {
            let round = turn / configurations.len();
            let at = turn % configurations.len();
            let cell = &mut cells[(round * NEXT + at) % configurations.len()];
            bar.set_message(format!("{collective}, {}", cell.configuration));
            run_round(plan, cell)?;
            bar.inc(1);
        }
        print_cells(plan, &cells, &bar, &mut *out)?;
        results.cells.extend(cells);
    }
    bar.finish_and_clear();
    Ok(results)
}

/// Warm-up runs of the smallest size before all others, in which links are made that connections make on first use.
const SETTLING: u32 = 20;

/// Distance between the first configurations of two rounds; not a divisor of the usual number of configurations.
const NEXT: usize = 5;

/// Runs one round of a collective with one configuration: starts, connects, runs and ends its ranks.
fn run_round(plan: &SweepPlan, cell: &mut SweepCell) -> Result<(), SweepError> {
    let SweepCell { collective, configuration, .. } = *cell;
    let failed = |source| SweepError::Launch { collective, configuration, source };
    let unseen = |source| SweepError::Watch { collective, configuration, source };
    let mut settings = plan.run_settings(collective, configuration);
    let mut cluster = RankCluster::start(&settings.job).map_err(failed)?;
    let mut watch = QueueWatch::new(cluster.process_ids());
    watch.poll_ranks().map_err(unseen)?;
    let blocks = bench::collective::row_blocks(&settings, collective);
    if let Some(first) = blocks.first() {
        let settings = BenchSettings {
            check: 0,
            warmup: SETTLING,
            iters: 1,
            ..plan.run_settings(collective, configuration)
        };
        bench::collective::run_half(&mut cluster, &settings, collective, *first, false).map_err(failed)?;
    }
    for (at, block) in blocks.into_iter().enumerate() {
        settings.iters =
            plan.common.iterations.for_size(bench::collective::buffer_bytes(&settings, collective, block));
        let half = bench::collective::run_half(&mut cluster, &settings, collective, block, false);
        cell.add_round(at, block, half.map_err(failed)?);
        watch.poll_ranks().map_err(unseen)?;
    }
    cell.record_ranks(cluster.plugin_report(), watch.rank_usages());
    cluster.finish().map_err(failed)?;
    Ok(())
}

fn print_cells(
    plan: &SweepPlan,
    cells: &[SweepCell],
    bar: &ProgressBar,
    out: &mut impl Write,
) -> io::Result<()> {
    let text: String = cells.iter().map(|cell| row::cell_lines(plan, cell)).collect::<io::Result<_>>()?;
    let header = cells.first().filter(|_| !plan.common.json).map(|cell| row::table_header(plan, cell));
    bar.suspend(|| {
        out.write_all(header.unwrap_or_default().as_bytes())?;
        out.write_all(text.as_bytes())?;
        out.flush()
    })
}

/// Counts the errors of all results.
pub(crate) fn judge_results(plan: &SweepPlan, results: &SweepResults) -> SweepVerdict {
    let misfits = results.cells.iter().filter(|cell| !cell.queue_comparison(plan).matches_formula()).count();
    SweepVerdict { wrong: results.cells.iter().map(SweepCell::wrong_count).sum(), misfits }
}

#[cfg(test)]
mod tests {
    use super::IterationRule;

    #[test]
    fn small_sizes_are_run_more_often() {
        let fitting = IterationRule::Fitting { bytes: 8 << 20, few: 8, many: 50 };
        assert_eq!(
            [0, 4 << 10, 256 << 10, 1 << 20, 1 << 30].map(|size| fitting.for_size(size)),
            [50, 50, 32, 8, 8]
        );
        assert_eq!([IterationRule::Number(3), IterationRule::Number(0)].map(|one| one.for_size(8)), [3, 1]);
    }
}
