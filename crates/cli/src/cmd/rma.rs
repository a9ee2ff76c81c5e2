//! `trunkline bench rma`: parses the arguments. Called by `cmd::bench`; `bench::rma` measures and prints the rows.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, value_parser};
use trunkline::World;

use crate::bench::BenchError;
use crate::bench::{self, plot, rma};
use crate::job;

/// Most ranks that a run starts itself.
const RANKS_MAX: u64 = 16;
/// Bytes of the heap beside the data.
const SMALL: u64 = 1 << 20;

const HELP: &str = "\
Examples:
  trunkline bench rma                            2 ranks here: put, get, atomics, signals
  trunkline bench rma -n 4                       also quiet and fan-in with up to 3 other ranks
  trunkline bench rma -b 8 -e 8 -i 100000        one size, 100000 timed iterations per operation
  TRUNKLINE_FABRIC=soft:tcp trunkline bench rma --raw
                                                 over TCP, beside a bare TCP round trip
  TRUNKLINE_FABRIC=soft:tcp trunkline bench rma -e 8 --computing
                                                 also the latency at a rank that makes no call
  trunkline bench rma --plot rma.svg             the table, and a plot of puts and gets
  trunkline bench rma --json                     one JSON object per row
  trunkline run --hosts a,b trunkline bench rma  between two hosts

Rank 0 accesses memory of rank 1 by the Rust API (crate trunkline). Rank 1 waits inside a call, and so makes
progress at once. The rows are:

  put + quiet    time from the call until the bytes are visible at rank 1
  get            time from the call until the bytes have arrived at rank 0
  streams        as many operations in flight as fit, then one quiet
  atomics        executed by the rank that owns the word; fetching ones until the value has arrived
  signal         half a round trip: signals alone, signals after a put of 8 B, and a stream of signals
  quiet          after a put of 8 B to each of 1, 2, ... ranks, and with nothing pending
  fan-in         1, 2, ... ranks at once add to one word of rank 0, or put to it
  --computing    fetch-adds at a rank that computes and makes no call, one every 5 ms, so that its
                 progress thread is asleep; at most 1000 of them

Times are medians (p50) and 99th percentiles of single operations. Rates are millions per second. #wrong
counts wrong bytes, sums and values; it should be 0.

The exit status is 0 if all results were right, 1 if some were wrong, 2 if the run failed.

--json prints one object per row; its key collective has put, get, or the name of the row.

TRUNKLINE_FABRIC selects the fabric; `trunkline info --params` lists all settings.";

/// Arguments of `bench rma`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct RmaArgs {
    /// Start this many rank processes, 2 to 16 [default: 2; under a launcher: its number of processes].
    #[arg(short = 'n', long, value_parser = value_parser!(u64).range(2..=RANKS_MAX))]
    ranks: Option<u64>,
    /// Start at this size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, default_value = "8", value_parser = bench::sizes::parse)]
    minbytes: usize,
    /// End at this size in bytes.
    #[arg(short = 'e', long, default_value = "4M", value_parser = bench::sizes::parse)]
    maxbytes: usize,
    /// Multiply each size by this factor to get the next.
    #[arg(short = 'f', long, default_value_t = 4, value_parser = value_parser!(u64).range(2..))]
    factor: u64,
    /// Verify the results; 0 verifies nothing.
    #[arg(short = 'c', long, default_value_t = 1)]
    check: u32,
    /// Time this many iterations per operation; 0 selects a number that fits the size.
    #[arg(short = 'i', long, default_value_t = 0)]
    iters: usize,
    /// Start no progress thread, to measure the progress that the waiting rank makes by itself.
    #[arg(long)]
    no_passive: bool,
    /// Also measure a round trip of 8 bytes over a bare TCP connection inside this host; both ends spin.
    #[arg(long)]
    raw: bool,
    /// Also measure fetch-adds, one every 5 ms, at a rank that computes and makes no call.
    #[arg(long, conflicts_with = "no_passive")]
    computing: bool,
    /// Print one JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
    /// Plot bandwidth and time of puts and gets over size after the run.
    #[arg(long, value_name = "FILE.svg", value_parser = super::plot::picture_path)]
    plot: Option<PathBuf>,
}

/// Runs the benchmark in each rank; the exit status is 0 if all results were right.
pub(crate) fn run_rma(args: &RmaArgs) -> Result<ExitCode, BenchError> {
    if args.maxbytes < args.minbytes {
        return Err(BenchError::Usage(
            "the largest size is smaller than the smallest; raise -e or lower -b".into(),
        ));
    }
    let launched = job::is_launched()?;
    if !trunkline::is_rank()? {
        return Ok(trunkline::start_ranks(args.ranks.unwrap_or(2) as usize)?);
    }
    let heap = 2 * (args.maxbytes as u64).next_multiple_of(4096) + SMALL;
    let mut builder = World::builder().heap(heap.max(64 << 20));
    if args.no_passive {
        builder = builder.passive(false);
    }
    let world = builder.start()?;
    if args.ranks.is_some_and(|asked| asked as usize != world.size()) || world.size() < 2 {
        let told = format!(
            "bench rma cannot use the {} ranks of this job: start at least 2, and leave -n out",
            world.size()
        );
        return Err(BenchError::Usage(if launched {
            told
        } else {
            "bench rma needs at least 2 ranks; raise -n".into()
        }));
    }
    let settings = rma::RmaBenchSettings {
        sizes: bench::sizes::size_series(args.minbytes, args.maxbytes, args.factor as usize),
        check: args.check > 0,
        iterations: args.iters,
        raw: args.raw,
        computing: args.computing,
        json: args.json,
        plot: args.plot.clone().filter(|_| world.rank() == 0).map(plot::PendingPlot::new),
    };
    let wrong = rma::run_rma(&settings, &world)?;
    world.finish()?;
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
