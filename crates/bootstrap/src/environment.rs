//! Reads from the environment to which job this process belongs: its placement, and how to find the other processes.
//!
//! Pure: a function supplies the variables, so that tests need no environment. The front ends call
//! `JobEnvironment::read`.

use std::net::IpAddr;

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, RendezvousMethod, SecretSource,
};
use crate::{openmpi, pmi, slurm, torchrun, trunkline_run};

/// Whether a host name is a loopback name, on which no process of another host can listen.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl JobEnvironment {
    /// Returns the placement of this process in its job, if the environment defines it.
    #[must_use]
    pub fn job_placement(&self) -> Option<JobPlacement> {
        self.place
    }

    /// Returns a warning about the job's secret if one is needed: at rank 0 of a job on a network whose secret other
    /// users can compute. To be shown once, on standard error.
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

    /// Reads this process's environment; `None` if the process is not one of several in a job.
    ///
    /// # Errors
    /// If variables are set, but not as a launcher sets them.
    pub fn read() -> Result<Option<Self>, EnvironmentError> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// Reads the job from these variables.
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
                // A job of one process needs no store.
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
