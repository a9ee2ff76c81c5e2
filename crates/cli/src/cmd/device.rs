//! `trunkline bench device`: parses the arguments. Called by `cmd::bench`; `bench::device` measures and prints the
//! rows.

use std::process::ExitCode;

use clap::{Args, value_parser};

use crate::bench::BenchError;
use crate::bench::{self, device};

const HELP: &str = "\
Examples:
  trunkline bench device                   puts, signals, counters, producers, cost of idle queues
  trunkline bench device -b 8 -e 8         one size
  trunkline bench device -b 1G -e 2G -f 2  puts of several entries, of 1 GiB each
  trunkline bench device --json            one JSON object per row

Two ranks of this process use device queues. Kernels are threads, except in mode M2. The way of a row names
the executor of entries:

  M0           the thread that posts and waits; puts into memory of this process
  M1           a separate thread; puts into memory of this process
  M1 soft:shm  a separate thread; puts over a software NIC through shared memory
  M1 soft:tcp  a separate thread; puts over a software NIC through TCP
  M2 device    a separate thread, for a kernel of a GPU; puts from and to GPU memory
  M2 pinned    a separate thread, for a kernel of a GPU; puts from and to pinned host memory

The benchmarks are:

  B1  put + wait by ticket, by a counter that its own entry increments (fused), and by a counter that a
      companion queue increments after a WAIT for the put; a signal; half a round trip of a put with a
      signal; batches of 1, 16 and 64 entries
  B2  several producers of one queue
  B3  a pass over 1,024 idle queues; a poll of 1,024 flags as a GPU sets them (one byte each); one entry of
      a full batch of NOPs
  B4  one counter for 64 peers, compared with 64 tickets
  B5  M0, M1 and M2 side by side: put + wait (on a GPU by its own clock), and batches of puts (on a GPU each
      with a signal behind it). SKIPPED without an NVIDIA GPU, its driver and NVRTC; the row has the reason.
  B6  a round trip over a channel of Rust's standard library, as a baseline

Times are medians (p50) and 99th percentiles. Rates are millions of entries per second. The lines at the end
compare figures with their goals, some in line transfers: half the round trip of a word between two
processors, measured in the same run. The two ranks need twice the largest size in memory. Sizes above 64M
have 3 runs per row. #wrong should be 0.

The exit status is 0 if all bytes were right, 1 if some were wrong, 2 if the run failed.";

/// Arguments of `bench device`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct DeviceArgs {
    /// Start at this size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, default_value = "8", value_parser = bench::sizes::parse)]
    minbytes: usize,
    /// End at this size in bytes, at most 64G.
    #[arg(short = 'e', long, default_value = "1M", value_parser = bench::sizes::parse)]
    maxbytes: usize,
    /// Multiply each size by this factor to get the next.
    #[arg(short = 'f', long, default_value_t = 16, value_parser = value_parser!(u64).range(2..))]
    factor: u64,
    /// Time this many iterations per row; 0 selects 2000, and fewer for large sizes.
    #[arg(short = 'i', long, default_value_t = 0)]
    iters: u32,
    /// Post to one queue from at most this many threads.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..=16))]
    producers: u64,
    /// Print one JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark; the exit status is 0 if all bytes were right.
pub(crate) fn run_device(args: &DeviceArgs) -> Result<ExitCode, BenchError> {
    if args.minbytes > args.maxbytes || args.maxbytes > device::BYTES_MAX {
        let text = format!(
            "the sizes are out of range: -b must not exceed -e, and -e must not exceed {} B",
            device::BYTES_MAX
        );
        return Err(BenchError::Usage(text));
    }
    let settings = device::DeviceBenchSettings {
        sizes: bench::sizes::size_series(args.minbytes, args.maxbytes, args.factor as usize),
        iterations: args.iters as usize,
        producers: args.producers as usize,
        json: args.json,
    };
    settings.check_memory().map_err(BenchError::Usage)?;
    let wrong = device::run_device_bench(&settings)?;
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
