//! Why nothing can be chosen, or a job not be joined.

use std::io;

use trunkline_bootstrap::{EnvironmentError, ExchangeError, JoinError};
use trunkline_engine::ParamsError;
use trunkline_engine::rma::RmaError;
use trunkline_fabric::RailOpenError;
use trunkline_ofi::NoNic;
use trunkline_topo::ChoiceError;
use trunkline_verbs::{VerbsConfigError, VerbsUnavailable};

/// A front end cannot run over what the environment names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// A parameter has a bad value.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// The choice of network interfaces has a bad value, or fits none.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The network interfaces cannot be listed.
    #[error("cannot list the network interfaces")]
    Interfaces(#[source] io::Error),
    /// The software NIC could not be started.
    #[error("cannot start the fabric: {0}")]
    Soft(#[from] RailOpenError),
    /// The choice of RDMA devices has a bad value.
    #[error(transparent)]
    Verbs(#[from] VerbsConfigError),
    /// There are no RDMA devices to be used.
    #[error("cannot use RDMA devices: {0}")]
    NoDevice(#[from] VerbsUnavailable),
    /// Neighbours by shared memory, and by no shared memory.
    #[error(
        "TRUNKLINE_NEAR=1 and TRUNKLINE_FABRIC=soft:tcp contradict each other: soft connects processes of a host by shared memory, others by TCP"
    )]
    NearTcp,
    /// A NIC is required, and none is used.
    #[error(
        "TRUNKLINE_REQUIRE_NIC=1, and the software NIC would be used: {0}\n  (unset TRUNKLINE_REQUIRE_NIC to use the software NIC)"
    )]
    NoNic(String),
    /// There is nothing to be used through libfabric.
    #[error("cannot use libfabric (TRUNKLINE_FABRIC=ofi): {0}")]
    NoOfi(#[from] NoNic),
}

/// This process is no member of a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The environment names a fabric, an interface or a setting that cannot be.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The fabric has no NIC of that number.
    #[error("the fabric has no NIC {0}; trunkline info lists those there are")]
    NoNic(usize),
    /// The launcher's variables contradict each other.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The members did not meet.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A member left while they met.
    #[error("while the ranks met: {0}")]
    Exchange(#[from] ExchangeError),
    /// What the launcher handed round is no card of a member.
    #[error("rank {rank} is not a rank of this program: it gave {bytes} bytes instead of a card")]
    Card {
        /// Which member.
        rank: usize,
        /// Bytes that it gave.
        bytes: usize,
    },
    /// The engine cannot start.
    #[error("cannot start: {0}")]
    Start(#[source] RmaError),
}
