//! `trunkline sweep`: parses the arguments.
//!
//! Called by `cmd`. The `sweep` module runs the rows and writes the report.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, value_parser};
use thiserror::Error;
use trunkline_nccl_host::{Collective, DeviceSelection, MemoryKind, RankJob};

use crate::bench::sizes;
use crate::job::{self, LaunchedJobError};
use crate::locate::{self, LocateError};
use crate::sweep::configuration::SweepConfiguration;
use crate::sweep::page::{self, SweepPageError};
use crate::sweep::{self, CommonSettings, IterationRule, SweepError, SweepPlan, SweepVerdict};

/// Time limit of one collective with one configuration in one round, its start included.
const RUN_TIME: Duration = Duration::from_secs(300);
/// Most bytes of a message.
const CHUNK: usize = 2 << 20;
/// Number of timed runs of a row by default.
const USUAL: IterationRule = IterationRule::Fitting { bytes: 32 << 20, few: 20, many: 200 };
const QUICK: IterationRule = IterationRule::Fitting { bytes: 8 << 20, few: 8, many: 50 };
/// Least bytes of a chunk.
const CHUNK_MIN: usize = 64;
/// Bytes of an element.
const ELEMENT: usize = 4;

const EXAMPLES: &str = "\
Examples:
  trunkline sweep                               14 configurations, 10 collectives, 5 rounds
  trunkline sweep --quick                       few sizes and iterations: a minute or two
  trunkline sweep --collectives all_reduce,alltoall --configs q1,m4d1,m8d1
                                                2 collectives, 3 configurations
  trunkline sweep --comms 16 --channels 32      512 connections in each direction
  trunkline sweep --quick --json > sweep.json   one JSON object per row

A sweep shows how many queue pairs connections need, and how many connections may share them. It runs each
collective with each configuration, verifies the data, and counts queue pairs and completion queues:

  q1, q4        no sharing; a connection has 1 or 4 links (TRUNKLINE_LINKS_PER_RAIL)
  m1d1 to m8d4  connections of one direction between two processes share 1, 2, 4 or 8 groups of queue
                pairs (TRUNKLINE_QP_GROUPS), whose queues have 1, 2 or 4 times the depth
                (TRUNKLINE_QP_DEPTH_MULTIPLIER)

