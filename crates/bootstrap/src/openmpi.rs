//! The environment of Open MPI's `mpiexec`. Pure; called by `environment`.
//!
//! It says rank and size; where rank 0 listens goes over PMIx, or comes from `MASTER_ADDR` and `MASTER_PORT` where a
//! person hands them on (`mpiexec -x`).

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
