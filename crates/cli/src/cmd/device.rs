//! `trunkline bench device`: parses the arguments. Called by `cmd::bench`; `bench::device` measures and prints the rows.

use std::process::ExitCode;

use clap::{Args, value_parser};

use crate::bench::BenchError;
use crate::bench::{self, device};

const HELP: &str = "\
Examples:
  trunkline bench device                   puts, signals, counters, producers, and what an idle queue costs
  trunkline bench device -b 8 -e 8         one size
  trunkline bench device -b 1G -e 2G -f 2  puts of several entries, of a GiB each
  trunkline bench device --json            one JSON object a row

Device queues between two ranks of this process. Kernels are threads, and entries are executed

  M0          by the thread that posts and waits, into memory of this process
  M1          by a thread, into memory of this process
  M1 soft:shm by a thread, over a software NIC through shared memory
  M1 soft:tcp the same through TCP
  M2 device   by a thread, for a kernel of a GPU, from and to memory of the GPU
  M2 pinned   the same, from and to memory of the host that the GPU sees

  B1  put + wait by ticket, by a counter that its own entry raises (fused), by one that a companion queue raises,
      which WAITs for the put; a signal; a put with a signal there and back (half of it); batches of 1, 16 and 64
  B2  producers of one queue
  B3  what a pass over 1,024 idle queues takes, a look at as many flags as a GPU sets them (a byte each), and an entry
      of a full batch, without the other side
  B4  one counter for 64 peers against 64 tickets
  B5  M0, M1 and M2 side by side: put + wait (of a GPU by its own clock), and batches of puts; of a GPU each with a
      signal behind it. Without a GPU of NVIDIA, its driver and NVRTC the row says SKIPPED, and why
  B6  a channel of the standard library, there and back

Times are medians (p50) and 99th percentiles; rates are millions of entries a second. The lines at the end compare
with what is aimed at. Their unit, a line transfer, is half of what a word takes from one processor to another and back,
measured in the same run. Two ranks take twice the largest size in memory; above 64M each row has three runs. #wrong should always be 0, and the exit status is 1 when it is not (2 when the run failed).";

/// Arguments of `bench device`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct DeviceArgs {
    /// Smallest size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, default_value = "8", value_parser = bench::sizes::parse)]
    minbytes: usize,
    /// Largest size in bytes.
    #[arg(short = 'e', long, default_value = "1M", value_parser = bench::sizes::parse)]
    maxbytes: usize,
    /// Multiply each size by this to get the next.
    #[arg(short = 'f', long, default_value_t = 16, value_parser = value_parser!(u64).range(2..))]
    factor: u64,
    /// Timed runs of each row; 0 runs 2000, and fewer for large sizes.
    #[arg(short = 'i', long, default_value_t = 0)]
    iters: u32,
    /// Most threads that post to one queue.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..=16))]
    producers: u64,
    /// Print one JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark; the exit status is 0 if all bytes were right.
pub(crate) fn run_device(args: &DeviceArgs) -> Result<ExitCode, BenchError> {
    if args.minbytes > args.maxbytes || args.maxbytes > device::BYTES_MAX {
        let text = format!("sizes from the smallest to the largest, at most {} B", device::BYTES_MAX);
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
