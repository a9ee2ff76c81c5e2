//! Tagged messages between two endpoints of one process, over the device in a memory file: every way that bytes can take, and what goes wrong on
//! each. Endpoints of several processes are in `crates/trunkline/tests`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

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
