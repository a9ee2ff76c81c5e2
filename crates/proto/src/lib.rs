//! Trunkline's protocol logic: pure state and wire formats.
//!
//! The engine drives it over a fabric, the simulator drives the same engine. Nothing here reads a clock, makes a
//! random number, allocates on a message's path or does I/O; time is an argument.
//!
//! - [`wire`]: bytes to meaning and back, as docs/wire.md says; a parsed value cannot be wrong.
//! - [`control`]: connect and accept, and the life of a control stream.
//! - [`link`]: the life of one link of a comm that has several.
//! - [`pool`]: which comms share queue pairs, and what they share of them.
//! - [`comm`]: what happens for each two-sided message, as plain functions.
//! - [`rma`]: one-sided communication: order, acknowledgements, completion, atomics.
//! - [`registrations`]: which registration of memory serves a request, and when it is closed.
//! - [`chooser`]: which way of copying is the fastest for messages of a size.
//! - [`ipc`]: which memory of devices other processes of the node have mapped, and until when.
//! - [`tagged`]: which receive a message inside a node is for, and how its bytes go.
//! - [`ranges`]: which bytes of a symmetric heap are taken.
//! - [`counters`]: what is counted.
//! - [`reserve`]: allocations that may fail.
//! - [`log_rate`]: how often a line is logged that a peer can cause.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod chooser;
pub mod comm;
pub mod control;
pub mod counters;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod id;
pub mod intervals;
pub mod ipc;
pub mod limits;
pub mod link;
pub mod log_rate;
pub mod nics;
pub mod pool;
mod queue;
pub mod ranges;
pub mod registrations;
pub mod reserve;
pub mod rma;
pub mod slots;
pub mod table_capacity;
pub mod tagged;
pub mod time;
pub mod wire;
