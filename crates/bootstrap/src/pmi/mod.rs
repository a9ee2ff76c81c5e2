//! PMI-1, the line protocol between MPICH's launchers and the processes that they start: the environment, a client
//! that distributes one value, and a server for a launcher of ours.

mod client;
mod line;
mod space;

pub use line::LINE_BYTES_MAX;
#[cfg(feature = "fuzzing")]
pub(crate) use line::PmiLine;
pub use space::{PmiReply, PmiSpace};

pub use client::PmiError;

pub(crate) use client::PmiClient;

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, Launcher, PmiServer,
    RendezvousMethod,
};
use crate::trunkline_run::host_and_port;

pub(crate) fn read_environment(
    variables: &EnvironmentVariables<'_>,
) -> Result<Option<JobEnvironment>, EnvironmentError> {
    let launcher = Launcher::Pmi;
    let local_rank = variables.read_number("MPI_LOCALRANKID")?;
    let local_size = variables.read_number("MPI_LOCALNRANKS")?;
    let extra = variables.extra_secret();
    if let Some(value) = variables.get("PMI_FD") {
        let Ok(fd) = value.trim().parse() else {
            return Err(EnvironmentError::Value {
                name: "PMI_FD",
                value,
                expected: "the number of a descriptor",
            });
        };
        let rank = variables.require_number(launcher, "PMI_RANK", "PMI_FD")?;
        let size = variables.require_number(launcher, "PMI_SIZE", "PMI_FD")?;
        let place = Some(JobPlacement::new_checked(launcher, rank, size, local_rank, local_size)?);
        let meeting = RendezvousMethod::Pmi { server: PmiServer::Fd(fd), extra };
        return Ok(Some(JobEnvironment { launcher, place, meeting }));
    }
    let Some(value) = variables.get("PMI_PORT") else { return Ok(None) };
    let Some((host, port)) = host_and_port(&value) else {
        return Err(EnvironmentError::Value { name: "PMI_PORT", value, expected: "host:port" });
    };
    let id = variables.require_number(launcher, "PMI_ID", "PMI_PORT")?;
    let meeting = RendezvousMethod::Pmi { server: PmiServer::Port { host, port, id }, extra };
    Ok(Some(JobEnvironment { launcher, place: None, meeting }))
}
