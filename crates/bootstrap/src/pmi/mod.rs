//! PMI-1, the line protocol between MPICH's launchers and what they start: the environment, a client that hands one
//! value round, and the server's part for a launcher of ours.

mod client;
mod line;
mod space;

pub use line::LINE_BYTES_MAX;
#[cfg(feature = "fuzzing")]
pub(crate) use line::Line;
pub use space::{Reply, Space};

pub use client::PmiError;

pub(crate) use client::Client;

use crate::environment::{Environment, EnvironmentError, Launcher, Meeting, Place, Variables};
use crate::own::host_and_port;

/// How the launcher is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Server {
    /// A descriptor that this process was born with.
    Fd(i32),
    /// A TCP port, and the number by which the launcher knows this process.
    Port { host: String, port: u16, id: usize },
}

pub(crate) fn read(variables: &Variables<'_>) -> Result<Option<Environment>, EnvironmentError> {
    let launcher = Launcher::Pmi;
    let local_rank = variables.number("MPI_LOCALRANKID")?;
    let local_size = variables.number("MPI_LOCALNRANKS")?;
    let extra = variables.extra_secret();
    if let Some(value) = variables.get("PMI_FD") {
        let Ok(fd) = value.trim().parse() else {
            return Err(EnvironmentError::Value {
                name: "PMI_FD",
                value,
                expected: "the number of a descriptor",
            });
        };
        let rank = variables.needed(launcher, "PMI_RANK", "PMI_FD")?;
        let size = variables.needed(launcher, "PMI_SIZE", "PMI_FD")?;
        let place = Some(Place::checked(launcher, rank, size, local_rank, local_size)?);
        let meeting = Meeting::Pmi { server: Server::Fd(fd), extra };
        return Ok(Some(Environment { launcher, place, meeting }));
    }
    let Some(value) = variables.get("PMI_PORT") else { return Ok(None) };
    let Some((host, port)) = host_and_port(&value) else {
        return Err(EnvironmentError::Value { name: "PMI_PORT", value, expected: "host:port" });
    };
    let id = variables.needed(launcher, "PMI_ID", "PMI_PORT")?;
    let meeting = Meeting::Pmi { server: Server::Port { host, port, id }, extra };
    Ok(Some(Environment { launcher, place: None, meeting }))
}
