//! Why a benchmark gave no result. Returned by all benchmarks and by the subcommands that run them.

use thiserror::Error;
use trunkline_nccl_host::RankLaunchError;

use super::device::DeviceBenchError;
use super::plot::PlotError;
use super::trace::TraceError;
use crate::job::LaunchedJobError;
use crate::locate::LocateError;

/// Why a benchmark gave no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum BenchError {
    /// No plugin.
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
    /// A name that the arguments let through.
    #[error(transparent)]
    Name(#[from] trunkline_nccl_host::UnknownName),
    /// No picture.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// No trace.
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
    /// No other environment.
    #[error("cannot start again with TRUNKLINE_NEAR set: {0}")]
    Near(#[source] std::io::Error),
    /// Nor for another network.
    #[error("cannot start again with TRUNKLINE_FABRIC set: {0}")]
    Network(#[source] std::io::Error),
    /// Two arguments do not go together.
    #[error("{0}")]
    Usage(String),
}
