//! The errors of [`World`](crate::World) and [`Context`](crate::Context). Most texts name the setting or the step
//! that helps.

use std::io;

use trunkline_engine::rma::RmaError;
use trunkline_mem::OutOfMemory;
use trunkline_runtime::{ChooseError, MembershipError};

/// The reason why a call of a [`World`](crate::World) or a [`Context`](crate::Context) failed. Its text names a
/// remedy where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process cannot join a world: the launcher's environment variables are invalid, or the ranks did not meet
    /// in time.
    #[error(transparent)]
    Join(#[from] MembershipError),
    /// The engine does not register the heaps of this rank.
    #[error("cannot register the heaps of this rank: {0}")]
    Start(#[source] RmaError),
    /// The system has no memory for the symmetric heap.
    #[error(
        "cannot allocate the symmetric heap: {0}; TRUNKLINE_HEAP_BYTES or WorldBuilder::heap sets its size"
    )]
    Memory(#[from] OutOfMemory),
    /// The system has no memory for the buffers of a call.
    #[error("cannot allocate memory: {0}")]
    Allocate(#[source] OutOfMemory),
    /// The system has no thread left for passive progress.
    #[error(
        "cannot start the thread for passive progress: {0}; raise the limit, or start with WorldBuilder::passive(false)"
    )]
    Thread(#[source] io::Error),
    /// This program cannot be started as the ranks of a job.
    #[error("cannot start the ranks: {0}")]
    Spawn(#[source] io::Error),
    /// The rank is out of range.
    #[error("rank {rank} is out of range: the world has {size}, counted from 0")]
    NoRank {
        /// The number that the caller passed.
        rank: usize,
        /// The number of ranks of the world; ranks are counted from 0.
        size: usize,
    },
    /// The elements extend beyond the end of the symmetric object.
    #[error("{count} elements from index {index} on exceed a symmetric object of {len}")]
    Range {
        /// The index of the first element.
        index: usize,
        /// The number of elements that the call needs.
        count: usize,
        /// The number of elements of the object.
        len: usize,
    },
    /// An argument is invalid. The text names it and its limit.
    #[error("{0}")]
    Argument(&'static str),
    /// The symmetric heap has no room for the object.
    #[error(
        "no room for {asked} bytes in a symmetric heap of {size}, of which {free} are free; start with a larger one: \
         TRUNKLINE_HEAP_BYTES, or WorldBuilder::heap"
    )]
    Heap {
        /// Bytes that the call needs.
        asked: u64,
        /// Free bytes, which may be fragmented.
        free: u64,
        /// Size of the heap in bytes.
        size: u64,
    },
    /// A rank is in a different collective call than this one, or passes other sizes.
    #[error(
        "rank {rank} makes another collective call than this rank; all ranks must make the same calls (alloc, free, \
         barrier, ...) in the same order, with the same sizes"
    )]
    Differ {
        /// The rank whose call differs, as this rank observed it.
        rank: usize,
    },
    /// A rank has ended, or is unreachable. Every later call that needs this rank returns this error again.
    #[error("rank {rank} has ended or cannot be reached: {source}; read its output, and restart the job")]
    Gone {
        /// The rank.
        rank: usize,
        /// The event by which the engine noticed it.
        source: RmaError,
    },
    /// An operation that an earlier call began did not complete and never will. Each failure is returned once.
    #[error(
        "operations towards rank {rank} did not complete: {source}; read its output, and restart the job"
    )]
    Failed {
        /// The target rank of the operation.
        rank: usize,
        /// The event by which the engine noticed it.
        source: RmaError,
    },
    /// The engine rejects the call. Its own error is the text.
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
