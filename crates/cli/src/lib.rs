//! The `trunkline` command: benchmarks, the launcher, and information about this host, behind one set of subcommands.
//!
//! Users run it, and tests call its library. Each subcommand is one file in `cmd`; this file only selects one. It names
//! no item of the plugin: `bench` loads plugins with `dlopen` like any other host, `info` opens the software NIC
//! itself, and `sim` runs the crate of that name.
//!
//! # Folders, in reading order
//!
//! - `cmd/`: the subcommands. `bench/`, `sweep/`, `job.rs`, `locate.rs`: benchmarks and their ranks. `run/`: the
//!   launcher.
//! - `top/`, `topo/`, `selftest/`: other processes' status pages; devices of a node; checks of hardware.
//!
//! # One benchmark
//!
//! 1. `cmd/bench.rs` parses arguments and finds the plugin (`locate.rs`).
//! 2. `trunkline_nccl_host` starts a rank process for each rank, or `job.rs` joins those that another launcher started.
//!    The command is also their program (`rank_entry`).
//! 3. `bench/` prints rows as the ranks report them. `bench --trace` sets `TRUNKLINE_TRACE` for the ranks, which send
//!    their files to the parent; `bench/trace.rs` joins them. The parent knows only that a plugin may leave files.
//!
//! `top` reads the status pages of all processes that it may inspect, and `info --pid` that of one. A reader parses
//! pages as hostile bytes.
#![forbid(unsafe_code)]

mod bench;
mod cmd;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod job;
mod locate;
mod own_settings;
mod run;
mod selftest;
mod sweep;
mod top;
mod topo;

use std::process::ExitCode;

use clap::Parser;

/// Communication transport for GPU clusters: benchmark, launch and inspect.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version = trunkline_runtime::VERSION, arg_required_else_help = true, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    command: cmd::CliCommand,
}

const EXAMPLES: &str = "\
Examples:
  trunkline bench all_reduce                      2 ranks here, 8 B to 64 MiB, every byte verified
  trunkline bench p2p                             latency, bandwidth, message rate of the plugin API
  trunkline bench alltoall -n 4 -b 1M -e 16M      4 ranks, 1 MiB to 16 MiB
  trunkline bench all_reduce --plugin ./libnccl-net-other.so
                                                  the same by another plugin
  trunkline run --hosts a,b trunkline bench p2p   the same between two hosts
  trunkline sweep --quick                         compare 14 configurations of queue pairs in one report
  trunkline selftest --report report.md           check RDMA NICs and GPUs; the report is for an issue
  trunkline plot p2p.svg ours.json other.json     plot saved results in one picture
  trunkline info                                  fabrics, NICs, how the software NIC copies data
  trunkline info --params                         every setting and its value
  trunkline topo                                  GPUs and NICs, and the NICs that each GPU uses
  trunkline top                                   activity of the processes of this host";

/// Runs the command with this process's arguments; returns its exit status.
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
