//! Two-sided messages: the decisions for each send and each receive, as plain functions over fixed-size state. The engine calls them;
//! nothing here posts an operation or copies a byte.
//!
//! Both sides pair sends with receive buffers by the same rule: the k-th send of a tag belongs to the k-th buffer of that
//! tag, in receive order. The sender knows the buffers from its mailbox. It sends a message without a known buffer eagerly, and the
//! receiver repeats the sender's pairing (docs/wire.md, "Eager header").

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
    /// More receives are open than the limit allows.
    #[error("the peer posted more than {} receives", crate::limits::RECVS_MAX)]
    TooManyReceives,
    /// A message does not fit its buffer.
    #[error("a message of {len} bytes exceeds its receive of {room} bytes")]
    TooLong {
        /// Bytes of the message.
        len: u64,
        /// Bytes of the buffer.
        room: u64,
    },
    /// The immediate is of an unknown kind.
    #[error("immediate {0:#x} is of an unknown kind")]
    Immediate(u32),
    /// The same stripe or fin arrived twice, or contradicts an earlier one.
    #[error("a stripe or fin record of a message is repeated or contradicts an earlier one")]
    Twice,
    /// The number of an eager message is outside the window, or arrived before.
    #[error("eager message number {0} is outside the window, or is repeated")]
    EagerNumber(u32),
    /// An eager header could not be read.
    #[error("an eager message has an invalid header: {0}")]
    Eager(#[from] EagerError),
    /// A fin record could not be read.
    #[error("a fin record is invalid: {0}")]
    Fin(#[from] FinError),
    /// The receiver left a link without a delivery report.
    #[error("the receiver left a link without a delivery report")]
    Standing,
}
