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
mod settings_view;
mod sim;
mod sweep;
mod top;
mod topo;
mod unused;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommand to run.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Measure collectives, point-to-point messages, one-sided operations or device queues, and verify every byte.
    Bench(Box<bench::BenchArgs>),
    /// Show fabrics, NICs, how the software NIC copies data, and settings.
    Info(info::InfoArgs),
    /// Start the ranks of a job, here or on several hosts.
    Run(run::RunArgs),
    /// Plot results of `bench --json`: bandwidth and time by message size, several runs in one picture.
    Plot(plot::PlotArgs),
    /// Run every collective in 14 configurations of queue pairs, and report bandwidth and queue pairs in use.
    Sweep(Box<sweep::SweepArgs>),
    /// Check this host's RDMA NICs and GPUs in at most ten minutes, and write a report to attach to an issue.
    Selftest(Box<selftest::SelftestArgs>),
    /// Run the protocols over a simulated network, from a seed.
    Sim(sim::SimArgs),
    /// Show the activity of this host's processes: messages and bytes per second, stalls, failures.
    Top(top::TopArgs),
    /// Show the GPUs and NICs of this host, their distances, and the NICs that each GPU uses.
    Topo(topo::TopoArgs),
    /// Run the launcher's agent, the process that starts and watches the ranks of one host.
    #[command(hide = true)]
    RunAgent,
    /// Become the program of a rank; started by the agent.
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
