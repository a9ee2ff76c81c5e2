//! Requests of an endpoint: their ids, states and results.

use trunkline_mem::ipc::CopyError;
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::ReceiveId;

use super::TaggedPeerId;
use crate::ipc::{MessageBuffer, OperationId};

/// A send or receive whose result was not taken yet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TaggedRequestId(pub(super) SlotId);

/// The result of a successful message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MessageStatus {
    /// The other end of the message.
    pub peer: TaggedPeerId,
    /// The tag.
    pub tag: u64,
    /// The length in bytes.
    pub len: u64,
}

/// The result of a failed message.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TaggedFailure {
    /// It is longer than the buffer of its receive. The part that fits was received.
    #[error("a message of {len} bytes, with tag {tag:#x}, was truncated to the {room} bytes of its receive")]
    Truncated {
        /// The sender.
        peer: TaggedPeerId,
        /// The tag.
        tag: u64,
        /// The length of the message in bytes.
        len: u64,
        /// Bytes that were received.
        room: u64,
    },
    /// The other process is gone.
    #[error("the other process has left or died")]
    Gone,
    /// Memory of this process that the message used is not allocated any more.
    #[error("cannot read or write the message's memory of this process: {0}")]
    Copy(#[from] CopyError),
    /// The sender could not read its memory.
    #[error("the sender could not read its memory of the message")]
    Unsent,
    /// The receive was cancelled.
    #[error("the receive was cancelled")]
    Cancelled,
}

/// The state of a request.
#[derive(Debug)]
pub(super) enum MessageRequest {
    Send(StartedSend),
    Receive(StartedReceive),
    Ended(Result<MessageStatus, TaggedFailure>),
}

/// A send that the receiver has not got completely.
#[derive(Debug)]
pub(super) struct StartedSend {
    pub(super) peer: TaggedPeerId,
    pub(super) tag: u64,
    pub(super) buffer: MessageBuffer,
    pub(super) way: SendStep,
}

/// The state of a send.
#[derive(Debug)]
pub(super) enum SendStep {
    /// It is short, and is being copied into the peer's ring.
    Eager,
    /// The peer was sent READY, with or without the request to receive in pieces.
    Ready {
        /// Whether the sender prefers pieces.
        pieces: bool,
        /// Whether a reference was preferred, but the memory was not exported.
        unshared: bool,
    },
    /// The peer was sent a reference to the memory. With `offer`, it may reply with a reference to its own memory
    /// instead.
    Referred {
        /// The operation of the reference.
        operation: OperationId,
        /// Whether the sender prefers to copy.
        offer: bool,
    },
    /// This process is copying it to the memory that the peer offered.
    Placing {
        /// The peer's receive.
        receive: SlotId,
        /// Bytes that the peer requested.
        want: u64,
    },
    /// It is sent in pieces.
    Pieces {
        /// The peer's receive.
        receive: SlotId,
        /// Bytes that the peer requested.
        want: u64,
        /// Bytes that are in the stage or already consumed.
        done: u64,
    },
}

/// A receive that has not completed.
#[derive(Debug)]
pub(super) struct StartedReceive {
    pub(super) buffer: MessageBuffer,
    pub(super) way: ReceiveStep,
}

/// The state of a receive.
#[derive(Debug)]
pub(super) enum ReceiveStep {
    /// No message has matched yet.
    Posted(Option<ReceiveId>),
    /// This process is copying it from the sender's memory.
    Copying(MatchedMessage),
    /// The sender was offered the buffer, and copies.
    Offered(MatchedMessage, OperationId),
    /// It arrives in pieces; the number is the bytes received so far, or being copied.
    Pieces(MatchedMessage, u64),
    /// It is short, has arrived, and is being copied from the ring or from a kept buffer. It completes even if the
    /// sender is gone.
    Eager(MatchedMessage),
}

/// The message that a receive has matched.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchedMessage {
    pub(super) peer: TaggedPeerId,
    pub(super) tag: u64,
    /// The length of the message in bytes.
    pub(super) len: u64,
    /// Bytes that the receive has room for.
    pub(super) want: u64,
    /// The sender's request.
    pub(super) request: SlotId,
}

impl MatchedMessage {
    /// Returns the result, once the requested bytes have arrived.
    pub(super) const fn final_result(&self) -> Result<MessageStatus, TaggedFailure> {
        let &Self { peer, tag, len, want, .. } = self;
        if want < len {
            Err(TaggedFailure::Truncated { peer, tag, len, room: want })
        } else {
            Ok(MessageStatus { peer, tag, len })
        }
    }
}

impl ReceiveStep {
    /// Returns the sender of the matched message, if there is one.
    pub(super) const fn matched_peer(&self) -> Option<TaggedPeerId> {
        match self {
            Self::Posted(_) => None,
            Self::Copying(of) | Self::Eager(of) | Self::Offered(of, _) | Self::Pieces(of, _) => Some(of.peer),
        }
    }
}

/// The compiler moves values up to this size inline; larger ones by a call of memcpy.
const _: () = assert!(size_of::<MessageRequest>() <= 128);
