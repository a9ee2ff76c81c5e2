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
  trunkline bench rma -n 4                       also: quiet towards 1 to 3 ranks, and 1 to 3 ranks at one
  trunkline bench rma -b 8 -e 8 -i 100000        one size, 100000 timed runs of each
  TRUNKLINE_FABRIC=soft:tcp trunkline bench rma --raw
                                                 over TCP, with a bare TCP round trip beside it
  TRUNKLINE_FABRIC=soft:tcp trunkline bench rma -e 8 --computing
                                                 also: how soon a rank answers that makes no call
  trunkline bench rma --plot rma.svg             the table, and a picture of puts and gets
  trunkline bench rma --json                     one JSON object a row
  trunkline run --hosts a,b trunkline bench rma  between two hosts

One-sided communication by the Rust API (crate trunkline): rank 0 works on memory of rank 1, which
only waits in a call and so makes progress at once. What is measured:

  put + quiet    from the call until the bytes are visible at rank 1
  get            from the call until the bytes are here
  streams        as many as there is room for on their way, one quiet behind all of them
  atomics        executed by the rank that has the word; fetching ones until the value is here
  signal         half a round trip of signals; with a put of 8 B before it; and a stream
  quiet          after a put of 8 B to each of 1, 2, ... ranks, and with nothing to wait for
  fan-in         1, 2, ... ranks add to one word of rank 0, or put to it, all at once
  --computing    fetch-adds at a rank that computes and makes no call, each 5 ms after the last one,
                 so that its serving thread is asleep; at most 1000 of them

Times are medians (p50) and 99th percentiles of single operations; rates are millions a second. All
bytes, sums and values are checked: #wrong should always be 0, and the exit status is 1 when it is not (2
when the run failed).

--json prints one object a row; its collective is put, get, or the name of the line.

The environment chooses the fabric (TRUNKLINE_FABRIC); `trunkline info --params` lists all settings.";

/// Arguments of `bench rma`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct RmaArgs {
    /// Rank processes to start, 2 to 16 [default: 2; under a launcher: its number of processes].
    #[arg(short = 'n', long, value_parser = value_parser!(u64).range(2..=RANKS_MAX))]
    ranks: Option<u64>,
    /// Smallest size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, default_value = "8", value_parser = bench::sizes::parse)]
    minbytes: usize,
    /// Largest size in bytes.
    #[arg(short = 'e', long, default_value = "4M", value_parser = bench::sizes::parse)]
    maxbytes: usize,
    /// Multiply each size by this to get the next.
    #[arg(short = 'f', long, default_value_t = 4, value_parser = value_parser!(u64).range(2..))]
    factor: u64,
    /// Verify the results; 0 verifies nothing.
    #[arg(short = 'c', long, default_value_t = 1)]
    check: u32,
    /// Timed runs of each operation; 0 selects a number that fits the size.
    #[arg(short = 'i', long, default_value_t = 0)]
    iters: usize,
    /// Start no progress thread: shows the progress that the waiting rank makes by itself.
    #[arg(long)]
    no_passive: bool,
    /// Also measure a round trip of 8 bytes over a bare TCP connection inside this host, both ends spinning.
    #[arg(long)]
    raw: bool,
    /// Also measure fetch-adds, one every 5 ms, at a rank that computes and makes no call.
    #[arg(long, conflicts_with = "no_passive")]
    computing: bool,
    /// Print one JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
    /// Draw bandwidth and time of puts and gets over size after the run.
    #[arg(long, value_name = "FILE.svg", value_parser = super::plot::picture_path)]
    plot: Option<PathBuf>,
}

/// Runs the benchmark in each rank; the exit status is 0 if all results were right.
pub(crate) fn run_rma(args: &RmaArgs) -> Result<ExitCode, BenchError> {
    if args.maxbytes < args.minbytes {
        return Err(BenchError::Usage("the largest size is smaller than the smallest".into()));
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
            "there are {} ranks; it takes two, and -n is for those that are started here",
            world.size()
        );
        return Err(BenchError::Usage(if launched { told } else { "it takes two ranks".into() }));
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
