//! The store of a job: three ranks, which are threads of this process, connect and exchange bytes.

use std::thread;
use std::time::Duration;

use trunkline_bootstrap::{JobBootstrap, JobEnvironment, free_port, trunkline_run};

use crate::trials::{Case, Outcome, told};

/// Time limit of a step: ranks wait this long for a rank 0 that has given up.
const LIMIT: Duration = Duration::from_secs(2);
const RANKS: usize = 3;

pub(crate) const ALL: &[Case] =
    &[("short exchanges", || exchanges(10)), ("long exchanges", || exchanges(100_000))];

/// All ranks send bytes to all, twice.
fn exchanges(len: usize) -> Outcome {
    let port = free_port().map_err(told)?;
    let ranks: Vec<_> = (0..RANKS).map(|rank| thread::spawn(move || exchange(rank, port, len))).collect();
    let ended: Vec<Outcome> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    ended.into_iter().collect()
}

fn exchange(rank: usize, port: u16, len: usize) -> Outcome {
    let variables = |name: &str| match name {
        trunkline_run::RANK => Some(rank.to_string()),
        trunkline_run::SIZE => Some(RANKS.to_string()),
        trunkline_run::STORE => Some(format!("127.0.0.1:{port}")),
        trunkline_run::SECRET => Some("5a".repeat(32)),
        _ => None,
    };
    let environment = JobEnvironment::from_variables(&variables).map_err(told)?.ok_or("no job")?;
    let mut job = JobBootstrap::join(&environment, LIMIT).map_err(told)?;
    for round in 0..2 {
        let mine = trunkline_proto::reserve::try_filled(rank as u8, len * round).map_err(told)?;
        let all = job.all_gather(&mine, LIMIT).map_err(told)?;
        for (other, bytes) in all.iter().enumerate() {
            if bytes.len() != len * round || bytes.iter().any(|byte| usize::from(*byte) != other) {
                return Err(format!("rank {other} contributed other bytes"));
            }
        }
    }
    job.barrier(LIMIT).map_err(told)
}
