//! What NCCL is told when a call fails, and the one log line that says why.

use trunkline_engine::{CommFault, EngineError};
use trunkline_runtime::ChooseError;
use trunkline_sys::nccl_net::ResultCode;

/// A call of the plugin failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetCallError {
    /// The caller passed something that cannot be right.
    #[error("{0}")]
    Argument(&'static str),
    /// The plugin was not started.
    #[error("init was not called, or failed")]
    NotStarted,
    /// A failure that the log has told already.
    #[error("told before")]
    Told(ResultCode),
    /// More NICs were to be fused than a comm can use.
    #[error(
        "a fused NIC has at most {most} members, and {asked} were asked for; NCCL_NET_FORCE_MERGE can name fewer"
    )]
    Members {
        /// How many were to be.
        asked: usize,
        /// How many may be.
        most: usize,
    },
    /// There are as many virtual devices as there may be.
    #[error("there are {0} virtual devices already, and no more can be made")]
    Virtual(usize),
    /// Something this plugin does not do.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A driver of a GPU cannot tell whose an address is, or fails.
    #[error("memory of a GPU cannot be registered: {0}")]
    Look(#[from] trunkline_mem::gpu::LookError),
    /// Memory of a GPU should have been exported.
    #[error("memory of a GPU cannot be registered: {0}")]
    Export(#[from] trunkline_mem::gpu::DmaBufError),
    /// Memory of a GPU can be registered in neither way.
    #[error("{address} (it was not registered as a dma-buf: {dmabuf})")]
    Gpu {
        /// Why not as a dma-buf.
        dmabuf: String,
        /// Why not by its address.
        address: String,
    },
    /// What the environment names cannot be run over.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The engine says no.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl NetCallError {
    /// NCCL's number for it: system errors for the operating system and its limits, remote errors for the peer,
    /// invalid usage for configuration, internal errors for misuse.
    pub(crate) fn result_code(&self) -> ResultCode {
        match self {
            Self::Argument(_) => ResultCode::INVALID_ARGUMENT,
            Self::NotStarted => ResultCode::INTERNAL_ERROR,
            Self::Told(code) => *code,
            Self::Unsupported(_) | Self::Members { .. } | Self::Virtual(_) => ResultCode::INVALID_USAGE,
            Self::Look(_) | Self::Export(_) | Self::Gpu { .. } => ResultCode::SYSTEM_ERROR,
            Self::Choose(
                ChooseError::Params(_)
                | ChooseError::Choice(_)
                | ChooseError::Verbs(_)
                | ChooseError::NearTcp,
            ) => ResultCode::INVALID_USAGE,
            // No interfaces, no device, no library.
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
        // Both enums are open to additions; a failure nobody classified is reported as one of the plugin.
        _ => ResultCode::INTERNAL_ERROR,
    }
}
