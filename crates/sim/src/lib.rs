//! A deterministic simulator for Trunkline's engine: one seed, one run.
//!
//! [`SimWorld`] holds everything that processes share: a virtual clock, the network and the control streams.
//! [`SimFabric`] and [`SimHost`] are the engine's two windows on it. The network keeps exactly the promises of its
//! [`Caps`](trunkline_fabric::Caps) and breaks everything it does not promise: order, untorn records, room in
//! completion queues, peers that live.
//!
//! Called by tests and by `trunkline sim`. Starts no thread, reads no clock, and touches no memory but what was
//! registered with it.
#![forbid(unsafe_code)]

mod atomics;
mod checkers;
mod close_mode;
mod cluster;
mod comm_end;
#[cfg(test)]
mod conformance_tests;
mod connect;
mod cut;
mod denied;
mod early;
#[cfg(test)]
mod early_tests;
mod fabric;
#[cfg(test)]
mod fabric_tests;
mod host;
#[cfg(test)]
mod immediates_tests;
#[cfg(test)]
mod joiner_tests;
mod link;
#[cfg(test)]
mod links_tests;
#[cfg(test)]
mod liveness_tests;
#[cfg(test)]
mod matched_ride_tests;
#[cfg(test)]
mod member_memory_tests;
mod network_model;
mod oob;
#[cfg(test)]
mod oob_tests;
#[cfg(test)]
mod partial_tests;
mod pattern;
mod rail;
#[cfg(test)]
mod rails_tests;
mod receiver;
mod region_bytes;
mod register;
#[cfg(test)]
mod remains_tests;
#[cfg(test)]
mod ride_tests;
#[cfg(test)]
mod rma_order_tests;
#[cfg(test)]
mod rma_rails_tests;
#[cfg(test)]
mod rma_tests;
mod rng;
mod rogue_peer;
#[cfg(test)]
mod rules_tests;
mod scenario;
mod seed_run;
mod sender;
#[cfg(test)]
mod share_tests;
mod sharing;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod trace;
mod wire;
mod world;

pub use checkers::PropertyViolation;
pub use denied::DeniedResource;
pub use fabric::SimFabric;
pub use host::SimHost;
pub use network_model::NetworkModel;
pub use oob::{SimListener, SimOob, SimStream};
pub use rail::SimRail;
pub use register::SimRegistrar;
pub use rng::SimRng;
pub use seed_run::{SeedOptions, SeedOutcome, run_seed};
pub use sweep::{SweepSummary, run_sweep};
pub use trace::RunTrace;
pub use world::{HeldResources, ProcessNic, SimPid, SimWorld};
