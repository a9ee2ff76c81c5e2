//! What can go wrong, and what helps.

use std::io;

use trunkline_engine::rma::RmaError;
use trunkline_mem::OutOfMemory;
use trunkline_runtime::{ChooseError, MembershipError};

/// Why a call failed. Each says what helps, where something does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process is no rank of a world: what the environment says cannot be, or the ranks did not meet.
    #[error(transparent)]
    Join(#[from] MembershipError),
    /// The engine cannot start.
    #[error("cannot start: {0}")]
    Start(#[source] RmaError),
    /// The system has no memory for the symmetric heap.
    #[error("no symmetric heap (TRUNKLINE_HEAP_BYTES, Builder::heap): {0}")]
    Memory(#[from] OutOfMemory),
    /// The system has no memory for the buffers of a call.
    #[error("cannot allocate memory: {0}")]
    Allocate(#[source] OutOfMemory),
    /// The system has no thread left for passive progress.
    #[error("no thread for passive progress: {0}; raise the limit, or start with Builder::passive(false)")]
    Thread(#[source] io::Error),
    /// This program cannot be started as the ranks of a job.
    #[error("cannot start the ranks: {0}")]
    Spawn(#[source] io::Error),
    /// There is no such rank.
    #[error("there is no rank {rank}: the world has {size}, from 0")]
    NoRank {
        /// The number that was given.
        rank: usize,
        /// Ranks of the world.
        size: usize,
    },
    /// Elements beyond the end of a symmetric object.
    #[error("{count} elements from {index} on do not lie in a symmetric object of {len}")]
    Range {
        /// The first element.
        index: usize,
        /// How many.
        count: usize,
        /// How many the object has.
        len: usize,
    },
    /// An argument that cannot be right; says which.
    #[error("{0}")]
    Argument(&'static str),
    /// The symmetric heap is full.
    #[error(
        "no room for {asked} bytes in a symmetric heap of {size}, of which {free} are free; start with a larger one: \
         TRUNKLINE_HEAP_BYTES, or Builder::heap"
    )]
    Heap {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that are free, though maybe not in a row.
        free: u64,
        /// Bytes of the heap.
        size: u64,
    },
    /// A rank is in another collective call than this one.
    #[error(
        "rank {rank} makes another collective call than this rank; all ranks must make the same ones (alloc, free, \
         barrier, ...) in the same order, with the same sizes"
    )]
    Differ {
        /// Which one, as this rank sees it.
        rank: usize,
    },
    /// A rank is gone, or cannot be reached any more. Told by each call that needs it.
    #[error(
        "rank {rank} is gone or cannot be reached: {source}; see what it printed, and start the job anew"
    )]
    Gone {
        /// Which.
        rank: usize,
        /// What was seen of it.
        source: RmaError,
    },
    /// Something that was begun before did not arrive; told once.
    #[error(
        "what was sent to rank {rank} did not all arrive: {source}; see what that rank printed, and start the job anew"
    )]
    Failed {
        /// To whom.
        rank: usize,
        /// What was seen of it.
        source: RmaError,
    },
    /// The engine refuses.
    #[error(transparent)]
    Engine(RmaError),
}

impl From<ChooseError> for Error {
    fn from(source: ChooseError) -> Self {
        Self::Join(source.into())
    }
}

impl From<RmaError> for Error {
    fn from(source: RmaError) -> Self {
        match source {
            RmaError::Lost { member, .. } => Self::Gone { rank: member as usize, source },
            RmaError::Failed { member, .. } => Self::Failed { rank: member as usize, source },
            _ => Self::Engine(source),
        }
    }
}
