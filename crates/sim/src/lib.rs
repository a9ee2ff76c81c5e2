//! A deterministic simulator for Trunkline's engine: one seed, one run.
//!
//! [`SimWorld`] holds everything that processes share: a virtual clock, the network and the control streams. [`SimFabric`] and [`SimHost`] are the engine's
//! two views of it. The network keeps exactly the promises of its [`Caps`](trunkline_fabric::Caps) and breaks everything that they do not promise: order,
//! untorn records, room in completion queues, peers that live.
//!
//! Called by tests and by `trunkline sim`. Starts no thread, except that a sweep runs seeds on several, reads no clock, and touches only memory that was
//! registered with it.
//!
//! # Files, in reading order
//!
//! - `seed_run.rs`, `sweep.rs`: one seed; many. `network_model.rs`, `scenario.rs`, `sharing.rs`: a run, drawn from the seed.
//! - `cluster.rs`, `comm_end.rs`, `sender.rs`, `receiver.rs`: processes, and the ends of connections as an application drives them. `checkers/`: bytes, order,
//!   exactly-once, leaks, and errors within their time. `rogue_peer.rs`: unauthenticated peers.
//! - `world.rs`, `wire.rs`, `link.rs`, `rail.rs`, `register.rs`, `oob.rs`, `host.rs`: the network. `cut.rs`, `early.rs`, `denied.rs`: faults.
//! - `*_tests.rs`: rules that a random run meets too seldom, such as `rules_tests.rs`. Half of all seeds run networks whose immediates take receives.
//!
//! # One seed
//!
//! 1. [`run_seed`] draws a network model and a scenario from the seed, and starts the cluster.
//! 2. `cluster.rs` lets one process make one call at a time, in an order from the seed. The engine's own loop runs, and time advances only between calls.
//! 3. `wire.rs` executes operations when they arrive; the checkers examine each result, and stop the run at the first violation.
//! 4. `trunkline sim --seed N` replays it with a trace.
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
