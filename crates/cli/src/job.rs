//! This process as one of several that a launcher started: they meet, and rank 0 becomes the parent of the plugin host's
//! ranks. Called by `cmd::bench`; the only place where bootstrap and plugin host come together.

use std::process::ExitCode;
use std::time::Duration;

use thiserror::Error;
use trunkline_bootstrap::{
    EnvironmentError, ExchangeError, JobBootstrap, JobEnvironment, JobStreams, JoinError, Launcher,
};
use trunkline_nccl_host::{LocalOverrides, ParentLoss, RankChannel, RankOrigin};

/// How long the others may take to say whether they are ready.
const READY: Duration = Duration::from_secs(60);

/// The processes of the job did not come together.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum LaunchedJobError {
    /// The launcher's variables cannot be.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// They did not meet.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// One left.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// One cannot begin.
    #[error("rank {rank}: {reason}")]
    Other {
        /// The first of them.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// The streams cannot be used.
    #[error("cannot use the streams of the job: {0}")]
    Streams(#[from] std::io::Error),
}

/// A job that has met.
pub(crate) struct LaunchedJob(JobBootstrap);

/// What this process is from here on.
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

/// Whether the environment says that there are others.
pub(crate) fn is_launched() -> Result<bool, LaunchedJobError> {
    Ok(JobEnvironment::read()?.is_some())
}

/// Meets the others, if the environment says that there are any.
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

    /// Whether all can go on. Where one has a reason not to, rank 0 gets the first as an error and the others `false`, so
    /// that it is told once.
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

    /// Gives the streams to the plugin host.
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
    /// Is a rank until the parent lets it go; ends the process when the run fails, which rank 0 explains.
    pub(crate) fn serve(self, own: LocalOverrides) -> Result<ExitCode, LaunchedJobError> {
        let rank = self.rank;
        let left = own.left.clone();
        let lost = move |loss| {
            // Nothing is dropped on this way out.
            left.map(std::fs::remove_dir_all);
            if loss == ParentLoss::Gone {
                eprintln!("trunkline: rank {rank}: rank 0 is gone");
            }
            std::process::exit(2);
        };
        let wrong = trunkline_nccl_host::serve_parent(self.channel, Some(own), lost)?;
        Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
