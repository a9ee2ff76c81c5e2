//! Tagged messages between processes of a host, of any memory. Short messages are sent through a ring. Long messages
//! are copied once if either memory can be mapped, and through a stage in shared memory otherwise.
//!
//! Called by the Rust API, which waits and maps ranks to peers. A [`TaggedEndpoint`] is a process's part in it. It
//! owns an [`IpcNode`](crate::ipc::IpcNode), which shares the memory. It does everything in the calls of its one
//! owner, starts no thread, reads no clock, and never waits. [`trunkline_proto::tagged`] matches messages to receives
//! and chooses the copy method; docs/wire.md specifies the frames.
//!
//! If a driver fails to export, map or copy, the message is copied through the stage and counted
//! ([`TaggedCounts::fallbacks`]); it never fails for that.

mod copy_ahead;
mod eager;
mod endpoint;
mod endpoint_page;
mod learned;
mod lend;
mod peer;
mod pinning;
mod receive;
mod request;
mod ring;
mod send;
mod staging;

pub use endpoint::{NoEndpoint, TaggedConfig, TaggedCounts, TaggedEndpoint, TaggedEvent};
pub use lend::{LendOutcome, MemoryLoan};
pub use peer::TaggedPeerId;
pub use receive::ReceiveRefused;
pub use request::{MessageStatus, TaggedFailure, TaggedRequestId};
pub use send::{SendRefused, TaggedSendStart};

/// Requests of a process whose result was not taken yet, at most.
pub const REQUESTS_MAX: usize = 1 << 14;

/// Posted receives without a message, at most.
pub const RECEIVES_MAX: usize = 1 << 13;

/// Unexpected messages of one peer, at most. At this number the endpoint stops reading the messages of that peer.
pub const KEPT_MAX: usize = 1 << 12;

/// Replies to one peer that are queued for lack of room, at most; a peer that leaves more of them unread violates the
/// protocol. A peer that reads them cannot reach the limit: each of its messages has one reply, and so has each offer
/// of memory for our messages.
const UNSAID_MAX: usize = 2 * REQUESTS_MAX;

/// Frames of one ring per call of [`TaggedEndpoint::progress`].
const FRAMES_PER_CALL: usize = 64;

/// Length in bytes of a piece of a message that is sent through the stage.
const PIECE: u32 = 16 << 10;

/// Length of a piece if copies are asynchronous: long enough to use a device's link well. A stage should have room
/// for four.
pub const DEVICE_PIECE: u32 = 512 << 10;

/// Pieces whose copies are in progress, at most: per peer, into its stage, and out of its inbox here.
const PIECES_AHEAD: usize = 2;

/// Pieces that one call of [`TaggedEndpoint::progress`] stages for one peer.
const PIECES_PER_CALL: usize = 8;

/// Calls of [`TaggedEndpoint::progress`] per poll of the control streams.
const CALLS_PER_LOOK: u32 = 16;

/// Buffers of unexpected messages that are kept for reuse.
const SPARE_MAX: usize = 64;
