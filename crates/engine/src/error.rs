//! Errors of the engine's calls, for front ends to map.

use std::error::Error as StdError;

use trunkline_fabric::{DeregisterError, LinkError, OobError, OpStatus, RailOpenError, RegisterError};
use trunkline_mem::OutOfMemory;
use trunkline_proto::comm::MessageFault;
use trunkline_proto::id::ProcessId;
use trunkline_proto::pool::{AnswerFault, PlacementError, WiredError};
use trunkline_proto::wire::fabric::ChosenFabric;
use trunkline_proto::wire::handle::ConnectionHandleError;

/// Why a comm is unusable. Every outstanding request of it fails once with this.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommFault {
    /// The peer process has ended.
    #[error("process {0} died")]
    PeerDead(ProcessId),
    /// The peer closed its end while messages were outstanding.
    #[error("process {0} closed its end of the connection")]
    PeerClosed(ProcessId),
    /// The peer violated the protocol.
    #[error("the peer violated the protocol: {0}")]
    Protocol(#[from] MessageFault),
    /// The link failed.
    #[error("the link failed: {0}")]
    Link(OpStatus),
    /// Memory was deregistered while messages used it.
    #[error("memory was deregistered while messages used it")]
    Revoked,
}

/// A call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An id is unknown, or no longer valid.
    #[error("unknown {0}")]
    Unknown(&'static str),
    /// An argument is out of range.
    #[error("invalid argument: {0}")]
    Argument(&'static str),
    /// A limit of the engine is reached.
    #[error("all {limit} {what} are in use")]
    Exhausted {
        /// The resource.
        what: &'static str,
        /// Its limit.
        limit: usize,
    },
    /// A connection handle cannot be used.
    #[error("cannot use the connection handle: {0}")]
    Handle(#[from] ConnectionHandleError),
    /// The listening process chose another fabric.
    #[error(
        "process {process} uses fabric {theirs}, this process uses {ours}: set TRUNKLINE_FABRIC to the same value on all ranks"
    )]
    Fabric {
        /// The listening process.
        process: ProcessId,
        /// Its fabric.
        theirs: ChosenFabric,
        /// The fabric of this process.
        ours: ChosenFabric,
    },
    /// The peer supports other versions only.
    #[error(
        "the peer supports protocol versions {min} to {max}, this process {ours}; install the same version on both hosts"
    )]
    Version {
        /// Lowest version of the peer.
        min: u16,
        /// Highest version of the peer.
        max: u16,
        /// The version of this process.
        ours: u16,
    },
    /// The listener refused: it is closed, or the handle has another nonce.
    #[error("the listener refused the connection: it is closed, or the handle is stale")]
    Refused,
    /// The listener's process has exhausted a resource; its log names it.
    #[error("the listening process has no resources left for the connection")]
    PeerExhausted,
    /// The reply of the listener's process does not match the request.
    #[error(transparent)]
    Answer(#[from] AnswerFault),
    /// The comm has no place on any queue pair.
    #[error(transparent)]
    NoPlace(#[from] PlacementError),
    /// The two ends of a group of queue pairs are not connected to each other.
    #[error(transparent)]
    Wired(#[from] WiredError),
    /// A comm failed.
    #[error(transparent)]
    Comm(#[from] CommFault),
    /// A NIC could not be opened.
    #[error("cannot open the NIC: {0}")]
    Open(#[from] RailOpenError),
    /// A link could not be made.
    #[error("cannot make a link: {0}")]
    Link(#[from] LinkError),
    /// Memory could not be registered.
    #[error("cannot register memory: {0}")]
    Register(#[from] RegisterError),
    /// Memory could not be deregistered.
    #[error("cannot deregister memory: {0}")]
    Deregister(#[from] DeregisterError),
    /// Operations that use the memory are still in flight on queue pairs with other members; call again.
    #[error("cannot deregister the memory yet, as operations still use it; call again")]
    Draining,
    /// The system has no memory for a buffer.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// A control stream could not be made or used.
    #[error("control stream: {0}")]
    Oob(#[from] OobError),
}

/// Returns the text of an error with its causes, such as the system's message, for a log line.
#[must_use]
pub fn in_full(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let told = next.to_string();
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_full_contains_each_cause_once() {
        let source = std::io::Error::from_raw_os_error(24);
        let error = EngineError::from(OobError::System { what: "accept", source });
        assert_eq!(error.to_string(), "control stream: accept failed");
        let text = in_full(&error);
        assert!(text.starts_with("control stream: accept failed: Too many open files"), "{text}");
        assert_eq!(text.matches("accept failed").count(), 1, "{text}");
    }
}
