//! Joins this process to a job of a launcher: the processes connect, and rank 0 becomes the parent of the plugin host's
//! ranks. Called by `cmd::bench`; the only place that uses both the bootstrap and the plugin host.

use std::process::ExitCode;
use std::time::Duration;

use thiserror::Error;
use trunkline_bootstrap::{
    EnvironmentError, ExchangeError, JobBootstrap, JobEnvironment, JobStreams, JoinError, Launcher,
};
use trunkline_nccl_host::{LocalOverrides, ParentLoss, RankChannel, RankOrigin};

/// How long the other ranks may take to report that they are ready.
const READY: Duration = Duration::from_secs(60);

/// The processes of the job could not start together.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum LaunchedJobError {
    /// The launcher's variables are invalid.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The processes did not connect.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A process left the job.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A rank cannot start.
    #[error("rank {rank}: {reason}")]
    Other {
        /// The first rank that cannot.
        rank: usize,
        /// The reason.
        reason: String,
    },
    /// The streams cannot be used.
    #[error("cannot use the streams of the job: {0}")]
    Streams(#[from] std::io::Error),
}

/// A job whose processes are connected.
pub(crate) struct LaunchedJob(JobBootstrap);

/// The role of this process in the benchmark.
pub(crate) enum JobRole {
    /// Rank 0: the parent of all ranks, its own included.
    Parent(Vec<RankOrigin>),
    /// Another rank.
    Rank(RemoteRank),
}

/// A rank whose parent is another process.
pub(crate) struct RemoteRank {
    rank: usize,
    channel: RankChannel,
}

/// Whether a launcher's variables are set.
pub(crate) fn is_launched() -> Result<bool, LaunchedJobError> {
    Ok(JobEnvironment::read()?.is_some())
}

/// Connects to the other processes, if a launcher's variables are set.
pub(crate) fn join_job(limit: Duration) -> Result<Option<LaunchedJob>, LaunchedJobError> {
    match JobEnvironment::read()? {
        Some(environment) => Ok(Some(LaunchedJob(JobBootstrap::join(&environment, limit)?))),
        None => Ok(None),
    }
}

impl LaunchedJob {
    pub(crate) fn job_size(&self) -> usize {
        self.0.job_placement().size
    }

    pub(crate) fn launcher(&self) -> Launcher {
        self.0.launcher()
    }

    /// Whether all ranks can start. If a rank has a reason not to, rank 0 returns the first reason as an error and the
    /// other ranks return `false`, so that the reason is printed once.
    pub(crate) fn agree_to_start(&mut self, mine: Option<&impl ToString>) -> Result<bool, LaunchedJobError> {
        let given = mine.map(ToString::to_string).unwrap_or_default();
        let reasons = self.0.all_gather(given.as_bytes(), READY)?;
        match reasons.iter().position(|reason| !reason.is_empty()) {
            None => Ok(true),
            Some(rank) if self.0.job_placement().rank == 0 => Err(LaunchedJobError::Other {
                rank,
                reason: String::from_utf8_lossy(&reasons[rank]).into_owned(),
            }),
            Some(_) => Ok(false),
        }
    }

    /// Hands the streams to the plugin host and returns this process's role.
    pub(crate) fn into_role(self) -> Result<JobRole, LaunchedJobError> {
        let rank = self.0.job_placement().rank;
        match self.0.into_streams()? {
            JobStreams::Member(stream) => {
                Ok(JobRole::Rank(RemoteRank { rank, channel: RankChannel::from_tcp(stream)? }))
            }
            JobStreams::Center(members) => {
                let seat = |member| match member {
                    Some(stream) => RankChannel::from_tcp(stream).map(RankOrigin::Far),
                    None => Ok(RankOrigin::Child),
                };
                Ok(JobRole::Parent(members.into_iter().map(seat).collect::<std::io::Result<_>>()?))
            }
        }
    }
}

impl RemoteRank {
    /// Serves as a rank until the parent releases it. Ends the process if the run fails; rank 0 prints the reason.
    pub(crate) fn serve(self, own: LocalOverrides) -> Result<ExitCode, LaunchedJobError> {
        let rank = self.rank;
        let left = own.left.clone();
        let lost = move |loss| {
            // The process exits here, so destructors do not run: remove the directory explicitly.
            left.map(std::fs::remove_dir_all);
            if loss == ParentLoss::Gone {
                eprintln!("trunkline: rank {rank}: rank 0 has ended");
            }
            std::process::exit(2);
        };
        let wrong = trunkline_nccl_host::serve_parent(self.channel, Some(own), lost)?;
        Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
