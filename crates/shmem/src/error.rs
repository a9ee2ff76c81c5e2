//! Why a call cannot do what it is asked. OpenSHMEM's calls return no error, so the program ends, and this is what it says.

use trunkline_engine::rma::{LossCause, RmaError};
use trunkline_mem::OutOfMemory;
use trunkline_mem::ipc::{CallFailure, CopyError};
use trunkline_proto::wire::pe::PeError;
use trunkline_runtime::MembershipError;

/// What went wrong, and what helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ShmemError {
    /// The job could not be joined.
    #[error(transparent)]
    Join(#[from] MembershipError),
    /// A variable has a value that cannot be.
    #[error("{name}={value}: {expected} is expected")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Memory for others could not be had.
    #[error("no memory for the symmetric heap: {0}; SHMEM_SYMMETRIC_SIZE says how large it is to be")]
    Memory(#[from] CallFailure),
    /// Memory for the library itself could not be had.
    #[error("cannot allocate memory: {0}")]
    Allocate(#[from] OutOfMemory),
    /// The system has no thread left.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// What a PE said of itself cannot be read.
    #[error("PE {pe} runs another library: {source}")]
    Pe {
        /// Which.
        pe: usize,
        /// Why.
        source: PeError,
    },
    /// PEs are different.
    #[error(
        "PE {pe} has {theirs} bytes of {what}, this one {ours}; all must run the same program with the same settings"
    )]
    Differ {
        /// Which.
        pe: usize,
        /// Of what.
        what: &'static str,
        /// Theirs.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// PEs are in different calls of the heap.
    #[error(
        "PE {pe} is in {theirs}, this one in {ours}; all make the same calls of the heap in the same order"
    )]
    Calls {
        /// Which.
        pe: usize,
        /// Theirs.
        theirs: &'static str,
        /// Ours.
        ours: &'static str,
    },
    /// The system does not copy any more.
    #[error(
        "static variables of PE {pe} cannot be copied any more: {source}; TRUNKLINE_SHARED_HEAP=off sends all over the network"
    )]
    Copy {
        /// Whose.
        pe: usize,
        /// Why.
        source: CopyError,
    },
    /// A call came before `shmem_init`, or after `shmem_finalize`.
    #[error("it is called before shmem_init, or after shmem_finalize")]
    NotRunning,
    /// There is no such PE.
    #[error("there is no PE {pe}: {size} are there, from 0")]
    NoPe {
        /// The number that was given.
        pe: i64,
        /// How many there are.
        size: usize,
    },
    /// An address is not symmetric.
    #[error(
        "{len} bytes at {addr:#x} are not symmetric: neither on the symmetric heap (shmem_malloc) nor a global or static variable of \
         the program"
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
    /// A handle that nobody gave, or that was destroyed.
    #[error("no such {0}: it was never made, or is destroyed")]
    Handle(&'static str),
    /// Too many of something.
    #[error("all {limit} {what} are in use; destroy one first")]
    Exhausted {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// An argument that cannot be right; says which.
    #[error("{0}")]
    Argument(&'static str),
    /// A PE of this host ended.
    #[error("PE {0} has ended, and this one waits for it; see what it printed")]
    Dead(usize),
    /// The engine failed.
    #[error("{}", of_engine(.0))]
    Engine(#[from] RmaError),
}

/// Made only where there is one: an error that is made beforehand, and dropped, costs a call more than what it does.
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

/// In the words of OpenSHMEM: the engine's members are its PEs.
fn of_engine(error: &RmaError) -> String {
    match error {
        RmaError::Lost { member, lost: LossCause::NoMemory(lack) } => {
            format!("PE {member}: no link to it: {lack}")
        }
        RmaError::Lost { member, lost } => format!("PE {member}: {lost}; see what it printed"),
        RmaError::Failed { member, rail, status } => {
            format!("what was under way to PE {member} failed on rail {rail}: {status}; see what it printed")
        }
        other => other.to_string(),
    }
}

impl ShmemError {
    /// Which other PE is gone, if that is why.
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

impl From<trunkline_runtime::ChooseError> for ShmemError {
    fn from(source: trunkline_runtime::ChooseError) -> Self {
        Self::Join(source.into())
    }
}

pub(crate) type Result<T> = std::result::Result<T, ShmemError>;
