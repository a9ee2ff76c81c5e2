//! The results of a poll: one record for each finished signalled operation, arrived message, or failed operation.

use std::fmt;

use crate::LinkId;

/// One completion of a rail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// The `wr_id` the operation was posted with; of the consumed [`Op::Recv`](crate::Op::Recv) for
    /// [`CompletionKind::Received`]; 0 for [`CompletionKind::Written`].
    pub wr_id: u64,
    /// The link it happened on.
    pub link: LinkId,
    /// The kind of operation that finished.
    pub done: CompletionKind,
    /// How it ended. Anything but [`OpStatus::Ok`] means that the link is in error and every operation still posted on
    /// it will be, or has been, returned as [`OpStatus::Flushed`].
    pub status: OpStatus,
    /// The immediate, if the sender passed one.
    pub imm: Option<u32>,
    /// Bytes received, or, where [`Caps::remote_len`](crate::Caps::remote_len), bytes written.
    pub len: u64,
}

impl Completion {
    /// Fills an array for [`Rail::poll`](crate::Rail::poll), which overwrites the first entries.
    pub const BLANK: Self = Self {
        wr_id: 0,
        link: LinkId(0),
        done: CompletionKind::Posted,
        status: OpStatus::Ok,
        imm: None,
        len: 0,
    };
}

/// The kind of operation that a completion reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionKind {
    /// A signalled operation that this side posted. Its source may be reused. Its effect has arrived at the target
    /// only where [`Caps::arrives`](crate::Caps::arrives) is true.
    Posted,
    /// A peer's send filled a posted receive.
    Received,
    /// A peer wrote with immediate into a region here; all bytes of that operation are placed (visible if
    /// [`Caps::needs_flush`](crate::Caps::needs_flush) is false).
    Written,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum OpStatus {
    /// Success.
    Ok,
    /// The link was already in error; this operation did not run, or its outcome is unknown.
    Flushed,
    /// The local region does not hold the bytes, or its key or the name of a completion queue is not valid.
    LocalProtection,
    /// The target refused: wrong key, outside the region, a right not granted, or deregistered.
    RemoteAccess,
    /// A send was larger than the receive it met.
    TooLong,
    /// The target had no posted receive for longer than the retry limit.
    ReceiverNotReady,
    /// The peer has ended or does not answer.
    PeerDead,
    /// Memory of a device could not be flushed, so that the bytes the device sees are unknown; by the fabric's own number.
    Unflushed(u32),
    /// Another failure, by the fabric's own number.
    Other(u32),
}

impl OpStatus {
    /// Whether the link, or a layer below it, failed rather than the posted operation: another link may carry it.
    #[must_use]
    #[inline]
    pub const fn is_of_link(self) -> bool {
        matches!(self, Self::Flushed | Self::PeerDead | Self::Other(_))
    }
}

impl fmt::Display for OpStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Ok => "it worked",
            Self::Flushed => "its link had already failed",
            Self::LocalProtection => "the local memory is not registered for it",
            Self::RemoteAccess => "the peer's memory is not, or no longer, registered for it",
            Self::TooLong => "the message is longer than its receive",
            Self::ReceiverNotReady => "the peer had no receive for it in time",
            Self::PeerDead => "the peer has ended or does not respond",
            Self::Unflushed(number) => {
                return write!(out, "flushing memory of a GPU failed (error {number} of the network)");
            }
            Self::Other(number) => return write!(out, "error {number} of the network"),
        })
    }
}
