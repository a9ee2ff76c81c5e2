//! Errors of the contract: one enum per operation. `Busy` is a value, and means that nothing was taken.

use trunkline_mem::OutOfMemory;

use crate::OpStatus;

/// A NIC could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailOpenError {
    /// There is no such NIC.
    #[error("NIC {0} does not exist; list the NICs with `trunkline info`")]
    NoSuchNic(usize),
    /// A limit of the NIC or of the system is reached.
    #[error("{what} is exhausted: {limit} in use")]
    Exhausted {
        /// The exhausted resource.
        what: &'static str,
        /// The limit that was reached.
        limit: u64,
    },
    /// The system has no memory for a buffer.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The operating system refused.
    #[error("{what} failed")]
    System {
        /// The call that failed.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// Memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The NIC's table of regions is full.
    #[error("all {0} regions of the NIC are in use; deregister some, or raise the limit")]
    Exhausted(u32),
    /// This NIC cannot reach memory of that kind.
    #[error(
        "this NIC cannot register {0:?} memory; register memory of the host, or use RDMA devices (TRUNKLINE_FABRIC=verbs)"
    )]
    Kind(trunkline_mem::MemoryKind),
    /// This NIC reaches memory of devices, but not in this way.
    #[error("memory of a GPU cannot be registered {how}: {why}; {remedy}")]
    Device {
        /// As a dma-buf, or by its address.
        how: &'static str,
        /// The missing part.
        why: String,
        /// The action that helps.
        remedy: &'static str,
    },
    /// The system has no memory for a buffer.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The operating system refused.
    #[error("{what} failed")]
    System {
        /// The call that failed.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// Memory could not be deregistered; it stays registered.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// The key names nothing that is registered here.
    #[error("cannot deregister: the key names no registered region of this NIC")]
    Unknown,
    /// A peer is stopped inside a copy that uses the region, and did not finish within the peer time limit.
    #[error("cannot deregister: process {peer} is stopped inside a copy that uses the region")]
    InUse {
        /// The peer's operating-system process number as seen here, 0 if it is not visible.
        peer: u32,
    },
    /// The network still holds operations of ended links that use the region. The owner polls the region's rail, if that is still
    /// open, and tries again.
    #[error(
        "cannot deregister: the network still has operations that use the region; poll its rail and try again"
    )]
    Draining,
}

/// A link could not be made, connected or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// All links of the NIC are in use.
    #[error(
        "all {0} queue pairs of the NIC are in use; close connections, let them share (TRUNKLINE_QP_SHARING=on), \
         or raise the limit"
    )]
    Exhausted(u32),
    /// All links of the requested pipeline are in use.
    #[error(
        "all {limit} queue pairs of pipeline {pipeline} of the NIC are in use; create links on other pipelines"
    )]
    PipelineExhausted {
        /// The pipeline.
        pipeline: u32,
        /// Its part of the NIC's queue pairs.
        limit: u32,
    },
    /// The NIC has no pipeline of that number.
    #[error("pipeline {asked} does not exist: the NIC has {pipelines}, numbered from 0")]
    NoSuchPipeline {
        /// The requested number.
        asked: u32,
        /// How many there are.
        pipelines: u32,
    },
    /// The link is not in the state the call needs.
    #[error("the link is not in the state this call needs")]
    State,
    /// The peer's link address cannot be parsed or does not match this NIC.
    #[error("the peer's link address is not valid: {0}")]
    Address(&'static str),
    /// No wire of this fabric reaches the peer.
    #[error("the peer cannot be reached: {0}")]
    Unreachable(&'static str),
    /// The system has no memory for a buffer.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The operating system refused.
    #[error("{what} failed")]
    System {
        /// The call that failed.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// An operation was not posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PostError {
    /// No credit: nothing was taken, post it again after a poll.
    #[error("the queue is full; post again after a poll")]
    Busy,
    /// The operation can never be posted on this link.
    #[error("the operation was refused: {0}")]
    Refused(OpStatus),
}

/// A control stream is not usable any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OobError {
    /// The peer closed it, or died.
    #[error("the peer closed the control stream")]
    Closed,
    /// One more connection of an existing control stream, which has taken it over.
    #[error("the connection joined another control stream")]
    Merged,
    /// The received bytes are not a frame: too long or malformed.
    #[error("the peer sent a malformed frame on the control stream")]
    Malformed,
    /// The system has no memory for the stream.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// More frames wait to be sent than the limit allows.
    #[error("the send queue of the control stream is full: the peer does not read its end")]
    Overflow,
    /// The process at the other end of a local control stream belongs to another user.
    #[error(
        "the process at the other end runs as user {theirs} and this one as user {ours}; processes of different users share \
         a host's control sockets only if both set TRUNKLINE_LOCAL_USERS=any"
    )]
    OtherUser {
        /// The user of that process, as this process's user namespace names it.
        theirs: u32,
        /// The user of this process.
        ours: u32,
    },
    /// The operating system refused.
    #[error("{what} failed")]
    System {
        /// The call that failed.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}
