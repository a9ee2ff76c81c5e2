//! What can go wrong with a message, and what helps.

use trunkline_fabric::OobError;
use trunkline_mem::OutOfMemory;
use trunkline_mem::ipc::CopyError;
use trunkline_node::tagged::{NoEndpoint, ReceiveRefused, SendRefused, TaggedFailure};
use trunkline_proto::wire::window::WindowError;

use crate::error::Error;

/// Why a message did not go, or come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The ranks could not tell each other where they are.
    #[error(transparent)]
    World(#[from] Error),
    /// This host gives no stream between processes.
    #[error("no stream to the ranks of this host: {0}")]
    Stream(#[from] OobError),
    /// This host gives no memory for messages.
    #[error(transparent)]
    Endpoint(#[from] NoEndpoint),
    /// The device in a memory file.
    #[error(transparent)]
    Memory(#[from] trunkline_mem::ipc::MemfdError),
    /// Memory of the device in a memory file.
    #[error(transparent)]
    Alloc(#[from] trunkline_mem::ipc::AllocError),
    /// The system has no memory for a buffer.
    #[error("cannot allocate a buffer: {0}")]
    Buffer(#[from] OutOfMemory),
    /// This process has no such kind of memory.
    #[error(transparent)]
    Missing(#[from] trunkline_mem::ipc::NoMemory),
    /// Memory of a kind that is known by its name.
    #[error(transparent)]
    Room(#[from] trunkline_mem::ipc::HostError),
    /// What the system says.
    #[error(transparent)]
    System(#[from] trunkline_mem::ipc::CallFailure),
    /// The device of another rank cannot be opened.
    #[error("the device of rank 0 cannot be opened: {0}; the ranks must share this host and its processes")]
    Device(#[source] std::io::Error),
    /// A rank of this host did not come.
    #[error("rank {rank} is on this host, but did not say so within {seconds} s; see what it printed")]
    Absent {
        /// Which.
        rank: usize,
        /// How long it was waited for.
        seconds: u64,
    },
    /// There is no such rank.
    #[error("there is no rank {rank}: the world has {size}, from 0")]
    NoRank {
        /// The number that was given.
        rank: usize,
        /// Ranks of the world.
        size: usize,
    },
    /// The rank is this one.
    #[error("a rank sends itself no messages: copy the bytes")]
    Own,
    /// The rank is on another host.
    #[error("rank {rank} is on another host (or in another network namespace): put to it instead")]
    Far {
        /// Which.
        rank: usize,
    },
    /// The tag is not a user's.
    #[error("tag {0:#x} is reserved: tags are below 2^63")]
    Tag(u64),
    /// Bytes beyond the end of a buffer.
    #[error("{len} bytes from {from} on are not in a buffer of {all}")]
    Range {
        /// The first.
        from: usize,
        /// How many.
        len: usize,
        /// How many the buffer has.
        all: usize,
    },
    /// Rows that lie over each other, have no bytes, or are in rows already.
    #[error(
        "rows of {block} bytes, {stride} from one to the next: they have bytes and do not overlap, and a buffer is put in rows once"
    )]
    Rows {
        /// Bytes of a row.
        block: usize,
        /// From one to the next.
        stride: usize,
    },
    /// Bytes that are to stand in rows and do not fill the last one.
    #[error("{len} bytes do not fill rows of {block}")]
    Cut {
        /// How many.
        len: u64,
        /// Bytes of a row.
        block: u64,
    },
    /// A rank gives what is no part of a window, or the window has been freed.
    #[error(
        "rank {rank} gives what is no part of a window: a buffer in rows, memory that is not there, or one window more than there may be"
    )]
    NoWindow {
        /// Who gave it.
        rank: usize,
    },
    /// Another rank says of a window what this one does not understand.
    #[error("what rank {rank} says of a window cannot be: {error}")]
    Window {
        /// Which.
        rank: usize,
        /// What is wrong.
        #[source]
        error: WindowError,
    },
    /// The owner of a part did not place or give its bytes.
    #[error(
        "rank {rank} did not give bytes of its part of a window, or did not take them; has it freed their memory?"
    )]
    Denied {
        /// Which.
        rank: usize,
    },
    /// The buffer is of memory that only its kind reads and writes.
    #[error("the buffer is not private memory in one row: use Messages::read and Messages::write")]
    Kind,
    /// The bytes are not, or not all, in one allocation of the kind of memory of these messages.
    #[error("the bytes are not all in one allocation that Messages::memory knows; has it been freed?")]
    Outside,
    /// The buffers of an all-to-all do not have a part for each rank.
    #[error(
        "buffers of {from} and {into} bytes do not have a part for each of {size} ranks, as long in both"
    )]
    Parts {
        /// Bytes to give.
        from: usize,
        /// Bytes to get.
        into: usize,
        /// Ranks.
        size: usize,
    },
    /// A rank makes a call that all make with another length.
    #[error(
        "rank {rank} gave {got} bytes where this rank has room for {expected}; all ranks must make the same calls in the same order"
    )]
    Differ {
        /// Which.
        rank: usize,
        /// Bytes that came.
        got: u64,
        /// Bytes that should have.
        expected: u64,
    },
    /// There are too many messages at once.
    #[error("too many receives at once: wait for some of them")]
    TooMany,
    /// The message is longer than its receive. What fits is there.
    #[error("a message of {len} bytes of rank {rank}, with tag {tag:#x}, came to a receive of {room}")]
    Truncated {
        /// Who sent it.
        rank: usize,
        /// Its tag.
        tag: u64,
        /// Its bytes.
        len: u64,
        /// Those that are there.
        room: u64,
    },
    /// The other rank is gone.
    #[error("{}the other rank is gone; see what it printed", rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default())]
    Gone {
        /// Which, where that is known.
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
    /// What a copy to or from a part of that rank says.
    pub(super) fn of_copy(error: CopyError, rank: usize) -> Self {
        match error {
            CopyError::Gone => Self::Gone { rank: Some(rank) },
            other => Self::Failed(other.into()),
        }
    }

    /// With the rank that it is about.
    pub(super) fn with_rank(self, rank: usize) -> Self {
        match self {
            Self::Gone { .. } => Self::Gone { rank: Some(rank) },
            other => other,
        }
    }
}
