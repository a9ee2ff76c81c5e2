//! The error of a benchmark. Returned by all benchmarks and by the subcommands that run them.

use thiserror::Error;
use trunkline_nccl_host::RankLaunchError;

use super::device::DeviceBenchError;
use super::plot::PlotError;
use super::trace::TraceError;
use crate::job::LaunchedJobError;
use crate::locate::LocateError;

/// Why a benchmark has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum BenchError {
    /// The plugin was not found.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The processes of the job did not meet.
    #[error(transparent)]
    Job(#[from] LaunchedJobError),
    /// The ranks failed.
    #[error(transparent)]
    Launch(#[from] RankLaunchError),
    /// Nothing can be printed any more.
    #[error("cannot write the results: {0}")]
    Print(#[from] std::io::Error),
    /// A name that the argument parser accepted is unknown.
    #[error(transparent)]
    Name(#[from] trunkline_nccl_host::UnknownName),
    /// The picture cannot be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Messages failed.
    #[error(transparent)]
    Messages(#[from] trunkline::messages::MessageError),
    /// One-sided work failed.
    #[error(transparent)]
    Rma(#[from] trunkline::Error),
    /// Device queues failed.
    #[error(transparent)]
    Device(#[from] DeviceBenchError),
    /// The program cannot restart with `TRUNKLINE_NEAR` set.
    #[error("cannot restart this program with TRUNKLINE_NEAR set: {0}")]
    Near(#[source] std::io::Error),
    /// The program cannot restart with `TRUNKLINE_FABRIC` set.
    #[error("cannot restart this program with TRUNKLINE_FABRIC set: {0}")]
    Network(#[source] std::io::Error),
    /// Two arguments contradict each other, or a value is out of range.
    #[error("{0}")]
    Usage(String),
}
