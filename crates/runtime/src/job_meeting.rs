//! The ranks of a job that have met: exchanges of bytes and barriers, before a network is open. Meeting needs no setting.

use std::time::Duration;

use trunkline_bootstrap::{ExchangeError, JobBootstrap, JobEnvironment};
use trunkline_proto::reserve::{try_collect, try_vec};

use crate::MembershipError;

/// The ranks of this job, as they have met through the launcher.
#[derive(Debug)]
pub(crate) struct JobMeeting {
    environment: Option<JobEnvironment>,
    /// `None` for a job of one rank.
    bootstrap: Option<JobBootstrap>,
    limit: Duration,
}

impl JobMeeting {
    /// Meets the other ranks of the job that the environment describes; without one the job has one rank. Each step may take up to
    /// `limit`.
    ///
    /// # Errors
    /// [`MembershipError::Environment`], [`MembershipError::Join`].
    pub(crate) fn meet_ranks(limit: Duration) -> Result<Self, MembershipError> {
        Self::meet_as(JobEnvironment::read()?, limit)
    }

    /// The same for a job that the caller has read from the environment.
    pub(crate) fn meet_as(
        environment: Option<JobEnvironment>,
        limit: Duration,
    ) -> Result<Self, MembershipError> {
        let bootstrap = environment.as_ref().map(|environment| JobBootstrap::join(environment, limit));
        Ok(Self { bootstrap: bootstrap.transpose()?, environment, limit })
    }

    /// Returns the job as the environment describes it.
    pub(crate) fn job_environment(&self) -> Option<&JobEnvironment> {
        self.environment.as_ref()
    }

    /// Returns the rank of this process.
    pub(crate) fn own_rank(&self) -> usize {
        self.bootstrap.as_ref().map_or(0, |bootstrap| bootstrap.job_placement().rank)
    }

    /// Returns the number of ranks.
    pub(crate) fn rank_count(&self) -> usize {
        self.bootstrap.as_ref().map_or(1, |bootstrap| bootstrap.job_placement().size)
    }

    /// Gathers bytes: returns those that each rank passed, by rank. All ranks call it.
    ///
    /// # Errors
    /// [`MembershipError::Exchange`].
    pub(crate) fn exchange_bytes(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, MembershipError> {
        Ok(match &mut self.bootstrap {
            Some(bootstrap) => bootstrap.all_gather(mine, self.limit)?,
            None => {
                let mut all = try_vec(1).map_err(ExchangeError::from)?;
                all.push(try_collect(mine.iter().copied()).map_err(ExchangeError::from)?);
                all
            }
        })
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`MembershipError::Exchange`].
    pub(crate) fn wait_for_ranks(&mut self) -> Result<(), MembershipError> {
        if let Some(bootstrap) = &mut self.bootstrap {
            bootstrap.barrier(self.limit)?;
        }
        Ok(())
    }
}
