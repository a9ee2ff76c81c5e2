//! The API between real processes: each test starts this program again as the ranks of a job. It runs over each wire of
//! the software NIC and, if libfabric is installed, over its provider for TCP and the enforcing one, with one NIC and
//! several.

#![allow(clippy::unwrap_used, reason = "a panic ends the test")]

mod atomics;
mod back;
mod death;
mod devices;
mod gpu_ends;
mod gpu_reached;
mod gpu_windows;
mod gpus;
mod guests;
mod headers;
mod kept;
mod kernel_runs;
mod messages;
mod moving;
mod nvidia;
mod over;
mod passive;
mod ranks;
mod stand_in;
mod together;
mod windows;
