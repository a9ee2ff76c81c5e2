//! A software RDMA NIC with verbs semantics: regions with checked keys, reliable queue pairs, posted receives, remote
//! writes, reads and atomics, and a matched send. It needs no hardware, no privileges and no set-up.
//!
//! The engine uses it through [`trunkline_fabric`]'s traits; [`SoftFabric`] is where it begins. One law holds
//! everywhere: only its owner writes an address space. A remote operation is a record in a shared ring, and the target
//! executes it in its own `poll`, after looking its key up in its own table. This crate knows nothing of messages,
//! peers' names or control streams, and starts no thread.

mod caps;
mod config;
mod connect;
mod copy;
mod cost;
mod error;
mod fabric;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod hold;
mod job;
mod ladder;
mod matched;
mod nic;
mod poll;
mod pull;
mod qp;
mod queue;
mod rail;
mod receive;
mod record;
mod register;
mod ring;
mod segment;
mod send;

pub use config::{CopyMode, SoftConfig, WireMode};
pub use fabric::SoftFabric;
pub use rail::SoftRail;
