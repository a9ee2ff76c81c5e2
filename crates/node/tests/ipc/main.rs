//! Processes that share memory through nodes, over the device in a memory file. The test binary starts itself again for
//! each of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup step ends the test")]

mod budget;
mod death;
mod endure;
mod exchange;
mod hostile;
mod kind;
mod places;
mod process;
mod server;
mod steps;
mod words;
