//! Events that a node reports to its owner, which takes them with
//! [`IpcNode::next_event`](super::IpcNode::next_event).

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::CopyError;
use trunkline_proto::wire::tagged::InboxSizes;

use super::{ArrivalId, LeaveReason, NeighbourId, OperationId};

/// Something that happened in a node.
#[derive(Debug)]
pub enum NodeEvent {
    /// A neighbour's HELLO has arrived; from now on messages can be sent to it.
    Met {
        /// The neighbour.
        neighbour: NeighbourId,
        /// The random name of its process.
        process: [u8; 16],
    },
    /// A neighbour refers to memory of its own: supply the buffer ([`IpcNode::receive`](super::IpcNode::receive)), or
    /// refuse the arrival.
    Arrived {
        /// Its id until it is received or refused.
        arrival: ArrivalId,
        /// Bytes.
        len: u64,
    },
    /// A neighbour has made an inbox for tagged messages.
    Inbox {
        /// The neighbour.
        neighbour: NeighbourId,
        /// The sizes of the inbox.
        inbox: InboxSizes,
        /// The file to map. The node has not checked its contents.
        file: OwnedFd,
    },
    /// A receive has ended.
    Received {
        /// The arrival.
        arrival: ArrivalId,
        /// How it ended.
        receipt: ReceiveOutcome,
    },
    /// A send has ended: its memory may be freed or written.
    Sent {
        /// The operation.
        operation: OperationId,
        /// How it ended.
        delivery: SendOutcome,
    },
    /// A neighbour is gone. Its exports of this process count no more; its memory is being unmapped here. This is its
    /// last event: all its operations and receives were reported before.
    Left {
        /// The neighbour.
        neighbour: NeighbourId,
        /// The reason.
        why: LeaveReason,
    },
}

/// How a receive ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReceiveOutcome {
    /// The bytes have arrived.
    Copied,
    /// The sender's memory could not be mapped; the sender was notified, and uses another method.
    NotMapped,
    /// The bytes were not copied for another reason; the sender receives the same reply as for [`Self::NotMapped`].
    NotCopied(CopyError),
    /// The sender is gone.
    Lost,
}

/// How a send ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOutcome {
    /// The bytes were copied.
    Copied,
    /// The neighbour could not map or copy the bytes: send them by another method.
    NotMapped,
    /// The neighbour refused the bytes.
    Refused,
    /// The neighbour is gone.
    Lost,
}
