//! The testbed itself: hosts, cables, and the properties that tests rely on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod cables;
mod hosts;
mod lines;
mod traffic;
mod worlds;
