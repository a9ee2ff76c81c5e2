//! What the NICs of ranks have in use, read from their status pages. Called by `sweep` between runs.

use thiserror::Error;
use trunkline_proto::wire::status::{State, Usage};

use super::formula::{Queues, Seen};
use crate::top::find::{FindError, Finder};

/// A rank shows nothing.
#[derive(Debug, Error)]
#[error("rank {rank}: {source}")]
pub(crate) struct WatchError {
    rank: usize,
    source: FindError,
}

/// Looks at the ranks again and again.
pub(crate) struct Watch {
    finders: Vec<Finder>,
    seen: Vec<Seen>,
}

impl Watch {
    /// Will look at these processes, by rank.
    pub(crate) fn new(pids: &[u32]) -> Self {
        let finders: Vec<Finder> = pids.iter().map(|pid| Finder::new(Some(*pid))).collect();
        Self { seen: vec![Seen::default(); finders.len()], finders }
    }

    /// Looks once.
    ///
    /// # Errors
    /// [`WatchError`] if a rank has no page that can be read.
    pub(crate) fn look(&mut self) -> Result<(), WatchError> {
        for (rank, (finder, seen)) in self.finders.iter_mut().zip(&mut self.seen).enumerate() {
            let found = finder.look().map_err(|source| WatchError { rank, source })?;
            let nics = found.shown.iter().flat_map(|shown| &shown.status.head.usage);
            let sum = |of: fn(&Usage) -> u32| nics.clone().map(of).sum();
            let queues =
                Queues { pairs: sum(|nic| nic.queue_pairs), completion: sum(|nic| nic.completion_queues) };
            let comms = found.shown.iter().flat_map(|shown| &shown.status.rows);
            let open = comms.filter(|row| row.comm.as_ref().is_some_and(|comm| comm.state == State::Open));
            let idle = open.filter(|row| row.own().sent + row.own().received == 0).count() as u32;
            *seen = seen.most(Seen { queues, idle });
        }
        Ok(())
    }

    /// What was seen, by rank.
    pub(crate) fn seen(&self) -> &[Seen] {
        &self.seen
    }
}
