//! Why there is no NIC, what a work completion's status means, and the planted bugs.

use trunkline_fabric::Status;
use trunkline_sys::verbs::wc_status;

/// There is nothing that this fabric could use, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// rdma-core is not installed.
    #[error("libibverbs.so.1 cannot be opened ({0}); Debian: packages libibverbs1 and ibverbs-providers")]
    Library(String),
    /// rdma-core is too old.
    #[error("libibverbs.so.1 has no {symbol} of version {version}; it is older than what is supported")]
    Symbol {
        /// The function.
        symbol: String,
        /// The version of its symbol.
        version: String,
    },
    /// Users do not want it.
    #[error("RDMA devices are switched off: NCCL_IB_DISABLE is 1")]
    Disabled,
    /// The kernel has no device.
    #[error("there is no RDMA device")]
    Devices,
    /// There are devices, and none has a usable port.
    #[error("no RDMA device has a usable port: {0}")]
    Ports(String),
}

/// What was posted, as far as the meaning of an error depends on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum What {
    /// A send, which has to fit its receive.
    Send,
    /// A read, write or atomic.
    OneSided,
    /// A receive.
    Receive,
}

/// The contract's word for the status of a work completion that is not success.
pub(crate) fn status(code: u32, what: What) -> Status {
    match (code, what) {
        (wc_status::WR_FLUSH_ERR, _) => Status::Flushed,
        // Soft-RoCE gives a receive what it tells the sender, and from the second packet on calls it an operation that
        // the receiver cannot do.
        (wc_status::LOC_LEN_ERR | wc_status::REM_INV_REQ_ERR | wc_status::LOC_QP_OP_ERR, What::Receive)
        | (wc_status::REM_INV_REQ_ERR | wc_status::REM_OP_ERR, What::Send) => Status::TooLong,
        // A word that is not aligned is an invalid request to some, and an access error to others.
        (wc_status::REM_INV_REQ_ERR, What::OneSided) | (wc_status::REM_ACCESS_ERR, _) => Status::RemoteAccess,
        (wc_status::LOC_PROT_ERR | wc_status::LOC_ACCESS_ERR, _) => Status::LocalProtection,
        (wc_status::RETRY_EXC_ERR, _) => Status::PeerDead,
        (wc_status::RNR_RETRY_EXC_ERR, _) => Status::ReceiverNotReady,
        (other, _) => Status::Other(other),
    }
}

/// [`Status::Other`]: the device took less than what was posted; the number of the system's error is added.
pub(crate) const NOT_POSTED: u32 = 1 << 16;
/// [`Status::Other`]: an operation that this fabric does not have.
pub(crate) const UNSUPPORTED: u32 = 1 << 17;

/// A planted bug. Without the feature `mutants` it is never on, and costs nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planted(bool);

impl Planted {
    /// The bug with a name; asked for when things are made.
    pub(crate) fn named(name: &str) -> Self {
        Self(cfg!(feature = "mutants") && std::env::var("TRUNKLINE_MUTANT").is_ok_and(|on| on == name))
    }

    /// Whether it is switched on.
    #[inline(always)]
    pub(crate) fn is_on(self) -> bool {
        cfg!(feature = "mutants") && self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_decides_what_an_invalid_request_is() {
        assert_eq!(status(wc_status::REM_INV_REQ_ERR, What::Send), Status::TooLong);
        assert_eq!(status(wc_status::REM_INV_REQ_ERR, What::OneSided), Status::RemoteAccess);
        assert_eq!(status(wc_status::LOC_LEN_ERR, What::Receive), Status::TooLong);
        assert_eq!(status(wc_status::REM_OP_ERR, What::Send), Status::TooLong);
        assert_eq!(status(wc_status::REM_OP_ERR, What::OneSided), Status::Other(wc_status::REM_OP_ERR));
        assert_eq!(status(wc_status::LOC_LEN_ERR, What::Send), Status::Other(wc_status::LOC_LEN_ERR));
        assert_eq!(status(wc_status::RETRY_EXC_ERR, What::Send), Status::PeerDead);
        assert_eq!(status(wc_status::WR_FLUSH_ERR, What::OneSided), Status::Flushed);
        assert_eq!(status(wc_status::FATAL_ERR, What::OneSided), Status::Other(wc_status::FATAL_ERR));
    }
}
