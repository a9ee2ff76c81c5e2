//! Why the fabric has no NIC, and the contract's status for that of a work completion. Polling and opening call it.

use trunkline_fabric::OpStatus;
use trunkline_sys::verbs::wc_status;

/// The fabric is not usable, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsUnavailable {
    /// rdma-core is not installed.
    #[error("libibverbs.so.1 cannot be opened ({0}); Debian: packages libibverbs1 and ibverbs-providers")]
    Library(String),
    /// rdma-core is too old.
    #[error(
        "libibverbs.so.1 has no {symbol} of version {version}; rdma-core is too old, install a newer version"
    )]
    Symbol {
        /// The function.
        symbol: String,
        /// The version of its symbol.
        version: String,
    },
    /// The user has disabled it.
    #[error("RDMA devices are disabled: NCCL_IB_DISABLE is 1")]
    Disabled,
    /// The kernel has no device.
    #[error("this host has no RDMA device")]
    Devices,
    /// There are devices, and none has a usable port.
    #[error("no RDMA device has a usable port: {0}")]
    Ports(String),
}

/// The kind of a posted request, as far as the meaning of an error depends on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PostedKind {
    /// A send, which has to fit its receive.
    Send,
    /// A read, write or atomic.
    OneSided,
    /// A receive.
    Receive,
}

/// Returns the contract's status for an unsuccessful status of a work completion.
pub(crate) fn completion_status(code: u32, what: PostedKind) -> OpStatus {
    match (code, what) {
        (wc_status::WR_FLUSH_ERR, _) => OpStatus::Flushed,
        // Soft-RoCE completes the receive with the status that it also sends to the sender; from the second packet on that is "remote operation
        // error".
        (
            wc_status::LOC_LEN_ERR | wc_status::REM_INV_REQ_ERR | wc_status::LOC_QP_OP_ERR,
            PostedKind::Receive,
        )
        | (wc_status::REM_INV_REQ_ERR | wc_status::REM_OP_ERR, PostedKind::Send) => OpStatus::TooLong,
        // Devices report an unaligned word either as an invalid request or as an access error.
        (wc_status::REM_INV_REQ_ERR, PostedKind::OneSided) | (wc_status::REM_ACCESS_ERR, _) => {
            OpStatus::RemoteAccess
        }
        (wc_status::LOC_PROT_ERR | wc_status::LOC_ACCESS_ERR, _) => OpStatus::LocalProtection,
        (wc_status::RETRY_EXC_ERR, _) => OpStatus::PeerDead,
        (wc_status::RNR_RETRY_EXC_ERR, _) => OpStatus::ReceiverNotReady,
        (other, _) => OpStatus::Other(other),
    }
}

/// [`OpStatus::Other`]: the device refused posted requests; the number of the system's error is added.
pub(crate) const NOT_POSTED: u32 = 1 << 16;
/// [`OpStatus::Other`]: an operation that this fabric does not support.
pub(crate) const UNSUPPORTED: u32 = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_request_status_depends_on_the_operation() {
        assert_eq!(completion_status(wc_status::REM_INV_REQ_ERR, PostedKind::Send), OpStatus::TooLong);
        assert_eq!(
            completion_status(wc_status::REM_INV_REQ_ERR, PostedKind::OneSided),
            OpStatus::RemoteAccess
        );
        assert_eq!(completion_status(wc_status::LOC_LEN_ERR, PostedKind::Receive), OpStatus::TooLong);
        assert_eq!(completion_status(wc_status::REM_OP_ERR, PostedKind::Send), OpStatus::TooLong);
        assert_eq!(
            completion_status(wc_status::REM_OP_ERR, PostedKind::OneSided),
            OpStatus::Other(wc_status::REM_OP_ERR)
        );
        assert_eq!(
            completion_status(wc_status::LOC_LEN_ERR, PostedKind::Send),
            OpStatus::Other(wc_status::LOC_LEN_ERR)
        );
        assert_eq!(completion_status(wc_status::RETRY_EXC_ERR, PostedKind::Send), OpStatus::PeerDead);
        assert_eq!(completion_status(wc_status::WR_FLUSH_ERR, PostedKind::OneSided), OpStatus::Flushed);
        assert_eq!(
            completion_status(wc_status::FATAL_ERR, PostedKind::OneSided),
            OpStatus::Other(wc_status::FATAL_ERR)
        );
    }
}
