//! The collectives: names, counts, bandwidth factors, and the positions of in-place buffers.
//!
//! Pure; used by the schedules, the verification and the reports. Counts and factors follow nccl-tests.

use serde::{Deserialize, Serialize};

use crate::schedule::ConnectionGraph;
use crate::types::named;

named! {
    /// A collective operation of nccl-tests and rccl-tests.
    Collective, "collective", {
        /// Every rank gets the reduction of all.
        AllReduce = "all_reduce",
        /// Every rank gets the blocks of all.
        AllGather = "all_gather",
        /// Every rank gets one block of the reduction.
        ReduceScatter = "reduce_scatter",
        /// The root gets the reduction of all.
        Reduce = "reduce",
        /// Every rank gets the root's data.
        Broadcast = "broadcast",
        /// Every rank sends one block to every rank.
        AllToAll = "alltoall",
        /// As `AllToAll`, with blocks of different sizes, some of them empty.
        AllToAllV = "alltoallv",
        /// The root gets a block of every rank.
        Gather = "gather",
        /// Every rank gets a block of the root.
        Scatter = "scatter",
        /// Every rank sends to the next, and receives from the previous one.
        SendRecv = "sendrecv",
    }
}

/// How many elements a rank sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementCounts {
    /// Elements of one rank's part, nccl-tests' `count` column.
    pub block: usize,
    /// Elements of the send buffer.
    pub send: usize,
    /// Elements of the receive buffer.
    pub recv: usize,
}

impl Collective {
    /// Whether it reduces, and so needs an operator.
    pub fn is_reduction(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether it has a root rank.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Returns to how many other ranks `rank` has connections, and from how many. Each of these peers has one
    /// connection per direction and channel, in every communicator.
    pub fn peer_counts(self, rank: usize, ranks: usize, root: usize) -> (usize, usize) {
        let graph = ConnectionGraph::for_collective(self, root);
        (graph.peers_out(rank, ranks).len(), graph.peers_in(rank, ranks).len())
    }

    /// Returns the counts for a total of about `count` elements.
    pub fn element_counts(self, count: usize, ranks: usize) -> ElementCounts {
        let part = (count / ranks.max(1)).max(1);
        match self {
            Self::AllReduce | Self::Reduce | Self::Broadcast | Self::SendRecv => {
                ElementCounts { block: count, send: count, recv: count }
            }
            Self::AllGather | Self::Gather => ElementCounts { block: part, send: part, recv: part * ranks },
            Self::ReduceScatter | Self::Scatter => {
                ElementCounts { block: part, send: part * ranks, recv: part }
            }
            Self::AllToAll | Self::AllToAllV => {
                ElementCounts { block: part, send: part * ranks, recv: part * ranks }
            }
        }
    }

    /// Returns the bytes for the algorithm bandwidth, from the bytes of one block.
    pub fn algorithm_bytes(self, block_bytes: usize, ranks: usize) -> usize {
        match self {
            Self::AllReduce | Self::Reduce | Self::Broadcast | Self::SendRecv => block_bytes,
            _ => block_bytes * ranks,
        }
    }

    /// Returns the ratio of bus bandwidth to algorithm bandwidth.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::Reduce | Self::Broadcast | Self::SendRecv => 1.0,
            _ => (n - 1.0) / n,
        }
    }

    /// Returns the element offsets (send, receive) inside the one buffer of an in-place run.
    pub fn in_place_offsets(self, block: usize, rank: usize, root: usize) -> (usize, usize) {
        match self {
            Self::AllGather => (rank * block, 0),
            Self::ReduceScatter => (0, rank * block),
            Self::Gather if rank == root => (rank * block, 0),
            Self::Scatter if rank == root => (0, rank * block),
            _ => (0, 0),
        }
    }

    /// Returns the position of the block between `rank` and `peer` in a buffer of blocks, as (offset, length) in
    /// elements.
    ///
    /// All blocks are equal, but in `AllToAllV` the one of ranks `i` and `j` has `(i + j) mod n` units.
    pub fn block_between(self, block: usize, ranks: usize, rank: usize, peer: usize) -> (usize, usize) {
        if self != Self::AllToAllV {
            return (peer * block, block);
        }
        let unit = 2 * block / (ranks.max(2) - 1);
        let before: usize = (0..peer).map(|other| (rank + other) % ranks * unit).sum();
        (before, (rank + peer) % ranks * unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outgoing_and_incoming_peer_counts_match() {
        use Collective::{AllReduce, AllToAll, Gather, Scatter};
        assert_eq!((AllReduce.peer_counts(0, 2, 0), AllReduce.peer_counts(3, 4, 1)), ((1, 1), (1, 1)));
        assert_eq!(AllToAll.peer_counts(1, 4, 0), (3, 3));
        assert_eq!((Gather.peer_counts(2, 4, 2), Gather.peer_counts(0, 4, 2)), ((0, 3), (1, 0)));
        assert_eq!((Scatter.peer_counts(2, 4, 2), Scatter.peer_counts(0, 4, 2)), ((3, 0), (0, 1)));
    }

    #[test]
    fn uneven_blocks_fit_and_are_symmetric() {
        for ranks in 2..=16 {
            for block in [1, 2, 7, 100] {
                for i in 0..ranks {
                    let (at, len) = Collective::AllToAllV.block_between(block, ranks, i, ranks - 1);
                    assert!(at + len <= block * ranks);
                    for j in 0..ranks {
                        let ij = Collective::AllToAllV.block_between(block, ranks, i, j).1;
                        assert_eq!(ij, Collective::AllToAllV.block_between(block, ranks, j, i).1);
                    }
                }
            }
        }
    }
}
