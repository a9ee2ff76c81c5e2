//! Device queues executed over fabrics: `device/src`.

#![allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]

mod again;
mod closed;
mod counting;
mod death;
mod failures;
mod flushes;
mod groups;
mod hostile;
mod late;
mod lost;
mod many;
mod mortal;
mod moves;
mod orders;
mod pieces;
mod poisons;
mod posted;
mod processes;
mod ranks;
mod reached;
mod sleep;
