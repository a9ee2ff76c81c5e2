//! Errors in sharing memory, and reasons for which a neighbour leaves.

use trunkline_fabric::OobError;
use trunkline_mem::ipc::FindAllocationError;
use trunkline_proto::ipc::exporter::{ExporterEventError, TooManyPeers};
use trunkline_proto::ipc::importer::{AnnounceError, ArriveError, RetireError, TooManySources};
use trunkline_proto::wire::ipc::IpcError;

/// Why a neighbour is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveReason {
    /// The neighbour and this process both sent BYE.
    #[error("it left")]
    Bye,
    /// Its process ended, or closed the stream.
    #[error("it died")]
    Died,
    /// It violated the protocol, and counts as dead.
    #[error("it violated the protocol: {0}")]
    Broken(#[from] ProtocolViolation),
    /// Its BYE did not arrive in time.
    #[error("it did not reply to BYE in time")]
    Silent,
}

/// How a neighbour violated the protocol.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolViolation {
    /// A frame is not a valid message.
    #[error(transparent)]
    Message(#[from] IpcError),
    /// The stream has failed, or the neighbour does not read its messages.
    #[error(transparent)]
    Stream(#[from] OobError),
    /// A message before HELLO, a second HELLO, or a second inbox.
    #[error("message out of order: before HELLO, or a second HELLO or INBOX")]
    Turn,
    /// A descriptor that was not announced, or no descriptor where one was announced.
    #[error("a message has an unexpected descriptor, or lacks its descriptor")]
    Descriptor,
    /// An invalid frame of a tagged message, or an invalid inbox.
    #[error("invalid inbox, or invalid frame or counter in it")]
    Cell,
    /// A process that was not expected.
    #[error("message from an unexpected process")]
    Stranger,
    /// More operations at once than this process accepts.
    #[error("more operations at once than this process accepts")]
    TooMany,
    /// A reply to an unknown operation.
    #[error("reply to an unknown operation")]
    NoOperation,
    /// A handle of less memory than was announced.
    #[error("a handle maps {found} bytes, but its announcement has {announced}")]
    Length {
        /// Bytes that the driver mapped.
        found: u64,
        /// Bytes that were announced.
        announced: u64,
    },
    /// An invalid announcement.
    #[error(transparent)]
    Announce(#[from] AnnounceError),
    /// An invalid reference.
    #[error(transparent)]
    Arrive(#[from] ArriveError),
    /// A reference outside of its export: it arrived before the announcement, which does not cover it.
    #[error("a message refers to bytes outside of the announced allocation")]
    Outside,
    /// An invalid RETIRE.
    #[error(transparent)]
    Retire(#[from] RetireError),
    /// An invalid RETIRED.
    #[error(transparent)]
    News(#[from] ExporterEventError),
}

/// A neighbour cannot be added.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeJoinError {
    /// The node is closed.
    #[error("cannot add a neighbour: the node is closed")]
    Closed,
    /// The limit of peers is reached.
    #[error(transparent)]
    Peers(#[from] TooManyPeers),
    /// The limit of sources is reached; it includes neighbours whose memory is still being unmapped.
    #[error(transparent)]
    Sources(#[from] TooManySources),
}

/// A message cannot be sent; the call changed nothing.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The neighbour is gone, or is leaving.
    #[error("cannot send: the neighbour has left or died")]
    Gone,
    /// The driver knows no allocation at that address.
    #[error(transparent)]
    Find(#[from] FindAllocationError),
    /// The message has no bytes, or its bytes are not all in one allocation.
    #[error("cannot send: {len} bytes at {addr:#x} are not in one allocation")]
    Outside {
        /// Address of the first byte.
        addr: usize,
        /// Length in bytes.
        len: usize,
    },
}

/// An arrival cannot be received; the call changed nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The arrival is unknown: it ended with its sender, or was received before.
    #[error("cannot receive: the arrival is unknown, or has ended with its sender")]
    Unknown,
    /// The memory is too short for the message.
    #[error("cannot receive a message of {len} bytes into {room} bytes")]
    Short {
        /// Length of the message in bytes.
        len: u64,
        /// Length of the memory in bytes.
        room: u64,
    },
}
