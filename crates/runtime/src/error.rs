//! The errors of choosing a fabric, and of joining a job.

use std::io;

use trunkline_bootstrap::{EnvironmentError, ExchangeError, JoinError};
use trunkline_engine::rma::RmaError;
use trunkline_fabric::RailOpenError;
use trunkline_ofi::NoNic;
use trunkline_proto::wire::start_notice::StartNoticeError;
use trunkline_settings::SettingErrors;
use trunkline_topo::ChoiceError;
use trunkline_verbs::VerbsUnavailable;

use crate::SettingsFileError;

/// The reason why a front end cannot run over the fabric that the environment names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// Settings have invalid values.
    #[error(transparent)]
    Settings(#[from] SettingErrors),
    /// The configuration file cannot be used.
    #[error(transparent)]
    File(#[from] SettingsFileError),
    /// The choice of network interfaces matches none.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The network interfaces cannot be listed.
    #[error("cannot list the network interfaces")]
    Interfaces(#[source] io::Error),
    /// The software NIC could not be started.
    #[error("cannot start the fabric: {0}")]
    Soft(#[from] RailOpenError),
    /// No RDMA device can be used.
    #[error("cannot use RDMA devices: {0}")]
    NoDevice(#[from] VerbsUnavailable),
    /// Contradictory settings: shared memory for processes of this host, and no shared memory.
    #[error(
        "TRUNKLINE_NEAR=1 and TRUNKLINE_FABRIC=soft:tcp contradict each other; use soft, which connects processes of a \
         host by shared memory, and others by TCP"
    )]
    NearTcp,
    /// A NIC is required, and none is used.
    #[error(
        "TRUNKLINE_REQUIRE_NIC=1, and the software NIC would be used: {0}\n  (unset TRUNKLINE_REQUIRE_NIC to use the software NIC)"
    )]
    NoNic(String),
    /// No NIC can be used through libfabric.
    #[error("cannot use libfabric (TRUNKLINE_FABRIC=ofi): {0}")]
    NoOfi(#[from] NoNic),
}

impl ChooseError {
    /// Returns whether the cause is a value of a setting, or the configuration file, and not the state of the host.
    #[must_use]
    pub fn is_invalid_setting(&self) -> bool {
        matches!(self, Self::Settings(_) | Self::File(_) | Self::Choice(_) | Self::NearTcp)
    }
}

/// The reason why this process is not a member of a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The environment names an invalid fabric, interface or setting.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The fabric has no NIC with that number.
    #[error("NIC {0} is out of range; trunkline info lists the NICs")]
    NoNic(usize),
    /// The launcher's variables contradict each other.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The members did not meet.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A member ended while the members met.
    #[error("a rank ended while the ranks connected: {0}")]
    Exchange(#[from] ExchangeError),
    /// A rank has an invalid setting, and no rank starts. Rank 0 has logged the lines; other ranks print nothing about it.
    #[error("rank {rank} has an invalid setting, so no rank starts; see the line that rank 0 has printed")]
    Agreed {
        /// The first such rank.
        rank: usize,
        /// One line per invalid setting, with the ranks that have it.
        lines: Vec<String>,
    },
    /// The bytes of a rank are no start notice.
    #[error("rank {rank} runs another program or another version of this library: {source}")]
    Notice {
        /// The rank.
        rank: usize,
        /// The invalid field.
        source: StartNoticeError,
    },
    /// The bytes of a member are no card: it is not a rank of this program.
    #[error("rank {rank} does not run this program: it sent {bytes} bytes instead of a card")]
    Card {
        /// The member.
        rank: usize,
        /// Bytes that it sent.
        bytes: usize,
    },
    /// The engine cannot start.
    #[error("cannot start the engine: {0}")]
    Start(#[source] RmaError),
}
