//! Tagged messages between processes of a node, of any memory: short ones through a ring, long ones by one copy where either memory can be
//! mapped, and by a stage that both processes copy through where not.
//!
//! For the Rust API, which waits and gives names to ranks. An [`TaggedEndpoint`] is a process's part in it. It owns a [`Node`](crate::ipc::IpcNode), which
//! shares the memory; does everything in the calls of its one owner; starts no thread, reads no clock, and never waits. Which receive a
//! message is for, and how its bytes go, is decided in [`trunkline_proto::tagged`]; the frames are docs/wire.md's.
//!
//! A driver that does not export, map or copy costs one message a staged copy, and is counted ([`TaggedCounts::fallbacks`]); it never fails it.

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

/// Messages of a process that have begun and whose end was not asked for, at most.
pub const REQUESTS_MAX: usize = 1 << 14;

/// Receives that wait for their messages, at most.
pub const RECEIVES_MAX: usize = 1 << 13;

/// Messages of one peer that came before their receives, at most. Then no more of that peer are read.
pub const KEPT_MAX: usize = 1 << 12;

/// Answers to one peer that there is no room for, at most; a peer that leaves more unread is broken. One that reads them has no more: one for each of its
/// messages, and one for each of ours that it offered memory for.
const UNSAID_MAX: usize = 2 * REQUESTS_MAX;

/// Frames of one ring that one call of [`TaggedEndpoint::progress`] reads.
const FRAMES_PER_CALL: usize = 64;

/// Bytes of a piece of a message that goes through the stage.
const PIECE: u32 = 16 << 10;

/// The same where copies go on after they were begun, so that a device's link is used well. A stage should have room for four.
pub const DEVICE_PIECE: u32 = 512 << 10;

/// Of those, the copies to the stage of a peer that are under way, and the copies out of its inbox.
const PIECES_AHEAD: usize = 2;

/// Pieces that one call of [`TaggedEndpoint::progress`] stages for one peer.
const PIECES_PER_CALL: usize = 8;

/// Calls of [`TaggedEndpoint::progress`] between two looks at whether the streams have something.
const CALLS_PER_LOOK: u32 = 16;

/// Buffers of early messages that are kept for the next ones.
const SPARE_MAX: usize = 64;
