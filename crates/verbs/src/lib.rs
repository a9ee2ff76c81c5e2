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
mod grant;
mod hca;
mod ladder;
mod library;
mod link;
mod listing;
mod pipelines;
mod poll;
mod qp;
mod queue;
mod rail;
mod reach;
mod receives;
mod register;
mod speed;
mod stage;
mod unheard;

pub use config::{BusOrdering, GidFamily, GidRange, PacketRouting, VerbsConfig, VerbsConfigError};
pub use error::VerbsUnavailable;
pub use fabric::VerbsFabric;
pub use hca::HcaFilter;
pub use library::VerbsLibrary;
pub use listing::device_names;
pub use rail::VerbsRail;
pub use unheard::ignored_variables;
