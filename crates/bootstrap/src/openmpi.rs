//! The environment of Open MPI's `mpiexec`. Pure; called by `environment`.
//!
//! Open MPI sets rank and size. Rank 0's address is distributed over PMIx, or read from `MASTER_ADDR` and
//! `MASTER_PORT` if the user passes them on (`mpiexec -x`).

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, Launcher, RendezvousMethod,
    derive_secret,
};

const RANK: &str = "OMPI_COMM_WORLD_RANK";

pub(crate) fn read_environment(
    variables: &EnvironmentVariables<'_>,
) -> Result<Option<JobEnvironment>, EnvironmentError> {
    let launcher = Launcher::OpenMpi;
    let Some(rank) = variables.read_number(RANK)? else { return Ok(None) };
    let size = variables.require_number(launcher, "OMPI_COMM_WORLD_SIZE", RANK)?;
    let local_rank = variables.read_number("OMPI_COMM_WORLD_LOCAL_RANK")?;
    let local_size = variables.read_number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let place = JobPlacement::new_checked(launcher, rank, size, local_rank, local_size)?;
    let extra = variables.extra_secret();
    let meeting = match variables.master_address()? {
        Some((host, port)) => {
            let job = variables.get("PMIX_NAMESPACE").unwrap_or_default();
            let (secret, source) =
                derive_secret(extra.as_deref(), &["openmpi", &job, &host, &port.to_string()]);
            RendezvousMethod::At { host, port, secret, source }
        }
        None => RendezvousMethod::Pmix { extra },
    };
    Ok(Some(JobEnvironment { launcher, place: Some(place), meeting }))
}
