//! The subcommands, one file each. Called by `main`.

mod bench;
mod device;
mod fabrics;
mod gpus;
mod grants;
mod info;
mod plot;
mod rma;
mod run;
mod selftest;
mod sim;
mod sweep;
mod top;
mod topo;
mod unknown_variables;
mod unused;

use std::process::ExitCode;

use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Run a collective, or point-to-point messages, over a NCCL net plugin, or one-sided operations, and verify every byte.
    Bench(Box<bench::BenchArgs>),
    /// Show fabrics, NICs, how bytes are copied, and every setting.
    Info(info::InfoArgs),
    /// Start the processes of a job, here or on several hosts.
    Run(run::RunArgs),
    /// Draw results of `bench --json`: bandwidth and latency over size, several runs in one picture.
    Plot(plot::PlotArgs),
    /// Run every collective with 14 ways to share queue pairs, and write a report of what each brings and costs.
    Sweep(Box<sweep::SweepArgs>),
    /// Check this host's RDMA NICs and GPUs, ten minutes at most, and write a report to paste into an issue.
    Selftest(Box<selftest::SelftestArgs>),
    /// Run the protocols over a simulated network, from a seed.
    Sim(sim::SimArgs),
    /// Show what processes of this host are doing: messages and bytes a second, what waits, what failed.
    Top(top::TopArgs),
    /// Show the GPUs and NICs of this machine, how near they are, and which NICs a GPU uses.
    Topo(topo::TopoArgs),
    /// The launcher's hand on a host.
    #[command(hide = true)]
    RunAgent,
    /// The last step before a rank's program.
    #[command(hide = true)]
    RunChild(run::ChildArgs),
}

/// Runs a subcommand.
pub(crate) fn run_subcommand(command: CliCommand) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        CliCommand::Bench(args) => Ok(bench::run_bench(&args)?),
        CliCommand::Info(args) => Ok(info::run_info(&args)?),
        CliCommand::Run(args) => Ok(run::run_job(&args)?),
        CliCommand::RunAgent => Ok(crate::run::agent::run_agent()),
        CliCommand::RunChild(args) => Ok(run::become_child(&args)),
        CliCommand::Plot(args) => Ok(plot::run_plot(&args)?),
        CliCommand::Selftest(args) => Ok(selftest::run_selftest(&args)?),
        CliCommand::Sim(args) => Ok(sim::run_sim(&args)?),
        CliCommand::Sweep(args) => Ok(sweep::run_sweep(&args)?),
        CliCommand::Top(args) => Ok(top::run_top(&args)?),
        CliCommand::Topo(args) => Ok(topo::run_topo(&args)?),
    }
}
