//! Device queues executed over fabrics: `engine/src/device.rs` and what is below it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod counting;
mod death;
mod failures;
mod hostile;
mod late;
mod many;
mod moves;
mod ranks;
mod sleep;
