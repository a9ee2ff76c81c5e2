//! Memory of devices that this process shares with others of its node: the rules of [`trunkline_proto::ipc`] carried out over any
//! kind of memory ([`IpcMemory`](trunkline_mem::ipc::IpcMemory)) and any stream that carries descriptors
//! ([`OobStream`](trunkline_fabric::OobStream)).
//!
//! For whoever moves messages inside a node. A [`IpcNode`] is a process's part in it: it exports what is sent, tells its neighbours,
//! maps what they refer to, copies from it, unmaps it when they want it back, and outlives any of them. It does everything in the
//! calls of its one owner, starts no thread, reads no clock and never waits: of a kind whose driver may wait, the kind's thread maps, unmaps and gives handles back.
//!
//! What it does not: it pairs no messages. An arrival is told as it comes ([`NodeEvent::Arrived`]), and whoever matches says where it
//! goes ([`IpcNode::receive`]). What cannot be shared is told to its sender ([`IpcSendStart::Elsewhere`], [`SendOutcome::NotMapped`]), who sends it
//! another way.

mod arrival;
mod buffer;
mod close;
mod error;
mod event;
mod export_holders;
mod exports;
mod external_messages;
mod frame_handlers;
mod hook;
mod imports;
mod lend;
mod mapping;
mod neighbour;
mod node;
mod send;

pub use arrival::ArrivalId;
pub use buffer::MessageBuffer;
pub(crate) use buffer::StageOffset;
pub use error::{LeaveReason, NodeJoinError, ProtocolViolation, ReceiveError, SendError};
pub use event::{NodeEvent, ReceiveOutcome, SendOutcome};
pub use hook::FreeHook;
pub use lend::{BorrowStatus, LoanRange};
pub use neighbour::NeighbourId;
pub use node::{IpcNode, NodeConfig, NodeCounts};
pub use send::{IpcSendStart, OperationId, ReferenceStart, SendRequest};

/// Operations towards one neighbour that it has not answered, at most; and of a neighbour that are not answered here.
pub const OPERATIONS_MAX: usize = 128;

/// Names that a neighbour was told to let go and has not, at most; docs/wire.md.
const NAMES_ASKED_MAX: usize = 128;

/// Frames of one neighbour that one call of [`IpcNode::progress`] reads.
const FRAMES_PER_CALL: usize = 64;

/// Notices that nobody has taken; with so many nothing more is read.
const NOTICES_MAX: usize = 4096;

/// Bytes that one call of [`IpcNode::progress`] copies for one arrival.
const COPY_PER_CALL: u64 = 1 << 20;

/// Calls of a driver that one call of [`IpcNode::progress`] makes for what is not in use any more.
const WORK_PER_CALL: usize = 64;

/// How often a mapping is closed that the driver does not close, before it is left behind and counted.
const CLOSE_TRIES: u8 = 8;

/// Descriptors of one neighbour's announcements that are kept. What comes with more is not mapped, and goes another way.
const DESCRIPTORS_MAX: usize = 512;
