//! What a node tells its owner.

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::CopyError;
use trunkline_proto::wire::tagged::InboxSizes;

use super::{ArrivalId, LeaveReason, NeighbourId, OperationId};

/// Something has happened.
#[derive(Debug)]
pub enum NodeEvent {
    /// A neighbour has said who it is; from now on it can be sent to.
    Met {
        /// Which.
        neighbour: NeighbourId,
        /// The random name of its process.
        process: [u8; 16],
    },
    /// A neighbour refers to memory of its own: say where the bytes go ([`IpcNode::receive`](super::IpcNode::receive)), or refuse them.
    Arrived {
        /// What it is called until it is received or refused.
        arrival: ArrivalId,
        /// Bytes.
        len: u64,
    },
    /// A neighbour has made an inbox for tagged messages.
    Inbox {
        /// Which.
        neighbour: NeighbourId,
        /// How large.
        inbox: InboxSizes,
        /// What it is mapped by. Nothing of it was looked at.
        file: OwnedFd,
    },
    /// What was to be received has ended.
    Received {
        /// Which.
        arrival: ArrivalId,
        /// How.
        receipt: ReceiveOutcome,
    },
    /// What was sent has ended: its memory may be freed or written.
    Sent {
        /// Which.
        operation: OperationId,
        /// How.
        delivery: SendOutcome,
    },
    /// A neighbour is gone. What it had of this process counts no more; what this process has of it is being unmapped. No more notices
    /// of it come, and all of its operations and receives were told before.
    Left {
        /// Which.
        neighbour: NeighbourId,
        /// Why.
        why: LeaveReason,
    },
}

/// How a receive ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReceiveOutcome {
    /// The bytes are there.
    Copied,
    /// They could not be mapped; the sender knows, and sends them another way.
    NotMapped,
    /// They were not copied for another reason; the sender is told the same as above.
    NotCopied(CopyError),
    /// The sender is gone.
    Lost,
}

/// How a send ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOutcome {
    /// The bytes were copied.
    Copied,
    /// The neighbour could not map or copy them: they go another way.
    NotMapped,
    /// The neighbour does not want them.
    Refused,
    /// The neighbour is gone.
    Lost,
}
