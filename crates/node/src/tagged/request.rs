//! A message that was begun here, as its owner knows it and as it stands.

use trunkline_mem::ipc::CopyError;
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::ReceiveId;

use super::TaggedPeerId;
use crate::ipc::{MessageBuffer, OperationId};

/// A message that was begun and whose end was not asked for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TaggedRequestId(pub(super) SlotId);

/// A message that went well.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MessageStatus {
    /// The other end.
    pub peer: TaggedPeerId,
    /// Its tag.
    pub tag: u64,
    /// Its bytes.
    pub len: u64,
}

/// A message that did not.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TaggedFailure {
    /// It is longer than the memory that it came to. What fitted is there.
    #[error("a message of {len} bytes, with tag {tag:#x}, came to a receive of {room}")]
    Truncated {
        /// Who sent it.
        peer: TaggedPeerId,
        /// Its tag.
        tag: u64,
        /// Its bytes.
        len: u64,
        /// Those that were received.
        room: u64,
    },
    /// The other process is gone.
    #[error("the other process is gone")]
    Gone,
    /// Memory of this process that it used is not there any more.
    #[error("the message's own memory could not be read or written: {0}")]
    Copy(#[from] CopyError),
    /// The sender could not read its memory.
    #[error("the sender could not read what it sent")]
    Unsent,
    /// The receive was cancelled.
    #[error("the receive was cancelled")]
    Cancelled,
}

/// How a message stands.
#[derive(Debug)]
pub(super) enum MessageRequest {
    Send(StartedSend),
    Receive(StartedReceive),
    Ended(Result<MessageStatus, TaggedFailure>),
}

/// A message to a peer that has not all of it.
#[derive(Debug)]
pub(super) struct StartedSend {
    pub(super) peer: TaggedPeerId,
    pub(super) tag: u64,
    pub(super) buffer: MessageBuffer,
    pub(super) way: SendStep,
}

/// How far it got.
#[derive(Debug)]
pub(super) enum SendStep {
    /// It is short, and is copied into the peer's ring.
    Eager,
    /// The peer was told of it; and, if `pieces`, that it is to go in pieces.
    Ready {
        /// The wish.
        pieces: bool,
        /// It would have been referred to its memory, which was not exported.
        unshared: bool,
    },
    /// The peer was told where it is; and, if `offer`, that it may rather say where its own memory is.
    Referred {
        /// The reference.
        operation: OperationId,
        /// The wish.
        offer: bool,
    },
    /// It is being copied to where the peer wants it.
    Placing {
        /// The peer's receive.
        receive: SlotId,
        /// Bytes that it wants.
        want: u64,
    },
    /// It goes in pieces.
    Pieces {
        /// The peer's receive.
        receive: SlotId,
        /// Bytes that it wants.
        want: u64,
        /// Bytes that are in the stage or behind it.
        done: u64,
    },
}

/// A receive that has not got its message.
#[derive(Debug)]
pub(super) struct StartedReceive {
    pub(super) buffer: MessageBuffer,
    pub(super) way: ReceiveStep,
}

/// How far it got.
#[derive(Debug)]
pub(super) enum ReceiveStep {
    /// No message fitted yet.
    Posted(Option<ReceiveId>),
    /// It is copied from the sender's memory.
    Copying(MatchedMessage),
    /// The sender copies it.
    Offered(MatchedMessage, OperationId),
    /// It comes in pieces; so many bytes are there.
    Pieces(MatchedMessage, u64),
    /// It is short and has come, and is copied from where it came to. It ends by itself, whatever becomes of its sender.
    Eager(MatchedMessage),
}

/// The message that a receive is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchedMessage {
    pub(super) peer: TaggedPeerId,
    pub(super) tag: u64,
    /// Its bytes.
    pub(super) len: u64,
    /// Those of them that are wanted.
    pub(super) want: u64,
    /// The sender's request.
    pub(super) request: SlotId,
}

impl MatchedMessage {
    /// How it ends, once what was wanted is there.
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
    /// Whose message it is, if one has come.
    pub(super) const fn matched_peer(&self) -> Option<TaggedPeerId> {
        match self {
            Self::Posted(_) => None,
            Self::Copying(of) | Self::Eager(of) | Self::Offered(of, _) | Self::Pieces(of, _) => Some(of.peer),
        }
    }
}

/// A compiler moves so much by itself; more it has moved by a call.
const _: () = assert!(size_of::<MessageRequest>() <= 128);
