//! The place of a process in its job, the method by which the processes meet, and the variables of launchers: the same types for all
//! launchers. Used by `environment` and by the reader of each launcher. It reads no variable by itself.

use std::fmt;

use thiserror::Error;

use crate::secret::JobSecret;

/// 64 hexadecimal digits; under other launchers any text, mixed into theirs.
pub(crate) const JOB_SECRET: &str = "TRUNKLINE_JOB_SECRET";
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

/// How a PMI-1 launcher is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum PmiServer {
    /// A descriptor that this process was born with.
    Fd(i32),
    /// A TCP port, and the number by which the launcher knows this process.
    Port { host: String, port: u16, id: usize },
}

/// How the others are found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum RendezvousMethod {
    /// Rank 0 listens on this host at the first free one of the ports after `port`.
    At { host: String, port: u16, secret: JobSecret, source: SecretSource },
    /// Over PMI-1.
    Pmi { server: PmiServer, extra: Option<String> },
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

/// The ports of a window: those after its first, turned round at the end of the numbers.
pub(crate) fn port_window(port: u16) -> impl Iterator<Item = u16> + Clone {
    (1..=WINDOW).map(move |step| port.checked_add(step).unwrap_or_else(|| port - WINDOW - step))
}
