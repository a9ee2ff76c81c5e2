//! The victims' part in a job whose rank 0 waits for the other ranks at a store: rank 0 waits for rank 1 while the
//! store is attacked, and rank 1 joins at the end.

use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use trunkline_bootstrap::{JobBootstrap, JobEnvironment, trunkline_run};

/// Name of the thread in which rank 0 waits.
pub(crate) const THREAD: &str = "store";
/// Descriptors that rank 0 may open beyond those it has when it starts to wait: its own links, and a few foreign connections.
const SPARE: u64 = 120;
const LIMIT: Duration = Duration::from_secs(60);

/// One rank.
pub(crate) struct JobStore {
    rank: u32,
    port: u16,
    waits: Option<JoinHandle<Result<(), String>>>,
}

impl JobStore {
    /// Rank 0 starts to wait, with few descriptors.
    pub(crate) fn new(rank: u32, port: u16) -> Self {
        if rank != 0 {
            return Self { rank, port, waits: None };
        }
        let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(used + SPARE);
        setrlimit(Resource::Nofile, limit).unwrap();
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        let waits = thread.spawn(move || meet(0, port)).unwrap();
        Self { rank, port, waits: Some(waits) }
    }

    /// Whether both ranks have connected.
    pub(crate) fn join(self) -> Result<(), String> {
        match self.waits {
            Some(waits) => waits.join().unwrap(),
            None => meet(self.rank, self.port),
        }
    }
}

fn meet(rank: u32, port: u16) -> Result<(), String> {
    let variable = |name: &str| match name {
        trunkline_run::RANK => Some(rank.to_string()),
        trunkline_run::SIZE => Some("2".to_owned()),
        trunkline_run::STORE => Some(format!("127.0.0.1:{port}")),
        trunkline_run::SECRET => Some("5a".repeat(32)),
        _ => None,
    };
    let environment = JobEnvironment::from_variables(&variable).unwrap().unwrap();
    match JobBootstrap::join(&environment, LIMIT) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("rank {rank} of the store: {error}")),
    }
}
