//! What goes wrong in sharing memory, and what makes a neighbour go.

use trunkline_fabric::OobError;
use trunkline_mem::ipc::FindAllocationError;
use trunkline_proto::ipc::exporter::{ExporterEventError, TooManyPeers};
use trunkline_proto::ipc::importer::{AnnounceError, ArriveError, RetireError, TooManySources};
use trunkline_proto::wire::ipc::IpcError;

/// Why a neighbour is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveReason {
    /// It said BYE, and so did this process.
    #[error("it left")]
    Bye,
    /// Its process ended, or closed the stream.
    #[error("it died")]
    Died,
    /// It said what cannot be, and counts as dead.
    #[error("it is broken: {0}")]
    Broken(#[from] ProtocolViolation),
    /// It did not say BYE in time.
    #[error("it did not leave in time")]
    Silent,
}

/// What a neighbour said that cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolViolation {
    /// No message.
    #[error(transparent)]
    Message(#[from] IpcError),
    /// No frame; or it does not read what it is sent.
    #[error(transparent)]
    Stream(#[from] OobError),
    /// Something before HELLO, or a second HELLO.
    #[error("a message out of turn")]
    Turn,
    /// A descriptor that was not announced, or none where one was.
    #[error("an announcement and its descriptor do not go together")]
    Descriptor,
    /// A frame of a tagged message that cannot be, or an inbox.
    #[error("what stands in its inbox cannot be")]
    Cell,
    /// A process that was not expected.
    #[error("a process that nobody knows")]
    Stranger,
    /// More operations than it was told.
    #[error("more operations at once than there may be")]
    TooMany,
    /// An answer to what was not asked.
    #[error("an answer to an operation that there is not")]
    NoOperation,
    /// A handle of less memory than was announced.
    #[error("a handle of {found} bytes for an allocation of {announced}")]
    Length {
        /// Bytes that were mapped.
        found: u64,
        /// Bytes that should have been.
        announced: u64,
    },
    /// An announcement.
    #[error(transparent)]
    Announce(#[from] AnnounceError),
    /// A reference.
    #[error(transparent)]
    Arrive(#[from] ArriveError),
    /// A reference that came before its announcement, and does not fit it.
    #[error("a message names bytes outside of what was announced")]
    Outside,
    /// What is to be let go.
    #[error(transparent)]
    Retire(#[from] RetireError),
    /// What was let go.
    #[error(transparent)]
    News(#[from] ExporterEventError),
}

/// No neighbour can come.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeJoinError {
    /// The node is closed.
    #[error("the node shares nothing any more")]
    Closed,
    /// There are too many.
    #[error(transparent)]
    Peers(#[from] TooManyPeers),
    /// There are too many, those included whose memory is still being unmapped.
    #[error(transparent)]
    Sources(#[from] TooManySources),
}

/// A message cannot be sent; nothing was changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The neighbour is gone, or leaves.
    #[error("the neighbour is gone")]
    Gone,
    /// No allocation is there.
    #[error(transparent)]
    Find(#[from] FindAllocationError),
    /// It has no bytes, or they are not all in one allocation.
    #[error("{len} bytes at {addr:#x} are not in one allocation")]
    Outside {
        /// Address of the first one.
        addr: usize,
        /// Bytes.
        len: usize,
    },
}

/// An arrival cannot be received; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// There is none of that name: it ended with its sender, or was received before.
    #[error("there is no such arrival any more")]
    Unknown,
    /// The memory is too short for it.
    #[error("{room} bytes for a message of {len}")]
    Short {
        /// Bytes of the message.
        len: u64,
        /// Bytes of the memory.
        room: u64,
    },
}
