//! Memory and messages between the processes of a node: buffers that a process shares with its neighbours, and tagged messages over them.
//!
//! Called by the Rust API, and by the command, which reads [pages](read_node) of other processes. It uses no network and no engine.
//!
//! - [`ipc`]: memory of devices that this process shares with others of its node.
//! - [`tagged`]: tagged messages, which share long buffers and copy short ones.
//! - [`NodePage`]: what an endpoint shares, shown to other processes.
#![forbid(unsafe_code)]

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod ipc;
mod page;
pub mod tagged;

pub use page::{NodePage, NodePageError, read_node};
