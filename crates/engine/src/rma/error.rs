//! Errors of one-sided communication.

use trunkline_fabric::{LinkError, OobError, OpStatus, RailOpenError, RegisterError};
use trunkline_mem::OutOfMemory;
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::dial::{DialError, DialRefusal};
use trunkline_proto::wire::fabric::ChosenFabric;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RmaError {
    /// An invalid argument; the text names the rule.
    #[error("{0}")]
    Argument(&'static str),
    /// The limit of a resource is reached.
    #[error("all {limit} {what} are in use")]
    Exhausted {
        /// The resource.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A NIC could not be opened.
    #[error("cannot open the NIC: {0}")]
    Open(#[from] RailOpenError),
    /// Memory could not be registered.
    #[error("cannot register memory: {0}")]
    Register(#[from] RegisterError),
    /// A link could not be made.
    #[error("cannot make a link: {0}")]
    Link(#[from] LinkError),
    /// The system has no memory for a buffer.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// A control stream could not be made.
    #[error("control stream: {0}")]
    Oob(#[from] OobError),
    /// A member's card cannot be read.
    #[error("cannot read the card of member {member}: {source}")]
    Card {
        /// The member.
        member: u32,
        /// The cause.
        source: DialError,
    },
    /// A member chose another fabric.
    #[error(
        "rank {member} uses fabric {theirs}, this process uses {ours}: set TRUNKLINE_FABRIC to the same value on all ranks"
    )]
    Fabric {
        /// The member.
        member: u32,
        /// Its fabric.
        theirs: ChosenFabric,
        /// The fabric of this process.
        ours: ChosenFabric,
    },
    /// A member cannot be reached, or not any more. Returned by each call that concerns it.
    #[error("member {member}: {lost}")]
    Lost {
        /// The member.
        member: u32,
        /// The cause.
        lost: LossCause,
    },
    /// An operation failed. A quiet returns this once per failure.
    #[error("an operation to member {member} failed on rail {rail}: {status}")]
    Failed {
        /// The member towards which it was posted.
        member: u32,
        /// The path of the context over which it was posted.
        rail: usize,
        /// The network's status.
        status: OpStatus,
    },
    /// The member has no such word.
    #[error("member {0} has no such word: it is outside of the heap, or the heap does not exist")]
    NoWord(u32),
    /// The value has been collected before, or its slot was reused.
    #[error("unknown id: the request, context or heap does not exist, or has ended")]
    Unknown,
}

impl RmaError {
    /// Constructed only in the error case, because an eager value would have to be dropped on each call that succeeds.
    #[cold]
    pub(super) fn unknown_request() -> Self {
        Self::Unknown
    }

    /// As [`Self::unknown_request`].
    #[cold]
    pub(super) fn invalid_argument(what: &'static str) -> Self {
        Self::Argument(what)
    }
}

/// Why a member cannot be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LossCause {
    /// Its control stream has ended: the process has, too.
    #[error("process {0} has ended")]
    Dead(ProcessId),
    /// It refuses links.
    #[error("it refused the link: {0:?}")]
    Refused(DialRefusal),
    /// No rail reaches it any more.
    #[error("the last rail to it, {rail}, failed: {status}")]
    Rails {
        /// The path of the context that failed last.
        rail: usize,
        /// The network's status.
        status: OpStatus,
    },
    /// This process has no memory for a link to it.
    #[error("cannot make a link to it: {0}")]
    NoMemory(OutOfMemory),
    /// It violates the protocol.
    #[error("it violated the protocol")]
    Protocol,
}
