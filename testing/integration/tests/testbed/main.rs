//! The testbed itself: hosts, cables, and the properties that tests rely on.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue must stop")]

mod cables;
mod hosts;
mod lines;
mod traffic;
mod worlds;
