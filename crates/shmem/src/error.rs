//! The errors of calls. OpenSHMEM's calls return no errors, so the program prints one of these and ends.

use trunkline_engine::rma::{LossCause, RmaError};
use trunkline_mem::OutOfMemory;
use trunkline_mem::ipc::{CallFailure, CopyError};
use trunkline_proto::wire::pe::PeError;
use trunkline_runtime::MembershipError;

/// The reason why a call failed. Most texts name the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ShmemError {
    /// This process cannot join the job.
    #[error(transparent)]
    Join(#[from] MembershipError),
    /// The memory file of a segment cannot be created.
    #[error("no memory for the symmetric heap: {0}; SHMEM_SYMMETRIC_SIZE sets its size")]
    Memory(#[from] CallFailure),
    /// The system has no memory for the library itself.
    #[error("cannot allocate memory: {0}")]
    Allocate(#[from] OutOfMemory),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The description that a PE sent is invalid.
    #[error("PE {pe} runs another library: {source}")]
    Pe {
        /// The PE.
        pe: usize,
        /// The invalid field.
        source: PeError,
    },
    /// The memory of a PE has another length than this PE's.
    #[error(
        "PE {pe} has {theirs} bytes of {what}, this PE {ours}; all PEs must run the same program with the same settings"
    )]
    Differ {
        /// The PE.
        pe: usize,
        /// The segment.
        what: &'static str,
        /// Bytes of that PE.
        theirs: u64,
        /// Bytes of this PE.
        ours: u64,
    },
    /// PEs make different calls of the heap.
    #[error(
        "PE {pe} is in {theirs}, this PE in {ours}; all PEs must make the same heap calls in the same order"
    )]
    Calls {
        /// The PE.
        pe: usize,
        /// The call of that PE.
        theirs: &'static str,
        /// The call of this PE.
        ours: &'static str,
    },
    /// The system does not copy static variables of a PE any more.
    #[error(
        "cannot copy static variables of PE {pe} any more: {source}; TRUNKLINE_SHARED_HEAP=off uses the network instead"
    )]
    Copy {
        /// The PE.
        pe: usize,
        /// The error of the copy.
        source: CopyError,
    },
    /// The call was made before `shmem_init`, or after `shmem_finalize`.
    #[error("it is called before shmem_init, or after shmem_finalize")]
    NotRunning,
    /// The PE is out of range.
    #[error("PE {pe} is out of range: the job has {size}, counted from 0")]
    NoPe {
        /// The number that the program passed.
        pe: i64,
        /// The number of PEs.
        size: usize,
    },
    /// An address is not in symmetric memory.
    #[error(
        "{len} bytes at {addr:#x} are not symmetric: neither on the symmetric heap (shmem_malloc) nor a global or \
         static variable of the program"
    )]
    NotSymmetric {
        /// The address.
        addr: usize,
        /// Bytes from there on.
        len: usize,
    },
    /// A word of an atomic or a signal is not aligned.
    #[error("the word at {0:#x} is not aligned to its size")]
    Unaligned(usize),
    /// A handle is invalid, or of a destroyed object.
    #[error("no such {0}: it was never created, or has been destroyed")]
    Handle(&'static str),
    /// All objects of a kind are in use.
    #[error("cannot create more {what}: all {limit} are in use; destroy one first")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// An argument is invalid. The text names it.
    #[error("{0}")]
    Argument(&'static str),
    /// A PE of this host has ended.
    #[error("PE {0} has ended while this PE waits for it; read its output")]
    Dead(usize),
    /// The engine failed.
    #[error("{}", of_engine(.0))]
    Engine(#[from] RmaError),
}

/// Errors are constructed in cold functions only when they occur: an error that is constructed in advance and dropped
/// costs more than the call itself.
impl ShmemError {
    #[cold]
    pub(crate) fn not_running() -> Self {
        Self::NotRunning
    }

    #[cold]
    pub(crate) fn no_such(what: &'static str) -> Self {
        Self::Handle(what)
    }

    #[cold]
    pub(crate) fn invalid_argument(what: &'static str) -> Self {
        Self::Argument(what)
    }

    #[cold]
    pub(crate) fn not_symmetric(addr: usize, len: usize) -> Self {
        Self::NotSymmetric { addr, len }
    }
}

/// Formats an error of the engine in OpenSHMEM's terms: the engine's members are PEs.
fn of_engine(error: &RmaError) -> String {
    match error {
        RmaError::Lost { member, lost: LossCause::NoMemory(lack) } => {
            format!("PE {member}: no link to it: {lack}")
        }
        RmaError::Lost { member, lost } => format!("PE {member}: {lost}; read its output"),
        RmaError::Failed { member, rail, status } => {
            format!("operations towards PE {member} failed on rail {rail}: {status}; read its output")
        }
        other => other.to_string(),
    }
}

impl ShmemError {
    /// Returns whether the reason has been printed, once for all PEs.
    pub(crate) fn is_printed(&self) -> bool {
        matches!(self, Self::Join(MembershipError::Agreed { .. }))
    }

    /// Returns the other PE whose end caused this error, if that is the cause.
    pub(crate) fn lost_pe(&self) -> Option<usize> {
        match self {
            Self::Dead(pe) => Some(*pe),
            Self::Engine(RmaError::Lost { lost: LossCause::NoMemory(_), .. }) => None,
            Self::Engine(RmaError::Lost { member, .. } | RmaError::Failed { member, .. }) => {
                Some(*member as usize)
            }
            _ => None,
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, ShmemError>;
