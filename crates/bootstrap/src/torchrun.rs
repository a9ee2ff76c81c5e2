//! The environment of torchrun, which many set by hand too. Pure; called by `environment`.
//!
//! `MASTER_PORT` is torch's own store, so ours takes a port after it. All that only the job knows is that number and the
//! run's id, so the secret made of them keeps jobs apart and little more; `TRUNKLINE_JOB_SECRET` adds a real one.

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, Launcher, RendezvousMethod,
    derive_secret,
};

pub(crate) fn read_environment(
    variables: &EnvironmentVariables<'_>,
) -> Result<Option<JobEnvironment>, EnvironmentError> {
    let launcher = Launcher::Torchrun;
    // Each of these names alone is used by others too.
    if !["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"].iter().all(|name| variables.is_set(name)) {
        return Ok(None);
    }
    let rank = variables.require_number(launcher, "RANK", "WORLD_SIZE")?;
    let size = variables.require_number(launcher, "WORLD_SIZE", "RANK")?;
    let local_rank = variables.read_number("LOCAL_RANK")?;
    let local_size = variables.read_number("LOCAL_WORLD_SIZE")?;
    let place = JobPlacement::new_checked(launcher, rank, size, local_rank, local_size)?;
    let Some((host, port)) = variables.master_address()? else { return Ok(None) };
    let run = variables.get("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let extra = variables.extra_secret();
    let (secret, source) = derive_secret(extra.as_deref(), &["torchrun", &run, &host, &port.to_string()]);
    let meeting = RendezvousMethod::At { host, port, secret, source };
    Ok(Some(JobEnvironment { launcher, place: Some(place), meeting }))
}
