//! The environment of torchrun, which users also set by hand. Pure; called by `environment`.
//!
//! `MASTER_PORT` is the port of torch's own store, so ours uses a port after it. The job's only private values are
//! that number and the run's id. A secret derived from them separates jobs, but is easy to guess;
//! `TRUNKLINE_JOB_SECRET` adds a real one.

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, Launcher, RendezvousMethod,
    derive_secret,
};

pub(crate) fn read_environment(
    variables: &EnvironmentVariables<'_>,
) -> Result<Option<JobEnvironment>, EnvironmentError> {
    let launcher = Launcher::Torchrun;
    // Other tools use each of these names alone.
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
