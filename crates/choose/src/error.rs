//! Why nothing can be chosen.

use std::io;

use trunkline_engine::ParamsError;
use trunkline_fabric::OpenError;
use trunkline_ofi::NoNic;
use trunkline_topo::ChoiceError;
use trunkline_verbs::{ConfigError, Missing};

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
    Soft(#[from] OpenError),
    /// The choice of RDMA devices has a bad value.
    #[error(transparent)]
    Verbs(#[from] ConfigError),
    /// There are no RDMA devices to be used.
    #[error("cannot use RDMA devices: {0}")]
    NoDevice(#[from] Missing),
    /// There is nothing to be used through libfabric.
    #[error("cannot use libfabric (TRUNKLINE_FABRIC=ofi): {0}")]
    NoOfi(#[from] NoNic),
}
