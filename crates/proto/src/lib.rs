//! Trunkline's protocol logic: pure state and wire formats.
//!
//! The engine drives it over a fabric, the simulator drives the same engine. Nothing here reads a clock, makes a
//! random number, allocates on a message's path or does I/O; time is an argument.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod id;
pub mod time;
