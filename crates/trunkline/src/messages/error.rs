//! The errors of messages and their windows. Most texts name the remedy.

use trunkline_fabric::OobError;
use trunkline_mem::OutOfMemory;
use trunkline_mem::ipc::CopyError;
use trunkline_node::tagged::{NoEndpoint, ReceiveRefused, SendRefused, TaggedFailure};
use trunkline_proto::wire::window::WindowError;

use crate::error::Error;

/// The reason why a call of [`Messages`](super::Messages) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The ranks could not exchange their addresses over the world.
    #[error(transparent)]
    World(#[from] Error),
    /// This host has no socket for a stream between processes.
    #[error("cannot create streams to the ranks of this host: {0}")]
    Stream(#[from] OobError),
    /// This host has no memory for the inbox of messages.
    #[error(transparent)]
    Endpoint(#[from] NoEndpoint),
    /// The device in a memory file cannot be created or joined.
    #[error(transparent)]
    Memory(#[from] trunkline_mem::ipc::MemfdError),
    /// The device in a memory file has no room for an allocation.
    #[error(transparent)]
    Alloc(#[from] trunkline_mem::ipc::AllocError),
    /// The system has no memory for a buffer.
    #[error("cannot allocate a buffer: {0}")]
    Buffer(#[from] OutOfMemory),
    /// This process has no memory of the requested kind.
    #[error(transparent)]
    Missing(#[from] trunkline_mem::ipc::NoMemory),
    /// [`HostMemory`](super::HostMemory) cannot allocate.
    #[error(transparent)]
    Room(#[from] trunkline_mem::ipc::HostError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] trunkline_mem::ipc::CallFailure),
    /// The device of another rank cannot be opened.
    #[error("cannot open the device of rank 0: {0}; the ranks must be on one host, in one PID namespace")]
    Device(#[source] std::io::Error),
    /// A rank of this host did not connect in time.
    #[error("rank {rank} is on this host, but did not connect within {seconds} s; read its output")]
    Absent {
        /// The rank.
        rank: usize,
        /// The limit in seconds.
        seconds: u64,
    },
    /// The rank is out of range.
    #[error("rank {rank} is out of range: the world has {size}, counted from 0")]
    NoRank {
        /// The number that the caller passed.
        rank: usize,
        /// The number of ranks of the world; ranks are counted from 0.
        size: usize,
    },
    /// The rank is this one. Ranks send no messages to themselves.
    #[error("a rank cannot send messages to itself; copy the bytes instead")]
    Own,
    /// The rank is on another host.
    #[error(
        "cannot send messages to rank {rank}: it is on another host, or in another network namespace; put to it instead"
    )]
    Far {
        /// The rank.
        rank: usize,
    },
    /// The tag is reserved.
    #[error("tag {0:#x} is reserved; use tags below 2^63")]
    Tag(u64),
    /// The bytes extend beyond the end of the buffer.
    #[error("{len} bytes from offset {from} on exceed a buffer of {all} bytes")]
    Range {
        /// The offset of the first byte.
        from: usize,
        /// The number of bytes.
        len: usize,
        /// The length of the buffer in bytes.
        all: usize,
    },
    /// The rows overlap or are empty, or the buffer is in rows already.
    #[error(
        "invalid rows of {block} bytes, {stride} bytes apart: rows must not be empty or overlap, and a buffer can be \
         divided into rows only once"
    )]
    Rows {
        /// The length of a row in bytes.
        block: usize,
        /// The distance from the start of one row to that of the next, in bytes.
        stride: usize,
    },
    /// The bytes do not fill the last row.
    #[error("{len} bytes do not fill whole rows of {block} bytes")]
    Cut {
        /// The number of bytes.
        len: u64,
        /// The length of a row in bytes.
        block: u64,
    },
    /// A rank passed an invalid buffer to the creation of a window, or the window has been freed.
    #[error(
        "rank {rank} has no valid part for the window: its buffer is in rows, its memory is freed, or it has the \
         largest number of windows"
    )]
    NoWindow {
        /// The rank that passed it.
        rank: usize,
    },
    /// Another rank sent an invalid description of its part of a window.
    #[error("rank {rank} sent an invalid description of its part of a window: {error}")]
    Window {
        /// The rank.
        rank: usize,
        /// The invalid field.
        #[source]
        error: WindowError,
    },
    /// The owner of a part rejected a put or a get.
    #[error("rank {rank} rejected a put or get to its part of a window; has it freed that memory?")]
    Denied {
        /// The owner.
        rank: usize,
    },
    /// The buffer is not private memory, so that only its kind of memory reads and writes it.
    #[error("the buffer is in rows or not in private memory; use Messages::read and Messages::write")]
    Kind,
    /// The bytes are not all inside one allocation of the kind of memory of these messages.
    #[error("the bytes are not all inside one allocation of Messages::memory; has it been freed?")]
    Outside,
    /// The buffers of an all-to-all do not have a part of the same length for each rank.
    #[error(
        "buffers of {from} and {into} bytes cannot be exchanged: both need {size} parts of the same length, one per \
         rank"
    )]
    Parts {
        /// Bytes of the buffer to send from.
        from: usize,
        /// Bytes of the buffer to receive into.
        into: usize,
        /// The number of ranks.
        size: usize,
    },
    /// A rank makes the same collective call with another length.
    #[error(
        "rank {rank} passed {got} bytes to a collective call, this rank {expected}; all ranks must make the same calls \
         in the same order, with the same lengths"
    )]
    Differ {
        /// The rank.
        rank: usize,
        /// Bytes that the rank sent.
        got: u64,
        /// Bytes that this rank expected.
        expected: u64,
    },
    /// Too many receives are pending.
    #[error("cannot post another receive: too many are pending; wait for some of them")]
    TooMany,
    /// The message is longer than its receive. The receive buffer contains its first bytes.
    #[error(
        "a message of {len} bytes of rank {rank}, with tag {tag:#x}, exceeds its receive of {room} bytes"
    )]
    Truncated {
        /// The sender.
        rank: usize,
        /// The tag of the message.
        tag: u64,
        /// The length of the message in bytes.
        len: u64,
        /// Bytes that the receive buffer contains.
        room: u64,
    },
    /// The other rank has ended.
    #[error("{}the other rank has ended; read its output", rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default())]
    Gone {
        /// The rank, where it is known.
        rank: Option<usize>,
    },
    /// Memory could not be read or written.
    #[error(transparent)]
    Failed(TaggedFailure),
}

impl From<TaggedFailure> for MessageError {
    fn from(failed: TaggedFailure) -> Self {
        match failed {
            TaggedFailure::Gone => Self::Gone { rank: None },
            other => Self::Failed(other),
        }
    }
}

impl From<SendRefused> for MessageError {
    fn from(refused: SendRefused) -> Self {
        match refused {
            SendRefused::Gone => Self::Gone { rank: None },
            _ => Self::Outside,
        }
    }
}

impl From<ReceiveRefused> for MessageError {
    fn from(refused: ReceiveRefused) -> Self {
        match refused {
            ReceiveRefused::Gone => Self::Gone { rank: None },
            ReceiveRefused::TooMany => Self::TooMany,
            _ => Self::Outside,
        }
    }
}

impl MessageError {
    /// Converts the error of a copy to or from a rank's part.
    pub(super) fn of_copy(error: CopyError, rank: usize) -> Self {
        match error {
            CopyError::Gone => Self::Gone { rank: Some(rank) },
            other => Self::Failed(other.into()),
        }
    }

    /// Adds the rank to an error that has none.
    pub(super) fn with_rank(self, rank: usize) -> Self {
        match self {
            Self::Gone { .. } => Self::Gone { rank: Some(rank) },
            other => other,
        }
    }
}
