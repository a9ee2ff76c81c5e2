//! The environment of Slurm's `srun`. Pure; called by `environment`.
//!
//! Rank 0 is on the first host of the step. No variable defines its port, so a port is derived from the ids of job
//! and step. In a clash with another job, the secret differs, and the window has further ports.

use crate::placement::{
    EnvironmentError, EnvironmentVariables, JobEnvironment, JobPlacement, Launcher, RendezvousMethod,
    derive_secret,
};
use crate::secret::JobSecret;

const RANK: &str = "SLURM_PROCID";
const NODES: &str = "SLURM_STEP_NODELIST";
const TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";

/// Ports for stores, below the system's ephemeral range.
const PORT_FIRST: u16 = 20_000;
const PORTS: u32 = 10_000;

pub(crate) fn read_environment(
    variables: &EnvironmentVariables<'_>,
) -> Result<Option<JobEnvironment>, EnvironmentError> {
    let launcher = Launcher::Slurm;
    let Some(rank) = variables.read_number(RANK)? else { return Ok(None) };
    let nodes = variables.get(NODES).or_else(|| variables.get("SLURM_NODELIST"));
    let step = variables.get("SLURM_STEP_ID").or_else(|| variables.get("SLURM_STEPID"));
    // The script of a batch job has a rank too, but is not a step; the tasks that it starts are.
    if step.is_none() && !variables.is_set(NODES) {
        return Ok(None);
    }
    let size = match variables.read_number("SLURM_STEP_NUM_TASKS")? {
        Some(size) => size,
        None => variables.require_number(launcher, "SLURM_NTASKS", RANK)?,
    };
    let local_rank = variables.read_number("SLURM_LOCALID")?;
    let local_size = local_size(variables)?;
    let place = JobPlacement::new_checked(launcher, rank, size, local_rank, local_size)?;
    let extra = variables.extra_secret();
    let job = variables.get("SLURM_JOB_ID").unwrap_or_default();
    let step = step.unwrap_or_default();
    let meeting = match (variables.master_address()?, variables.is_set("PMIX_NAMESPACE"), nodes) {
        (Some((host, port)), _, nodes) => {
            let nodes = nodes.unwrap_or_default();
            let (secret, source) =
                derive_secret(extra.as_deref(), &["slurm", &job, &step, &nodes, &host, &port.to_string()]);
            RendezvousMethod::At { host, port, secret, source }
        }
        (None, true, _) => RendezvousMethod::Pmix { extra },
        (None, false, None) => {
            return Err(EnvironmentError::Missing { launcher, missing: NODES, found: RANK });
        }
        (None, false, Some(nodes)) => {
            let host = first_host(&nodes).ok_or_else(|| EnvironmentError::Value {
                name: NODES,
                value: nodes.clone(),
                expected: "a list of hosts as Slurm writes them, such as node[01-04,7]",
            })?;
            let (secret, source) = derive_secret(extra.as_deref(), &["slurm", &job, &step, &nodes]);
            RendezvousMethod::At { host, port: step_port(&job, &step), secret, source }
        }
    };
    Ok(Some(JobEnvironment { launcher, place: Some(place), meeting }))
}

/// Returns the port before the window of a step.
fn step_port(job: &str, step: &str) -> u16 {
    let digits = JobSecret::from_texts(&["slurm port", job, step]).to_hex();
    let number = u32::from_str_radix(&digits[..8], 16).unwrap_or(0);
    PORT_FIRST + (number % PORTS) as u16
}

/// Returns the tasks on this process's host, from the list of all hosts.
fn local_size(variables: &EnvironmentVariables<'_>) -> Result<Option<usize>, EnvironmentError> {
    let Some(list) = variables.get(TASKS_PER_NODE) else { return Ok(None) };
    let Some(node) = variables.read_number("SLURM_NODEID")? else { return Ok(None) };
    match tasks_on(&list, node) {
        Some(tasks) => Ok(Some(tasks)),
        None => Err(EnvironmentError::Value {
            name: TASKS_PER_NODE,
            value: list,
            expected: "counts as Slurm writes them, such as 4(x2),1, one for each host",
        }),
    }
}

/// Returns the count of one node in a list such as `4(x2),1`.
fn tasks_on(list: &str, node: usize) -> Option<usize> {
    let mut left = node;
    for group in list.split(',') {
        let (count, times) = match group.trim().strip_suffix(')') {
            Some(group) => {
                let (count, times) = group.split_once("(x")?;
                (count, times.parse().ok()?)
            }
            None => (group.trim(), 1),
        };
        let count = count.parse().ok()?;
        if left < times {
            return Some(count);
        }
        left -= times;
    }
    None
}

/// Returns the first name in a list of hosts, in which `node[08-11,20]` means several.
fn first_host(list: &str) -> Option<String> {
    let mut rest = list.trim();
    let mut name = String::new();
    loop {
        let (before, after) = rest.split_at(rest.find(['[', ',']).unwrap_or(rest.len()));
        name.push_str(before);
        let Some(bracket) = after.strip_prefix('[') else { break };
        let (inside, after) = bracket.split_once(']')?;
        let first = inside.split([',', '-']).next().unwrap_or_default();
        if first.is_empty() || !first.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        name.push_str(first);
        rest = after;
    }
    let known = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    (!name.is_empty() && name.chars().all(known)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_host_of_slurm_lists_is_expanded() {
        for (list, first) in [
            ("node7", "node7"),
            ("node7,node9", "node7"),
            ("node[08-11,20]", "node08"),
            ("node[3]", "node3"),
            ("rack[1-2]n[05,7]-ib,other", "rack1n05-ib"),
            ("a.b.example,c", "a.b.example"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        for bad in ["", ",", "node[", "node[]", "node[-3]", "node[a-b]", "no de", "node]", "$(x)"] {
            assert_eq!(first_host(bad), None, "{bad}");
        }
    }

    #[test]
    fn tasks_are_counted_per_host() {
        let all = |list: &str| (0..4).map(|node| tasks_on(list, node)).collect::<Vec<_>>();
        assert_eq!(all("4(x2),1"), [Some(4), Some(4), Some(1), None]);
        assert_eq!(all("2"), [Some(2), None, None, None]);
        assert_eq!(all("3,2(x3)"), [Some(3), Some(2), Some(2), Some(2)]);
        assert_eq!(all("x(x2)"), [None; 4]);
        assert_eq!(all("4(x"), [None; 4]);
    }

    #[test]
    fn ports_stay_in_their_range_and_differ() {
        let ports: std::collections::BTreeSet<u16> =
            (0..200).map(|step| step_port("17", &step.to_string())).collect();
        assert!(ports.iter().all(|port| (20_000..30_000).contains(port)));
        assert!(ports.len() > 150, "{} of 200", ports.len());
    }
}
