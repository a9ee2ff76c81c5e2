//! The errors of NVSHMEM's calls. Each is printed as one line, and returned as one of NVSHMEM's codes
//! (`abi::status`).

use trunkline_engine::rma::RmaError;
use trunkline_mem::gpu::{DmaBufError, GpuCopyError, LookError};
use trunkline_proto::wire::dial::DialError;
use trunkline_proto::wire::memory_handle::MemoryHandleError;
use trunkline_proto::wire::rma::word::WordError;
use trunkline_runtime::{ChooseError, MembershipError};
use trunkline_settings::SettingErrors;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The caller passed an invalid argument.
    #[error("{0}")]
    Argument(&'static str),
    /// The transport does not support the operation.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The host uses an unsupported version of the interface.
    #[error(
        "NVSHMEM requests version {0} of its transport interface; this library supports 4.0.0 (NVSHMEM 3.5) and 6.0.0 \
         (3.7)"
    )]
    Version(i32),
    /// Settings have invalid values.
    #[error(transparent)]
    Settings(#[from] SettingErrors),
    /// A call was made before the endpoints were connected.
    #[error("connect_endpoints was not called, or failed")]
    NotConnected,
    /// The endpoints are connected already.
    #[error("the endpoints are connected already")]
    Connected,
    /// The system has no memory for the stages of its copies.
    #[error("cannot allocate memory: {0}")]
    Memory(#[from] trunkline_mem::OutOfMemory),
    /// NVSHMEM's bootstrap failed.
    #[error("{call} of NVSHMEM's bootstrap failed with {status}")]
    Bootstrap {
        /// The function of the bootstrap.
        call: &'static str,
        /// The status that it returned.
        status: i32,
    },
    /// The card of a PE is invalid.
    #[error("PE {pe} runs another transport or another version of this one")]
    Stranger {
        /// The PE.
        pe: usize,
        /// The invalid field.
        source: DialError,
    },
    /// A memory handle is invalid.
    #[error("invalid memory handle of PE {pe}: {source}")]
    Handle {
        /// The PE that created it.
        pe: u32,
        /// The invalid field.
        source: MemoryHandleError,
    },
    /// The bytes are not inside the memory of their handle.
    #[error(
        "{len} bytes at {addr:#x} are not in the memory of their handle, which has {size} bytes at {base:#x}"
    )]
    Outside {
        /// The address of the first byte.
        addr: u64,
        /// The number of bytes.
        len: u64,
        /// The address of the first byte of the memory.
        base: u64,
        /// The length of the memory in bytes.
        size: u64,
    },
    /// The kind of atomic is unknown, or not defined for its type.
    #[error("unsupported atomic of kind {kind} on {bytes} bytes{}", if *float { " of a floating-point number" } else { "" })]
    Atomic {
        /// NVSHMEM's number of the atomic.
        kind: i32,
        /// The length of the word in bytes.
        bytes: i32,
        /// Whether it is a floating-point number.
        float: bool,
    },
    /// The place of a word is invalid.
    #[error(transparent)]
    Word(#[from] WordError),
    /// The driver cannot identify memory of a GPU.
    #[error("memory of a GPU cannot be registered: {0}")]
    Look(#[from] LookError),
    /// The driver cannot export memory of a GPU.
    #[error("memory of a GPU cannot be registered: {0}")]
    Export(#[from] DmaBufError),
    /// The driver cannot copy words of a GPU's memory.
    #[error("memory of a GPU cannot be registered: {0}")]
    Copy(#[from] GpuCopyError),
    /// All heap numbers are in use by registrations.
    #[error(
        "cannot register more memory: {0} ranges are registered, the most at a time; release one, or let the heap grow \
         by larger pieces (NVSHMEM_CUMEM_GRANULARITY)"
    )]
    Full(usize),
    /// Neither a NIC nor the CPU can access memory of the GPU.
    #[error(
        "memory of a GPU cannot be registered: {nic}, and the CPU has no mapping of it ({mapping}). Load GDRCopy's \
         driver and library, use a NIC that reaches GPUs, or allocate the heap in host memory \
         (NVSHMEM_HEAP_KIND=SYSMEM)"
    )]
    NoWay {
        /// Why the NICs cannot.
        nic: &'static str,
        /// Why the CPU cannot.
        mapping: String,
    },
    /// The fabric that the environment names cannot be used.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The engine cannot start.
    #[error(transparent)]
    Job(#[from] MembershipError),
    /// The engine rejects the call. Its own error is the text.
    #[error(transparent)]
    Rma(#[from] RmaError),
}

/// The result of most calls.
pub(crate) type Result<T> = std::result::Result<T, CallError>;
