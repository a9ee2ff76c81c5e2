//! NVSHMEM's status codes of errors.

use trunkline_engine::rma::RmaError;
use trunkline_sys::nvshmem::StatusCode;

use crate::error::CallError;

impl CallError {
    /// Returns NVSHMEM's status code. Most codes end the program, whatever their value.
    pub(super) fn status_code(&self) -> StatusCode {
        match self {
            Self::Argument(_)
            | Self::Version(_)
            | Self::Settings(_)
            | Self::Handle { .. }
            | Self::Outside { .. }
            | Self::Atomic { .. }
            | Self::Word(_)
            | Self::Rma(RmaError::Argument(_)) => StatusCode::INVALID_VALUE,
            Self::Full(_) | Self::Memory(_) | Self::Rma(RmaError::Exhausted { .. } | RmaError::Memory(_)) => {
                StatusCode::OUT_OF_MEMORY
            }
            Self::Unsupported(_) | Self::NoWay { .. } => StatusCode::NOT_SUPPORTED,
            Self::NotConnected
            | Self::Connected
            | Self::Bootstrap { .. }
            | Self::Stranger { .. }
            | Self::Look(_)
            | Self::Export(_)
            | Self::Copy(_)
            | Self::Choose(_)
            | Self::Job(_)
            | Self::Rma(_) => StatusCode::INTERNAL,
        }
    }
}
