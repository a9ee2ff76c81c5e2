//! The victims' part in a job of three ranks whose tagged messages begin while the third rank attacks. Each victim
//! waits in a separate thread until all ranks of the host have introduced themselves, and exchanges messages with the
//! other victim at the end.

use std::thread::JoinHandle;

use trunkline::World;
use trunkline::messages::{HostMemory, Messages};

/// Ranks of the job: the pair and the attacker.
pub(crate) const RANKS: u32 = 3;
/// Bytes of the messages at the end.
const LEN: usize = 3000;
const TAG: u64 = 5;

/// One rank of the pair.
pub(crate) struct TaggedRank(JoinHandle<Result<(), String>>);

/// The environment of a rank of that job, whose store listens on a port.
pub(crate) fn environment(rank: u32, port: u16) -> [(&'static str, String); 6] {
    use trunkline_bootstrap::trunkline_run;
    [
        (trunkline_run::RANK, rank.to_string()),
        (trunkline_run::SIZE, RANKS.to_string()),
        (trunkline_run::STORE, format!("127.0.0.1:{port}")),
        (trunkline_run::SECRET, "5a".repeat(32)),
        ("TRUNKLINE_FABRIC", "soft".to_owned()),
        ("TRUNKLINE_STATUS", "0".to_owned()),
    ]
}

impl TaggedRank {
    /// Starts the set-up in the job that the environment names; `None` if it names none.
    pub(crate) fn new(me: u32) -> Option<Self> {
        std::env::var_os(trunkline_bootstrap::trunkline_run::RANK)?;
        let thread = std::thread::Builder::new().name("tagged".to_owned());
        Some(Self(thread.spawn(move || exchange(me as usize)).unwrap()))
    }

    /// Whether the victims have connected, and their messages were right.
    pub(crate) fn join(self) -> Result<(), String> {
        self.0.join().unwrap_or_else(|_| Err("the thread of the tagged messages has panicked".to_owned()))
    }
}

fn exchange(me: usize) -> Result<(), String> {
    let world = World::builder().heap(1 << 20).start().map_err(|error| error.to_string())?;
    let host = HostMemory::new().map_err(|error| error.to_string())?;
    let mut messages = Messages::start(&world, host).map_err(|error| error.to_string())?;
    let bytes = |rank: usize| (0..LEN).map(|at| (at * 7 + rank) as u8).collect::<Vec<_>>();
    let (other, mut got) = (1 - me, vec![0; LEN]);
    messages.send(other, TAG, &bytes(me)).map_err(|error| error.to_string())?;
    messages.recv(other, TAG, &mut got).map_err(|error| error.to_string())?;
    if got == bytes(other) { Ok(()) } else { Err("a tagged message has wrong bytes".to_owned()) }
}
