//! What the environment says about the job this process belongs to: its place in it, and how to find the others.
//!
//! Pure: variables come in through a function, so that tests need no environment. The front ends call `JobEnvironment::read`.

use std::net::IpAddr;

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, RendezvousMethod, SecretSource,
};
use crate::{openmpi, pmi, slurm, torchrun, trunkline_run};

/// Whether a host's name says that no process of another host can listen there.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl JobEnvironment {
    /// The place of this process in its job, where the environment tells it.
    #[must_use]
    pub fn job_placement(&self) -> Option<JobPlacement> {
        self.place
    }

    /// A warning about the job's secret, if one is needed: for rank 0 of a job on a network whose secret others can compute. To be shown
    /// once, on standard error.
    #[must_use]
    pub fn secret_warning(&self) -> Option<String> {
        let RendezvousMethod::At { host, source: SecretSource::PublicNumbers, .. } = &self.meeting else {
            return None;
        };
        let is_shared =
            self.place.is_some_and(|place| place.rank == 0 && place.size > 1) && !is_loopback(host);
        is_shared.then(|| {
            format!(
                "the secret of this job is made of numbers that {} shows to other users of the cluster; whoever knows them can take part in the \
                 job, or be its rank 0. Set {} to the same random text in all processes, such as the output of `openssl rand -hex 16`",
                self.launcher,
                trunkline_run::SECRET
            )
        })
    }

    /// What this process's environment says; `None` when nobody started it as one of several.
    ///
    /// # Errors
    /// When variables are there and cannot be what a launcher sets.
    pub fn read() -> Result<Option<Self>, EnvironmentError> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// What these variables say.
    ///
    /// # Errors
    /// As [`JobEnvironment::read`].
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, EnvironmentError> {
        let variables = EnvironmentVariables(variable);
        for read in [
            trunkline_run::read_environment,
            torchrun::read_environment,
            pmi::read_environment,
            openmpi::read_environment,
            slurm::read_environment,
        ] {
            if let Some(found) = read(&variables)? {
                // Started alone: a job of one is no job.
                let alone = found.place.is_some_and(|place| place.size == 1);
                return Ok((!alone).then_some(found));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;
