//! The environment of Open MPI's `mpiexec`. Pure; called by `environment`.
//!
//! It says rank and size; where rank 0 listens goes over PMIx, or comes from `MASTER_ADDR` and `MASTER_PORT` where a
//! person hands them on (`mpiexec -x`).

use crate::environment::{Environment, EnvironmentError, Launcher, Meeting, Place, Variables, derived};

const RANK: &str = "OMPI_COMM_WORLD_RANK";

pub(crate) fn read(variables: &Variables<'_>) -> Result<Option<Environment>, EnvironmentError> {
    let launcher = Launcher::OpenMpi;
    let Some(rank) = variables.number(RANK)? else { return Ok(None) };
    let size = variables.needed(launcher, "OMPI_COMM_WORLD_SIZE", RANK)?;
    let local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK")?;
    let local_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let place = Place::checked(launcher, rank, size, local_rank, local_size)?;
    let extra = variables.extra_secret();
    let meeting = match variables.master()? {
        Some((host, port)) => {
            let job = variables.get("PMIX_NAMESPACE").unwrap_or_default();
            let (secret, source) = derived(extra.as_deref(), &["openmpi", &job, &host, &port.to_string()]);
            Meeting::At { host, port, secret, source }
        }
        None => Meeting::Pmix { extra },
    };
    Ok(Some(Environment { launcher, place: Some(place), meeting }))
}