The NICs of a rank count its queues, and the sweep reads them from the rank's status page, as `trunkline
top` does. The expected numbers are beside them. Each peer and direction has a group per connection, or at
most m groups with sharing; a group has one queue pair per link and one completion queue. Fewer completion
queues are right, too. A connection without messages may lack links after its first, because they are
created on first use. A difference is marked by ! (red on a terminal and in the report); if ranks differ,
the row shows one that does not match.

Each round runs all configurations, so that a slow phase of the machine affects all of them. Figures are
medians over the rounds, out of place; min and max are the spread.

The report is one self-contained HTML file: bus bandwidth of each configuration relative to the first,
queues in use, bandwidth over size. --json prints the keys of `bench --json`, and these:
  configuration
  groups                              groups per peer and direction; 0: not shared
  depth                               multiple of the depth of queues
  qps                                 links of a connection
  rounds, busbw_min, busbw_max        number of rounds, and the spread over them
  queue_pairs, cqs                    queue pairs and completion queues in use
  queue_pairs_expected, cqs_expected  their expected numbers
  formula                             whether both match

The exit status is 0 if data and queues were right, 1 if data was wrong or queues did not match (unless
--allow-mismatch is given), 2 if a run failed.";

/// Arguments of `sweep`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SweepArgs {
    /// Run these collectives, separated by commas [default: all ten].
    #[arg(long, value_delimiter = ',', value_parser = collective_parser())]
    collectives: Vec<Collective>,
    /// Run these configurations, separated by commas; the first in the order below is the baseline [default: all 14].
    #[arg(long, value_delimiter = ',', value_name = "CONFIGS")]
    configs: Vec<SweepConfiguration>,
    /// Use few sizes and iterations.
    #[arg(long)]
    quick: bool,
    /// Start this many rank processes, 2 to 16.
    #[arg(short = 'n', long, default_value_t = 2, value_parser = value_parser!(u64).range(2..=16))]
    ranks: u64,
    /// Run this many communicators at the same time, on separate data.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..=16))]
    comms: u64,
    /// Open this many channels (connections to each peer) per communicator.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..=64))]
    channels: u64,
    /// Start at this size in bytes; K, M and G are powers of 1024 [default: 1K; quick: 4K].
    #[arg(short = 'b', long, value_parser = sizes::parse)]
    minbytes: Option<usize>,
    /// End at this size in bytes [default: 16M; quick: 1M].
    #[arg(short = 'e', long, value_parser = sizes::parse)]
    maxbytes: Option<usize>,
    /// Multiply each size by this factor to get the next [default: 4; quick: 16].
    #[arg(short = 'f', long, value_parser = value_parser!(u64).range(2..))]
    factor: Option<u64>,
    /// Post receives of at least this size, even for shorter messages, as NCCL does; exact: of the message's length.
    #[arg(long, value_name = "SIZE|exact", default_value = "1M", value_parser = sizes::parse_receive)]
    receive: usize,
    /// Run this many warm-up iterations before the timed ones [default: 2; quick: 1].
    #[arg(short = 'w', long)]
    warmup: Option<u32>,
    /// Time this many iterations per row and round [default: 20, more for small sizes; quick: 8, more for small sizes].
    #[arg(short = 'i', long, value_parser = value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Run each collective with each configuration this many times [default: 5; quick: 3].
    #[arg(long, value_parser = value_parser!(u64).range(1..=100))]
    rounds: Option<u64>,
    /// Write the report to this file (.html), which is replaced.
    #[arg(long, value_name = "FILE.html", default_value = "trunkline-sweep.html", value_parser = report_path)]
    out: PathBuf,
    /// Print one JSON object per row instead of tables.
    #[arg(long)]
    json: bool,
    /// Report queue counts that do not match, but do not fail.
    #[arg(long)]
    allow_mismatch: bool,
}

/// Why a sweep has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum SweepRunError {
    /// The plugin was not found.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The launcher's variables are invalid.
    #[error(transparent)]
    Job(#[from] LaunchedJobError),
    /// The program cannot restart with `TRUNKLINE_FABRIC` set.
    #[error("cannot restart this program with TRUNKLINE_FABRIC set: {0}")]
    Network(#[source] std::io::Error),
    /// A run failed.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// The report cannot be written.
    #[error(transparent)]
    Page(#[from] SweepPageError),
    /// Standard output cannot be written.
    #[error("cannot write the results: {0}")]
    Print(#[from] std::io::Error),
    /// Two arguments contradict each other.
    #[error("{0}")]
    Usage(&'static str),
}

fn collective_parser() -> impl clap::builder::TypedValueParser<Value = Collective> {
    PossibleValuesParser::new(Collective::NAMES).try_map(|name| name.parse::<Collective>())
}

/// Parses the path of a report. Only `.html` is accepted, so that a mistyped argument does not overwrite results.
fn report_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("html") => Ok(path),
        _ => Err("the report is an HTML file; end its name in .html".to_owned()),
    }
}

/// Runs the sweep; the exit status is 0 if bytes and queue counts were right.
pub(crate) fn run_sweep(args: &SweepArgs) -> Result<ExitCode, SweepRunError> {
    if job::is_launched()? {
        return Err(SweepRunError::Usage("sweep starts its ranks itself; run it without a launcher"));
    }
    crate::bench::ready_network().map_err(SweepRunError::Network)?;
    let plan = build_plan(args)?;
    page::prepare_file(&args.out)?;
    let mut out = std::io::stdout().lock();
    let results = sweep::run_plan(&plan, &mut out)?;
    page::write_report(&args.out, &plan, &results)?;
    let verdict = sweep::judge_results(&plan, &results);
    let words = summary_lines(&verdict, results.cells.len(), args);
    if args.json {
        eprint!("{words}")
    } else {
        write!(out, "{words}")?
    }
    let fits = args.allow_mismatch || verdict.misfits == 0;
    Ok(if verdict.wrong == 0 && fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The last lines of the output.
fn summary_lines(verdict: &SweepVerdict, cells: usize, args: &SweepArgs) -> String {
    let SweepVerdict { wrong, misfits } = *verdict;
    let right = if wrong == 0 { "OK" } else { "FAILED" };
    let fit = match misfits {
        0 => "0 OK".to_owned(),
        _ if args.allow_mismatch => format!("{misfits} of {cells} ALLOWED"),
        _ => format!("{misfits} of {cells} FAILED"),
    };
    format!(
        "#\n# Out of bounds values   : {wrong} {right}\n# Queues unlike formula  : {fit}\n# Report                 : {}\n",
        args.out.display()
    )
}

fn build_plan(args: &SweepArgs) -> Result<SweepPlan, SweepRunError> {
    let quick = |quick: usize, usual: usize| if args.quick { quick } else { usual };
    let minbytes = args.minbytes.unwrap_or(quick(4 << 10, 1 << 10));
    let maxbytes = args.maxbytes.unwrap_or(quick(1 << 20, 16 << 20).max(minbytes));
    if maxbytes < minbytes {
        return Err(SweepRunError::Usage(
            "the largest size is smaller than the smallest; raise -e or lower -b",
        ));
    }
    let factor = args.factor.map_or(quick(16, 4), |factor| factor as usize);
    let asked = |one: &Collective| args.collectives.is_empty() || args.collectives.contains(one);
    let wanted = |one: &SweepConfiguration| args.configs.is_empty() || args.configs.contains(one);
    let ranks = args.ranks as usize;
    let fitting = if args.quick { QUICK } else { USUAL };
    // The smallest blocks have one element per rank, which may be more bytes than requested.
    let bytes_max = maxbytes.max(CHUNK_MIN).max(ranks * ELEMENT);
    Ok(SweepPlan {
        collectives: Collective::ALL.iter().copied().filter(asked).collect(),
        configurations: SweepConfiguration::all().into_iter().filter(wanted).collect(),
        rounds: args.rounds.map_or(quick(3, 5), |rounds| rounds as usize),
        common: CommonSettings {
            job: RankJob {
                plugin: locate::find_plugin(None)?,
                abi: None,
                device: DeviceSelection::Number(0),
                ranks,
                comms: args.comms as usize,
                channels: args.channels as usize,
                collective: None,
                root: 0,
                bytes_max,
                chunk: CHUNK.min(bytes_max / ELEMENT * ELEMENT),
                receive_min: args.receive,
                memory: MemoryKind::Private,
                flush: None,
                timeout: RUN_TIME,
                row_timeout: RUN_TIME,
                keep: None,
                environment: Vec::new(),
            },
            sizes: sizes::size_series(minbytes, maxbytes, factor),
            warmup: args.warmup.unwrap_or(quick(1, 2) as u32),
            iterations: args.iters.map_or(fitting, IterationRule::Number),
            json: args.json,
        },
    })
}
