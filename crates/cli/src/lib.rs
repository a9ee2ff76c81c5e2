//! The `trunkline` command: benchmarks, and what is to come, behind one set of subcommands.
//!
//! Run by people. Each subcommand is one file in `cmd`; this file only chooses. It names no item of the plugin:
//! what it measures is loaded with `dlopen` like any other plugin.
#![forbid(unsafe_code)]

mod bench;
mod cmd;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod job;
mod locate;
mod run;
mod selftest;
mod sweep;
mod top;
mod topo;

use std::process::ExitCode;

use clap::Parser;

/// Communication transport for GPU clusters: measure it, look into it.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version = trunkline_runtime::VERSION, arg_required_else_help = true, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    command: cmd::CliCommand,
}

const EXAMPLES: &str = "\
Examples:
  trunkline bench all_reduce                   two ranks here, 8 B to 64 MiB, every byte verified
  trunkline bench p2p                          latency, bandwidth, message rate of the plugin API
  trunkline bench alltoall -n 4 -b 1M -e 16M   four ranks, 1 MiB to 16 MiB
  trunkline bench all_reduce --plugin ./libnccl-net-other.so
  trunkline run --hosts a,b trunkline bench p2p   the same between two hosts
  trunkline sweep --quick                      how many queue pairs? 14 configurations, one HTML report
  trunkline selftest --report report.md        checks of RDMA NICs and GPUs, a report for an issue
  trunkline plot p2p.svg ours.json other.json  saved results as one picture
  trunkline info                               fabrics, NICs, how bytes are copied
  trunkline info --params                      every setting and its value
  trunkline topo                               GPUs and NICs, and which NICs a GPU uses
  trunkline top                                what is going on in the processes of this host";

/// Runs the command of this process's arguments; its exit status.
#[must_use]
pub fn run_command() -> ExitCode {
    if let Some(code) = trunkline_nccl_host::rank_entry() {
        return code;
    }
    match cmd::run_subcommand(CommandLine::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("trunkline: {error}");
            ExitCode::from(2)
        }
    }
}
