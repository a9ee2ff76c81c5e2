//! Why a call of NVSHMEM's failed. Each becomes one line and one of NVSHMEM's numbers (`abi::status`).

use trunkline_engine::rma::RmaError;
use trunkline_mem::gpu::{DmaBufError, GpuCopyError, LookError};
use trunkline_proto::wire::dial::DialError;
use trunkline_proto::wire::memory_handle::MemoryHandleError;
use trunkline_proto::wire::rma::word::WordError;
use trunkline_runtime::{ChooseError, MembershipError};

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The caller passed something that cannot be right.
    #[error("{0}")]
    Argument(&'static str),
    /// Something that this transport does not do.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The host speaks another version.
    #[error(
        "NVSHMEM asks for version {0} of its transport interface, and this library knows 4.0.0 (NVSHMEM 3.5) and 6.0.0 (3.7)"
    )]
    Version(i32),
    /// A variable of the environment.
    #[error("{name}={value}: expected {expected}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it is set to.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A call came before those that have to come before it.
    #[error("connect_endpoints was not called, or failed")]
    NotConnected,
    /// A second time.
    #[error("the endpoints are connected already")]
    Connected,
    /// The system has no memory for the stages of its copies.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] trunkline_mem::OutOfMemory),
    /// NVSHMEM's bootstrap failed.
    #[error("{call} of NVSHMEM's bootstrap failed with {status}")]
    Bootstrap {
        /// Which function.
        call: &'static str,
        /// What it returned.
        status: i32,
    },
    /// What a PE gave is none of ours.
    #[error("PE {pe} runs another transport or another version of this one")]
    Stranger {
        /// Which.
        pe: usize,
        /// Why.
        source: DialError,
    },
    /// A handle of memory cannot be read.
    #[error("the memory handle of PE {pe}: {source}")]
    Handle {
        /// Whose.
        pe: u32,
        /// Why.
        source: MemoryHandleError,
    },
    /// Bytes are not where their handle says.
    #[error(
        "{len} bytes at {addr:#x} are not in the memory of their handle, which has {size} bytes at {base:#x}"
    )]
    Outside {
        /// Their address.
        addr: u64,
        /// How many.
        len: u64,
        /// Where the memory begins.
        base: u64,
        /// Its bytes.
        size: u64,
    },
    /// No such atomic.
    #[error("an atomic of kind {kind} on {bytes} bytes{}: there is none", if *float { " of a floating-point number" } else { "" })]
    Atomic {
        /// NVSHMEM's number for it.
        kind: i32,
        /// Of the word.
        bytes: i32,
        /// A floating-point number.
        float: bool,
    },
    /// A word cannot be.
    #[error(transparent)]
    Word(#[from] WordError),
    /// Memory of a GPU cannot be looked at.
    #[error("memory of a GPU cannot be registered: {0}")]
    Look(#[from] LookError),
    /// Or not be exported.
    #[error("memory of a GPU cannot be registered: {0}")]
    Export(#[from] DmaBufError),
    /// Or its words not be copied.
    #[error("memory of a GPU cannot be registered: {0}")]
    Copy(#[from] GpuCopyError),
    /// All numbers of registrations are in use.
    #[error(
        "{0} ranges of memory are registered, and there is room for no more: release one, or have the heap grow by larger pieces \
         (NVSHMEM_CUMEM_GRANULARITY)"
    )]
    Full(usize),
    /// Nothing reaches memory of GPUs.
    #[error(
        "memory of a GPU cannot be registered: {nic}, and the CPU has no mapping of it ({mapping}). Load GDRCopy's driver and library, use a NIC \
         that reaches GPUs, or have the heap in memory of the host (NVSHMEM_HEAP_KIND=SYSMEM)"
    )]
    NoWay {
        /// Why not by the NIC.
        nic: &'static str,
        /// Why not by the CPU.
        mapping: String,
    },
    /// What the environment names cannot be run over.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The engine does not start.
    #[error(transparent)]
    Job(#[from] MembershipError),
    /// The engine says no.
    #[error(transparent)]
    Rma(#[from] RmaError),
}

/// What most calls come to.
pub(crate) type Result<T> = std::result::Result<T, CallError>;
