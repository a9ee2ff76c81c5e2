//! What can go wrong with one-sided work.

use trunkline_fabric::{LinkError, OobError, OpStatus, RailOpenError, RegisterError};
use trunkline_mem::OutOfMemory;
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::dial::{DialError, DialRefusal};
use trunkline_proto::wire::fabric::ChosenFabric;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RmaError {
    /// An argument that cannot be right; says which.
    #[error("{0}")]
    Argument(&'static str),
    /// There are as many of them as may be.
    #[error("all {limit} {what} are in use")]
    Exhausted {
        /// What.
        what: &'static str,
        /// How many.
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
    #[error("the card of member {member}: {source}")]
    Card {
        /// Which member.
        member: u32,
        /// Why.
        source: DialError,
    },
    /// A member chose another fabric.
    #[error(
        "rank {member} uses fabric {theirs}, this process uses {ours}: set TRUNKLINE_FABRIC to the same value on all ranks"
    )]
    Fabric {
        /// Which member.
        member: u32,
        /// Its fabric.
        theirs: ChosenFabric,
        /// The fabric of this process.
        ours: ChosenFabric,
    },
    /// A member cannot be reached, or not any more. Told by every call that concerns it.
    #[error("member {member}: {lost}")]
    Lost {
        /// Which.
        member: u32,
        /// Why.
        lost: LossCause,
    },
    /// An operation failed, which is told once, by a quiet.
    #[error("an operation towards member {member} failed on rail {rail}: {status}")]
    Failed {
        /// Towards whom.
        member: u32,
        /// Over which of the context's paths.
        rail: usize,
        /// How the network calls it.
        status: OpStatus,
    },
    /// The member has no such word.
    #[error("member {0} has no such word")]
    NoWord(u32),
    /// What was asked for has been collected before, or its place has been taken by another.
    #[error("no such request")]
    Unknown,
}

impl RmaError {
    /// Made where it is told, and not before each call that succeeds, which would have to drop it.
    #[cold]
    pub(super) fn unknown_request() -> Self {
        Self::Unknown
    }

    /// Likewise.
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
    #[error("process {0} is gone")]
    Dead(ProcessId),
    /// It takes no link.
    #[error("refused: {0:?}")]
    Refused(DialRefusal),
    /// No rail leads to it any more.
    #[error("the last rail to it, {rail}, failed: {status}")]
    Rails {
        /// Over which of the context's paths.
        rail: usize,
        /// How the network calls it.
        status: OpStatus,
    },
    /// This process has no memory for a link to it.
    #[error("no link to it: {0}")]
    NoMemory(OutOfMemory),
    /// What it says breaks the protocol.
    #[error("it breaks the protocol")]
    Protocol,
}
