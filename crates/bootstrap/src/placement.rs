//! The placement of a process in its job, the rendezvous method of its processes, and the variables of launchers: the
//! same types for all launchers. Used by `environment` and by the reader of each launcher. It reads no variable by
//! itself.

use std::fmt;

use thiserror::Error;

use crate::secret::JobSecret;

/// 64 hexadecimal digits; under other launchers any text, which is mixed into their secret.
pub(crate) const JOB_SECRET: &str = "TRUNKLINE_JOB_SECRET";
/// Processes of one job, at most.
pub const RANKS_MAX: usize = 4096;
/// Ports after the base port that are tried.
pub(crate) const WINDOW: u16 = 8;

/// The launcher of a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Launcher {
    /// `trunkline run`.
    Own,
    /// `torchrun`, or a user who set the same variables.
    Torchrun,
    /// MPICH's hydra, or another launcher with PMI-1.
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

/// The placement of this process in its job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct JobPlacement {
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of processes in the job.
    pub size: usize,
    /// Rank of this process on its host, if the launcher sets it.
    pub local_rank: Option<usize>,
    /// Processes of the job on this host, if the launcher sets it.
    pub local_size: Option<usize>,
}

/// The source from which a job's secret is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SecretSource {
    /// Random bytes, or text that a user has set.
    Random,
    /// Numbers of the job that the launcher shows to other users.
    PublicNumbers,
}

/// How a PMI-1 launcher is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum PmiServer {
    /// An inherited descriptor.
    Fd(i32),
    /// A TCP port, and the launcher's number for this process.
    Port { host: String, port: u16, id: usize },
}

/// How the processes of a job find each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum RendezvousMethod {
    /// Rank 0 listens on this host, on the first free port after `port`.
    At { host: String, port: u16, secret: JobSecret, source: SecretSource },
    /// The launcher distributes rank 0's address over PMI-1.
    Pmi { server: PmiServer, extra: Option<String> },
    /// The launcher distributes rank 0's address over PMIx.
    Pmix { extra: Option<String> },
}

/// The job as the environment describes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobEnvironment {
    /// The launcher of the job.
    pub launcher: Launcher,
    /// The placement of this process; `None` if the launcher must be queried for it.
    pub(crate) place: Option<JobPlacement>,
    pub(crate) meeting: RendezvousMethod,
}

/// Why the environment of a job is invalid.
#[derive(Debug, Error, Eq, PartialEq)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A variable is not set, although another variable of the same launcher is.
    #[error("{launcher} sets {missing}, which is not set; start the program by it, or unset {found}")]
    Missing {
        /// The launcher whose variables were found.
        launcher: Launcher,
        /// The variable that is missing.
        missing: &'static str,
        /// The variable that is set.
        found: &'static str,
    },
    /// A variable has an invalid value.
    #[error("{name}={value}: expected {expected}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The job has more than [`RANKS_MAX`] processes.
    #[error("{launcher} started {size} processes; a job has at most {RANKS_MAX}")]
    TooMany {
        /// The launcher of the job.
        launcher: Launcher,
        /// The number of processes.
        size: usize,
    },
    /// The rank is out of range, so two variables contradict each other.
    #[error(
        "rank {rank} is out of range for a job of {size} ({launcher}); are variables of an earlier job still set?"
    )]
    Rank {
        /// The launcher of the job.
        launcher: Launcher,
        /// The rank.
        rank: usize,
        /// The number of processes.
        size: usize,
    },
}

/// Reads variables by name; an empty one counts as unset.
pub(crate) struct EnvironmentVariables<'a>(pub(crate) &'a dyn Fn(&str) -> Option<String>);

impl EnvironmentVariables<'_> {
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Reads a number; `None` if the variable is not set.
    pub(crate) fn read_number(&self, name: &'static str) -> Result<Option<usize>, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(EnvironmentError::Value { name, value, expected: "a number" }),
        }
    }

    /// Reads a number that must be set, because `found` is.
    pub(crate) fn require_number(
        &self,
        launcher: Launcher,
        name: &'static str,
        found: &'static str,
    ) -> Result<usize, EnvironmentError> {
        let missing = EnvironmentError::Missing { launcher, missing: name, found };
        self.read_number(name)?.ok_or(missing)
    }

    /// Reads a TCP port.
    pub(crate) fn read_port(&self, name: &'static str) -> Result<Option<u16>, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(EnvironmentError::Value { name, value, expected: "a TCP port, 1 to 65535" }),
        }
    }

    /// Reads `MASTER_ADDR` and `MASTER_PORT`, if both are set.
    pub(crate) fn master_address(&self) -> Result<Option<(String, u16)>, EnvironmentError> {
        match (self.get("MASTER_ADDR"), self.read_port("MASTER_PORT")?) {
            (Some(host), Some(port)) => Ok(Some((host.trim().to_owned(), port))),
            _ => Ok(None),
        }
    }

    /// Reads the secret that a user set beside the launcher's variables.
    pub(crate) fn extra_secret(&self) -> Option<String> {
        self.get(JOB_SECRET)
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

    /// Whether all processes of the job are known to run on this host.
    pub(crate) fn all_here(&self) -> bool {
        self.local_size == Some(self.size)
    }
}

/// Derives a secret from known texts, and the user's text if there is one.
pub(crate) fn derive_secret(extra: Option<&str>, parts: &[&str]) -> (JobSecret, SecretSource) {
    let secret = JobSecret::from_texts(parts);
    match extra {
        Some(extra) => (secret.with_text(extra), SecretSource::Random),
        None => (secret, SecretSource::PublicNumbers),
    }
}

/// Returns the ports of a window: those after `port`, or below it at the end of the range.
pub(crate) fn port_window(port: u16) -> impl Iterator<Item = u16> + Clone {
    (1..=WINDOW).map(move |step| port.checked_add(step).unwrap_or_else(|| port - WINDOW - step))
}
