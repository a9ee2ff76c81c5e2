//! Errors of the plugin's calls: the code that NCCL receives, and the text of the log line.

use trunkline_engine::{CommFault, EngineError};
use trunkline_runtime::ChooseError;
use trunkline_sys::nccl_net::ResultCode;

/// The error of a failed call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetCallError {
    /// The caller passed an invalid argument.
    #[error("{0}")]
    Argument(&'static str),
    /// The plugin was not started.
    #[error("init was not called, or it failed; its log line has the reason")]
    NotStarted,
    /// A failure that was already logged.
    #[error("the cause was logged before")]
    Told(ResultCode),
    /// More NICs were to be fused than a comm can use.
    #[error(
        "a fused NIC has at most {most} members, and {asked} were requested; NCCL_NET_FORCE_MERGE can name fewer"
    )]
    Members {
        /// The requested number of members.
        asked: usize,
        /// The limit.
        most: usize,
    },
    /// The limit of virtual devices is reached.
    #[error("{0} virtual devices exist, which is the limit of a process")]
    Virtual(usize),
    /// A function that this plugin does not support.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A GPU driver cannot identify the owner of an address, or fails.
    #[error("memory of a GPU cannot be registered: {0}")]
    Look(#[from] trunkline_mem::gpu::LookError),
    /// A GPU driver failed to export memory.
    #[error("memory of a GPU cannot be registered: {0}")]
    Export(#[from] trunkline_mem::gpu::DmaBufError),
    /// GPU memory can be registered neither as a dma-buf nor by its address.
    #[error("{address} (it was not registered as a dma-buf: {dmabuf})")]
    Gpu {
        /// Why registration as a dma-buf failed.
        dmabuf: String,
        /// Why registration by address failed.
        address: String,
    },
    /// The configuration in the environment cannot be used.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The engine returned an error.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl NetCallError {
    /// Returns NCCL's code: system error for the operating system and its limits, remote error for the peer, invalid
    /// usage for configuration, invalid argument for arguments, internal error for misuse.
    pub(crate) fn result_code(&self) -> ResultCode {
        match self {
            Self::Argument(_) => ResultCode::INVALID_ARGUMENT,
            Self::NotStarted => ResultCode::INTERNAL_ERROR,
            Self::Told(code) => *code,
            Self::Unsupported(_) | Self::Members { .. } | Self::Virtual(_) => ResultCode::INVALID_USAGE,
            Self::Look(_) | Self::Export(_) | Self::Gpu { .. } => ResultCode::SYSTEM_ERROR,
            Self::Choose(error) if error.is_invalid_setting() => ResultCode::INVALID_USAGE,
            // No interface, no device, or no library was found.
            Self::Choose(_) => ResultCode::SYSTEM_ERROR,
            Self::Engine(error) => engine_code(error),
        }
    }
}

fn engine_code(error: &EngineError) -> ResultCode {
    match error {
        EngineError::Unknown(_) => ResultCode::INTERNAL_ERROR,
        EngineError::Argument(_) | EngineError::Handle(_) => ResultCode::INVALID_ARGUMENT,
        EngineError::Version { .. } | EngineError::Fabric { .. } => ResultCode::INVALID_USAGE,
        EngineError::Refused
        | EngineError::PeerExhausted
        | EngineError::Answer(_)
        | EngineError::Wired(_) => ResultCode::REMOTE_ERROR,
        EngineError::Comm(CommFault::PeerDead(_) | CommFault::PeerClosed(_)) => ResultCode::REMOTE_ERROR,
        EngineError::Comm(CommFault::Protocol(_) | CommFault::Link(_)) => ResultCode::REMOTE_ERROR,
        EngineError::Comm(CommFault::Revoked) => ResultCode::INTERNAL_ERROR,
        EngineError::Exhausted { .. }
        | EngineError::NoPlace(_)
        | EngineError::Open(_)
        | EngineError::Link(_) => ResultCode::SYSTEM_ERROR,
        EngineError::Register(_)
        | EngineError::Deregister(_)
        | EngineError::Oob(_)
        | EngineError::Memory(_) => ResultCode::SYSTEM_ERROR,
        // Both enums are non-exhaustive; a new error is reported as an internal one.
        _ => ResultCode::INTERNAL_ERROR,
    }
}
