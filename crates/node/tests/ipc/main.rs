//! Processes of a node that share memory, over the device in a memory file: the test binary runs itself again as each of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

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
