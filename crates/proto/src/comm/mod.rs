//! Two-sided messages: what happens for each send and each receive, as plain functions over fixed-size state.
//!
//! Both sides pair sends with receive buffers by the same rule: the k-th send of a tag belongs to the k-th buffer of
//! that tag, in receive order. The sender knows the buffers from its mailbox; what it must send earlier goes eagerly,
//! and the receiver repeats the sender's reasoning (docs/wire.md, "Eager header").

pub mod eager_window;
pub mod link_balancer;
pub mod receiver;
pub mod ring;
pub mod sender;
pub mod table;

use crate::wire::eager::EagerError;
use crate::wire::fin::FinError;

/// The peer broke the protocol; its link cannot be used any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MessageFault {
    /// More receives are open than there can be.
    #[error("the peer posted more than {} receives", crate::limits::RECVS_MAX)]
    TooManyReceives,
    /// A message does not fit its buffer.
    #[error("a message of {len} bytes for a receive of {room} bytes")]
    TooLong {
        /// Bytes of the message.
        len: u64,
        /// Bytes of the buffer.
        room: u64,
    },
    /// The immediate is of an unknown kind.
    #[error("immediate {0:#x} is of an unknown kind")]
    Immediate(u32),
    /// The same stripe or fin came twice, or contradicts what came before.
    #[error("a message was announced twice")]
    Twice,
    /// An eager message's number is outside the window, or came twice.
    #[error("eager message number {0} is out of place")]
    EagerNumber(u32),
    /// An eager header could not be read.
    #[error("eager header: {0}")]
    Eager(#[from] EagerError),
    /// A fin record could not be read.
    #[error("fin record: {0}")]
    Fin(#[from] FinError),
    /// A receiver that left a link does not say what it has.
    #[error("a link was left without a word on what has arrived")]
    Standing,
}
