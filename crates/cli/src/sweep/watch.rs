//! Reads the queues that the ranks' NICs have in use from their status pages. Called by `sweep` between runs.

use thiserror::Error;
use trunkline_proto::wire::status::{CommState, NicUsage};

use super::formula::{QueueCounts, RankUsage};
use crate::top::find::{PageFindError, PageFinder};

/// A rank has no page that can be read.
#[derive(Debug, Error)]
#[error("rank {rank}: {source}")]
pub(crate) struct WatchError {
    rank: usize,
    source: PageFindError,
}

/// Polls the status pages of the ranks.
pub(crate) struct QueueWatch {
    finders: Vec<PageFinder>,
    seen: Vec<RankUsage>,
}

impl QueueWatch {
    /// Creates a watch of these processes, by rank.
    pub(crate) fn new(pids: &[u32]) -> Self {
        let finders: Vec<PageFinder> = pids.iter().map(|pid| PageFinder::new(Some(*pid))).collect();
        Self { seen: vec![RankUsage::default(); finders.len()], finders }
    }

    /// Polls each rank once.
    ///
    /// # Errors
    /// [`WatchError`] if a rank has no page that can be read.
    pub(crate) fn poll_ranks(&mut self) -> Result<(), WatchError> {
        for (rank, (finder, seen)) in self.finders.iter_mut().zip(&mut self.seen).enumerate() {
            let found = finder.find_pages().map_err(|source| WatchError { rank, source })?;
            let nics = found.shown.iter().flat_map(|shown| &shown.status.head.usage);
            let sum = |of: fn(&NicUsage) -> u32| nics.clone().map(of).sum();
            let queues = QueueCounts {
                pairs: sum(|nic| nic.queue_pairs),
                completion: sum(|nic| nic.completion_queues),
            };
            let comms = found.shown.iter().flat_map(|shown| &shown.status.rows);
            let open =
                comms.filter(|row| row.comm.as_ref().is_some_and(|comm| comm.state == CommState::Open));
            let idle =
                open.filter(|row| row.comm_counts().sent + row.comm_counts().received == 0).count() as u32;
            *seen = seen.merge_most(RankUsage { queues, idle });
        }
        Ok(())
    }

    /// The observed queues, by rank.
    pub(crate) fn rank_usages(&self) -> &[RankUsage] {
        &self.seen
    }
}
