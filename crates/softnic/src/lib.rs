//! A software RDMA NIC with verbs semantics: regions with checked keys, reliable queue pairs, posted receives, remote
//! writes, reads and atomics, a matched send, and links that wait for completion queues. It needs no hardware, no
//! privileges and no set-up.
//!
//! The engine uses it through [`trunkline_fabric`]'s traits; [`SoftFabric`] is where it begins. One law holds
//! everywhere: nobody writes an address space but its owner and those whom it lets. A remote operation is a record in a
//! shared ring, and the target executes it in its own `poll`, after looking its key up in its own table; for some it lets
//! the initiator push a part of the bytes. This crate knows nothing of messages, peers' names or control streams, and
//! starts no thread.

mod caps;
mod config;
mod connect;
mod copy_claim;
mod cq;
mod direct;
mod error;
mod fabric;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod hold;
mod job;
mod matched;
mod method;
mod nic;
mod own_links;
mod peer_memory;
mod pin_registry;
mod poll;
mod process;
mod qp;
mod qp_state;
mod queue;
mod rail;
mod receive;
mod receive_queue;
mod record;
mod register;
mod ring;
mod segment;
mod send;
mod tcp;

pub use config::{CopyMode, SoftConfig, WireMode};
pub use fabric::SoftFabric;
pub use rail::SoftRail;
