//! Tagged messages between two endpoints of one process, over the device in a memory file: every way to transfer the
//! bytes, and the failures of each. `crates/trunkline/tests` has endpoints in several processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup step ends the test")]

mod ahead;
mod driver;
mod hostile;
#[path = "../ipc/kind.rs"]
mod kind;
mod lend;
mod limits;
mod mapping;
mod matching;
mod methods;
mod pinning;
mod private;
mod quiet;
mod rows;
mod short;
mod two;
mod unexporting;
mod ways;
