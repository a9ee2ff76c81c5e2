//! The environment of `trunkline run`. Pure; called by `environment`. The launcher uses the names.

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, Launcher, RendezvousMethod,
    SecretSource,
};
use crate::secret::JobSecret;

/// Rank of the process.
pub const RANK: &str = "TRUNKLINE_JOB_RANK";
/// Number of processes in the job.
pub const SIZE: &str = "TRUNKLINE_JOB_SIZE";
/// Rank of the process on its host.
pub const LOCAL_RANK: &str = "TRUNKLINE_JOB_LOCAL_RANK";
/// Processes of the job on this host.
pub const LOCAL_SIZE: &str = "TRUNKLINE_JOB_LOCAL_SIZE";
/// `host:port`: rank 0's host, and the port before the window.
pub const STORE: &str = "TRUNKLINE_JOB_STORE";
/// 64 hexadecimal digits; under other launchers any text, which is mixed into their secret.
pub const SECRET: &str = crate::placement::JOB_SECRET;

pub(crate) fn read_environment(
    variables: &EnvironmentVariables<'_>,
) -> Result<Option<JobEnvironment>, EnvironmentError> {
    let launcher = Launcher::Own;
    let Some(rank) = variables.read_number(RANK)? else { return Ok(None) };
    let size = variables.require_number(launcher, SIZE, RANK)?;
    let local_rank = variables.read_number(LOCAL_RANK)?;
    let local_size = variables.read_number(LOCAL_SIZE)?;
    let place = JobPlacement::new_checked(launcher, rank, size, local_rank, local_size)?;
    let missing = |missing| EnvironmentError::Missing { launcher, missing, found: RANK };
    let store = variables.get(STORE).ok_or_else(|| missing(STORE))?;
    let secret = variables.get(SECRET).ok_or_else(|| missing(SECRET))?;
    let Some(secret) = JobSecret::from_hex(&secret) else {
        let value = format!("({} characters)", secret.chars().count());
        return Err(EnvironmentError::Value { name: SECRET, value, expected: "64 hexadecimal digits" });
    };
    let Some((host, port)) = host_and_port(&store) else {
        return Err(EnvironmentError::Value { name: STORE, value: store, expected: "host:port" });
    };
    let meeting = RendezvousMethod::At { host, port, secret, source: SecretSource::Random };
    Ok(Some(JobEnvironment { launcher, place: Some(place), meeting }))
}

/// Parses `host:port`, with an IPv6 address in brackets.
pub(crate) fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(host) => host,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}
