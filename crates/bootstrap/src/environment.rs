//! What the environment says about the job this process belongs to: its place in it, and how to find the others.
//!
//! Pure: variables come in through a function, so that tests need no environment. The front ends call `JobEnvironment::read`.

use std::fmt;
use std::net::IpAddr;

use thiserror::Error;

use crate::secret::JobSecret;
use crate::{is_planted, openmpi, own, pmi, slurm, torchrun};

/// Processes of one job.
pub const RANKS_MAX: usize = 4096;
/// Ports that are tried after the first.
pub(crate) const WINDOW: u16 = 8;

/// Who started the job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Launcher {
    /// `trunkline run`.
    Own,
    /// `torchrun`, or a person who set the same variables.
    Torchrun,
    /// MPICH's hydra, or another that speaks PMI-1.
    Pmi,
    /// Open MPI's `mpiexec`.
    OpenMpi,
    /// Slurm's `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "trunkline run",
            Self::Torchrun => "torchrun",
            Self::Pmi => "PMI-1",
            Self::OpenMpi => "Open MPI",
            Self::Slurm => "Slurm",
        })
    }
}

/// The place of this process in its job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct JobPlacement {
    /// Number of this process, from 0.
    pub rank: usize,
    /// Processes of the job.
    pub size: usize,
    /// Number of this process on its host, where the launcher says it.
    pub local_rank: Option<usize>,
    /// Processes of the job on this host, where the launcher says it.
    pub local_size: Option<usize>,
}

/// The source from which a job's secret is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SecretSource {
    /// Random bytes, or text that a person has set.
    Random,
    /// The numbers of the job, which the launcher shows to others.
    PublicNumbers,
}

/// How the others are found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum RendezvousMethod {
    /// Rank 0 listens on this host at the first free one of the ports after `port`.
    At { host: String, port: u16, secret: JobSecret, source: SecretSource },
    /// Over PMI-1.
    Pmi { server: pmi::PmiServer, extra: Option<String> },
    /// Over PMIx.
    Pmix { extra: Option<String> },
}

/// What the environment says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobEnvironment {
    /// Who started the job.
    pub launcher: Launcher,
    /// The place of this process; unknown where it must be asked for.
    pub(crate) place: Option<JobPlacement>,
    pub(crate) meeting: RendezvousMethod,
}

/// The environment says something that cannot be.
#[derive(Debug, Error, Eq, PartialEq)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A variable that belongs to others is not there.
    #[error("{launcher} sets {missing}, which is not set; start the program by it, or unset {found}")]
    Missing {
        /// Who seems to have started the job.
        launcher: Launcher,
        /// The variable that is missing.
        missing: &'static str,
        /// The one that is there.
        found: &'static str,
    },
    /// A variable's value cannot be.
    #[error("{name}={value}: expected {expected}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// More processes than there may be.
    #[error("{launcher} started {size} processes; a job has at most {RANKS_MAX}")]
    TooMany {
        /// Who started the job.
        launcher: Launcher,
        /// How many.
        size: usize,
    },
    /// Two variables contradict each other.
    #[error(
        "rank {rank} of a job of {size} ({launcher}) cannot be; do variables of an older job stand around?"
    )]
    Rank {
        /// Who started the job.
        launcher: Launcher,
        /// The number.
        rank: usize,
        /// Processes.
        size: usize,
    },
}

/// Variables by name; empty ones do not count.
pub(crate) struct EnvironmentVariables<'a>(pub(crate) &'a dyn Fn(&str) -> Option<String>);

impl EnvironmentVariables<'_> {
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A number, or nothing when the variable is not there.
    pub(crate) fn read_number(&self, name: &'static str) -> Result<Option<usize>, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(EnvironmentError::Value { name, value, expected: "a number" }),
        }
    }

    /// A number that must be there, because `found` is.
    pub(crate) fn require_number(
        &self,
        launcher: Launcher,
        name: &'static str,
        found: &'static str,
    ) -> Result<usize, EnvironmentError> {
        let missing = EnvironmentError::Missing { launcher, missing: name, found };
        self.read_number(name)?.ok_or(missing)
    }

    /// A TCP port.
    pub(crate) fn read_port(&self, name: &'static str) -> Result<Option<u16>, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(EnvironmentError::Value { name, value, expected: "a TCP port, 1 to 65535" }),
        }
    }

    /// `MASTER_ADDR` and `MASTER_PORT`, if both are there.
    pub(crate) fn master_address(&self) -> Result<Option<(String, u16)>, EnvironmentError> {
        match (self.get("MASTER_ADDR"), self.read_port("MASTER_PORT")?) {
            (Some(host), Some(port)) => Ok(Some((host.trim().to_owned(), port))),
            _ => Ok(None),
        }
    }

    /// The secret that a person set beside the launcher's variables.
    pub(crate) fn extra_secret(&self) -> Option<String> {
        self.get(own::SECRET)
    }
}

impl JobPlacement {
    pub(crate) fn new_checked(
        launcher: Launcher,
        rank: usize,
        size: usize,
        local_rank: Option<usize>,
        local_size: Option<usize>,
    ) -> Result<Self, EnvironmentError> {
        if size > RANKS_MAX {
            return Err(EnvironmentError::TooMany { launcher, size });
        }
        if rank >= size {
            return Err(EnvironmentError::Rank { launcher, rank, size });
        }
        Ok(Self { rank, size, local_rank, local_size })
    }

    /// Whether all processes of the job are known to be on this host.
    pub(crate) fn all_here(&self) -> bool {
        self.local_size == Some(self.size)
    }
}

/// A secret that is made of known texts, with what a person added.
pub(crate) fn derive_secret(extra: Option<&str>, parts: &[&str]) -> (JobSecret, SecretSource) {
    let secret = JobSecret::from_texts(parts);
    match extra {
        Some(extra) => (secret.with_text(extra), SecretSource::Random),
        None => (secret, SecretSource::PublicNumbers),
    }
}

/// Whether a host's name says that no process of another host can listen there.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The ports of a window: those after its first, turned round at the end of the numbers.
pub(crate) fn port_window(port: u16) -> impl Iterator<Item = u16> + Clone {
    (1..=WINDOW).map(move |step| port.checked_add(step).unwrap_or_else(|| port - WINDOW - step))
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
        (is_shared && !is_planted("bootstrap-hides-weak-secrets")).then(|| {
            format!(
                "the secret of this job is made of numbers that {} shows to other users of the cluster; whoever knows them can take part in the \
                 job, or be its rank 0. Set {} to the same random text in all processes, such as the output of `openssl rand -hex 16`",
                self.launcher,
                own::SECRET
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
            own::read_environment,
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
