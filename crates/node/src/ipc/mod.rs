//! Shares memory of devices between processes of a host: the rules of [`trunkline_proto::ipc`] over any kind of
//! memory ([`IpcMemory`](trunkline_mem::ipc::IpcMemory)) and any stream that carries descriptors
//! ([`OobStream`](trunkline_fabric::OobStream)).
//!
//! Called by the layers that move messages inside a host. An [`IpcNode`] is a process's part in the sharing. It
//! exports memory that is sent, announces it to neighbours, maps memory that they refer to, copies from it, unmaps it
//! on request, and outlives any of them. It does everything in the calls of its one owner, starts no thread, reads no
//! clock and never waits. If the driver of a kind may wait, the kind's own thread maps, unmaps and gives handles
//! back.
//!
//! A node does not match messages: it reports each arrival ([`NodeEvent::Arrived`]), and the matcher supplies the
//! buffer ([`IpcNode::receive`]). If memory cannot be shared, the node reports that to the sender
//! ([`IpcSendStart::Elsewhere`], [`SendOutcome::NotMapped`]), and the sender uses another method.

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

/// Operations towards one neighbour without a reply, at most; also the limit of its operations without a reply from
/// here.
pub const OPERATIONS_MAX: usize = 128;

/// Names in RETIRE messages to one neighbour that it has not retired, at most; docs/wire.md.
const NAMES_ASKED_MAX: usize = 128;

/// Frames of one neighbour that one call of [`IpcNode::progress`] reads.
const FRAMES_PER_CALL: usize = 64;

/// Events that the owner has not taken yet; at this number the node stops reading messages.
const NOTICES_MAX: usize = 4096;

/// Bytes that one call of [`IpcNode::progress`] copies for one arrival.
const COPY_PER_CALL: u64 = 1 << 20;

/// Driver calls per call of [`IpcNode::progress`] that release unused mappings and exports.
const WORK_PER_CALL: usize = 64;

/// Times that the node tries to close a mapping before it leaves the mapping behind and counts it.
const CLOSE_TRIES: u8 = 8;

/// Descriptors of one neighbour's announcements that are kept. Memory announced beyond them is not mapped; its
/// messages use another method.
const DESCRIPTORS_MAX: usize = 512;
