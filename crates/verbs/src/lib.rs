//! Real RDMA devices: InfiniBand, RoCE and soft-RoCE, through rdma-core's libibverbs, which is opened at run time.
//!
//! A [`VerbsFabric`] lists ports that are usable; an open one is a [`VerbsRail`] with one completion queue, and each of
//! its links is one reliable queue pair. The engine drives it through the contract of `trunkline-fabric` and never sees this
//! crate. Nothing here decides who talks to whom.

mod caps;
mod config;
mod connect;
mod cq;
mod device;
mod error;
mod events;
mod fabric;
mod flusher;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gid;
mod gpudirect;
mod grant;
mod hca;
mod library;
mod link;
mod listing;
mod nccl_variables;
mod pipelines;
mod poll;
mod qp;
mod qp_state;
mod queue;
mod rail;
mod receives;
mod register;
mod speed;
mod stage;

pub use config::{BusOrdering, GidFamily, GidRange, PacketRouting, VerbsConfig, VerbsConfigError};
pub use error::VerbsUnavailable;
pub use fabric::VerbsFabric;
pub use hca::HcaFilter;
pub use library::VerbsLibrary;
pub use listing::device_names;
pub use nccl_variables::ignored_variables;
pub use rail::VerbsRail;
